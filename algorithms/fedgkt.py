"""FedGKT: clients train small networks, and the server a large one on their feature maps.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the
Edge", arXiv:2007.14513.

    python fedkd_minimal.py --algo fedgkt
        runs `Config` on digits of 16x16 pixels: 20 clients with a network of two layers hold 300
        images each (Dirichlet, alpha 0.5), the server's has four. 75 seconds on two cores.
    python fedkd_minimal.py --algo fedgkt --paper fedgkt --dataset cifar10
        runs `PAPER`: 16 clients, iid, with a network of 8 layers; the server's has 55

Clients hold labeled images of their own. A client's network is an extractor, which makes feature
maps H of images, and a classifier, which makes logits of H; the server's makes logits of H, too.
No network is sent: each stays, with its optimizer, where it is trained. A view is all images of a
client, cropped and flipped once (with --augment); it trains on the last one that it uploaded.

A round; in brackets are lines of the paper's Algorithm 1. CE is cross-entropy with the label, and
KD(Z) = T² KL(softmax(Z / T) || softmax(logits / T)), or 0 if there is no Z:
  1   each active client trains on its last view by CE + KD(Z_s)       Eq. (7), (10)  [3-5, 19-22]
  2   it makes a new view, and uploads its H, logits Z_c and labels    Eq. (3), (9)   [24-30]
  3   the server trains on all uploads, client after client in each
      pass, by CE + KD(Z_c)                                            Eq. (6), (8)   [6-10]
  4   it predicts Z_s, its logits of the uploaded H                    Eq. (11)       [11-12]
  5   each of these clients receives the Z_s of its own images                        [14-15]

  step   who predicts             images       mode    gradient   augmented    loss, how often
  1      an active client         last view    train   yes        once         CE + KD, E_c passes
  2      the same                 new view     eval    no         once         none, once
  3      the server               uploaded H   train   yes        as in 2      CE + KD, E_s passes
  4      the server               uploaded H   eval    no         as in 2      none, once
  -      extractor, then server   test         eval    no         no           `accuracy`, after 5
  -      a client's own network   test         eval    no         no           `edge_accuracy`
Accuracies are means over all clients, also those that have never trained.

An upload with a number that is nan, infinite, or 1e30 or more in magnitude is left out; its client
drops its Z_s, which is of an earlier view, and next trains by CE alone. If none is left, the
server's network stays. If the server diverges, its Z_s spoil the clients that receive them.

Departures; 5 and more are in docs/DEPARTURES.md
  1  Public code: starts from layers that were trained on all data. Here: from random weights, the
     same in all clients of one architecture.
  2  Paper, Eq. (6), (7): KD has no factor T²; Eq. (6) sums it over all clients. Here: T², as in the
     public code, and one KD, of the image's own client, as nobody else has seen the image.
  3  Paper, [11]: Z_s of a batch is made right after its step. Here: after all steps of the server.
  4  Public code: crops and flips anew in each pass, also between steps 2 and 1. Here: a view.
"""
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from federation import (FLOAT_BYTES, INDEX_BYTES, Algorithm, Count, Natural, NonNegative, Optimizer,
                        Positive, Settings, Share, accuracy, drop_bad_uploads, in_bfloat16, mean_of,
                        minibatches, on_server, own_accuracy, parallel_map, predict, resume,
                        snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 10                 # of communication
    participation: Share = 1.0           # share of the clients that are active in a round
    local_epochs: Count = 1              # E_c: passes of a client over its images
    server_epochs: Count = 5             # E_s: passes of the server over the uploads of a round
    batch_size: Count = 32               # of a client
    server_batch_size: Count = 32
    lr: Positive = 1e-3                  # of a client, constant
    server_lr: Positive = 1e-3           # constant
    optimizer: Optimizer = "amsgrad"             # of each client, kept over the rounds
    server_optimizer: Optimizer = "amsgrad"      # kept over the rounds
    weight_decay: NonNegative = 1e-4     # L2 penalty of both
    temperature: Positive = 3.0          # T, of teacher and student; the public code's
    server_distill: bool = True          # False: the server trains by CE alone
    client_distill: bool = True          # False: the clients train by CE alone
    server_order: Literal["clients", "mixed"] = "clients"    # mixed: the batches of all, shuffled
    common_start: bool = True            # False: each client starts from weights of its own
    features: Literal["float32", "bfloat16"] = "float32"     # type of the uploaded H. The server
    #                                      trains on rounded H, but accuracies are of exact ones


# Table 10, iid, where it differs from Config. Server and clients distill, as in Algorithm 1 and in
# Table 2's row S<->E (90.53% on CIFAR-10). In Table 1, 92.97%, the server does not (S->E).
PAPER = dict(rounds=200, server_epochs=20, batch_size=256, server_batch_size=256)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed       a `Federation`; clients may have different networks, if their H have one shape
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    if state is None:
        state = {"algorithm": "fedgkt", "round": 0, "server": snapshot(fed.server_model()),
                 "clients": {i: new_client(fed, cfg, i) for i in range(len(fed.private))}}
        yield evaluate(fed, state), state
    server, clients = state["server"], state["clients"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: each active client trains on its view.
        active = fed.sample_clients(cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, i, clients[i]))

        # Step 2: it uploads feature maps, logits and labels of its next view. They are large: of
        # several processes only the first, which computes steps 3 and 4, has them.
        uploads = parallel_map(
            fed, active, lambda i: make_upload(fed, cfg, i, trained[i]), to_server=True)
        uploads = attack.poison_samples(uploads) if attack else uploads
        uploads = drop_bad_uploads(uploads)                                  # {client: Upload}

        # Step 3: the server trains on all uploads.
        server = train_server(fed, cfg, t, server, uploads)

        # Step 4: it predicts their feature maps: {client: Z_s [n, C]}.
        server_logits = predict_server(fed, server, uploads)
        del uploads     # or these feature maps would stay in memory while the next are made

        # Step 5: each of these clients receives its own; after a bad upload it has none.
        clients = clients | {i: trained[i] | {"server_logits": server_logits.get(i)}
                             for i in active}

        state = {**state, "round": t, "server": server, "clients": clients}
        yield measure(fed, cfg, state, active, server_logits), state


def new_edge(fed, i, init=0):
    """A new network of client i, with its random weights number `init`; with --amp its extractor
    and its classifier compute in bfloat16, and return float32."""
    edge = fed.client_model(i, init)
    if fed.amp:
        edge.extract, edge.classify = in_bfloat16(edge.extract), in_bfloat16(edge.classify)
    return edge


def new_client(fed, cfg, i):
    """What client i keeps between rounds, before its first training: its model and optimizer, the
    number of its trainings, and Z_s [n, C] of its view, or None."""
    init = 0 if cfg.common_start else i                                      # departure 1
    return snapshot(new_edge(fed, i, init)) | {"trainings": 0, "server_logits": None}


def view(fed, i, client):
    """Client i's view, images [n, c, h, w]. It depends on the number of its trainings alone, and is
    made twice, for an upload and for the next training: a state has no images."""
    rng = fed.rng("view", client["trainings"], i)
    return fed.augment(fed.private[i].images, rng)                           # departure 4


def train_client(fed, cfg, i, client):
    """Step 1: what client i keeps after a training, but for Z_s.   Eq. (10)

    client    what it keeps before
    """
    images, labels = view(fed, i, client), fed.private[i].labels
    server_logits = client["server_logits"] if cfg.client_distill else None      # [n, C] or None
    model, optimizer = resume(client, new_edge(fed, i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    trainings = client["trainings"] + 1
    model.train()
    with fed.random_numbers("local", trainings, i) as rng:                  # order, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(images[rows])                                         # [B, C]
            teacher = None if server_logits is None else server_logits[rows]
            loss = transfer_loss(logits, labels[rows], teacher, cfg.temperature)           # Eq. (7)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer) | {"trainings": trainings}


def transfer_loss(logits, labels, teacher, temperature):
    """CE + KD(teacher), or CE alone if there is no teacher: a scalar.   Eq. (6), (7)

    logits, labels    [B, C], [B]: of the student, which is the server in Eq. (6)
    teacher           finite logits [B, C], which get no gradient, or None
    """
    ce = F.cross_entropy(logits, labels)
    if teacher is None:
        return ce
    return ce + distillation_loss(logits, teacher, temperature)


def distillation_loss(student, teacher, temperature):
    """temperature² KL(teacher || student), the mean over the batch: a scalar.

    student, teacher    finite logits [B, C]; the teacher's get no gradient
    >>> distillation_loss(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]).log(), 1.0)
    tensor(0.1927)
    """
    log_p = (teacher.detach() / temperature).log_softmax(-1)
    log_q = (student / temperature).log_softmax(-1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean()             # departure 2


class Upload(NamedTuple):
    """What a client sends of its n images."""

    features: torch.Tensor    # H [n, ...]
    logits: torch.Tensor      # Z_c [n, C]
    labels: torch.Tensor      # Y [n]


def make_upload(fed, cfg, i, client):
    """Step 2: client i's `Upload`, of its view after the training."""
    edge = new_edge(fed, i)
    edge.load_state_dict(client["model"])
    features, logits = predict_with_features(edge, view(fed, i, client))
    return Upload(features.to(getattr(torch, cfg.features)), logits, fed.private[i].labels)


CHUNK = 64      # images whose feature maps are made at once, which limits memory


@torch.no_grad()
def predict_with_features(model, images):
    """(H [n, ...], Z_c [n, C]) of images, in eval mode."""
    model.eval()
    features = [model.extract(batch) for batch in images.split(CHUNK)]           # Eq. (3)
    logits = [model.classify(batch) for batch in features]                       # Eq. (9)
    return torch.cat(features), torch.cat(logits)


@on_server
def train_server(fed, cfg, t, server, uploads):
    """Step 3: the server's model and optimizer after training on the uploads.   Eq. (8)

    t          names the random numbers: the round
    server     its model and optimizer before
    uploads    {client: `Upload`}
    """
    if not uploads:                                      # all were bad: the server stays
        return server
    model, optimizer = resume(server, fed.server_model(), cfg.server_optimizer, cfg.server_lr,
                              cfg.weight_decay)
    model.train()
    with fed.random_numbers("server", t) as rng:                            # order, dropout
        for _ in range(cfg.server_epochs):
            for i, rows in server_batches(cfg, uploads, rng):
                features, client_logits, labels = (part[rows] for part in uploads[i])
                logits = model(features.float())                                 # [B, C]
                teacher = client_logits if cfg.server_distill else None
                loss = transfer_loss(logits, labels, teacher, cfg.temperature)           # Eq. (6)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return snapshot(model, optimizer)


def server_batches(cfg, uploads, rng):
    """[(a client, row numbers of its upload)]: the batches of a pass over all uploads.

    Client comes after client, each one's rows in random order; mixed: all batches are shuffled, so
    that a pass does not end with those of the last client."""
    batches = [(i, rows) for i, sent in uploads.items()
               for rows in minibatches(sent.labels, cfg.server_batch_size, rng, epochs=1)]
    if cfg.server_order == "mixed":                                              # departure 5
        rng.shuffle(batches)
    return batches


@on_server
def predict_server(fed, server, uploads):
    """Step 4: {client: Z_s [n, C]}, the logits of each upload's feature maps.   Eq. (11)"""
    model = fed.server_model()
    model.load_state_dict(server["model"])                                           # departure 3
    return {i: predict(model, sent.features.float()) for i, sent in uploads.items()}


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, cfg, state, active, answered):
    """The metrics of a round.

    active, answered    the clients that uploaded, and those of them that received Z_s
    """
    up, down = (sum(len(fed.private[i].labels) for i in ids) for ids in (active, answered))
    trainings = [client["trainings"] for client in state["clients"].values()]     # so far
    return {**evaluate(fed, state), "bad_uploads": len(active) - len(answered),
            "trainings_min": min(trainings), "trainings_max": max(trainings),
            "bytes_up": getattr(torch, cfg.features).itemsize * up * feature_numbers(fed),
            "bytes_down": FLOAT_BYTES * down * fed.num_classes,
            "bytes_up_logits": FLOAT_BYTES * up * fed.num_classes,
            "bytes_up_labels": INDEX_BYTES * up}         # if no upload is bad their sum is Eq. (13)


def evaluate(fed, state):
    """Test accuracies of all clients' extractors with the server's network, and of their own."""
    server = fed.server_model()
    server.load_state_dict(state["server"]["model"])
    images, labels = fed.test

    def test(i):
        """The accuracy of client i's extractor with the server's network, its network's own, and
        the latter with classes weighed as in the client's images."""
        edge = new_edge(fed, i)
        edge.load_state_dict(state["clients"][i]["model"])
        alone = predict(edge, images)                                            # [N, C]
        return (accuracy(predict_stacked(edge, server, images), labels), accuracy(alone, labels),
                own_accuracy(alone, labels, fed.private[i].labels))

    stacked, alone, own = zip(*parallel_map(fed, state["clients"], test).values())
    return {"accuracy": fmean(stacked), "accuracy_min": min(stacked),
            "accuracy_max": max(stacked), "edge_accuracy": fmean(alone),
            "edge_accuracy_own": mean_of(own)}


@torch.no_grad()
def predict_stacked(edge, server, images):
    """Logits [N, C], in eval mode, of an extractor with the server's network behind it."""
    edge.eval()
    return torch.cat([predict(server, edge.extract(batch)) for batch in images.split(CHUNK)])


def feature_numbers(fed):
    """How many numbers a feature map has."""
    features, _ = predict_with_features(new_edge(fed, 0), fed.private[0].images[:1])
    return features.numel()


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError unless all clients' feature maps have one shape, which the server reads."""
    shapes = set()
    for name, ids in fed.clients_by_architecture().items():
        edge = fed.client_model(ids[0])
        if not (hasattr(edge, "extract") and hasattr(edge, "classify")):
            raise ValueError(f"{name} has no feature map to send: a client's network needs the "
                             "methods extract and classify, as gkt_edge has them")
        features, _ = predict_with_features(edge, fed.private[0].images[:1])     # [1, ...]
        shapes.add(tuple(features.shape[1:]))
        try:
            logits = predict(fed.server_model(), features)
            if logits.shape != (1, fed.num_classes):
                raise RuntimeError(f"it makes {[*logits.shape]} of one map")
        except RuntimeError as error:                    # torch's own, of shapes that do not fit
            raise ValueError(f"the server's network makes no logits [B, {fed.num_classes}] of the "
                             f"{[*features.shape[1:]]} feature maps of {name} (gkt_server_small "
                             f"goes with gkt_edge_small alone): {error}") from error
    if len(shapes) > 1:
        raise ValueError(f"feature maps of all clients need one shape, not {sorted(shapes)}")


def models(state, client_network, server_network):
    """{name: [(network, weights), ...]}: of each client its edge network, then the server's."""
    server = (server_network, state["server"]["model"])
    return {f"client {i}": [(client_network(i), client["model"]), server]
            for i, client in state["clients"].items()}


ALGORITHM = Algorithm(
    "fedgkt", run, Config, mixed_networks=True, server="features", check_more=check, program=dict(
        scores={"accuracy": ("edges with the server", "test"),
                "edge_accuracy": ("edges alone", "test")}, paper=PAPER, models=models,
        model=("gkt_edge_small",), server_model="gkt_server_small", plateau=("server_lr",),
        evaluate=evaluate, columns=("accuracy_min", "accuracy_max")))
