"""FedGKT: small edge networks send feature maps to a large server network; both exchange logits.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the
Edge", arXiv:2007.14513. The defaults are Table 10's for iid data; the temperature and AMSGrad are
those of the authors' code of 2020.

Run:    python fedkd_minimal.py --algo fedgkt    small settings, about a minute
        --paper fedgkt has the paper's, which are the defaults of `run`; with it the server's
        learning rate falls when the accuracy on the server's validation images, which are in
        no client, no longer grows (experiment/plateau.py)
Data:   clients: their own labeled images; server: only what they upload, and where its rate falls
        the validation images. Edge networks may differ, but their feature maps have one shape
Sent:   up: feature maps, logits, labels of a client's images; down: the server's logits of them

Algorithm 1; its client k is i here. KD is T² KL(teacher || student) at temperature T (D3):
 3- 5  each client (with --participation below 1, some) trains its edge network, then uploads:
19-22    E_c passes by CE + KD from the server's logits of its images, Eq. (7); by CE alone if it
         has none, as in its first training
24-30    feature maps H, logits Z_c and labels Y of all its images
 6-10  the server waits for all uploads, then trains on them for E_s passes, client after client,
       by CE + KD from the client's logits, Eq. (6)
11-12  it predicts its logits Z_s of the same feature maps
14-15  each client receives those of its images, for its next training

Scores: `accuracy`, after line 15, is the mean over all clients of the test accuracy of their
        extractor with the server's network behind it; `edge_accuracy` is of their own networks
D1  a client learns from the server's logits of the same image, as printed; the public code pairs
    them with another image
D2  clients of one architecture start equal (unless --no-common-start); the paper is silent
D3  KD has the factor T², as in the public code. In Eq. (6) it is a sum over all clients; here an
    image has the logits of its own client alone
D4  lines 11-12 follow the last epoch; in Algorithm 1 they are the training passes of that epoch
"""
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import distillation_loss
from federation import output_shape, seeded, stream, timed
from federation.communication import features_ledger
from federation.evaluation import accuracy, mean_own, own_accuracy
from federation.parallel import by_architecture, in_parallel, on_server, sample_clients
from federation.training import (OPTIMIZERS, Optimizer, autocast, batches, forward, predict_logits,
                                 restore, shuffled, snapshot)
from federation.uploads import Trained, collect_features

CHUNK = 64      # samples of a forward pass without training: limits the memory it takes


def server_loss(logits, labels, client_logits, temperature, distill=True):
    """CE plus, if `distill`, T² KL(client || server); no gradient to the client's logits.   Eq. (6)

    logits, labels, client_logits    [B, C], [B], [B, C]
    returns                          a scalar: CE and KD are means over the batch
    """
    ce = F.cross_entropy(logits, labels)
    if not distill:
        return ce
    return ce + distillation_loss(client_logits, logits, temperature)                    # D3


def client_loss(logits, labels, server_logits, temperature):
    """CE plus T² KL(server || client), without a gradient to the server's logits.   Eq. (7)

    logits, labels, server_logits    [B, C], [B], [B, C]; server_logits is None if the client has
                                     none: then CE alone
    returns                          a scalar: CE and KD are means over the batch
    """
    ce = F.cross_entropy(logits, labels)
    if server_logits is None:
        return ce
    return ce + distillation_loss(server_logits, logits, temperature)                    # D3


class Upload(NamedTuple):
    """What a client sends of its n images.

    It sends their labels too; the server of this simulation reads them in fed.private[i].labels.
    """

    features: torch.Tensor    # H^(k) [n, ...], of gkt_edge [n, 16, h, w]
    logits: torch.Tensor      # Z_c^(k), float32 [n, C]


@torch.no_grad()
def extract(fed, model, images, dtype):
    """The `Upload` of images [n, c, h, w], in eval mode; the model keeps its mode.   Eq. (3), (9)

    model    an edge network: `extract` is W_e, images -> feature maps, and `classify` W_c, feature
             maps -> logits
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


def view_after(fed, i, trainings):
    """View number `trainings` of client i's images [n, c, h, w]; without --augment the images.

    View v is made after training v: all images are cropped and flipped once. The feature maps that
    are then uploaded are of this view, so the server's logits are, too; therefore training v + 1,
    in which these logits teach, uses the same view.
    """
    images = fed.private[i].images
    return fed.augment(images, stream(fed.seed, "view", trainings, i)) if fed.augment else images


def train_client(fed, i, client, server_logits, local_epochs, batch_size, lr, temperature,
                 client_distill, dtype, optimizer_name, weight_decay):
    """Client i's `Upload` after local training, and its new snapshot: `Trained`.   Eq. (10)

    client           its snapshot: network, optimizer and number of trainings so far
    server_logits    Z_s^(k), of its last upload: [n, C], by row; None, or not client_distill: CE
                     alone
    dtype            of the feature maps in the upload
    """
    labels = fed.private[i].labels                                           # [n]
    number = client["trainings"] + 1                     # of this training
    images = view_after(fed, i, number - 1)              # [n, c, h, w], those of its last upload
    has_teacher = client_distill and server_logits is not None
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # what it kept; the rate stays lr
    model.train()
    for rows, batch in shuffled(fed, images, ("local", number, i), epochs=local_epochs,
                                batch_size=batch_size, augment=False):          # Alg. 1, line 19-20
        logits = forward(fed, model, batch)                                  # [B, C]
        teacher_logits = server_logits[rows] if has_teacher else None        # [B, C], D1
        loss = client_loss(logits, labels[rows], teacher_logits, temperature)    # Alg. 1, line 21
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 22
    upload = extract(fed, model, view_after(fed, i, number), dtype)          # Alg. 1, line 24-29
    return Trained(upload, snapshot(model, optimizer) | {"trainings": number})     # Alg. 1, line 30


def server_batches(fed, uploads, server_batch_size, server_order, rng):
    """[(a client, rows [B] of its upload)]: the server's batches of an epoch.

    Client comes after client, each one's rows in random order. If server_order is "mixed", all
    these batches are then shuffled.
    """
    epoch = [(i, rows) for i in uploads                                      # Alg. 1, line 8-9
             for rows in batches(len(fed.private[i].labels), server_batch_size, epochs=1, rng=rng,
                                 device=fed.device)]
    if server_order == "mixed":                                      # not in the paper
        rng.shuffle(epoch)
    return epoch


@timed
@on_server
def train_server(fed, number, server, uploads, server_epochs, server_batch_size, server_lr,
                 server_order, temperature, server_distill, optimizer_name, weight_decay):
    """(the server after training on the uploads, {client: its logits Z_s^(k) [n, C]}).   Eq. (8)

    number     of this training: the round, or in fedgkt_async.py how often the server has trained
    server     its snapshot: network and optimizer
    uploads    {client: `Upload`}
    """
    if not uploads:                                      # none was usable: the server stays
        return server, {}
    model = fed.server_model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=server_lr,
                                           weight_decay=weight_decay)
    restore(server, model, optimizer)                    # what it kept; the rate stays server_lr
    rng = stream(fed.seed, "server", number)                                 # order of batches
    model.train()
    with seeded(fed.seed, "server", number):                                 # dropout
        for _ in range(server_epochs):                                       # Alg. 1, line 7
            for i, rows in server_batches(fed, uploads, server_batch_size, server_order, rng):
                features, client_logits = uploads[i]                         # [n, ...], [n, C]
                labels = fed.private[i].labels                               # sent with the upload
                logits = forward(fed, model, features[rows].float())         # [B, C]
                loss = server_loss(logits, labels[rows], client_logits[rows], temperature,
                                   server_distill)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()                                             # Alg. 1, line 10
    # D4: after the last epoch; `predict_logits` is in eval mode.
    answers = {i: predict_logits(fed, model, features.float(), CHUNK)        # Alg. 1, line 11-12
               for i, (features, _) in uploads.items()}                      # Eq. (11)
    return snapshot(model, optimizer), answers


class ClientScore(NamedTuple):
    """Test accuracies of one client, in [0, 1]."""

    stacked: float     # of its extractor with the server's network behind it
    edge: float        # of its own network
    edge_own: float | None     # of its own network, each class weighed by its share of own labels


@timed
def evaluate(fed, state):
    """Test accuracy of the clients with the server's network, and of the edge networks alone.

    In eval mode, on clean images. To predict so after the last round, a device sends the feature
    map of its image to the server, or downloads the server's network once.
    """
    server_model = fed.server_model()
    server_model.load_state_dict(state["server"]["model"])
    labels = fed.test.labels

    def client_score(i):
        model = fed.client_model(i)
        model.load_state_dict(state["clients"][i]["model"])
        server_logits, edge_logits = [], []
        for images in fed.test.images.split(CHUNK):      # not all feature maps at once
            features, logits = extract(fed, model, images, torch.float32)
            server_logits.append(predict_logits(fed, server_model, features))
            edge_logits.append(logits)
        server_logits = torch.cat(server_logits)                             # [N, C]
        edge_logits = torch.cat(edge_logits)                                 # [N, C]
        return ClientScore(accuracy(server_logits, labels), accuracy(edge_logits, labels),
                           own_accuracy(edge_logits, labels, fed.private[i].labels))

    scores = in_parallel(fed, client_score, range(len(state["clients"])))
    stacked, edge, own = zip(*scores)
    return {"accuracy": sum(stacked) / len(stacked), "accuracy_min": min(stacked),
            "accuracy_max": max(stacked), "edge_accuracy": sum(edge) / len(edge),
            "edge_accuracy_own": mean_own(own)}


def start(fed, common_start):
    """(the server, the clients, the server's logits) before round 1: snapshots and None."""
    server = snapshot(fed.server_model())
    clients = [snapshot(fed.client_model(i, init=0 if common_start else i)) | {"trainings": 0}  # D2
               for i in range(len(fed.private))]
    return server, clients, [None] * len(clients)


def ledger(fed, clients, ids, answered, dtype):
    """Bytes of a round, number of bad uploads, fewest and most trainings of a client so far.

    ids, answered    clients that uploaded, and those that the server answered
    dtype            of the feature maps sent, which all have one shape
    """
    trainings = [client["trainings"] for client in clients]
    samples_up = sum(len(fed.private[i].labels) for i in ids)
    samples_down = sum(len(fed.private[i].labels) for i in answered)
    features, _ = extract(fed, fed.client_model(0), fed.private[0].images[:1], dtype)    # [1, ...]
    return {"bad_uploads": len(ids) - len(answered),
            "trainings_min": min(trainings), "trainings_max": max(trainings),
            **features_ledger(samples_up, samples_down, features.numel(), fed.num_classes,
                              dtype.itemsize)}


@torch.no_grad()
def check_settings(fed, **settings):
    """Raises ValueError unless the clients' feature maps have one shape, which the server reads."""
    shapes = set()
    for name, ids in by_architecture(fed).items():
        edge = fed.client_model(ids[0]).eval()
        if not (hasattr(edge, "extract") and hasattr(edge, "classify")):
            raise ValueError(f"{name} has no feature map to send: a client's network needs the "
                             "methods extract and classify, as gkt_edge has them")
        features = edge.extract(fed.private[0].images[:1])                   # [1, ...]
        if output_shape(fed.server_model(), features) != (1, fed.num_classes):
            raise ValueError(f"the server's network makes no logits [B, {fed.num_classes}] of the "
                             f"{list(features.shape[1:])} feature maps of {name}: gkt_server55 "
                             "and gkt_server109 go with gkt_edge..., gkt_server_small with "
                             "gkt_edge_small")
        shapes.add(features.shape)
    if len(shapes) > 1:
        raise ValueError(f"feature maps of all clients need one shape, not {sorted(shapes)}")


@checked
def run(fed, state=None, *,
        rounds: int = 200,                                      # T in Algorithm 1
        participation: float = 1.0,                             # share of clients in a round
        local_epochs: int = 1,                                  # E_c
        server_epochs: int = 20,                                # E_s, over a round's uploads
        batch_size: int = 256,                                  # of a client
        server_batch_size: int = 256,                           # of the server
        lr: float = 1e-3,                                       # eta_k, of a client
        server_lr: float = 1e-3,                                # eta_s, of the server
        optimizer: Optimizer = "amsgrad",                       # of a client and
        server_optimizer: Optimizer = "amsgrad",                #   the server; kept over rounds
        weight_decay: float = 1e-4,                             # of both
        temperature: float = 3.0,                               # T below Eq. (7)
        server_distill: bool = True,                            # False: Eq. (6) without KD
        client_distill: bool = True,                            # False: Eq. (7) without KD
        server_order: Literal["clients", "mixed"] = "clients",  # see `server_batches`
        common_start: bool = True,                              # clients start equal: D2
        features: Literal["float32", "bfloat16"] = "float32",   # number type of the feature maps
        attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    dtype = getattr(torch, features)                     # torch.float32 or torch.bfloat16
    if state is None:
        server, clients, server_logits = start(fed, common_start)
        state = {"round": 0, "server": server, "clients": clients, "server_logits": server_logits}
        yield evaluate(fed, state), state
    server, clients, server_logits = state["server"], state["clients"], state["server_logits"]

    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        active = sample_clients(len(clients), participation, stream(fed.seed, "active", t))

        def train(i):
            return train_client(fed, i, clients[i], server_logits[i], local_epochs, batch_size, lr,
                                temperature, client_distill, dtype, optimizer, weight_decay)

        # Clients train in parallel on their own images, then upload feature maps and logits of all
        # of them. Attackers' are replaced, unusable ones (nan, infinity, 1e30 or more) left out;
        # their clients keep what they have trained.
        uploads, trained = collect_features(fed, active, train, attack)      # Alg. 1, line 3-5
        clients = [trained.get(i, client) for i, client in enumerate(clients)]

        # The server learns from all uploads, and answers them with its own logits.
        server, answers = train_server(                                      # Alg. 1, line 6-12
            fed, t, server, uploads, server_epochs, server_batch_size, server_lr, server_order,
            temperature, server_distill, server_optimizer, weight_decay)
        del uploads                      # frees all feature maps before new ones are made

        # Each client's next teacher. After a bad upload it has none, because older logits may be of
        # other views of its images; a client that did not take part keeps those that it has.
        server_logits = [answers.get(i) if i in active else logits           # Alg. 1, line 14-15
                         for i, logits in enumerate(server_logits)]

        # All that the next round needs: snapshots of all networks and their optimizers, with each
        # client's number of trainings, and for each client Z_s^(k), [n, C], or None.
        state = {"round": t, "server": server, "clients": clients, "server_logits": server_logits}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state), **ledger(fed, clients, active, list(answers), dtype)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgkt", run,
    scores={"accuracy": "edges with the server", "edge_accuracy": "edges alone"},
    keeps=("server", "clients", "server_logits"), mixed_networks=True, server="features",
    check_settings=check_settings, plateau=("server_lr",), evaluate=evaluate,
    columns=("accuracy", "accuracy_min", "accuracy_max", "edge_accuracy"))
