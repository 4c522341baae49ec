"""Start here: FedSDD's Algorithm 1 (arXiv:2312.17029v1), one number at a time.

algorithms/fedsdd.py computes the same with tensors; the tests hold it to this page. On the right
stand the paper's equations, and the lines as the docstring of fedsdd.py numbers them.
Images x, logits z and networks w are lists of numbers, as linear.py describes them.
"""
from reference.linear import average, cross_entropy_slope, kl_slope, logits, sgd, train


def fedavg_group(t, k, w, group, *, private, batches, lr):
    """The average of the group's clients, each of which has trained the global model w.

    private[i]       the samples of client i: a list of (x, label)
    batches(t, i)    the batches of its training: lists of positions in its samples
    """
    trained = [train(w, [x for x, _ in private[i]], batches(t, i),           # line 4-5, Eq. (1)
                     lambda n, z: cross_entropy_slope(z, private[i][n][1]),
                     sgd(lr)) for i in group]                                # line 6
    return average(trained, [len(private[i]) for i in group])                # line 7, Eq. (2)


def run(global_models, public, *, rounds, R, groups, train_group, batches, server_lr, T):
    """Yields (the global models, the averaged models, the teacher's logits) after each round.

    global_models                  K networks; global_models[0] is the main one
    public                         images x, without labels
    groups(t)                      round t's K lists of clients
    train_group(t, k, w, group)    `fedavg_group`, or the same for another local method
    batches(t)                     the batches of distillation: lists of positions in public
    """
    past = []                                                                # line 1
    for t in range(1, rounds + 1):                                           # line 2
        # Each group of clients trains its own global model.
        averaged = [train_group(t, k, global_models[k], group)               # line 3
                    for k, group in enumerate(groups(t))]
        # The teacher is the mean of the logits of all K models of the last R rounds.
        past.append(averaged)
        members = [w for models in past[-R:] for w in models]                # line 9: w_{t-r,k}
        member_logits = [[logits(w, x) for x in public] for w in members]
        teacher = average(member_logits, [1] * len(members))                 # Eq. (3), (5)
        # Only the main model learns from it, so that the others stay different from each other.
        main = train(averaged[0], public, batches(t),                        # line 9
                     lambda n, z: kl_slope(z, teacher[n], T), sgd(server_lr))    # Eq. (4)
        global_models = [main, *averaged[1:]]                                # line 8, 10
        yield global_models, averaged, teacher
