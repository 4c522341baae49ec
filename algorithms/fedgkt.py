"""FedGKT: small edge networks send feature maps to a large server network; both exchange logits.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the
Edge", arXiv:2007.14513; what the text does not give (temperature, the kind of Adam) is as in its
public code of 2020. The defaults are Table 10's for iid data, with both distillations; the commands
of that code distill on the clients alone (--no-server-distill).
What travels: feature maps, logits and labels of all private samples up, the server's logits down.
Public data: none. A client predicts with its own extractor and the server's network behind it;
what that sends is not counted. Client k of the paper is client i here.
Run:   python fedkd_minimal.py --algo fedgkt

Paper              here                         shape         note
W_e^(k), W_c^(k)   model.extract, .classify     networks      the client's ("edge") network: images
                                                              -> feature map -> logits
W_s                server                       snapshot      feature map -> logits
H^(k)              uploads[i].features          [n, 16, h, w] of all n samples of the client
Z_c^(k)            uploads[i].logits            [n, C]        of its own network, in eval mode
Z_s^(k)            server_logits[i]             [n, C]        of the server's network, in eval mode;
                                                              None: the client has none
Y^(k)              fed.private[i].labels        [n]           counted as sent with every upload
T                  temperature                  number        of the softmax
E_c, E_s           local_epochs, server_epochs  numbers

Algorithm 1, with the paper's numbers of lines:
 2     in each round
 3- 5    each client (with --participation: some) trains and uploads H^(k), Z_c^(k) and Y^(k):
19-22      E_c passes over its samples; the loss is CE plus KL from the server's logits, Eq. (7),
           or CE alone if it has none, as in its first training
24-30      one pass in eval mode computes the feature maps and logits of all its samples. With
           --augment they are cropped and flipped for this upload, and the client's next training is
           on the same images
 6       the server waits for all uploads
 7- 10   it trains on them for E_s passes, client after client; the loss is CE plus KL from that
         client's logits, Eq. (6)
11-12    the server computes its logits of all uploaded feature maps
14-15    each of these clients receives those of its own samples, for its next training. A client
         whose upload was not finite receives none: its next training is on labels alone. A client
         that did not take part keeps those that it has
CE and KL are means over the batch; KL is KL(teacher || student) of logits divided by the
temperature T, times T². Kept between the rounds: all networks, the states of their optimizers
(AMSGrad, a kind of Adam), how often each client has trained, and the server's logits; feature maps
are not.
At the end of the round all clients are tested, also those that did not take part: `accuracy` is
their mean (accuracy_min, accuracy_max: the worst, the best) with the server's network behind each
one's extractor, `edge_accuracy` with its own classifier instead. In fedgkt_async.py the server does
not wait.

Where the paper is silent or we differ (more: docs/DEPARTURES.md):
D1  logits are kept by sample row, as in the paper; the public code keeps them by batch number but
    shuffles the samples, so that its clients learn from the logits of other images
    [test_two_rounds_against_algorithm_1]
D2  clients of one architecture start from the same weights, which depend on the seed alone
    (--no-common-start: each from its own, far worse here); the paper is silent, and the public code
    starts them from a network that was trained on all data
    [test_initial_weights_depend_on_the_seed_alone]
D3  KL has the factor T², as in the public code and not in Eq. (6) and (7); Eq. (6) sums over
    clients, but each sample belongs to one, so its loss has one KL term [test_eq6_by_hand]
D4  the server's logits come from one pass in eval mode after its last epoch; in Algorithm 1 they
    come from the training passes of that epoch [test_server_logits_are_of_the_trained_server]
D5  the server's batches come client after client, as in Algorithm 1, line 8, so that it learns the
    last client's samples last. The option --server-order mixed departs from this: it shuffles the
    batches of all clients, each still of one client [test_two_rounds_against_algorithm_1]
"""
import dataclasses
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F

from algorithms.clients import run_clients, sample_clients
from algorithms.communication import features_ledger
from algorithms.declaration import Algorithm
from algorithms.equations import distillation_loss
from algorithms.evaluation import mean_own
from algorithms.fedgkt_features import (CHUNK, Upload, announcement, extract, feature_map,
                                        stacked_scores)
from algorithms.training import (OPTIMIZERS, Optimizer, batches, forward, predict_logits, restore,
                                 snapshot, train)
from algorithms.uploads import Trained, is_usable
from attacks import attack_samples
from federation import seeded, stream, timed



def server_loss(logits, labels, client_logits, temperature, distill=True):
    """CE plus, if `distill`, T² KL(client || server); no gradient to the client's logits.   Eq. (6)

    logits, labels, client_logits    [B, C], [B], [B, C]. Needs `distillation_loss`.
    """
    ce = F.cross_entropy(logits, labels)
    return ce + distillation_loss(client_logits, logits, temperature) if distill else ce


def client_loss(logits, labels, server_logits, temperature):
    """CE plus T² KL(server || client), without a gradient to the server's logits.   Eq. (7)

    logits, labels, server_logits    [B, C], [B], [B, C]; server_logits is None if the client has
                                     none: then CE alone. Needs `distillation_loss`.
    """
    ce = F.cross_entropy(logits, labels)
    if server_logits is None:
        return ce
    return ce + distillation_loss(server_logits, logits, temperature)


def view(fed, i, trainings):
    """The images [n, c, h, w] of client i's upload after so many trainings.

    Its next training is on the same images, because the server's logits are of these. With
    --augment the samples are cropped and flipped anew for each upload.
    """
    images = fed.private[i].images
    return fed.augment(images, stream(fed.seed, "view", trainings, i)) if fed.augment else images


def train_client(fed, i, client, server_logits, *, local_epochs, batch_size, new_optimizer,
                 temperature, client_distill, dtype):
    """Local training of client i with `client_loss`, and the `Upload` after it.   Eq. (10)

    Training goes on from its network and optimizer, the snapshot `client`, to a new snapshot.
    client           a snapshot, with the number of its trainings so far
    server_logits    [n, C], by sample row, or None
    """
    has_teacher = client_distill and server_logits is not None
    labels = fed.private[i].labels

    def loss(logits, rows):                                                      # [B, C], [B]
        teacher_logits = server_logits[rows] if has_teacher else None
        return client_loss(logits, labels[rows], teacher_logits, temperature)

    model = fed.client_model(i)
    optimizer = restore(client, model, new_optimizer)
    trainings = client["trainings"] + 1
    fed_without_augment = dataclasses.replace(fed, augment=None)    # the view is augmented already
    train(fed_without_augment, model, optimizer, view(fed, i, trainings - 1), loss,
          epochs=local_epochs, batch_size=batch_size,
          keys=("local", trainings, i))                                      # Alg. 1, line 19-22
    upload = extract(fed, model, view(fed, i, trainings), dtype)             # Alg. 1, line 24-29
    return Trained(upload, snapshot(model, optimizer) | {"trainings": trainings})  # Alg. 1, line 30


@timed
def collect(fed, clients, ids, server_logits, attack=None, **training):
    """({client: valid upload}, all clients), after the clients `ids` have trained in parallel."""
    trained = run_clients(fed, lambda i: train_client(                       # Alg. 1, line 3-5
        fed, i, clients[i], server_logits[i], **training), ids)
    uploads = [result.upload for result in trained]
    if attack:           # on the features of all clients, then on the logits of all clients
        parts = [attack_samples(attack, part, ids) for part in zip(*uploads)]
        uploads = [Upload(features, logits) for features, logits in zip(*parts)]
    clients = list(clients)
    for i, result in zip(ids, trained):
        clients[i] = result.client
    return {i: upload for i, upload in zip(ids, uploads) if is_usable(upload)}, clients


def server_batches(fed, uploads, server_batch_size, server_order, rng):
    """The batches of an epoch of the server: [(a client, rows [B] of its upload)].

    Client after client in the order of their numbers, or, "mixed", all batches shuffled.
    """
    epoch = [(i, rows) for i in uploads                                      # Alg. 1, line 8-9
             for rows in batches(len(fed.private[i].labels), server_batch_size, 1, rng, fed.device)]
    if server_order == "mixed":
        rng.shuffle(epoch)
    return epoch


@timed
def train_server(fed, event, server, uploads, *, server_epochs, server_batch_size, server_order,
                 new_optimizer, temperature, server_distill):
    """(the server after training with `server_loss`, {client: its logits [n, C]}).   Eq. (8)

    event    the number of this training: the round, or in fedgkt_async.py the server's trainings
    Training goes on from the server's network and optimizer, the snapshot `server`.
    """
    if not uploads:
        return server, {}
    model = fed.server_model()
    optimizer = restore(server, model, new_optimizer)
    rng = stream(fed.seed, "server", event)
    with seeded(fed.seed, "server", event):
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
    answers = {i: predict_logits(fed, model, features.float(), CHUNK)        # Alg. 1, line 11-12
               for i, (features, _) in uploads.items()}                      # z_s* of Eq. (11)
    return snapshot(model, optimizer), answers


@timed
def evaluate(fed, state):
    """Test accuracy of the clients, and of their edge networks alone."""
    stacked, edge, own = zip(*stacked_scores(fed, state["clients"], state["server"], fed.test))
    return {"accuracy": sum(stacked) / len(stacked), "accuracy_min": min(stacked),
            "accuracy_max": max(stacked), "edge_accuracy": sum(edge) / len(edge),
            "edge_accuracy_own": mean_own(own)}


def start(fed, common_start):
    """(the server, the clients, the server's logits) before round 1: snapshots and None."""
    server = snapshot(fed.server_model())
    clients = [snapshot(fed.client_model(i, init=0 if common_start else i)) | {"trainings": 0}
               for i in range(len(fed.private))]
    return server, clients, [None] * len(clients)


def ledger(fed, clients, ids, answered, feature_numbers, dtype):
    """Bytes of a round, number of invalid uploads, fewest and most trainings of a client so far.

    ids, answered      clients that uploaded, and those whose upload was valid
    feature_numbers    numbers in a feature map, of type dtype
    """
    trainings = [client["trainings"] for client in clients]
    num_samples, num_answered = (sum(len(fed.private[i].labels) for i in group)
                                 for group in (ids, answered))
    return {"bad_uploads": len(ids) - len(answered),
            "trainings_min": min(trainings), "trainings_max": max(trainings),
            **features_ledger(num_samples, num_answered, feature_numbers, fed.num_classes,
                              dtype.itemsize)}


def check_settings(fed, **settings):
    """Raises ValueError if the server's network cannot read the clients' feature maps."""
    feature_map(fed)


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
    The other keywords are in hyperparameters.py.
    """
    dtype, feature_numbers = getattr(torch, features), feature_map(fed).numel()
    training = dict(local_epochs=local_epochs, batch_size=batch_size, temperature=temperature,
                    new_optimizer=partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay),
                    client_distill=client_distill, dtype=dtype)
    server_training = dict(server_epochs=server_epochs, server_batch_size=server_batch_size,
                           server_order=server_order, temperature=temperature,
                           server_distill=server_distill)
    new_optimizer = partial(OPTIMIZERS[server_optimizer], lr=server_lr, weight_decay=weight_decay)
    if state is None:
        ALGORITHM.check(fed)
        server, clients, server_logits = start(fed, common_start)
        state = {"round": 0, "server": server, "clients": clients, "server_logits": server_logits}
        yield evaluate(fed, state), state
    server, clients, server_logits = state["server"], state["clients"], state["server_logits"]
    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # Clients train on their own samples, then upload feature maps and logits of all of them.
        active = sample_clients(len(clients), participation, stream(fed.seed, "active", t))
        uploads, clients = collect(fed, clients, active, server_logits, attack,
                                   **training)                               # Alg. 1, line 3-5
        # The server trains on the uploads; each client receives the server's logits of its samples.
        server, answers = train_server(fed, t, server, uploads, new_optimizer=new_optimizer,
                                       **server_training)                    # Alg. 1, line 6-12
        # No valid upload: None. Not in this round: those that the client has.
        server_logits = [answers.get(i) if i in active else z                # Alg. 1, line 14-15
                         for i, z in enumerate(server_logits)]
        del uploads                  # frees all feature maps before the next round makes new ones

        state = {"round": t, "server": server, "clients": clients, "server_logits": server_logits}
        metrics = {**evaluate(fed, state),
                   **ledger(fed, clients, active, list(answers), feature_numbers, dtype)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgkt", run, mixed=True, server="features", check_settings=check_settings,
    plateau=("server_lr",), evaluate=evaluate, announcement=announcement,
    columns=("accuracy", "accuracy_min", "accuracy_max", "edge_accuracy"))
