"""Start here: FedGEMS's Algorithm 1 (arXiv:2110.11027), one sample at a time.

algorithms/fedgems.py computes the same with tensors; the tests compare the two. On the right: lines
and equations of the paper. Images x, logits z and networks are lists of numbers, see linear.py.

Differs from the printed algorithm:
- Local training comes first, as in section 3.2; in Algorithm 1 (line 18-27) and 3.4 it is last.
- Line 4-14 take single samples, here batches: all samples of a batch are checked before its step.
- Line 7 stores the server's logits of the round before; here those that were checked in line 5.
- Line 15 stores the server's logits inside the loop; here they are computed once, after it.
- Eq. (3) is printed as a sum over samples; here it is over the classes, and at least 1e-6.
- Eq. (4)'s softmax runs over the reliable clients only. If no client is right: CE alone.
"""
import math

from reference.linear import (average, cross_entropy_slope, gradient, kl_slope, logits, predicted,
                              softmax, train)


def entropy(z):
    """H = - sum over the classes of p ln p, with p = softmax(z); 0 ln 0 counts as 0."""
    return -sum(p * math.log(p) for p in softmax(z) if p > 0)                # Eq. (3)


def fuse(client_logits, label):
    """Of one sample: {client that is right: its weight}, and the sum of logits in Eq. (5)."""
    right = [k for k, z in enumerate(client_logits) if predicted(z) == label]
    if not right:
        return {}, None
    weights = softmax([1 / max(entropy(client_logits[k]), 1e-6) for k in right])    # Eq. (4)
    return dict(zip(right, weights)), average([client_logits[k] for k in right], weights)


def loss_slope(z, label, teacher, epsilon):
    """The derivative of a sample's loss by its logits z; the teacher's logits may be None."""
    ce = cross_entropy_slope(z, label)         # Eq. (1): CE = -ln softmax(z)[label]
    if teacher is None:
        return ce
    # Eq. (2), (5), (6): epsilon CE + (1 - epsilon) KL(softmax(teacher) || softmax(z))
    return [epsilon * a + (1 - epsilon) * b for a, b in zip(ce, kl_slope(z, teacher))]


def who_teaches(right, in_pool):
    """Who teaches the server a public sample? It is right now or not, and was before if in_pool."""
    if right:                                                                # line 5
        return "self_training"           # nobody: the label alone
    if in_pool:                                                              # line 8
        return "self_distillation"       # the server: its own logits from the pool
    return "clients"                     # those that are right              # line 10


def run(clients, server, private, public, *, rounds, batches, updates, server_update, epsilon,
        augment=lambda x: x, who_teaches=who_teaches):
    """Yields (server, clients, clients before distillation, pool, cases, weights) after each round.

    clients, server           the networks at the start: one for each client, and the server's
    private[k], public        lists of (x, label): of client k, and of everyone
    rounds, epsilon           the paper's T; the weight of CE (the text says: of distillation)
    batches(purpose, t, k)    positions, of the training "local", "public" or (without k) "server"
    updates, server_update    optimizers: updates[k](w, gradient) -> w, for example linear.sgd(lr)
    augment(x)                changes an image: anew in each training; in algorithms/ in each batch
    who_teaches               the function above, or another choice
    cases[n], weights[n]      what who_teaches said of public sample n in the server's last epoch;
                              what `fuse` said of n, if the server requested it in this round
    """
    pool = {}        # of a public sample, the server's logits when it last was right: L_Global
    for t in range(1, rounds + 1):                                           # line 2
        # Each client learns from the labels of its own samples.
        trained = [train(w, [augment(x) for x, _ in private[k]], batches("local", t, k),
                         lambda n, z: loss_slope(z, private[k][n][1], None, epsilon),
                         updates[k]) for k, w in enumerate(clients)]         # line 19, 25-27
        cases, weights = {}, {}
        # The server learns a public sample alone, from its own past logits, or from the clients.
        def server_slope(n, z):
            x, label = public[n]
            z_now = logits(server, x)
            right = predicted(z_now) == label
            cases[n] = who_teaches(right, n in pool)                         # line 5, 8, 10
            teacher = pool[n] if cases[n] == "self_distillation" else None
            if cases[n] == "clients":
                client_logits = [logits(w, x) for w in trained]              # line 11, 29-33
                weights[n], teacher = fuse(client_logits, label)             # Eq. (3), (4), (5)
            if right:
                pool[n] = z_now                                              # line 7
            return loss_slope(z, label, teacher, epsilon)                    # line 6, 9, 12

        views = [augment(x) for x, _ in public]
        for rows in batches("server", t):                                    # line 4
            server = server_update(server, gradient(server, views, rows, server_slope))  # line 14
        # Each client learns from the labels and from the server's logits of all public samples.
        server_logits = [logits(server, x) for x, _ in public]               # line 15: L_s
        clients = [train(w, [augment(x) for x, _ in public], batches("public", t, k),
                         lambda n, z: loss_slope(z, public[n][1], server_logits[n], epsilon),
                         updates[k]) for k, w in enumerate(trained)]         # line 17, 19, 21-23
        yield server, clients, trained, dict(pool), cases, weights
