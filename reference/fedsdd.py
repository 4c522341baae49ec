"""Start here: FedSDD's Algorithm 1 (arXiv:2312.17029v1), one number at a time.

    python -m reference.fedsdd     prints a round, from the numbers below, which you may change

algorithms/fedsdd.py computes the same with tensors; the tests compare it with this page. Images x,
logits z and networks w are lists of numbers, as linear.py describes them. The paper numbers its
equations, but not the lines of Algorithm 1. Here they are numbered so:
    1  make K global models                    6        LocalTraining on the client's own data
    2  for each round t                        7      average the models of the group
    3    for each k of the K groups            8    for each k of the K global models
    4      for each client of group k          9      k = 0: Distillation from the ensemble
    5        the client starts from model k   10      other k: keep the average

Differs from the printed algorithm:
- Eq. (4) is printed KL(student || ensemble). Here it is Hinton's KL(ensemble || student), times
  temperature². The paper has the temperature in section 4.1 only, not in its equations.
- Eq. (4) is an argmin. Here it is SGD, on the batches that the caller gives.
- In the first rounds fewer than R rounds are in the ensemble; Eq. (5) is the mean of those.
- The caller says who is in which group. In the paper this is random, dealt anew in each round.
- The caller makes the K models of line 1. As in the paper they start from different weights.
"""
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))           # for python reference/fedsdd.py
from reference.by_hand import fit, heads, images, network, samples, say, show, table, text_of_kl
from reference.linear import (average, cross_entropy_slope, kl, kl_slope, logits, sgd, softmax,
                              train)

# The round that is printed: four images, two classes, three clients, two global models. A model is
# a table: row n has its logits of image n (by_hand.py).
LN3 = math.log(3)                                # logits (LN3, 0): probabilities (0.75, 0.25)
MODELS = [[[0, 0], [0, 0], [0, 0], [0, 0]],      # the global models; the first is the main one
          [[LN3, 0], [0, 0], [0, LN3], [0, 0]]]
PRIVATE = [[(0, 0), (2, 1)], [(1, 0)], [(3, 1)]]    # of each client: [(image, its label)]
GROUPS = [[0, 2], [1]]                           # the clients of each model; K = 2
LR = 2 * LN3                                     # a client takes one step on all its images
SERVER_LR = 4.0                                  # the server one step on all images
TEMPERATURE = 2.0                                # divides logits in Eq. (4)
ROUNDS = 1
R = 1                                            # change ROUNDS and R to 2 for Eq. (5)


def fedavg_group(t, k, w, group, *, private, batches, lr):
    """The average of the group's clients in round t; each has trained the global model w.

    k                not used by FedAvg: a method that remembers something of each model needs it
    private[i]       the samples of client i: a list of (x, label)
    batches(t, i)    the batches of its training: lists of positions in its samples
    lr               the learning rate of the clients
    """
    trained = []
    for i in group:                                                          # line 4
        images, labels = zip(*private[i])
        # The loss of a sample: CE = -ln softmax(z)[label]
        trained.append(train(w, images, batches(t, i),                       # line 5, 6, Eq. (1)
                             lambda n, z: cross_entropy_slope(z, labels[n]), sgd(lr)))
    return average(trained, [len(private[i]) for i in group])                # line 7, Eq. (2)


def run(global_models, public, *, rounds, R, groups, train_group, batches, server_lr, temperature):
    """Yields (the global models, the averaged models, the teacher's logits) after each round.

    global_models                  line 1: K networks; global_models[0] is the main one
    public                         images x, without labels
    rounds                         their number; the paper's T
    R                              rounds whose averaged models are in the ensemble
    groups(t)                      round t's K lists of clients
    train_group(t, k, w, group)    `fedavg_group`, or the same for another local method
    batches(t)                     the batches of distillation: lists of positions in public
    server_lr                      the learning rate of distillation
    temperature                    divides all logits in the loss of distillation; 4 in the paper
    """
    past = []                                      # the averaged models of each round so far
    for t in range(1, rounds + 1):                                           # line 2
        # Each group of clients trains its own global model.
        averaged = [train_group(t, k, global_models[k], group)               # line 3-7
                    for k, group in enumerate(groups(t))]
        # The teacher is the mean of the logits of all K models of the last R rounds.
        past.append(averaged)
        members = [w for models in past[-R:] for w in models]
        member_logits = [[logits(w, x) for x in public] for w in members]
        teacher = average(member_logits, [1] * len(members))                 # Eq. (3), (5)
        # Only the main model learns from it, so that the others stay different from each other.
        # Loss of x: temperature² KL(softmax(teacher / temperature) || softmax(z / temperature))
        main = train(averaged[0], public, batches(t),                        # line 8, 9, Eq. (4)
                     lambda n, z: kl_slope(z, teacher[n], temperature), sgd(server_lr))
        global_models = [main, *averaged[1:]]                                # line 10
        yield global_models, averaged, teacher


# --------------------------------------------------------------------------------------------------
# A round by hand

def by_hand():
    """Prints ROUNDS rounds, from the numbers at the top."""
    N, C, K = len(MODELS[0]), len(MODELS[0][0]), len(MODELS)
    models = [network(f"MODELS[{k}]", rows, N, C) for k, rows in enumerate(MODELS)]
    private = [samples(f"PRIVATE[{i}]", own, N, C) for i, own in enumerate(PRIVATE)]
    fit(len(GROUPS) == K and all(group and {*group} <= {*range(len(PRIVATE))} for group in GROUPS),
        f"GROUPS needs a group of the clients 0 to {len(PRIVATE) - 1} for each of {K} models")
    fit(R >= 1 and TEMPERATURE > 0, "R needs 1 or more, TEMPERATURE a number above 0")

    def train_group(t, k, w, group):
        return fedavg_group(t, k, w, group, private=private, lr=LR,
                            batches=lambda t, i: [range(len(private[i]))])

    print("FedSDD by hand. Row n of a model has its logits of image n.")
    members = []
    rounds = run(models, images(N), rounds=ROUNDS, R=R, groups=lambda t: GROUPS,
                 train_group=train_group, batches=lambda t: [range(N)], server_lr=SERVER_LR,
                 temperature=TEMPERATURE)
    for t, (after, averaged, teacher) in enumerate(rounds, start=1):
        say(f"Round {t}", "starts with the global models:")
        heads(range(N), C)
        for k in range(K):
            show(f"model {k}", table(models[k]))

        say("Eq. (1)", "a client copies its group's model and takes a step on its B images:\n"
            f"  row + lr / B (label - softmax(row)), lr = {LR:.4f}; label: 1 there, 0 elsewhere")
        for k, group in enumerate(GROUPS):
            for i in group:
                w_i = train_group(t, k, models[k], [i])          # of a group of one: its own model
                show(f"client {i}, model {k}, B = {len(private[i])}", table(w_i))

        say("Eq. (2)", "w_k: the mean of the group, by numbers of images")
        for k, group in enumerate(GROUPS):
            sizes = [len(private[i]) for i in group]
            parts = " + ".join(f"{n}/{sum(sizes)} client {i}" for n, i in zip(sizes, group))
            show(f"w_{k} of round {t}", table(averaged[k]))
            print(f"{'':14}= {parts}")

        members = [*members, *(f"w_{k} of round {t}" for k in range(K))][-K * R:]
        say("Eq. (3), (5)", f"teacher = 1/{len(members)} ({' + '.join(members)})")
        show("teacher's logits", teacher)

        say("Eq. (4)", "p = softmax(teacher / T), q = softmax(w_0 / T), "
            f"temperature T = {TEMPERATURE:g}")
        z = table(averaged[0])
        for name, rows in (("p", teacher), ("q", z)):
            show(name, [softmax([v / TEMPERATURE for v in row]) for row in rows])
        say("Eq. (4)", "the loss of an image: T² times the sum of p ln (p / q)")
        for n in range(N):
            print(f"  image {n:<8}{text_of_kl(teacher[n], z[n], TEMPERATURE)} "
                  f"= {kl(teacher[n], z[n], TEMPERATURE):.4f}")

        say("Step", f"row + lr T / N (p - q), lr = {SERVER_LR:g}, T = {TEMPERATURE:g}, N = {N}, "
            "moves model 0 alone:")
        models = after
        for k in range(K):
            show(f"model {k} after the round", table(models[k]))


if __name__ == "__main__":
    by_hand()
