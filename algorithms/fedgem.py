"""FedGEM: FedGEMS without selection. The server learns from the mean of all clients' logits.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, section 3.2, whose settings are the defaults.

Run:   python fedkd_minimal.py --algo fedgem
What travels: in each round each client sends its logits of all N public samples; then the server
sends its logits of them to each client. No weights.
Public data: labeled, on the server and on every client. All networks may differ.

Paper              here                         shape         note
X^0, Y^0           fed.public                   [N, ...], [N] N public samples and their labels
l_{C_j}            client_logits                [M, N, C]     M clients, C classes
                   teacher_logits               [N, C]        their mean over the clients
L_s                server_logits                [N, C]        the clients learn from these
epsilon            epsilon (--epsilon)          number        weight of CE in Eq. (5), (6)

A round. CE is cross-entropy; with a teacher the loss is epsilon CE + (1 - epsilon) KL(teacher ||
student), at temperature 1. Each network has one optimizer for all rounds: AMSGrad, a kind of Adam,
whose weight decay is an L2 term of the gradient (--optimizer).
 1  each client trains on its own samples, for local_epochs: CE. It predicts the public samples
 2  the server trains on the public samples, for server_epochs, taught by the mean of the logits of
    step 1, Eq. (5)
 3  the server predicts all public samples: L_s
 4  each client trains on the public samples, for public_epochs, taught by L_s, Eq. (6)

Kept between rounds: server: network, optimizer. Client: network, optimizer. A network and its
optimizer are kept as a snapshot, a dict of their state_dicts.
Modes: all training (steps 1, 2, 4) is in train mode, with --augment on augmented images; each loss
is the mean over the batch. All predictions are of clean images in eval mode.
Scores: server_accuracy (and `accuracy`) after step 3; means over clients: client_accuracy_private
after step 1, client_accuracy_distilled after step 4. evaluation.py says on which test images.
Bad upload (nan or infinity): `usable` leaves it out of the mean. Its client keeps its network and
receives L_s. Without any other upload the server learns from the labels alone, by CE.
Departures (docs/DEPARTURES.md has more):
D1  private training opens a round, epsilon weighs CE, and L_s is predicted once, after the server's
    last step: D1, D3 and D5 of fedgems.py
"""
from functools import partial

import torch

from algorithms import Algorithm, checked
from algorithms.equations import ensemble_logits
from algorithms.fedgems import distill_client, evaluate, server_loss, train_client
from federation import timed
from federation.communication import logits_ledger
from federation.parallel import in_parallel, on_server
from federation.training import (OPTIMIZERS, Optimizer, forward, predict_logits, restore, shuffled,
                                 snapshot)
from federation.uploads import collect_rows, usable


@timed
@on_server
def train_server(fed, t, server, teacher_logits, has_teacher, *, server_epochs, batch_size,
                 new_optimizer, epsilon):
    """(trained server, its logits [N, C]); teacher_logits, has_teacher: [N, C], bool [N].

    epsilon CE + (1 - epsilon) KL(teacher || server) where a sample has a teacher, CE elsewhere.
    Training goes on from the server's network and optimizer, the snapshot `server`.
    """
    images, labels = fed.public
    model = fed.server_model()
    optimizer = new_optimizer(model.parameters())
    restore(server, model, optimizer)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("server", t), epochs=server_epochs,
                                batch_size=batch_size):
        loss = server_loss(forward(fed, model, batch), labels[rows], teacher_logits[rows],
                           has_teacher[rows], epsilon)                           # Eq. (5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return snapshot(model, optimizer), predict_logits(fed, model, images)


@checked
def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
        server_epochs: int = 1, batch_size: int = 256, server_batch_size: int = 256,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, epsilon: float = 0.75, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    optimizer    optimizer of clients and server, kept over the rounds
    hyperparameters.py explains the other keywords.
    """
    make = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    client_training = dict(batch_size=batch_size, new_optimizer=partial(make, lr=lr))
    server_training = dict(batch_size=server_batch_size, new_optimizer=partial(make, lr=server_lr))
    ids = range(len(fed.private))
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    clients, server = state["clients"], state["server"]
    num_public = len(fed.public.images)
    rows = torch.arange(num_public, device=fed.device)                           # [N]
    for t in range(state["round"] + 1, rounds + 1):
        # D1: clients train on their own data, and upload their logits of all public samples.
        # Results: these logits [M, N, C], of attackers replaced; the clients after training.
        client_logits, trained = collect_rows(fed, rows, lambda i: train_client(
            fed, i, t, clients[i], rows, local_epochs=local_epochs, **client_training), attack)
        # The server learns from their mean. No valid upload: from the labels alone.
        valid_logits = usable(client_logits)                                     # [m, N, C]
        teacher_logits = ensemble_logits(valid_logits)                           # [N, C]
        has_teacher = torch.full_like(rows, len(valid_logits) > 0, dtype=torch.bool)     # [N]
        server, server_logits = train_server(
            fed, t, server, teacher_logits, has_teacher, server_epochs=server_epochs,
            epsilon=epsilon, **server_training)
        # All clients learn from the server's logits of all public samples.
        clients = in_parallel(fed, lambda i: distill_client(
            fed, i, t, trained[i], server_logits, public_epochs=public_epochs, epsilon=epsilon,
            **client_training), ids)

        state = {"round": t, "clients": clients, "server": server}
        metrics = {**evaluate(fed, state, trained),
                   "bad_uploads": len(ids) - len(valid_logits),
                   **logits_ledger(len(ids), fed.num_classes, up=num_public, down=num_public)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgem", run,
    scores={"server_accuracy": "server",
            "client_accuracy_distilled": "clients, after distillation",
            "client_accuracy_private": "clients, after private training"},
    keeps=("clients", "server"), public="labeled", mixed_networks=True, server="images",
    plateau=("lr", "server_lr"), evaluate=evaluate,
    columns=("server_accuracy", "client_accuracy_distilled"))
