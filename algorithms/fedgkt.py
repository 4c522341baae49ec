"""FedGKT: clients train small networks, and the server a large one on their feature maps.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the
Edge", arXiv:2007.14513.

    python fedkd_minimal.py --algo fedgkt
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. A client's network is a convolution, whose feature
        maps are 8x8x8, and a linear layer; the server's is two convolutions and two linear layers.
        It takes 75 seconds on two cores.
    python fedkd_minimal.py --algo fedgkt --paper fedgkt --dataset cifar10
        runs `PAPER`, iid: 16 clients, 2,812 or 2,813 images each, which are cropped and flipped. A
        client's network is a convolution, whose feature maps are 16x32x32, two bottlenecks of
        three convolutions, and a linear layer; the server's is the other 55 layers of a ResNet-56.
        After more than 10 rounds without a better `accuracy` on 5,000 validation images, which no
        client holds, the program divides `server_lr` by ten (plateau.py).

Clients hold labeled images of their own. There are no public images. A client's network is an
extractor, which makes feature maps H of images, and a classifier, which makes logits of feature
maps. The server's network makes logits of feature maps, too. Weights are never sent, and nothing is
averaged: each network stays where it is trained. Clients' networks may differ, as long as their
feature maps have one shape.

Training: train mode, the mean loss of a batch. Prediction: eval mode, no gradient. CE is
cross-entropy with the label. KD(teacher, student) is T² KL(teacher || student) of the softmaxes at
temperature T; the teacher gets no gradient.

A round; the numbers in brackets are lines of the paper's Algorithm 1:
  1   Each active client trains on its own images for E_c passes by CE + KD(Z_s, its logits), where
      Z_s are the server's logits of the same images; by CE alone if it has no Z_s.
                                                                      Eq. (7), (10)   [3-5, 19-22]
  2   It predicts all its images and uploads their feature maps H, logits Z_c and labels Y.
                                                                      Eq. (3), (9)    [24-30]
  3   The server waits for all uploads, then trains on them for E_s passes, in each of which client
      comes after client, by CE + KD(Z_c, its logits).                Eq. (6), (8)    [6-10]
  4   It predicts Z_s, its logits of the H that it has trained on.    Eq. (11)        [11-12]
  5   Each of these clients receives the Z_s of its own images.                       [14-15]

Between rounds the server keeps its model and its optimizer, and each client
    model, optimizer    of its own network: both go on in its next training
    trainings           how often it has trained so far, at first 0
    server_logits       Z_s of its last upload, for its next training; None before the first upload
                        and after a bad one
A client that is not active in a round keeps all four as they are.

With --augment a client has its images in a *view*: all are cropped and flipped once, at random. A
new view is made before its first training and after each training; step 2 is of the new one. So an
upload, its Z_s and the next training are of one view. Without --augment a view is the images as
they are.

Accuracy is on the test images as they are, after step 4: of a client's extractor with the server's
network behind it, the mean over all clients. (To use the two after the last round, a client sends
feature maps to the server, or downloads the server's network once: section 3.2.) `edge_accuracy` is
of the clients' own networks.

Bad uploads: if a number of H or Z_c is nan, infinite, or 1e30 or more in magnitude, the server
leaves the client's upload out and sends it no Z_s. The client keeps what it has trained, but no
older Z_s, which would be of another view. If no upload is left, the server stays as it is. A nan
that arises on the server is not caught: its Z_s would spoil all clients.

Departures: 3 and 4 from the paper, in which 2 is a gap, 1 and 5 from the authors' public code, in
FedML. docs/DEPARTURES.md has smaller ones.
  1  Public code: keeps Z_s by the number of a batch, and shuffles a client's images anew before
     each pass, so that a batch meets the Z_s of other images. Here, as printed: of the same.
  2  Paper: silent about initial weights. Public code: clients start from layers that were trained
     on all data. Here: from random weights, the same in all clients of one architecture.
  3  Paper, Eq. (6), (7): KD has no factor T², and Eq. (6) sums it over all clients. Here: T², as in
     the public code, and one KD, of the image's own client, as nobody else has seen the image.
  4  Paper, lines 11-12: Z_s of a batch are made right after its last step, so by a server that goes
     on training. Here: of all batches after the training.
  5  Public code: crops and flips anew in each pass, also between an upload and the training with
     its Z_s. Here: one view from an upload to the end of the next training.
"""
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (Optimizer, accuracy, active_in, by_architecture, features_ledger, loaded,
                        mean_accuracy, mean_own, minibatches, on_server, output_shape, own_accuracy,
                        parallel_map, parallel_map_to_server, predict, random_numbers,
                        received_samples, restored, snapshot, stream)

# active_in                the sorted ids of a round's clients, drawn at random without replacement
# features_ledger          bytes that are sent up and down
# loaded                   a network, after a copy of some weights into it
# minibatches              row numbers of batches, reshuffled in each pass; the last may be smaller
# on_server                one process computes the function, and sends the result to all
# own_accuracy             accuracy, with the classes weighted as in the client's own images
# parallel_map             {i: fn(i) for i in ids}, by several processes
# parallel_map_to_server   the same, but only the process that computes what is @on_server has the
#                          results, as feature maps are large; all others have {}
# predict                  logits, in eval mode and without gradient, in batches
# random_numbers           a generator for what is named; it also seeds torch, for dropout
# received_samples         {client: upload}: after an attack, and without the bad uploads
# restored                 a network and its optimizer, after a copy of a snapshot into both; the
#                          rates are the ones given here
# snapshot                 {"model": its weights, with BatchNorm's statistics, "optimizer": its
#                          state, or None for a new one}
# stream                   a generator for what is named


@dataclass
class Config:
    rounds: int = 10                    # of communication
    participation: float = 1.0          # share of the clients that are active in a round
    local_epochs: int = 1               # E_c: passes of a client over its images
    server_epochs: int = 5              # E_s: passes of the server over the uploads of a round
    batch_size: int = 32                # of a client
    server_batch_size: int = 32
    lr: float = 1e-3                    # of a client, constant
    server_lr: float = 1e-3             # constant, unless --lr-patience lowers it between rounds
    optimizer: Optimizer = "amsgrad"            # of each client, kept over the rounds
    server_optimizer: Optimizer = "amsgrad"     # kept over the rounds
    weight_decay: float = 1e-4          # L2 penalty of both
    temperature: float = 3.0            # T, of teacher and student
    server_distill: bool = True         # False: the server trains by CE alone
    client_distill: bool = True         # False: the clients train by CE alone
    server_order: Literal["clients", "mixed"] = "clients"    # mixed: batches of all, shuffled
    common_start: bool = True           # False: each client starts from weights of its own
    features: Literal["float32", "bfloat16"] = "float32"     # number type of the uploaded H


# Table 10, iid; it says Adam. The temperature, and AMSGrad, are those of the authors' code of 2020.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=200, participation=1.0, local_epochs=1, server_epochs=20, batch_size=256,
             server_batch_size=256, lr=1e-3, server_lr=1e-3, optimizer="amsgrad",
             server_optimizer="amsgrad", weight_decay=1e-4, temperature=3.0,
             server_distill=True, client_distill=True)
# Both distill, as in Algorithm 1: S<->E of Table 2, 90.53. Table 1 has S->E, 92.97, where the
# server trains by CE alone.


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
              fed.client_model(i, init), fed.server_model(): new networks, the first with the
              init-th random weights; fed.augment: random crops and flips with --augment, else the
              images unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    if state is None:
        state = {"round": 0, "server": snapshot(fed.server_model()),
                 "clients": {i: new_client(fed, cfg, i) for i in range(len(fed.private))}}
        yield evaluate(fed, state), state
    server, clients = state["server"], state["clients"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: each active client trains on its own images.
        active = active_in(fed, cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, i, clients[i]))

        # Step 2: it uploads feature maps, logits and labels. They are large: of several processes,
        # only the one that computes steps 3 and 4 has them.
        uploads = parallel_map_to_server(
            fed, active, lambda i: make_upload(fed, cfg, i, trained[i]))
        uploads = received_samples(uploads, attack)                          # {client: Upload}

        # Step 3: the server trains on all uploads.
        server = train_server(fed, cfg, t, server, uploads)

        # Step 4: it predicts their feature maps.
        server_logits = predict_server(fed, server, uploads)                 # {client: Z_s [n, C]}
        del uploads                          # frees the feature maps before new ones are made

        # Step 5: each of these clients receives its own; after a bad upload it has none.
        clients = clients | {i: trained[i] | {"server_logits": server_logits.get(i)}
                             for i in active}

        state = {"round": t, "server": server, "clients": clients}
        yield measure(fed, cfg, state, active, server_logits), state


def new_client(fed, cfg, i):
    """What client i keeps before its first training."""
    init = 0 if cfg.common_start else i                                      # departure 2
    return snapshot(fed.client_model(i, init)) | {"trainings": 0, "server_logits": None}


def train_client(fed, cfg, i, client):
    """Step 1: the model, optimizer and number of trainings of client i after a training.   Eq. (10)

    client    what it keeps between rounds
    """
    images, labels = view(fed, i, client["trainings"]), fed.private[i].labels
    server_logits = client["server_logits"] if cfg.client_distill else None      # [n, C] or None
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    trainings = client["trainings"] + 1          # this one, which names its random numbers
    model.train()
    with random_numbers(fed, "local", trainings, i) as rng:                  # order, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(images[rows])                                         # [B, C]
            teacher = None if server_logits is None else server_logits[rows]     # departure 1
            loss = client_loss(logits, labels[rows], teacher, cfg.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer) | {"trainings": trainings}


def view(fed, i, trainings):
    """Client i's view after so many trainings: its images, cropped and flipped."""
    rng = stream(fed.seed, "view", trainings, i)
    return fed.augment(fed.private[i].images, rng)                           # departure 5


def client_loss(logits, labels, server_logits, temperature):
    """CE + KD(server, client), or CE alone where server_logits is None: a scalar.   Eq. (7)

    logits, labels, server_logits    [B, C], [B], [B, C]; the server's get no gradient
    """
    ce = F.cross_entropy(logits, labels)
    if server_logits is None:
        return ce
    return ce + distillation_loss(server_logits.detach(), logits, temperature)


def distillation_loss(teacher, student, temperature):
    """temperature² KL(teacher || student), the mean over the batch: a scalar.

    teacher, student    logits [B, C]
    A class of p = 0, such as a teacher's logit of -inf, adds 0 whatever the student's q is.
    >>> distillation_loss(torch.tensor([[.8, .2]]).log(), torch.tensor([[.5, .5]]).log(), 1.0)
    tensor(0.1927)
    """
    log_p = (teacher / temperature).log_softmax(-1)
    log_q = (student / temperature).log_softmax(-1)
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)             # p = 0 adds 0
    return temperature**2 * (log_p.exp() * log_ratio).sum(-1).mean()             # departure 3


class Upload(NamedTuple):
    """What a client sends of its n images."""

    features: torch.Tensor    # H [n, ...]
    logits: torch.Tensor      # Z_c [n, C]
    labels: torch.Tensor      # Y [n]


def make_upload(fed, cfg, i, client):
    """Step 2: client i's `Upload`, of its view after the training."""
    model = loaded(fed.client_model(i), client["model"])
    features, logits = predict_with_features(model, view(fed, i, client["trainings"]))
    return Upload(features.to(getattr(torch, cfg.features)), logits, fed.private[i].labels)


CHUNK = 64      # images at once, where a client predicts: limits the memory that it takes


@torch.no_grad()
def predict_with_features(model, images):
    """(H [n, ...], Z_c [n, C]) of images, float32, in eval mode; the model keeps its mode."""
    was_training = model.training
    model.eval()
    features = [model.extract(batch) for batch in images.split(CHUNK)]           # Eq. (3)
    logits = [model.classify(batch) for batch in features]                       # Eq. (9)
    model.train(was_training)
    return torch.cat(features).float(), torch.cat(logits)


@on_server
def train_server(fed, cfg, t, server, uploads):
    """Step 3: the server's model and optimizer after training on the uploads.   Eq. (8)

    t          the round, for the name of the random numbers
    uploads    {client: `Upload`}
    """
    if not uploads:                                      # all were bad: the server stays
        return server
    model, optimizer = restored(server, fed.server_model(), cfg.server_optimizer, cfg.server_lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "server", t) as rng:                            # order, dropout
        for _ in range(cfg.server_epochs):
            for i, rows in server_batches(cfg, uploads, rng):
                features, client_logits, labels = (part[rows] for part in uploads[i])
                logits = model(features.float())                                 # [B, C]
                loss = server_loss(logits, labels, client_logits, cfg.temperature,
                                   cfg.server_distill)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return snapshot(model, optimizer)


def server_batches(cfg, uploads, rng):
    """[(a client, row numbers of its upload)]: the batches of a pass over all uploads.

    Client comes after client, each one's rows in random order.
    """
    batches = [(i, rows) for i, sent in uploads.items()
               for rows in minibatches(sent.labels, cfg.server_batch_size, rng, epochs=1)]
    if cfg.server_order == "mixed":                      # not in the paper
        rng.shuffle(batches)
    return batches


def server_loss(logits, labels, client_logits, temperature, distill=True):
    """CE + KD(client, server), or CE alone unless `distill`: a scalar.   Eq. (6)

    logits, labels, client_logits    [B, C], [B], [B, C]; the client's get no gradient
    """
    ce = F.cross_entropy(logits, labels)
    if not distill:
        return ce
    return ce + distillation_loss(client_logits.detach(), logits, temperature)


@on_server
def predict_server(fed, server, uploads):
    """Step 4: {client: Z_s [n, C]}, the logits of each upload's feature maps.   Eq. (11)"""
    model = loaded(fed.server_model(), server["model"])                      # departure 4
    return {i: predict(model, sent.features.float()) for i, sent in uploads.items()}


# --------------------------------------------------------------------------------------------------
# Metrics; no step uses them

def measure(fed, cfg, state, uploaded, answered):
    """The metrics of a round.

    uploaded, answered    the clients that uploaded, and those that received Z_s, as their uploads
                          were not bad
    """
    up, down = (sum(len(fed.private[i].labels) for i in ids) for ids in (uploaded, answered))
    trainings = [client["trainings"] for client in state["clients"].values()]
    return {**evaluate(fed, state), "bad_uploads": len(uploaded) - len(answered),
            "trainings_min": min(trainings), "trainings_max": max(trainings),
            **features_ledger(up, down, feature_numbers(fed), fed.num_classes,
                              getattr(torch, cfg.features).itemsize)}


def evaluate(fed, state):
    """Test accuracies of all clients' extractors with the server's network, and of their own."""
    server = loaded(fed.server_model(), state["server"]["model"])
    labels = fed.test.labels

    def scores(i):
        """Accuracy with the server's network, alone, alone on the client's own classes."""
        edge = loaded(fed.client_model(i), state["clients"][i]["model"])
        pairs = []
        for images in fed.test.images.split(CHUNK):      # not all feature maps at once
            features, edge_logits = predict_with_features(edge, images)
            pairs.append((predict(server, features), edge_logits))
        stacked, alone = (torch.cat(logits) for logits in zip(*pairs))           # [N, C]
        return (accuracy(stacked, labels), accuracy(alone, labels),
                own_accuracy(alone, labels, fed.private[i].labels))

    stacked, alone, own = zip(*parallel_map(fed, state["clients"], scores).values())
    return {"accuracy": mean_accuracy(stacked), "accuracy_min": min(stacked),
            "accuracy_max": max(stacked), "edge_accuracy": mean_accuracy(alone),
            "edge_accuracy_own": mean_own(own)}


def feature_numbers(fed):
    """How many numbers a feature map has."""
    features, _ = predict_with_features(fed.client_model(0), fed.private[0].images[:1])
    return features.numel()


# --------------------------------------------------------------------------------------------------
# For the command line

@torch.no_grad()
def check(fed, cfg, attack):
    """Raises ValueError unless all clients' feature maps have one shape, which the server reads."""
    shapes = set()
    for name, ids in by_architecture(fed).items():
        edge = fed.client_model(ids[0]).eval()
        if not (hasattr(edge, "extract") and hasattr(edge, "classify")):
            raise ValueError(f"{name} has no feature map to send: a client's network needs the "
                             "methods extract and classify, as gkt_edge has them")
        features = edge.extract(fed.private[0].images[:1])                       # [1, ...]
        if output_shape(fed.server_model(), features) != (1, fed.num_classes):
            raise ValueError(f"the server's network makes no logits [B, {fed.num_classes}] of the "
                             f"{list(features.shape[1:])} feature maps of {name}: gkt_server55 "
                             "and gkt_server109 go with gkt_edge..., gkt_server_small with "
                             "gkt_edge_small")
        shapes.add(features.shape)
    if len(shapes) > 1:
        raise ValueError(f"feature maps of all clients need one shape, not {sorted(shapes)}")


ALGORITHM = Algorithm(
    "fedgkt", run,
    scores={"accuracy": "edges with the server", "edge_accuracy": "edges alone"}, paper=PAPER,
    mixed_networks=True, server="features", model=("gkt_edge_small",),
    server_model="gkt_server_small", check_settings=check, plateau=("server_lr",),
    evaluate=evaluate, columns=("accuracy_min", "accuracy_max"))
