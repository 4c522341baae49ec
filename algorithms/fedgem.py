"""FedGEM: a large server model learns from labels and from the mean of all clients' logits.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, section 3.2. It is FedGEMS without the selection of clients and images, and
without the pool.

    python fedkd_minimal.py --algo fedgem
        runs `Config` on digits of 16x16 pixels. 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 150 images each; 3,000 images are public. The server has
        a CNN twice as wide. It takes a minute on two cores.
    python fedkd_minimal.py --algo fedgem --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`: 16 clients with a ResNet-11 hold 1,406 images each, iid; 25,000 images are
        public; the server has a ResNet-56. Images are cropped and flipped. Both learning rates fall
        to a tenth after more than 10 rounds without a better accuracy of the server on 2,500
        validation images, on which nothing is trained. With --paper fedgems-heterogeneous clients
        have eight networks, two alike, and unequal shares of the classes (Dirichlet, alpha 0.5).

Each client holds labeled images of its own. The server and all clients hold N labeled public
images. All networks may differ. Clients and server send logits of the public images; neither
weights nor a client's own images are ever sent.

Training: train mode, images cropped and flipped with --augment, the mean loss of a batch.
Prediction: eval mode, no gradient, images as they are, but for public ones: with --augment each is
cropped and flipped once in a round, for all who predict or learn it. Each client and the server
keep their network, which starts with random weights of its own, and one optimizer over all steps
and rounds.

A round, in which all clients take part; the numbers are ours. CE is cross-entropy with the label,
e is epsilon, and KL(teacher || student) is at temperature 1.
  1   Each client trains on its own images by CE.
  2   Each client predicts all public images.
  3   The server trains on the public images by
        e CE + (1 - e) KL(ensemble || server).                       Eq. (5), with equal weights
      The ensemble is the mean logits of the clients.
  4   The server predicts all public images, and sends these server_logits to the clients.
  5   Each client trains on all public images by
        e CE + (1 - e) KL(server_logits || client).                  Eq. (6)

Accuracy is the server's after step 3. The means over the clients are client_accuracy_private after
step 1 and client_accuracy_distilled after step 5. The server is tested on one half of the test
images and the clients on the other, as in the paper.

Bad uploads: a client of which a logit is nan, infinite, or 1e30 or more in magnitude is left out of
the ensemble. It keeps what it trained, and step 5 is as always. If nobody is left, the server
trains by CE. A nan that arises on the server is not caught.

Departures
  1  Paper: has no equation of FedGEM. Here: FedGEMS's Eq. (5) with equal weights, and Eq. (6).
  2  Paper, text: epsilon weighs the distillation. Here, as in the equations: it weighs CE.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (Optimizer, distillation_metrics, loaded, logits_ledger, minibatches,
                        on_server, parallel_map, predict, public_view, random_numbers,
                        received_logits, restored, server_metrics, snapshot, usable)

# loaded            a network, after a copy of a state_dict into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# on_server         one process computes the function for all
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict           logits in eval mode, without gradient and augmentation; it restores the mode
# public_view       the public samples of a round; with --augment each image is cropped and
#                   flipped once, for all who predict or learn it
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received_logits   [M, N, C] of {client: [N, C]}, after an attack; nothing is left out
# restored          a network and its optimizer, after a copy of a snapshot into both; learning rate
#                   and weight decay are the ones given
# snapshot          {"model": its state_dict, "optimizer": its state_dict, or None: a new one},
#                   copies
# usable            [m, N, C] of [M, N, C], without the bad uploads


@dataclass
class Config:
    rounds: int = 10                    # T
    local_epochs: int = 5               # step 1: passes of a client over its own images
    server_epochs: int = 1              # step 3: passes of the server over the public images
    public_epochs: int = 1              # step 5: passes of a client over the public images
    batch_size: int = 64                # of a client
    server_batch_size: int = 64         # of the server
    lr: float = 1e-3                    # of a client
    server_lr: float = 1e-3             # of the server; --lr-patience lowers both
    optimizer: Optimizer = "amsgrad"    # of each client and of the server
    weight_decay: float = 1e-4          # L2 penalty of this optimizer
    epsilon: float = 0.75               # weight of CE where there is a teacher


# Table 13's row of FedGEMS, as FedGEM has none; epsilon: section 4.1.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=200, local_epochs=1, server_epochs=1, public_epochs=1, batch_size=256,
             server_batch_size=256, lr=1e-3, server_lr=1e-3, optimizer="amsgrad",
             weight_decay=1e-4, epsilon=0.75)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.public likewise;
              fed.client_model(i, init=i): client i's new network, with the i-th random weights;
              fed.server_model(): the server's; fed.augment: random crops and flips with --augment,
              else the images unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ids = range(len(fed.private))                                            # M clients
    public_rows = torch.arange(len(fed.public.labels), device=fed.device)    # [N]
    if state is None:
        # Networks of random weights.
        state = {"round": 0, "server": snapshot(fed.server_model()),
                 "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids}}
        yield evaluate(fed, state), state
    server, clients = state["server"], state["clients"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: each client trains on its own images.
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 2: each client predicts all public images.
        public = public_view(fed, t)
        uploads = parallel_map(fed, ids, lambda i: predict_client(fed, i, trained[i], public))
        client_logits = usable(received_logits(uploads, public_rows, attack))    # [m, N, C]

        # Step 3: the server trains on the public images.                         departure 1
        ensemble = client_logits.mean(0) if len(client_logits) else None     # [N, C]
        server = train_server(fed, cfg, t, server, public, ensemble)

        # Step 4: the server predicts all public images.
        server_logits = predict_server(fed, server, public)                  # [N, C]

        # Step 5: each client trains on them, with server_logits as the teacher.
        clients = parallel_map(
            fed, ids,
            lambda i: distill_client(fed, cfg, t, i, trained[i], public, server_logits))

        state = {"round": t, "server": server, "clients": clients}
        yield {**evaluate(fed, state, trained), **measure(fed, client_logits)}, state


def train_client(fed, cfg, t, i, client):
    """Step 1: the snapshot of client i after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def predict_client(fed, i, client, public):
    """Step 2: client i's logits [N, C] of all public images."""
    return predict(loaded(fed.client_model(i), client["model"]), public.images)


@on_server
def train_server(fed, cfg, t, server, public, ensemble):
    """Step 3: the server's snapshot after training on all public images.

    public      those of this round: images [N, c, h, w], labels [N]
    ensemble    the teacher's logits [N, C]; None: there is no teacher
    """
    images, labels = public
    model, optimizer = restored(server, fed.server_model(), cfg.optimizer, cfg.server_lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "server", t) as rng:
        for rows in minibatches(images, cfg.server_batch_size, rng, cfg.server_epochs):
            logits = model(images[rows])                                         # [B, C]
            if ensemble is None:
                loss = F.cross_entropy(logits, labels[rows])
            else:
                loss = distillation(logits, labels[rows], ensemble[rows],
                                    cfg.epsilon).mean()                          # Eq. (5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def distillation(logits, labels, teacher, epsilon):
    """epsilon CE + (1 - epsilon) KL(teacher || student) of each image.   Eq. (5), (6)

    logits, labels, teacher    [B, C] of the student, [B], logits [B, C], which get no gradient
    returns                    [B]
    A class of p = 0, such as a teacher's logit of -inf, adds 0 whatever the student's q is.
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                       # [B]
    log_p, log_q = teacher.detach().log_softmax(-1), logits.log_softmax(-1)      # [B, C]
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)                 # p = 0 adds 0
    kl = (log_p.exp() * log_ratio).sum(-1)                                       # [B]
    return epsilon * ce + (1 - epsilon) * kl                                     # departure 2


@on_server
def predict_server(fed, server, public):
    """Step 4: the server's logits [N, C] of all public images."""
    return predict(loaded(fed.server_model(), server["model"]), public.images)


def distill_client(fed, cfg, t, i, client, public, server_logits):
    """Step 5: the snapshot of client i after training on the public images.

    public           those of this round: images [N, c, h, w], labels [N]
    server_logits    [N, C]: the teacher's
    """
    images, labels = public
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "public", t, i) as rng:
        for rows in minibatches(images, cfg.batch_size, rng, cfg.public_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = distillation(logits, labels[rows], server_logits[rows],
                                cfg.epsilon).mean()                              # Eq. (6)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


# --------------------------------------------------------------------------------------------------
# Metrics; no step uses them

def evaluate(fed, state, trained=None):
    """Test accuracies of the server and of the clients.

    trained    the clients after step 1; None: as in `state`
    """
    server = server_metrics(fed, state["server"])
    return {"accuracy": server.pop("server_accuracy"), **server,
            **distillation_metrics(fed, state["clients"], trained)}


def measure(fed, client_logits):
    """Bad uploads, and the bytes of the logits that were sent."""
    num_clients, num_public = len(fed.private), len(fed.public.labels)
    return {"bad_uploads": num_clients - len(client_logits),
            **logits_ledger(num_clients, fed.num_classes, up=num_public, down=num_public)}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "fedgem", run, paper=PAPER,
    scores={"accuracy": "server", "client_accuracy_distilled": "clients, after distillation",
            "client_accuracy_private": "clients, after private training"},
    public="labeled", mixed_networks=True, server="images", plateau=("lr", "server_lr"),
    evaluate=evaluate)
