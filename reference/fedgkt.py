"""Start here: FedGKT's Algorithm 1 (arXiv:2007.14513), one sample at a time.

    python -m reference.fedgkt     prints a round, from the numbers below, which you may change

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
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))           # for python reference/fedgkt.py
from reference.by_hand import (fit, images, matrix, network, say, show, table, text_of_ce,
                               text_of_kl)
from reference.linear import (added, cross_entropy, cross_entropy_slope, gradient, kl, kl_slope,
                              layer_outputs, logits, sgd, train)

# The round that is printed: two clients with two images each, two classes, feature maps of two
# numbers. An extractor is a table: row n has its feature map of image n (by_hand.py). The next
# layer is a matrix W with a row for each class: logits = W times feature map.
LABELS = [[0, 1], [1, 0]]                        # of each client's images
EXTRACTORS = [[[1, 0], [0, 1]], [[1, 1], [2, 0]]]
CLASSIFIERS = [[[1, 0], [0, 1]], [[0, 1], [1, 0]]]
SERVER = [[1, -1], [0, 1]]
SERVER_LOGITS = [[[2, 0], [0, 2]], None]         # Z_s of the round before; None: there was none
LR = 1.0                                         # a client takes one step on all its images
SERVER_LR = 1.0                                  # the server one step on each client's
TEMPERATURE = 2.0                                # divides logits in KD
ROUNDS = 1


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
        server_update, temperature, server_distill=True, client_distill=True, server_logits=None):
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
    server_logits                of an earlier round, for each client; None: there were none
    """
    clients, trainings = list(clients), [0] * len(clients)
    server_logits = list(server_logits or [None] * len(clients))
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


# --------------------------------------------------------------------------------------------------
# A round by hand

def by_hand():
    """Prints ROUNDS rounds, from the numbers at the top."""
    M, C, F = len(LABELS), len(SERVER), len(SERVER[0])
    sizes = [len(own) for own in LABELS]
    fit(len(EXTRACTORS) == len(CLASSIFIERS) == len(SERVER_LOGITS) == M,
        f"EXTRACTORS, CLASSIFIERS and SERVER_LOGITS need an entry for each of {M} clients")
    fit({y for own in LABELS for y in own} <= {*range(C)}, f"LABELS are classes, 0 to {C - 1}")
    clients = [[*network(f"EXTRACTORS[{k}]", EXTRACTORS[k], sizes[k], F),
                matrix(f"CLASSIFIERS[{k}]", CLASSIFIERS[k], C, F), []] for k in range(M)]
    for k, sent in enumerate(SERVER_LOGITS):
        matrix(f"SERVER_LOGITS[{k}]", sent or [[0] * C] * sizes[k], sizes[k], C)
    server, server_logits, steps = [matrix("SERVER", SERVER, C, F), []], SERVER_LOGITS, []

    def server_update(w, g):
        steps.append(sgd(SERVER_LR)(w, g))               # to be printed
        return steps[-1]

    print("FedGKT by hand. Row n of an extractor has H, its feature map of image n; logits = W H.")
    rounds = run(clients, server, lambda k, n: images(sizes[k]), LABELS,
                 groups=[range(M)] * ROUNDS, batches=lambda k, n: [range(sizes[k])],
                 server_batches=lambda t, group: [[(k, range(sizes[k])) for k in group]],
                 updates=[sgd(LR)] * M, server_update=server_update, temperature=TEMPERATURE,
                 server_logits=server_logits)
    for t, (after, _, answers) in enumerate(rounds, start=1):
        say(f"Round {t}", "starts with the networks:")
        for k in range(M):
            show_client(f"client {k}", clients[k])
        show("server: W", server[0])

        say("Eq. (7)", "a client's loss; q = softmax(logits / T), p the same of Z_s, "
            f"temperature T = {TEMPERATURE:g}")
        for k in range(M):
            show_losses(f"client {k}", [logits(clients[k], x) for x in images(sizes[k])], LABELS[k],
                        server_logits[k])
        say("Line 19-22", "a client takes a step on its B images, from the derivatives d above:")
        print(f"  W - lr / B sum of d H', and H - lr / B W' d, lr = {LR:g}; ' is transposed")
        for k in range(M):
            show_client(f"client {k} trained", after[k])

        say("Eq. (9)", "it sends H, the labels, and Z_c = W H:")
        features, client_logits = [], []
        for k in range(M):
            outputs = [layer_outputs(after[k], x) for x in images(sizes[k])]
            features.append([h for h, _ in outputs])
            client_logits.append([z for _, z in outputs])
            show(f"client {k}: Z_c", client_logits[k])

        say("Eq. (6)", "the server's loss, client after client; q is of its logits, p of Z_c")
        print(f"  after each client's images a step: W - lr / B sum of d H', lr = {SERVER_LR:g}")
        for k, stepped in enumerate(steps[-M:]):
            show_losses(f"server, client {k}", [logits(server, h) for h in features[k]], LABELS[k],
                        client_logits[k])
            server = stepped
            show(f"server after client {k}: W", server[0])

        say("Eq. (11)", "the server sends Z_s = W H to each client, for its next training:")
        for k in range(M):
            show(f"client {k}: Z_s", answers[k])
        clients, server_logits = after, answers


def show_client(name, client):
    show(f"{name}: H", table(client))
    show(f"{name}: W", client[2])


def show_losses(name, rows, labels, teacher):
    """Of each image, with these logits: CE, KD if there is a teacher, the derivative of their sum.
    """
    for n, z in enumerate(rows):
        print(f"  {name}, image {n} of label {labels[n]}")
        print(f"    CE = {text_of_ce(z, labels[n])} = {cross_entropy(z, labels[n]):.4f}")
        text = "d = softmax(logits) - label"
        if teacher is not None:
            value = kl(teacher[n], z, TEMPERATURE)
            print(f"    KD = {text_of_kl(teacher[n], z, TEMPERATURE)} = {value:.4f}")
            text += " + T (q - p)"
        d = loss_slope(labels, teacher, TEMPERATURE)(n, z)
        print(f"    {text} = ({', '.join(f'{v:.4f}' for v in d)})")


if __name__ == "__main__":
    by_hand()
