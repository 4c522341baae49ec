"""FedGEM: FedGEMS without selection. The server learns from the mean of all clients' logits, the clients from the server's.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion", arXiv:2110.11027,
section 3.2. The losses are those of fedgems.py, whose Eq. (5) has here the same weight for every client on every sample.
What travels: the logits of all public samples, up and down. Public data: labelled, on the server and on every client.
Run:   python fedkd_minimal.py --algo fedgem

Paper              here                         shape            note
X^0, Y^0           fed.public                   [N, ...], [N]    rows: positions in it, the same for the whole run
l_{C_j}            client_logits                [M, N, C]        of all public samples
                   teacher_logits               [N, C]           their mean
L_s                server_logits                [N, C]           what the clients learn from
epsilon            epsilon (--epsilon)          number           the share of the cross-entropy

Where the paper is silent or we differ:
D1  the order of a round, epsilon, the pass that makes the server's logits, the clients' weights: FedGEMS's D1, D7, D8, D11, D12
                                                                      [test_fedgem_round_by_hand]
D2  an upload with nan or infinity is left out of the mean            [test_non_finite_logits_are_left_out]
"""
import torch

from algorithms.common import (Optimizer, asleep, client_metrics, finite, new_learner, predict_logits, run_clients, seconds,
                               test_accuracies, train, wake)
from algorithms.fedgems import distil_client, metrics_of, server_loss, train_client
from communication import logits_ledger

PUBLIC = "labelled"
MIXED = True    # may clients have different networks?
COLUMNS = ("server_accuracy", "client_accuracy")


def train_server(fed, t, server, teacher_logits, has_teacher, *, server_epochs, server_batch_size, server_lr, optimizer,
                 weight_decay, epsilon):
    """The server after learning from teacher_logits [N, C]: (it, its test accuracies, its logits [N, C]). has_teacher: bool [N]."""
    model = fed.server_model()
    update = wake(server, model, optimizer, server_lr, weight_decay)
    images, labels = fed.public
    train(fed, model, update, images,
          lambda logits, rows: server_loss(logits, labels[rows], teacher_logits[rows], has_teacher[rows], epsilon),        # Eq. (5)
          epochs=server_epochs, batch_size=server_batch_size, keys=("server", t))
    return asleep(model, update), test_accuracies(fed, model), predict_logits(fed, model, images)


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1, server_epochs: int = 1,
        batch_size: int = 256, server_batch_size: int = 256, lr: float = 1e-3, server_lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4, epsilon: float = 0.75, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    attack      (uploads [M, N, C], client ids, rows [N], t) -> uploads: what malicious clients make of theirs
    """
    adam = dict(optimizer=optimizer, weight_decay=weight_decay)
    client_adam = dict(batch_size=batch_size, lr=lr, **adam)
    ids, num_public = range(len(fed.private)), len(fed.public.labels)
    rows = torch.arange(num_public, device=fed.device)                                   # [N]: all are asked for
    if state is None:
        clients, server = [new_learner(fed.client_model(i, init=i)) for i in ids], new_learner(fed.server_model())
        state = {"round": 0, "clients": clients, "server": server}
        scores = [test_accuracies(fed, fed.client_model(i, init=i)) for i in ids]
        yield metrics_of(test_accuracies(fed, fed.server_model()), scores), state
    clients, server = state["clients"], state["server"]
    for t in range(state["round"] + 1, rounds + 1):
        start = seconds(fed.device)
        trained = run_clients(lambda i: train_client(fed, i, t, clients[i], rows, local_epochs=local_epochs, **client_adam),
                              ids, fed.device)
        client_logits = torch.stack([logits for logits, _, _ in trained])                # [M, N, C]
        client_logits = attack(client_logits, ids, rows, t) if attack else client_logits
        trained_at = seconds(fed.device)

        good = finite(client_logits)                                                     # [m, N, C], m <= M
        teacher_logits = good.mean(0) if len(good) else torch.zeros_like(client_logits[0])               # [N, C]
        has_teacher = torch.full_like(rows, len(good) > 0, dtype=torch.bool)             # bool [N]: all or none
        server, server_score, server_logits = train_server(
            fed, t, server, teacher_logits, has_teacher, server_epochs=server_epochs, server_batch_size=server_batch_size,
            server_lr=server_lr, epsilon=epsilon, **adam)
        served_at = seconds(fed.device)

        distilled = run_clients(lambda i: distil_client(fed, i, t, trained[i][1], server_logits, public_epochs=public_epochs,
                                                        epsilon=epsilon, **client_adam), ids, fed.device)
        clients = [client for client, _ in distilled]
        distilled_at = seconds(fed.device)
        metrics = {**metrics_of(server_score, [score for _, score in distilled]),
                   **client_metrics([score for _, _, score in trained], "client_accuracy_private"),
                   "bad_uploads": len(ids) - len(good),
                   "local_seconds": trained_at - start + distilled_at - served_at, "distill_seconds": served_at - trained_at,
                   **logits_ledger(len(ids), fed.num_classes, up=num_public, down=num_public)}
        yield metrics, {"round": t, "clients": clients, "server": server}
