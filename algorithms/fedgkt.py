"""FedGKT: small edge networks send feature maps to a large server network; both exchange logits.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the
Edge", arXiv:2007.14513. The defaults are Table 10's for iid data; the temperature and AMSGrad are
those of the authors' code of 2020.

Run:   python fedkd_minimal.py --algo fedgkt
What travels: in each round a client sends feature maps, logits and labels of all its samples; the
server sends back its logits of these samples. After the last round a device that predicts sends the
feature map of its input, or downloads the server's network once.
Public data: none. Edge networks may differ; their feature maps have one shape.

Paper              here                         shape         note
W_e^(k), W_c^(k)   model.extract, .classify     networks      client i: images -> H^(k) -> Z_c^(k)
W_s                server                       snapshot      H^(k) -> Z_s^(k)
H^(k)              uploads[i].features          [n, ...]      feature maps of all its n samples: of
                                                              gkt_edge [n, 16, h, w]
Z_c^(k)            uploads[i].logits            [n, C]        by the client's network
Z_s^(k)            server_logits[i]             [n, C]        by the server's; or None
Y^(k)              fed.private[i].labels        [n]           sent with every upload
T                  temperature                  number        of KD (in Alg. 1 also the rounds)
E_c, E_s           local_epochs, server_epochs  numbers

Algorithm 1, with the paper's line numbers; its client k is i here. CE is cross-entropy. KD is T²
KL(teacher || student), both softmaxes at temperature T; --no-client-distill drops it from Eq. (7),
--no-server-distill from Eq. (6). Each network keeps its optimizer over all rounds, AMSGrad.
 3- 5  each client (with --participation: some) trains, then uploads H^(k), Z_c^(k) and Y^(k):
19-22    E_c passes over its samples: CE + KD from the server's logits, Eq. (7); CE alone if it has
         none, as in its first training
24-30    one pass in eval mode: feature maps and logits of all its samples
 6-10  the server waits for all uploads, then trains on the valid ones for E_s passes, client after
       client: CE + KD from the client's logits, Eq. (6)
11-12  one pass in eval mode: the server's logits of these feature maps
14-15  each client with a valid upload receives the server's logits of its samples, for its next
       training. A client that did not take part keeps the logits that it has
With --augment training j of a client is on view j - 1 of its images, in all its passes, and upload
j is of view j, augmented anew. So the server's logits of upload j fit training j + 1.

Modes: clients and server train in train mode; CE and KD are means over the batch. Uploads, the
server's logits and scores are predicted in eval mode; test images are clean.
Kept between rounds: server: network, optimizer. Client: network, optimizer, the server's logits and
the number of trainings. A snapshot is a dict of the state_dicts of a network and its optimizer,
which is None before the first training.
Scores: after line 15, means over all clients, also those that did not take part. `accuracy`: of a
client's extractor with the server's network behind it. edge_accuracy: of the client's own network.
Bad upload (nan or infinity): `collect_features` leaves it out. Its client goes on from the network
that it has trained, without logits of the server, by CE alone. If that network itself holds nan, so
do all its later uploads.
Departures (docs/DEPARTURES.md has more):
D1  a client learns from the server's logits of the same sample, as printed; the public code pairs
    them with another sample
D2  clients of one architecture start equal (unless --no-common-start); the paper is silent
D3  KD has the factor T², as in the public code. In Eq. (6) it is a sum over all clients; here a
    sample has the logits of its own client alone
D4  lines 11-12 follow the last epoch; in Algorithm 1 they are the training passes of that epoch
"""
import dataclasses
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import distillation_loss
from attacks import attack_samples
from federation import output_shape, seeded, stream, timed
from federation.communication import features_ledger
from federation.evaluation import accuracy, mean_own, own_accuracy
from federation.parallel import (by_architecture, in_parallel, on_server, own_share, sample_clients,
                                 to_all, to_server)
from federation.training import (OPTIMIZERS, Optimizer, autocast, batches, forward, predict_logits,
                                 restore, shuffled, snapshot)
from federation.uploads import Trained, is_usable

CHUNK = 64      # samples of a forward pass without training: limits the memory it takes


def server_loss(logits, labels, client_logits, temperature, distill=True):
    """CE plus, if `distill`, T² KL(client || server); no gradient to the client's logits.   Eq. (6)

    logits, labels, client_logits    [B, C], [B], [B, C]
    """
    ce = F.cross_entropy(logits, labels)
    if not distill:
        return ce
    return ce + distillation_loss(client_logits, logits, temperature)                    # D3


def client_loss(logits, labels, server_logits, temperature):
    """CE plus T² KL(server || client), without a gradient to the server's logits.   Eq. (7)

    logits, labels, server_logits    [B, C], [B], [B, C]; server_logits is None if the client has
                                     none: then CE alone
    """
    ce = F.cross_entropy(logits, labels)
    if server_logits is None:
        return ce
    return ce + distillation_loss(server_logits, logits, temperature)                    # D3


class Upload(NamedTuple):
    """What a client sends of its n private samples.

    It sends their labels too; the server of this simulation reads them in fed.private[i].labels.
    """

    features: torch.Tensor    # [n, ...], of the type that --features names
    logits: torch.Tensor      # float32 [n, C]


@torch.no_grad()
def extract(fed, model, images, dtype):
    """The `Upload` of images [n, c, h, w], in eval mode.   Eq. (3), (9)

    model    an edge network: extract is images -> feature map, classify is feature map -> logits
    dtype    of the feature maps in the upload
    """
    was_training = model.training
    model.eval()
    features, logits = [], []
    for batch in images.split(CHUNK):
        with autocast(fed):
            h = model.extract(batch)                                         # Alg. 1, line 26
            logits.append(model.classify(h).float())                         # Alg. 1, line 27
        features.append(h.to(dtype))
    model.train(was_training)
    return Upload(torch.cat(features), torch.cat(logits))


def view(fed, i, number):
    """View `number` of client i's images [n, c, h, w]: of its upload `number` and of training
    `number` + 1. With --augment each view is cropped and flipped anew; 0 is never uploaded.
    """
    images = fed.private[i].images
    return fed.augment(images, stream(fed.seed, "view", number, i)) if fed.augment else images


def train_client(fed, i, client, server_logits, *, local_epochs, batch_size, new_optimizer,
                 temperature, client_distill, dtype):
    """Local training of client i with `client_loss`, and the `Upload` after it.   Eq. (10)

    Training goes on from its network and optimizer, the snapshot `client`, to a new snapshot.
    client           a snapshot, with the number of its trainings so far
    server_logits    [n, C], by sample row, or None
    """
    has_teacher = client_distill and server_logits is not None
    labels = fed.private[i].labels
    model = fed.client_model(i)
    optimizer = new_optimizer(model.parameters())
    restore(client, model, optimizer)
    number = client["trainings"] + 1                     # of this training and of its upload
    images = view(fed, i, number - 1)                    # of the last upload
    fed_without_augment = dataclasses.replace(fed, augment=None)     # a view is augmented already
    model.train()                        # --augment: the view is augmented
    for rows, batch in shuffled(fed_without_augment, images, ("local", number, i),
                                epochs=local_epochs, batch_size=batch_size):    # Alg. 1, line 19-20
        teacher_logits = server_logits[rows] if has_teacher else None            # D1
        loss = client_loss(forward(fed, model, batch), labels[rows], teacher_logits,
                           temperature)                                      # Alg. 1, line 21
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 22
    upload = extract(fed, model, view(fed, i, number), dtype)                # Alg. 1, line 24-29
    return Trained(upload, snapshot(model, optimizer) | {"trainings": number})     # Alg. 1, line 30


@timed
def collect_features(fed, clients, ids, server_logits, attack=None, **training):
    """({client: valid upload}, snapshots of all clients), after the clients `ids` have trained.

    Of several processes, only the one that trains the server has the uploads, which are large.
    """
    own = {i: train_client(fed, i, clients[i], server_logits[i], **training)
           for i in own_share(ids)}                                          # Alg. 1, line 3-5
    trained = to_all(fed, {i: result.client for i, result in own.items()}, ids)
    clients = [trained.get(i, client) for i, client in enumerate(clients)]
    uploads = to_server(fed, {i: result.upload for i, result in own.items()}, ids)
    if attack and uploads:
        features, logits = zip(*uploads.values())
        features = attack_samples(attack, features, ids)
        logits = attack_samples(attack, logits, ids)
        uploads = {i: Upload(f, z) for i, f, z in zip(ids, features, logits)}
    return {i: upload for i, upload in uploads.items() if is_usable(upload)}, clients


def server_batches(fed, uploads, server_batch_size, server_order, rng):
    """The batches of an epoch of the server: [(a client, rows [B] of its upload)].

    A client's samples are in random order. Client comes after client, or, "mixed", all batches are
    shuffled.
    """
    epoch = [(i, rows) for i in uploads                                      # Alg. 1, line 8-9
             for rows in batches(len(fed.private[i].labels), server_batch_size, epochs=1, rng=rng,
                                 device=fed.device)]
    if server_order == "mixed":                                      # not in the paper
        rng.shuffle(epoch)
    return epoch


@timed
@on_server
def train_server(fed, event, server, uploads, *, server_epochs, server_batch_size, server_order,
                 new_optimizer, temperature, server_distill):
    """(the server after training with `server_loss`, {client: its logits [n, C]}).   Eq. (8)

    event    the number of this training: the round, or in fedgkt_async.py the server's trainings
    Training goes on from the server's network and optimizer, the snapshot `server`.
    """
    if not uploads:
        return server, {}
    model = fed.server_model()
    optimizer = new_optimizer(model.parameters())
    restore(server, model, optimizer)
    rng = stream(fed.seed, "server", event)                                  # order of batches
    model.train()
    with seeded(fed.seed, "server", event):                                  # dropout
        for _ in range(server_epochs):                                       # Alg. 1, line 7
            for i, rows in server_batches(fed, uploads, server_batch_size, server_order, rng):
                features, client_logits = uploads[i]
                labels = fed.private[i].labels                               # sent with the upload
                logits = forward(fed, model, features[rows].float())
                loss = server_loss(logits, labels[rows], client_logits[rows], temperature,
                                   server_distill)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()                                             # Alg. 1, line 10
    # D4: after the last epoch, in eval mode
    answers = {i: predict_logits(fed, model, features.float(), CHUNK)        # Alg. 1, line 11-12
               for i, (features, _) in uploads.items()}                      # z_s* of Eq. (11)
    return snapshot(model, optimizer), answers


class ClientScore(NamedTuple):
    """Accuracies of one client, in [0, 1]."""

    stacked: float     # of its extractor with the server's network behind it
    edge: float        # of its own network
    edge_own: float | None     # of its own network, each class weighed by its share of own labels


def stacked_scores(fed, clients, server, data):
    """The `ClientScore` of each client on `data`; clients, server: snapshots."""
    server_model = fed.server_model()
    server_model.load_state_dict(server["model"])

    def client_score(i):
        model = fed.client_model(i)
        model.load_state_dict(clients[i]["model"])
        server_logits, edge_logits = [], []
        for images in data.images.split(CHUNK):                      # not all feature maps at once
            features, logits = extract(fed, model, images, torch.float32)
            server_logits.append(predict_logits(fed, server_model, features))
            edge_logits.append(logits)
        return ClientScore(accuracy(torch.cat(server_logits), data.labels),
                           accuracy(torch.cat(edge_logits), data.labels),
                           own_accuracy(torch.cat(edge_logits), data.labels,
                                        fed.private[i].labels))

    return in_parallel(fed, client_score, range(len(clients)))


@timed
def evaluate(fed, state):
    """Test accuracy of the clients with the server's network, and of the edge networks alone."""
    stacked, edge, own = zip(*stacked_scores(fed, state["clients"], state["server"], fed.test))
    return {"accuracy": sum(stacked) / len(stacked), "accuracy_min": min(stacked),
            "accuracy_max": max(stacked), "edge_accuracy": sum(edge) / len(edge),
            "edge_accuracy_own": mean_own(own)}


def start(fed, common_start):
    """(the server, the clients, the server's logits) before round 1: snapshots and None."""
    server = snapshot(fed.server_model())
    clients = [snapshot(fed.client_model(i, init=0 if common_start else i)) | {"trainings": 0}  # D2
               for i in range(len(fed.private))]
    return server, clients, [None] * len(clients)


def ledger(fed, clients, ids, valid, values_per_map, dtype):
    """Bytes of a round, number of bad uploads, fewest and most trainings of a client so far.

    ids, valid        clients that uploaded, and those whose upload was valid
    values_per_map    numbers in a feature map, of type dtype
    """
    trainings = [client["trainings"] for client in clients]
    samples_up = sum(len(fed.private[i].labels) for i in ids)
    samples_down = sum(len(fed.private[i].labels) for i in valid)
    return {"bad_uploads": len(ids) - len(valid),
            "trainings_min": min(trainings), "trainings_max": max(trainings),
            **features_ledger(samples_up, samples_down, values_per_map, fed.num_classes,
                              dtype.itemsize)}


@torch.no_grad()
def feature_map(fed):
    """The feature map [1, ...] of a private image, of the same shape for all clients.

    raises    ValueError: a network has none, one of another shape, or one that the server's network
              makes no logits of
    """
    shapes = set()
    for name, ids in by_architecture(fed).items():
        edge = fed.client_model(ids[0]).eval()
        if not (hasattr(edge, "extract") and hasattr(edge, "classify")):
            raise ValueError(f"{name} has no feature map to send: a client's network needs the "
                             "methods extract and classify, as gkt_edge has them")
        features = edge.extract(fed.private[0].images[:1])
        if output_shape(fed.server_model(), features) != (1, fed.num_classes):
            raise ValueError(f"the server's network makes no logits [B, {fed.num_classes}] of the "
                             f"{list(features.shape[1:])} feature maps of {name}: gkt_server55 "
                             "and gkt_server109 go with gkt_edge..., gkt_server_small with "
                             "gkt_edge_small")
        shapes.add(features.shape)
    if len(shapes) > 1:
        raise ValueError(f"feature maps of all clients need one shape, not {sorted(shapes)}")
    return features


def check_settings(fed, **settings):
    """Raises ValueError if the server's network cannot read the clients' feature maps."""
    feature_map(fed)


@checked
def run(fed, state=None, *, rounds: int = 200, participation: float = 1.0, local_epochs: int = 1,
        server_epochs: int = 20, batch_size: int = 256, server_batch_size: int = 256,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        server_optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4,
        temperature: float = 3.0, server_distill: bool = True, client_distill: bool = True,
        server_order: Literal["clients", "mixed"] = "clients", common_start: bool = True,
        features: Literal["float32", "bfloat16"] = "float32", attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    server_epochs       passes of the server over the uploads in a round
    server_optimizer    optimizer of the server, kept over the rounds
    hyperparameters.py explains the other keywords.
    """
    dtype = getattr(torch, features)
    training = dict(local_epochs=local_epochs, batch_size=batch_size, temperature=temperature,
                    new_optimizer=partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay),
                    client_distill=client_distill, dtype=dtype)
    server_training = dict(server_epochs=server_epochs, server_batch_size=server_batch_size,
                           server_order=server_order, temperature=temperature,
                           server_distill=server_distill)
    new_optimizer = partial(OPTIMIZERS[server_optimizer], lr=server_lr, weight_decay=weight_decay)
    if state is None:
        server, clients, server_logits = start(fed, common_start)
        state = {"round": 0, "server": server, "clients": clients, "server_logits": server_logits}
        yield evaluate(fed, state), state
    server, clients, server_logits = state["server"], state["clients"], state["server_logits"]
    values_per_map = feature_map(fed).numel()
    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # Clients train on their own samples, then upload feature maps and logits of all of them.
        active = sample_clients(len(clients), participation, stream(fed.seed, "active", t))
        uploads, clients = collect_features(fed, clients, active, server_logits, attack,
                                            **training)                      # Alg. 1, line 3-5
        # The server trains on the uploads; each client receives the server's logits of its samples.
        server, answers = train_server(fed, t, server, uploads,              # Alg. 1, line 6-12
                                       new_optimizer=new_optimizer, **server_training)
        # After a bad upload a client has None; one that did not take part keeps its old logits.
        server_logits = [answers.get(i) if i in active else z                # Alg. 1, line 14-15
                         for i, z in enumerate(server_logits)]
        uploads.clear()              # frees all feature maps before the next round makes new ones

        state = {"round": t, "server": server, "clients": clients, "server_logits": server_logits}
        metrics = {**evaluate(fed, state),
                   **ledger(fed, clients, active, list(answers), values_per_map, dtype)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgkt", run,
    scores={"accuracy": "edges with the server", "edge_accuracy": "edges alone"},
    keeps=("server", "clients", "server_logits"), mixed_networks=True, server="features",
    check_settings=check_settings, plateau=("server_lr",), evaluate=evaluate,
    columns=("accuracy", "accuracy_min", "accuracy_max", "edge_accuracy"))
