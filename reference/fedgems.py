"""Start here: FedGEMS's Algorithm 1 (arXiv:2110.11027), one sample at a time.

    python -m reference.fedgems     prints a round, from the numbers below, which you may change

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
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))           # for python reference/fedgems.py
from reference.by_hand import (fit, heads, images, network, samples, say, show, table,
                               text_of_ce, text_of_kl)
from reference.linear import (average, cross_entropy, cross_entropy_slope, gradient, kl, kl_slope,
                              logits, predicted, sgd, softmax, train)

# The round that is printed: four public images, two classes, three clients. A network is a table:
# row n has its logits of image n (by_hand.py).
LN3 = math.log(3)                                # logits (LN3, 0): probabilities (0.75, 0.25)
LABELS = [0, 0, 1, 1]                            # of the public images: a class, 0 or 1, for each
CLIENTS = [[[LN3, 0], [0, 0], [0.3, 0], [0, LN3]],
           [[0, LN3], [LN3, 0], [2 * LN3, 0], [0, 0]],
           [[0, 0], [0, LN3], [0.1, 0], [LN3, 0]]]
PRIVATE = [[(1, 0)], [(3, 1)], [(0, 0)]]         # of each client: [(image, its label)]
SERVER = [[LN3, 0], [0, LN3], [2 * LN3, 0], [LN3, 0]]
POOL = {3: [0, 2 * LN3]}                         # {image: what the server said when it was right}
LR = 2 * LN3                                     # a client takes one step on its own images, and
#                                                  one on all public ones
SERVER_LR = 4.0                                  # the server one step on all public images
EPSILON = 0.75                                   # the weight of CE
ROUNDS = 1                                       # 2: clients teach again, image 2


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
        augment=lambda x: x, who_teaches=who_teaches, pool=None):
    """Yields (server, clients, clients before distillation, pool, cases, weights) after each round.

    clients, server           the networks at the start: one for each client, and the server's
    private[k], public        lists of (x, label): of client k, and of everyone
    rounds, epsilon           the paper's T; the weight of CE (the text says: of distillation)
    batches(purpose, t, k)    positions, of the training "local", "public" or (without k) "server"
    updates, server_update    optimizers: updates[k](w, gradient) -> w, for example linear.sgd(lr)
    augment(x)                changes an image: a public one anew in each round, a client's own in
                              each training (in algorithms/ in each batch)
    who_teaches               the function above, or another choice
    pool                      of earlier rounds, {n: logits}; None: there were none
    cases[n], weights[n]      what who_teaches said of public sample n in the server's last epoch;
                              what `fuse` said of n, if the server requested it in this round
    """
    pool = dict(pool or {})    # of a sample, the server's logits when it last was right: L_Global
    for t in range(1, rounds + 1):                                           # line 2
        # Each client learns from the labels of its own samples.
        views = [augment(x) for x, _ in public]
        trained = [train(w, [augment(x) for x, _ in private[k]], batches("local", t, k),
                         lambda n, z: loss_slope(z, private[k][n][1], None, epsilon),
                         updates[k]) for k, w in enumerate(clients)]         # line 19, 25-27
        cases, weights = {}, {}
        # The server learns a public sample alone, from its own past logits, or from the clients.
        def server_slope(n, z):
            x, label = views[n], public[n][1]
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

        for rows in batches("server", t):                                    # line 4
            server = server_update(server, gradient(server, views, rows, server_slope))  # line 14
        # Each client learns from the labels and from the server's logits of all public samples.
        server_logits = [logits(server, x) for x in views]                   # line 15: L_s
        clients = [train(w, views, batches("public", t, k),
                         lambda n, z: loss_slope(z, public[n][1], server_logits[n], epsilon),
                         updates[k]) for k, w in enumerate(trained)]         # line 17, 19, 21-23
        yield server, clients, trained, dict(pool), cases, weights


# --------------------------------------------------------------------------------------------------
# A round by hand

SAYS = {"self_training": "the server is right: Eq. (1), CE alone",
        "self_distillation": "the server is wrong, and was right: Eq. (2), the pool teaches",
        "clients": "the server is wrong: Eq. (5), the clients that are right teach",
        "nobody": "the server is wrong, and so are all clients: CE alone"}


def by_hand():
    """Prints ROUNDS rounds, from the numbers at the top."""
    N, C, M = len(SERVER), len(SERVER[0]), len(CLIENTS)
    fit(len(LABELS) == N and {*LABELS} <= {*range(C)},
        f"LABELS needs a class, 0 to {C - 1}, for each of {N} images")
    clients = [network(f"CLIENTS[{k}]", rows, N, C) for k, rows in enumerate(CLIENTS)]
    server, pool = network("SERVER", SERVER, N, C), POOL
    fit(len(PRIVATE) == M, f"PRIVATE needs images for each of {M} clients")
    private = [samples(f"PRIVATE[{k}]", own, N, C) for k, own in enumerate(PRIVATE)]
    public = [*zip(images(N), LABELS)]
    fit({*POOL} <= {*range(N)} and all(len(z) == C for z in POOL.values()),
        f"POOL needs an image, 0 to {N - 1}, and {C} logits for each entry")

    def batches(purpose, t, k=None):
        return [range(len(private[k]) if purpose == "local" else N)]

    print("FedGEMS by hand. Row n of a network has its logits of image n.")
    print(f"Labels of images 0 to {N - 1}: {LABELS}")
    rounds = run(clients, server, private, public, rounds=ROUNDS, batches=batches,
                 updates=[sgd(LR)] * M, server_update=sgd(SERVER_LR), epsilon=EPSILON, pool=POOL)
    for t, (server_after, after, trained, pool_after, cases, weights) in enumerate(rounds, start=1):
        say(f"Round {t}", "starts with the networks, and the server's pool:")
        heads(range(N), C)
        for k in range(M):
            show(f"client {k}", table(clients[k]))
        show("server", table(server))
        for n, z in pool.items():
            print(f"  image {n} is in the pool: ({', '.join(f'{v:.4f}' for v in z)})")

        say("Line 25-27", "a client takes a step on its B own images:")
        print(f"  row + lr / B (label - softmax(row)), lr = {LR:.4f}; label: 1 there, 0 elsewhere")
        for k in range(M):
            show(f"client {k} trained", table(trained[k]))

        said = [table(w) for w in trained]
        say("Eq. (3)", "H = - sum of p ln p, p = softmax(row) of the clients that are right")
        for n in [n for n, case in cases.items() if case == "clients"]:
            for k in weights[n]:
                terms = " ".join(f"- {p:.4f} ln {p:.4f}" for p in softmax(said[k][n]))
                print(f"  image {n}, client {k}            {terms} = {entropy(said[k][n]):.4f}")
            if not weights[n]:
                print(f"  image {n}                      no client is right")

        say("Eq. (4)", "a client's weight is the softmax of 1 / H over those that are right:")
        for n, of_client in weights.items():
            powers = {k: f"e^{1 / max(entropy(said[k][n]), 1e-6):.4f}" for k in of_client}
            for k, weight in of_client.items():
                print(f"  image {n}, client {k}            {powers[k]} / "
                      f"({' + '.join(powers.values())}) = {weight:.4f}")

        say("Eq. (5)", "the clients' teacher is the sum of weight times row:")
        teacher = {n: fuse([z[n] for z in said], LABELS[n])[1] for n in weights if weights[n]}
        for n, z in teacher.items():
            show(f"teacher of image {n}", [z])

        say("Line 5-12", "the loss of an image; p of its teacher, q of the server:")
        teacher |= {n: pool[n] for n, case in cases.items() if case == "self_distillation"}
        for n, z in enumerate(table(server)):
            case = cases[n] if n in teacher or cases[n] != "clients" else "nobody"
            print(f"  image {n}: {SAYS[case]}")
            ce = cross_entropy(z, LABELS[n])
            print(f"    CE = {text_of_ce(z, LABELS[n])} = {ce:.4f}")
            if n in teacher:
                from_teacher = kl(teacher[n], z)
                print(f"    KL = {text_of_kl(teacher[n], z)} = {from_teacher:.4f}")
                print(f"    {EPSILON:g} CE + {1 - EPSILON:g} KL = "
                      f"{EPSILON * ce + (1 - EPSILON) * from_teacher:.4f}")

        towards = f"{EPSILON:g} label + {1 - EPSILON:g} softmax"
        say("Line 14, 15", "the server takes a step, and sends its logits of all images:")
        print(f"  row + lr / N ({towards}(teacher) - softmax(row)), or without a teacher\n"
              f"  row + lr / N (label - softmax(row)), lr = {SERVER_LR:g}, N = {N}")
        show("server after the round", table(server_after))

        say("Eq. (6)", "a client takes a step on all images; its teacher is the server:")
        print(f"  row + lr / N ({towards}(server) - softmax(row)), lr = {LR:.4f}, N = {N}")
        clients, server, pool = after, server_after, pool_after
        for k in range(M):
            show(f"client {k} after the round", table(clients[k]))
        print(f"  images in the pool after the round: {sorted(pool)}")


if __name__ == "__main__":
    by_hand()
