"""Start here: FedMD's Algorithm 1 (arXiv:1910.03581), one sample at a time.

    python -m reference.fedmd     prints a round, from the numbers below, which you may change

algorithms/fedmd.py computes the same with tensors; the tests compare it with this page. The paper
does not number its steps; the numbers on the right are those of algorithms/fedmd.py. Images x,
logits z and networks are lists of numbers, as linear.py describes them.

Differs from the printed algorithm:
- Step 0 is not here: each client trains until convergence on the labeled public samples, then on
  its own, both times with cross-entropy and the penalty below.
- Step 4 is towards the consensus of raw logits, by the mean absolute error; the text has no loss.
- All losses have a penalty on the last layer's weights, as the authors' code has.
"""
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))           # for python reference/fedmd.py
from reference.by_hand import fit, heads, images, network, samples, say, show, table, text_of_ce
from reference.linear import (added, average, cross_entropy, cross_entropy_slope, gradient, logits,
                              scaled, sgd)

# The round that is printed: four images, two classes, three clients. A client's network is a table:
# row n has its logits of image n (by_hand.py).
LN3 = math.log(3)                                # logits (LN3, 0): probabilities (0.75, 0.25)
CLIENTS = [[[LN3, 0], [0, 0], [LN3, 0], [0, LN3]],
           [[0, LN3], [LN3, 0], [2 * LN3, 0], [0, 0]],
           [[0, 0], [0, LN3], [LN3, 0], [0, 2 * LN3]]]
PRIVATE = [[(1, 0)], [(3, 1)], [(0, 0), (2, 1)]]    # of each client: [(image, its label)]
SUBSET = [0, 1, 2]                               # the public images that the server draws
WEIGHTS = [1, 1, 1]                              # c_k, up to a factor
LR = 2 * LN3                                     # a client takes one step on the images of SUBSET,
#                                                  and one on its own
KERNEL_L2 = 0.0                                  # the authors' code: 0.001; the paper has none
ROUNDS = 1


def digest_slope(z, consensus):
    """The derivative by z of the mean over the classes of |z - consensus|: a sign over C."""
    return [((a > b) - (a < b)) / len(z) for a, b in zip(z, consensus)]


def learn(network, images, batches, slope, update, kernel_l2):
    """The network after a step on each batch, by the mean of the samples' losses and
    kernel_l2 times the sum of the squared weights of the last layer."""
    for rows in batches:
        g = gradient(network, images, rows, slope)
        g[-2] = added(g[-2], scaled(2 * kernel_l2, network[-2]))
        network = update(network, g)
    return network


def run(clients, public, private, *, subsets, batches, updates, weights, kernel_l2):
    """Yields (the clients after the digest, the clients after the revisit) of each round.

    clients               the networks after step 0, one for each client
    public, private[k]    the public images; of client k lists of (x, label)
    subsets               for each round the positions of its public images
    batches(step, t, k)   positions; for step "digest" in the subset, for "revisit" in private[k]
    updates[step][k]      its optimizer, update(w, gradient) -> w, for example linear.sgd(lr)
    weights               c_k, one for each client
    kernel_l2             weight of the penalty
    """
    for t, rows in enumerate(subsets, start=1):
        subset = [public[n] for n in rows]                                   # step 1
        sent = [[logits(w, x) for x in subset] for w in clients]             # step 2
        consensus = average(sent, weights)                                   # step 3
        digested = [learn(w, subset, batches("digest", t, k),                # step 4
                          lambda n, z: digest_slope(z, consensus[n]), updates["digest"][k],
                          kernel_l2) for k, w in enumerate(clients)]
        clients = [learn(w, [x for x, _ in private[k]], batches("revisit", t, k),  # step 5
                         lambda n, z: cross_entropy_slope(z, private[k][n][1]),
                         updates["revisit"][k], kernel_l2) for k, w in enumerate(digested)]
        yield digested, clients


# --------------------------------------------------------------------------------------------------
# A round by hand

def by_hand():
    """Prints ROUNDS rounds, from the numbers at the top."""
    N, C, M = len(CLIENTS[0]), len(CLIENTS[0][0]), len(CLIENTS)
    clients = [network(f"CLIENTS[{k}]", rows, N, C) for k, rows in enumerate(CLIENTS)]
    private = [samples(f"PRIVATE[{k}]", own, N, C) for k, own in enumerate(PRIVATE)]
    fit(len(PRIVATE) == len(WEIGHTS) == M and min(WEIGHTS) >= 0 < sum(WEIGHTS),
        f"PRIVATE and WEIGHTS need an entry for each of {M} clients, and WEIGHTS one above 0")
    fit(SUBSET and {*SUBSET} <= {*range(N)}, f"SUBSET needs images, 0 to {N - 1}")

    n = len(SUBSET)
    penalty = f" - 2 lr {KERNEL_L2:g} row" if KERNEL_L2 else ""
    print("FedMD by hand. Row n of a client has its logits of image n.")
    rounds = run(clients, images(N), private, subsets=[SUBSET] * ROUNDS,
                 batches=lambda step, t, k: [range(n if step == "digest" else len(private[k]))],
                 updates={"digest": [sgd(LR)] * M, "revisit": [sgd(LR)] * M},
                 weights=WEIGHTS, kernel_l2=KERNEL_L2)
    for t, (digested, revisited) in enumerate(rounds, start=1):
        say(f"Round {t}", "starts with the clients:")
        heads(range(N), C)
        for k in range(M):
            show(f"client {k}", table(clients[k]))

        say("Step 1, 2", "each client sends f_k, its logits of the images that the server draws:")
        heads(SUBSET, C)
        sent = [[table(w)[n] for n in SUBSET] for w in clients]
        for k in range(M):
            show(f"f_{k}", sent[k])

        shares = " + ".join(f"{c / sum(WEIGHTS):.4f} f_{k}" for k, c in enumerate(WEIGHTS))
        say("Step 3", f"f~ = sum of c_k f_k = {shares}")
        consensus = average(sent, WEIGHTS)
        show("f~", consensus)

        say("Step 4", f"digest: the mean of |f_k - f~|; n = {n} images, C = {C} classes")
        for k in range(M):
            gaps = [abs(a - b) for z, f in zip(sent[k], consensus) for a, b in zip(z, f)]
            text = " + ".join(f"{gap:.4f}" for gap in gaps)
            print(f"  client {k}      ({text}) / {n * C} = {sum(gaps) / (n * C):.4f}")
        print(f"  a step: logit + lr / (n C) sign(f~ - f_k){penalty}, lr = {LR:.4f}")
        heads(range(N), C)
        for k in range(M):
            show(f"client {k} after the digest", table(digested[k]))

        say("Step 5", "revisit: the loss is the mean of CE over the client's B own images")
        for k, own in enumerate(PRIVATE):
            pairs = [(table(digested[k])[image], label) for image, label in own]
            text = " ".join(text_of_ce(*pair) for pair in pairs)
            loss = sum(cross_entropy(*pair) for pair in pairs) / len(pairs)
            print(f"  client {k}      ({text}) / {len(pairs)} = {loss:.4f}")
        print(f"  a step: row + lr / B (label - softmax(row)){penalty}, lr = {LR:.4f}; "
              "label: 1 there, 0 elsewhere")
        clients = revisited
        for k in range(M):
            show(f"client {k} after the revisit", table(clients[k]))


if __name__ == "__main__":
    by_hand()
