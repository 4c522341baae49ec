"""FedGEM: FedGEMS without selection. The server learns from the mean of all clients' logits.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, section 3.2, whose settings are the defaults.

Run:    python fedkd_minimal.py --algo fedgem    small settings, about a minute
        --paper fedgems-homogeneous or fedgems-heterogeneous has the paper's, which are the
        defaults of `run`; there learning rates fall on a plateau (experiment/plateau.py)
Data:   clients: their own labeled images; server and clients: N labeled public images. All
        networks may differ
Sent:   up: each client's logits of all public images; down: the server's logits of them

A round; the numbers are ours. CE is cross-entropy; a teacher's loss is epsilon CE +
(1 - epsilon) KL(teacher || student), at temperature 1.
 1  each client trains on its own images, by CE, and predicts the public images
 2  the server trains on the public images; the mean of the clients' logits teaches, Eq. (5)
 3  the server predicts the public images: its logits are L_s
 4  each client trains on the public images; L_s teaches, Eq. (6)

Scores: `accuracy` is server_accuracy, after 3; means over the clients: client_accuracy_private
        after 1, client_accuracy_distilled after 4. By default (--public half) the server is tested
        on the public half of the test images, the clients on the other half
D1  private training opens a round, epsilon weighs CE, and L_s is predicted once, after the server's
    last step: D1, D3 and D5 of fedgems.py
"""
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import ensemble_logits, kl_divergence
from federation import timed
from federation.communication import logits_ledger
from federation.evaluation import distillation_metrics, server_metrics
from federation.parallel import in_parallel, on_server
from federation.training import (OPTIMIZERS, Optimizer, forward, predict_logits, restore, shuffled,
                                 snapshot)
from federation.uploads import Trained, collect_rows, usable


def train_client(fed, i, t, client, local_epochs, batch_size, lr, optimizer_name, weight_decay):
    """Client i after training on its own images; its upload: logits [N, C] of the public images."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both go on from the client's last step
    model.train()                        # `shuffled` augments the images with --augment
    # ("local", t, i) names the random numbers of this training: order, augmentation, dropout.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    logits = predict_logits(fed, model, fed.public.images)       # [N, C]; eval mode, clean images
    return Trained(logits, snapshot(model, optimizer))


def public_loss(logits, labels, teacher_logits, epsilon):
    """epsilon CE + (1 - epsilon) KL(teacher || student), the mean over the batch: a scalar.

    logits, labels, teacher_logits    [B, C], [B], [B, C]; no gradient to the teacher
    source                            Eq. (5) with equal weights, Eq. (6)
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                               # [B]
    kl = kl_divergence(teacher_logits, logits)                                           # [B]
    return (epsilon * ce + (1 - epsilon) * kl).mean()                                    # D1


@timed
@on_server
def train_server(fed, t, server, teacher_logits, server_epochs, batch_size, lr, epsilon,
                 optimizer_name, weight_decay):
    """(the server after training on all public images, its logits [N, C] of them).

    teacher_logits    [N, C], or None: then the labels alone teach, by CE
    """
    images, labels = fed.public                                              # [N, c, h, w], [N]
    model = fed.server_model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(server, model, optimizer)                    # both go on from the server's last step
    model.train()                        # `shuffled` augments the images with --augment
    for rows, batch in shuffled(fed, images, ("server", t), epochs=server_epochs,
                                batch_size=batch_size):
        logits = forward(fed, model, batch)                                              # [B, C]
        if teacher_logits is None:
            loss = F.cross_entropy(logits, labels[rows])
        else:
            loss = public_loss(logits, labels[rows], teacher_logits[rows], epsilon)      # Eq. (5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    server_logits = predict_logits(fed, model, images)   # [N, C]; eval mode, clean images
    return snapshot(model, optimizer), server_logits


def distill_client(fed, i, t, client, server_logits, public_epochs, batch_size, lr, epsilon,
                   optimizer_name, weight_decay):
    """Client i after training on all public images, taught by server_logits [N, C]."""
    images, labels = fed.public                                              # [N, c, h, w], [N]
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both go on from the client's last step
    model.train()                        # `shuffled` augments the images with --augment
    for rows, batch in shuffled(fed, images, ("public", t, i), epochs=public_epochs,
                                batch_size=batch_size):
        logits = forward(fed, model, batch)                                              # [B, C]
        loss = public_loss(logits, labels[rows], server_logits[rows], epsilon)           # Eq. (6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return snapshot(model, optimizer)


@timed
def evaluate(fed, state, trained=None):
    """Test accuracies of the server's network and of the clients'; `accuracy` is the server's.

    trained    the clients after private training; None: as in `state`
    """
    metrics = {**distillation_metrics(fed, state["clients"], trained),
               **server_metrics(fed, state["server"])}
    return {"accuracy": metrics["server_accuracy"], **metrics}


@checked
def run(fed, state=None, *,
        rounds: int = 200,                   # T; all clients take part in each
        local_epochs: int = 1,               # passes of a client over its own images in a round,
        public_epochs: int = 1,              #   and over the public images
        server_epochs: int = 1,              # passes of the server over the public images
        batch_size: int = 256,               # of a client
        server_batch_size: int = 256,
        lr: float = 1e-3,                    # of a client
        server_lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad",    # of each client and of the server, for all training
        weight_decay: float = 1e-4,          #   and its L2 penalty
        epsilon: float = 0.75,               # weight of CE; 1 - epsilon is that of KL
        attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    ids = range(len(fed.private))                                            # M clients
    num_public = len(fed.public.images)                                      # N
    all_rows = torch.arange(num_public, device=fed.device)                   # [N]
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    clients, server = state["clients"], state["server"]

    for t in range(state["round"] + 1, rounds + 1):
        # 1 (D1): clients train on their own images, and predict all public images.
        def train(i):
            return train_client(fed, i, t, clients[i], local_epochs, batch_size, lr, optimizer,
                                weight_decay)

        # In parallel: logits [M, N, C], those of attackers replaced; the clients after training.
        client_logits, trained = collect_rows(fed, all_rows, train, attack)

        # 2, 3: the server learns from the mean of the usable uploads (no nan, no infinity, nothing
        # of 1e30 or more). Without any it learns from the labels alone.
        valid_logits = usable(client_logits)                                 # [m, N, C]
        teacher_logits = ensemble_logits(valid_logits) if len(valid_logits) else None    # [N, C]
        server, server_logits = train_server(
            fed, t, server, teacher_logits, server_epochs, server_batch_size, server_lr, epsilon,
            optimizer, weight_decay)

        # 4: all clients learn from the server's logits, also one whose upload was left out.
        def distill(i):
            return distill_client(fed, i, t, trained[i], server_logits, public_epochs, batch_size,
                                  lr, epsilon, optimizer, weight_decay)

        clients = in_parallel(fed, distill, ids)

        # All that the next round needs: networks with their optimizers.
        state = {"round": t, "clients": clients, "server": server}
        # Measured; no step above sees it.
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
