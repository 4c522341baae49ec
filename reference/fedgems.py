"""Start here: FedGEMS's Algorithm 1 (arXiv:2110.11027), one sample at a time.

algorithms/fedgems.py computes the same with tensors; the tests hold it to this page. On the right
stand the paper's lines and equations. Local training comes first, as in the paper's section 3.2.
Images x, logits z and networks are lists of numbers, as linear.py describes them.
"""
import math

from reference.linear import (average, cross_entropy_slope, gradient, kl_slope, logits, predicted,
                              softmax, train)


def entropy(z):
    return -sum(p * math.log(p) for p in softmax(z))                         # Eq. (3)


def fuse(client_logits, label):
    """({client that is right: its weight}, the weighted mean of their logits) of one sample."""
    right = [k for k, z in enumerate(client_logits) if predicted(z) == label]
    if not right:
        return {}, None
    weights = softmax([1 / entropy(client_logits[k]) for k in right])        # Eq. (4)
    fused = average([client_logits[k] for k in right], weights)              # Eq. (5)
    return dict(zip(right, weights)), fused


def loss_slope(z, label, teacher, epsilon):
    """The derivative of a sample's loss by its logits z; the teacher's logits may be None."""
    ce = cross_entropy_slope(z, label)                                       # Eq. (1)
    return ce if teacher is None else average(
        [ce, kl_slope(z, teacher)], [epsilon, 1 - epsilon])                  # Eq. (2), (5), (6)


def who_teaches(right, in_pool):
    """Of a public sample: is the server right now, and was it right before?"""
    if right:                                                                # line 5
        return "self_training"
    if in_pool:                                                              # line 8
        return "self_distillation"
    return "clients"                                                         # line 10


def run(clients, server, private, public, *, rounds, batches, updates, server_update, epsilon,
        augment=lambda x: x, who_teaches=who_teaches):
    """Yields (server, clients, clients before distillation, pool, cases, weights) after each round.

    private[k], public        lists of (x, label): of client k, and of everyone
    batches(purpose, t, k)    the batches of a training, lists of positions; the server has no k
    updates[k](w, gradient)   the optimizer of client k, for example linear.sgd(lr)
    """
    pool, views = {}, [augment(x) for x, _ in public]                        # L_Global
    for t in range(1, rounds + 1):                                           # line 2
        # Each client learns from the labels of its own samples.
        trained = [train(w, [augment(x) for x, _ in private[k]], batches("local", t, k),
                         lambda n, z: loss_slope(z, private[k][n][1], None, epsilon),
                         updates[k]) for k, w in enumerate(clients)]         # line 24-27
        cases, weights = {}, {}

        # The server learns a public sample alone, from its own past logits, or from the clients.
        def server_slope(n, z):
            x, label = public[n]
            z_now = logits(server, x)
            right, teacher = predicted(z_now) == label, None                 # line 5-6
            cases[n] = who_teaches(right, n in pool)
            if cases[n] == "self_distillation":
                teacher = pool[n]                                            # line 9
            if cases[n] == "clients":
                weights[n], teacher = fuse([logits(w, x) for w in trained], label)   # line 11-12
            if right:
                pool[n] = z_now                                              # line 7
            return loss_slope(z, label, teacher, epsilon)

        for rows in batches("server", t):                                    # line 4
            server = server_update(server, gradient(server, views, rows, server_slope))  # line 14
        # Each client learns from the labels and from the server's logits of all public samples.
        server_logits = [logits(server, x) for x, _ in public]               # line 15
        clients = [train(w, views, batches("public", t, k),                  # line 17-23
                         lambda n, z: loss_slope(z, public[n][1], server_logits[n], epsilon),
                         updates[k]) for k, w in enumerate(trained)]
        yield server, clients, trained, pool, cases, weights
