"""Start here: FedSDD's Algorithm 1 (arXiv:2312.17029v1), one number at a time.

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
from reference.linear import average, cross_entropy_slope, kl_slope, logits, sgd, train


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
