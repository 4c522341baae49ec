"""Start here: FedGKT's Algorithm 1 (arXiv:2007.14513), one sample at a time.

algorithms/fedgkt.py computes the same with tensors; the tests hold it to this page. On the right
stand the paper's lines and equations. Images x, feature maps h, logits z and networks are lists of
numbers, as linear.py describes them. A client's network has two layers: the first gives the
feature map, the second the client's own logits. The server's network reads feature maps.
"""
from reference.linear import (added, cross_entropy_slope, gradient, kl_slope, layer_outputs, logits,
                              train)


def loss_slope(labels, teacher, T):
    """slope(n, z): the derivative of sample n's loss by its logits z; the teacher may be None."""
    def slope(n, z):
        ce = cross_entropy_slope(z, labels[n])
        return added(ce, kl_slope(z, teacher[n], T)) if teacher else ce      # Eq. (6), (7)
    return slope


def run(clients, server, images, labels, *, groups, batches, server_batches, updates,
        server_update, T, server_distill=True, client_distill=True):
    """Yields (clients, server, the server's logits of each client's samples) after each round.

    images(k, n), labels[k]      client k's images after n trainings (with augmentation they
                                 change), and its labels
    groups                       for each round the clients that take part
    batches(k, n)                of client k's n-th training: lists of positions in its samples
    server_batches(t, group)     for each epoch of the server: a list of (client, positions)
    updates[k](w, gradient)      the optimizer of client k, for example linear.sgd(lr)
    """
    clients, server_logits, trainings = list(clients), [None] * len(clients), [0] * len(clients)
    for t, group in enumerate(groups, start=1):                              # line 2
        features, client_logits = {}, {}
        # Clients train, with the server's logits as teacher, and send feature maps and logits.
        for k in group:                                                      # line 3-5
            teacher = server_logits[k] if client_distill else None           # Z_s^(k)
            x_k, trainings[k] = images(k, trainings[k]), trainings[k] + 1
            clients[k] = train(clients[k], x_k, batches(k, trainings[k]),    # line 19-22
                               loss_slope(labels[k], teacher, T), updates[k])
            outputs = [layer_outputs(clients[k], x) for x in images(k, trainings[k])]
            features[k], client_logits[k] = zip(*outputs)                    # line 24-30

        # The server trains on the feature maps, with the clients' logits as teacher.
        for epoch in server_batches(t, group):                               # line 7
            for k, rows in epoch:                                            # line 8
                teacher = client_logits[k] if server_distill else None       # Z_c^(k)
                slope = loss_slope(labels[k], teacher, T)                    # line 9-10
                server = server_update(server, gradient(server, features[k], rows, slope))
        # Each of these clients receives the server's logits of its own samples.
        for k in group:                                                      # line 14-15
            server_logits[k] = [logits(server, h) for h in features[k]]      # line 11-12
        yield clients, server, server_logits
