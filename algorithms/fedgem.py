"""FedGEM: FedGEMS without selection. The server learns from the mean of all clients' logits.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, section 3.2. The losses are those of fedgems.py; every client has the same weight
on every sample in Eq. (5).
What travels: the logits of all public samples, up and down. Public data: labeled, on the server and
on every client. Networks: any.
Run:   python fedkd_minimal.py --algo fedgem

Paper              here                         shape         note
X^0, Y^0           fed.public                   [N, ...], [N] public samples and their labels
l_{C_j}            client_logits                [M, N, C]     of all public samples
                   teacher_logits               [N, C]        their mean
L_s                server_logits                [N, C]        the clients learn from these
epsilon            epsilon (--epsilon)          number        weight of CE in Eq. (5), (6)

Where the paper is silent or we differ:
D1  order of a round, epsilon, the pass that makes the server's logits, the clients' weights, the
    kind of Adam: as FedGEMS's departures say [test_fedgem_round_by_hand]
D2  an upload with nan or infinity is left out of the mean; without any valid upload the server
    learns from the labels alone [test_non_finite_logits_are_left_out]
D3  --augment: who learns sees augmented images, who teaches clean ones
    [test_augmentation_is_for_what_is_trained_on_alone]
"""
from functools import partial

import torch

from algorithms import evaluation
from algorithms.clients import run_clients
from algorithms.communication import logits_ledger
from algorithms.declaration import Algorithm
from algorithms.equations import ensemble_logits
from algorithms.fedgems import distill_client, server_loss, train_client
from algorithms.training import OPTIMIZERS, Optimizer, predict_logits, restore, snapshot, train
from algorithms.uploads import collect_rows, usable
from federation import timed

evaluate = partial(evaluation.evaluate, main_metric="server_accuracy")


@timed
def train_server(fed, t, server, teacher_logits, has_teacher, *, server_epochs, batch_size,
                 new_optimizer, epsilon):
    """(trained server, its logits [N, C]); teacher_logits, has_teacher: [N, C], bool [N].

    epsilon CE + (1 - epsilon) KL(teacher || server) where a sample has a teacher, CE elsewhere;
    the server keeps its model and its optimizer.
    """
    def loss(logits, rows):                                                      # Eq. (5)
        return server_loss(logits, labels[rows], teacher_logits[rows], has_teacher[rows], epsilon)

    model = fed.server_model()
    optimizer = restore(server, model, new_optimizer)
    images, labels = fed.public
    train(fed, model, optimizer, images, loss, epochs=server_epochs, batch_size=batch_size,
          keys=("server", t))
    return snapshot(model, optimizer), predict_logits(fed, model, images)


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
        server_epochs: int = 1, batch_size: int = 256, server_batch_size: int = 256,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, epsilon: float = 0.75, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    optimizer    optimizer of clients and server, kept over the rounds
    The other keywords are in hyperparameters.py.
    """
    make = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    client_training = dict(batch_size=batch_size, new_optimizer=partial(make, lr=lr))
    server_training = dict(batch_size=server_batch_size, new_optimizer=partial(make, lr=server_lr))
    ids = range(len(fed.private))
    if state is None:
        ALGORITHM.check(fed)
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    clients, server = state["clients"], state["server"]
    num_public = len(fed.public.images)
    rows = torch.arange(num_public, device=fed.device)                           # [N]
    for t in range(state["round"] + 1, rounds + 1):
        # Clients train on their own data, and upload their logits of all public samples.
        client_logits, trained = collect_rows(fed, rows, lambda i: train_client(
            fed, i, t, clients[i], rows, local_epochs=local_epochs, **client_training), attack)
        # The server learns from their mean. No valid upload: from the labels alone.
        valid_logits = usable(client_logits)                                     # [m, N, C]
        teacher_logits = ensemble_logits(valid_logits)                           # [N, C]
        has_teacher = torch.full_like(rows, len(valid_logits) > 0, dtype=torch.bool)     # [N]
        server, server_logits = train_server(fed, t, server, teacher_logits, has_teacher,
                                             server_epochs=server_epochs, epsilon=epsilon,
                                             **server_training)
        # All clients learn from the server's logits of all public samples.
        clients = run_clients(fed, lambda i: distill_client(
            fed, i, t, trained[i], server_logits, public_epochs=public_epochs, epsilon=epsilon,
            **client_training), ids)

        state = {"round": t, "clients": clients, "server": server}
        metrics = {**evaluate(fed, state, trained),
                   "bad_uploads": len(ids) - len(valid_logits),
                   **logits_ledger(len(ids), fed.num_classes, up=num_public, down=num_public)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgem", run, public="labeled", mixed=True, server="images",
    plateau=("lr", "server_lr"), evaluate=evaluate,
    columns=("server_accuracy", "client_accuracy_distilled"))
