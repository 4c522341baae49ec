"""Start here: FedGKT's Algorithm 1 (arXiv:2007.14513), one sample at a time.

algorithms/fedgkt.py computes the same with tensors; the tests compare it with this page. On the
right stand the paper's lines and equations. Images x, feature maps h, logits z and networks are
lists of numbers, as linear.py describes them. A client's network has two layers: the first gives
the feature map, the second the client's own logits. The server's network reads feature maps.

Differs from the printed algorithm:
- Eq. (6) and (7) have no factor temperature². Here it is in both, as in Hinton's distillation.
- Eq. (6) sums KL over all clients k. Here it is one term: a sample has one client, its own.
- Before the server's first answer a client has no teacher: cross-entropy alone.
- The server's logits are computed after its last epoch; line 11-12 stand inside this epoch.
- Algorithm 1 has all clients in each round. Here those that do not take part keep older logits.
- With augmentation a client's images change after each of its trainings, not in each batch.
"""
from reference.linear import (added, cross_entropy_slope, gradient, kl_slope, layer_outputs, logits,
                              train)


def loss_slope(labels, teacher, temperature):
    """slope(n, z): the derivative of sample n's loss by its logits z. The loss:

    CE + temperature² KL(softmax(teacher[n] / temperature) || softmax(z / temperature))
    Eq. (6): z is the server's z_s, the teacher z_c^(k) of the sample's client k.
    Eq. (7): z is client k's z_c^(k), the teacher z_s. Without a teacher (None): CE alone.
    """
    def slope(n, z):
        ce = cross_entropy_slope(z, labels[n])
        if teacher is None:
            return ce
        return added(ce, kl_slope(z, teacher[n], temperature))
    return slope


def run(clients, server, images, labels, *, groups, batches, server_batches, updates,
        server_update, temperature, server_distill=True, client_distill=True):
    """Yields (clients, server, the server's logits of each client's samples) after each round.

    clients, server              the networks at the start: one for each client, and the server's
    images(k, n), labels[k]      client k's images after n trainings, and its labels
    groups                       for each round the clients that take part
    batches(k, n)                of client k's n-th training: lists of positions, of all E_c epochs
    server_batches(t, group)     for each of the E_s epochs: a list of (client, positions)
    updates[k](w, gradient)      the optimizer of client k, for example linear.sgd(lr)
    server_update                the same for the server
    temperature                  T below Eq. (7); in Algorithm 1 T is the number of rounds
    server_distill               False: the server learns from the labels alone, which is Table 2's
                                 row S->E; Table 1's 92.97 on CIFAR-10 is the figure of this row
    client_distill               False: the clients learn from the labels alone
    """
    clients, server_logits, trainings = list(clients), [None] * len(clients), [0] * len(clients)
    for t, group in enumerate(groups, start=1):                              # line 2
        features, client_logits = {}, {}
        # Clients train, taught by the server's logits, and send feature maps, logits and labels.
        for k in group:                                                      # line 3-5
            teacher = server_logits[k] if client_distill else None           # Z_s^(k)
            x_k = images(k, trainings[k])
            trainings[k] += 1
            clients[k] = train(clients[k], x_k, batches(k, trainings[k]),    # line 19-22
                               loss_slope(labels[k], teacher, temperature), updates[k])
            outputs = [layer_outputs(clients[k], x) for x in images(k, trainings[k])]
            features[k], client_logits[k] = zip(*outputs)                    # line 24-30

        # The server trains on the feature maps and labels, with the clients' logits as teacher.
        for epoch in server_batches(t, group):                               # line 7
            for k, rows in epoch:                                            # line 8, 9
                teacher = client_logits[k] if server_distill else None       # Z_c^(k)
                slope = loss_slope(labels[k], teacher, temperature)          # Y^(k) was sent too
                server = server_update(server,                               # line 10
                                       gradient(server, features[k], rows, slope))
        # Each of these clients receives the server's logits of its own samples.
        for k in group:                                                      # line 14, 15
            server_logits[k] = [logits(server, h) for h in features[k]]      # line 11, 12
        # What client k is then tested with: its first layer, with the server's network behind it.
        yield list(clients), server, list(server_logits)
