"""FedGEM: a large server model learns from labels and from the mean of all clients' logits.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, section 3.2. It is FedGEMS without the selection of clients and images, and
without the pool.

    python fedkd_minimal.py --algo fedgem
        runs `Config` on digits: 20 clients with a small CNN hold 150 each (Dirichlet, alpha 0.5),
        3,000 others and half of the test images are public, the server's CNN is wider. A minute.
    python fedkd_minimal.py --algo fedgem --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`: 16 clients with a ResNet-11 hold 1,406 or 1,407 images each, iid; 25,000 are
        public, the server has a ResNet-56. Images are augmented, that is, cropped and flipped, and
        both learning rates fall when the server's accuracy stops growing (experiment/plateau.py).

Clients hold labeled images of their own; the server and all clients hold N labeled public images.
Each keeps a network, of any architecture, and its optimizer. Only logits of public images are sent.

A round; the numbers are ours. CE is cross-entropy with the label, e is epsilon, and KL(teacher ||
student) is at temperature 1.
  1   Each client trains on its own images by CE.
  2   Each client predicts all public images.
  3   The server trains on the public images; ensemble is the mean of all clients' logits:
        e CE + (1 - e) KL(ensemble || server).                       Eq. (5), with equal weights
  4   The server predicts all public images, and sends these server_logits to the clients.
  5   Each client trains on all public images by
        e CE + (1 - e) KL(server_logits || client).                  Eq. (6)

  step   who predicts   images            mode    gradient   augmented       loss, how often
  1      all clients    their own         train   yes        in each pass    CE, local_epochs
  2      all clients    public            eval    no         once a round    none, once
  3      the server     public            train   yes        as in step 2    Eq. (5), server_epochs
  4      the server     public            eval    no         as in step 2    none, once
  5      all clients    public            train   yes        as in step 2    Eq. (6), public_epochs
  -      the server     test, public      eval    no         no              `accuracy`, after 3
  -      all clients    test, the rest    eval    no         no              means, after 1 and 5

A client of which a logit is nan, infinite, or 1e30 or more in magnitude is left out of the
ensemble, and trains as always. If nobody is left, the server trains by CE.

Departures
  1  Paper: has no equation of FedGEM. Here: FedGEMS's Eq. (5) with equal weights, and Eq. (6).
  2  Paper, text: epsilon weighs the distillation. Here, as in the equations: it weighs CE.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from federation import (Algorithm, Count, Fraction, Natural, NonNegative, Optimizer, Positive,
                        Settings, count_logit_bytes, drop_bad_uploads, minibatches, on_server,
                        parallel_map, predict, predict_models, resume, score_clients, score_server,
                        snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 10                # T
    local_epochs: Count = 5             # step 1: passes of a client over its own images
    server_epochs: Count = 1            # step 3: passes of the server over the public images
    public_epochs: Natural = 1          # step 5: passes of a client over the public images
    batch_size: Count = 64              # of a client
    server_batch_size: Count = 64       # of the server
    lr: Positive = 1e-3                 # of a client
    server_lr: Positive = 1e-3          # of the server
    optimizer: Optimizer = "amsgrad"    # of each client and of the server
    weight_decay: NonNegative = 1e-4    # L2 penalty of this optimizer
    epsilon: Fraction = 0.75            # weight of CE where there is a teacher


# FedGEM has no row in Table 13; these are FedGEMS's, where they differ from Config. Clients,
# partition, networks: experiment/presets.py.
PAPER = dict(rounds=200, local_epochs=1, batch_size=256, server_batch_size=256)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed       a `Federation`, with labeled public images and a network of the server
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    ids = range(len(fed.private))                                            # M clients
    public_rows = torch.arange(len(fed.public.labels), device=fed.device)    # [N]
    if state is None:
        # Networks of random weights, of each client other ones.
        state = {"algorithm": "fedgem", "round": 0, "server": snapshot(fed.server_model()),
                 "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids}}
        yield evaluate(fed, state), state
    server, clients = state["server"], state["clients"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: each client trains on its own images.
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 2: each client predicts all public images.
        images = fed.augment_public(t)                                       # [N, c, h, w]
        uploads = parallel_map(fed, ids, lambda i: predict_client(fed, i, trained[i], images))
        if attack:
            uploads = attack.poison_rows(uploads, public_rows)
        uploads = drop_bad_uploads(uploads)                                  # {client: [N, C]}

        # Step 3: the server trains on the public images.                         departure 1
        ensemble = torch.stack([*uploads.values()]).mean(0) if uploads else None     # [N, C]
        server = train_server(fed, cfg, t, server, images, ensemble)

        # Step 4: the server predicts all public images.
        server_logits = predict_models(
            fed, [server["model"]], images, fed.server_model)[0]             # [N, C]

        # Step 5: each client trains on them, with server_logits as the teacher.
        clients = parallel_map(fed, ids, lambda i: distill_client(
            fed, cfg, t, i, trained[i], images, server_logits))

        state = {**state, "round": t, "server": server, "clients": clients}
        yield measure(fed, state, trained, uploads), state


def train_client(fed, cfg, t, i, client):
    """Step 1: the snapshot of client i after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def predict_client(fed, i, client, images):
    """Step 2: client i's logits [N, C] of all public images."""
    model = fed.client_model(i)
    model.load_state_dict(client["model"])
    return predict(model, images)


@on_server
def train_server(fed, cfg, t, server, images, ensemble):
    """Step 3: the server's snapshot after training on all public images.

    images      the public ones of this round [N, c, h, w]
    ensemble    the teacher's logits [N, C]; None: there is no teacher
    """
    labels = fed.public.labels
    model, optimizer = resume(server, fed.server_model(), cfg.optimizer, cfg.server_lr,
                              cfg.weight_decay)
    model.train()
    with fed.random_numbers("server", t) as rng:
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

    logits, labels, teacher    [B, C] of the student, [B], finite logits [B, C], which get no
                               gradient
    returns                    [B]
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                       # [B]
    log_p, log_q = teacher.detach().log_softmax(-1), logits.log_softmax(-1)      # [B, C]
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)                                       # [B]
    return epsilon * ce + (1 - epsilon) * kl                                     # departure 2


def distill_client(fed, cfg, t, i, client, images, server_logits):
    """Step 5: the snapshot of client i after training on the public images.

    images           the public ones of this round [N, c, h, w]
    server_logits    [N, C]: the teacher's
    """
    labels = fed.public.labels
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("public", t, i) as rng:
        for rows in minibatches(images, cfg.batch_size, rng, cfg.public_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = distillation(logits, labels[rows], server_logits[rows],
                                cfg.epsilon).mean()                              # Eq. (6)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, trained, uploads):
    """The metrics of a round."""
    num_clients, num_public = len(fed.private), len(fed.public.labels)
    return {**evaluate(fed, state, trained), "bad_uploads": num_clients - len(uploads),
            **count_logit_bytes(num_clients, fed.num_classes, up=num_public, down=num_public)}


def evaluate(fed, state, trained=None):
    """Test accuracies. The server's is `accuracy`; means over all clients are
    client_accuracy_private, after step 1, and client_accuracy_distilled, after 5.

    trained    the clients after step 1; None: as in `state`
    """
    server = score_server(fed, state["server"])
    return {"accuracy": server.pop("server_accuracy"), **server,
            **score_clients(fed, state["clients"], "client_accuracy_distilled"),
            **score_clients(fed, trained or state["clients"], "client_accuracy_private")}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "fedgem", run, Config, public="labeled", mixed_networks=True, server="images", program=dict(
        paper=PAPER,
        scores={"accuracy": ("server", "public half"),
                "client_accuracy_distilled": ("clients, after distillation", "test"),
                "client_accuracy_private": ("clients, after private training", "test")},
        more_scores={"server_accuracy_private_test": ("server", "test")},
        clients_score="client_accuracy_distilled",
        plateau=("lr", "server_lr"), evaluate=evaluate))
