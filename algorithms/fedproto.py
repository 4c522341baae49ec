"""FedProto: clients draw their features to the global mean feature vector of each class.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243; written without its text. The defaults are the authors' code's, but for the
momentum, 0.9 instead of 0.5.

Run:    python fedkd_minimal.py --algo fedproto    small settings, about a minute
Data:   clients: their own labeled images; networks may differ, but the inputs of their last layer
        `classifier`, the features h(x) of D numbers, must be of one size
Sent:   up: a prototype, D numbers, of each class that the client has; its sample counts of all
        classes; down: the global prototypes. No model is sent

A round, in which all clients take part; the numbers are ours:
 1  each client trains on its own images: CE + weight R; R is the mean square difference between
    the features and the global prototype of the label's class, 0 where there is none yet
 2  it uploads the mean features of its images of each class, after the training
 3  the global prototype of a class is the mean of the clients', weighed by their sample counts of
    the class; a class that no usable upload has keeps the prototype of earlier rounds

Scores: on the test images, in the mean over the clients. client_accuracy is of their networks,
        after step 1; client_accuracy_own (and `accuracy`) of these, with the classes weighed as the
        client's own images have them. prototype_accuracy: a client answers with the class whose
        global prototype, after step 3, is nearest to its features; prototype_accuracy_own likewise
D1  R is the mean over the D numbers, as in the authors' code; the paper writes a distance
"""
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from federation import timed
from federation.communication import FLOAT_BYTES, INDEX_BYTES
from federation.evaluation import accuracy, client_metrics, client_scores, mean_own, own_accuracy
from federation.parallel import by_architecture, in_parallel
from federation.training import (OPTIMIZERS, Optimizer, feature_size, forward_with_features,
                                 network, predict_features, restore, shuffled, snapshot)
from federation.uploads import Trained, collect_rows, is_usable


def prototypes(features, labels, num_classes):
    """([C, D] mean features of each class, [C] its number of samples), of features [N, D].

    labels    int64 [N]
    A class without samples is a row of zeros with the count 0.
    """
    is_of_class = F.one_hot(labels, num_classes).T.to(features)                          # [C, N]
    counts = is_of_class.sum(1)                                                          # [C]
    return is_of_class @ features / counts.clamp(min=1)[:, None], counts


def global_prototypes(client_prototypes, counts):
    """([C, D] means over the clients, bool [C]: the classes that any client has).

    client_prototypes, counts    [M, C, D], [M, C]: a client's prototype of a class weighs by its
                                 number of samples of the class; where this is 0 it may be anything
    """
    weights = counts.to(client_prototypes)[..., None]                                    # [M, C, 1]
    sums = torch.where(weights > 0, weights * client_prototypes, 0.0).sum(0)             # [C, D]
    totals = weights.sum(0)                                                              # [C, 1]
    return sums / totals.clamp(min=1), totals[:, 0] > 0


def prototype_loss(features, labels, global_prototypes, known):
    """R: mean over batch and dimensions of (features - the label's global prototype)²: a scalar.

    features, labels            [B, D], int64 [B]
    global_prototypes, known    [C, D], bool [C]; a sample of a class that is not known counts as 0.
                                The prototypes get no gradient
    """
    difference = features - global_prototypes[labels].detach()                           # [B, D]
    return torch.where(known[labels][:, None], difference.square(), 0.0).mean()          # D1


def train_client(fed, i, t, client, means, known, local_epochs, local_steps, batch_size, lr,
                 prototype_weight, optimizer_name, weight_decay):
    """Client i after training in round t, and its upload: its prototypes [C, D].

    means, known    [C, D], bool [C]: the global prototypes, and which classes have one
    """
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # as the client kept them
    model.train()                        # with --augment the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):   # step 1
        features, logits = forward_with_features(fed, model, batch)          # [B, D], [B, C]
        loss = F.cross_entropy(logits, labels[rows])
        loss = loss + prototype_weight * prototype_loss(features, labels[rows], means, known)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features = predict_features(fed, model, images)      # [n, D], clean images in eval mode
    own_prototypes, _ = prototypes(features, labels, fed.num_classes)        # step 2
    return Trained(own_prototypes, snapshot(model, optimizer))


@timed
def evaluate(fed, state):
    """Test accuracies of the clients' networks; `accuracy` is the mean of those on own classes."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    return {"accuracy": metrics.get("client_accuracy_own"), **metrics}


@timed
def evaluate_prototypes(fed, clients, means, known):
    """Test accuracies of predicting the known class with the nearest global prototype."""
    classes = torch.nonzero(known)[:, 0]
    if len(classes) == 0:                                # no upload was usable so far
        return {"prototype_accuracy": None, "prototype_accuracy_own": None}

    def nearest(i):
        model = fed.client_model(i)
        model.load_state_dict(clients[i]["model"])
        features = predict_features(fed, model, fed.test.images)             # [N, D]
        predicted = classes[torch.cdist(features, means[classes]).argmin(1)]             # [N]
        votes = F.one_hot(predicted, fed.num_classes).float()                # [N, C]
        votes[~features.isfinite().all(1)] = torch.nan                       # they predict nothing
        return (accuracy(votes, fed.test.labels),
                own_accuracy(votes, fed.test.labels, fed.private[i].labels))

    everywhere, own = zip(*in_parallel(fed, nearest, range(len(clients))))
    return {"prototype_accuracy": sum(everywhere) / len(everywhere),
            "prototype_accuracy_own": mean_own(own)}


def ledger(fed, counts, known, num_features):
    """Bytes of a round: prototypes of the clients' classes and C counts up, those known down.

    What goes down is for the training of the next round.
    """
    sent = int((counts > 0).sum())                       # prototypes of all clients
    received = len(counts) * int(known.sum())
    return {"bytes_up": FLOAT_BYTES * sent * num_features + INDEX_BYTES * counts.numel(),
            "bytes_down": FLOAT_BYTES * received * num_features}


def check_settings(fed, **settings):
    """Raises ValueError unless the features of all networks are of one size."""
    sizes = {name: feature_size(network(fed, name), name) for name in by_architecture(fed)}
    if len({*sizes.values()}) > 1:
        each = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"fedproto: the last layers must have inputs of one size, not {each}")


@checked
def run(fed, state=None, *,
        rounds: int = 100,
        local_epochs: int = 1,               # passes of a client over its images in a round, or,
        local_steps: int | None = None,      #   if given, its optimizer's steps
        batch_size: int = 8,
        lr: float = 0.01,
        prototype_weight: float = 1.0,       # lambda, of R
        optimizer: Optimizer = "momentum",   # kept over the rounds
        weight_decay: float = 0.0,
        attack=None):                        # replaces the uploads of some clients
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    ids, num_classes = range(len(fed.private)), fed.num_classes
    num_features = fed.client_model(0).classifier.in_features                # D
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "means": torch.zeros(num_classes, num_features, device=fed.device),
                 "known": torch.zeros(num_classes, dtype=torch.bool, device=fed.device)}
        yield evaluate(fed, state), state
    clients, means, known = state["clients"], state["means"], state["known"]
    classes = torch.arange(num_classes, device=fed.device)           # [C]: of each row of an upload
    counts = torch.stack([labels.bincount(minlength=num_classes)     # [M, C], sent with the uploads
                          for _, labels in fed.private])

    for t in range(state["round"] + 1, rounds + 1):
        def train(i):
            return train_client(fed, i, t, clients[i], means, known, local_epochs, local_steps,
                                batch_size, lr, prototype_weight, optimizer, weight_decay)

        uploads, clients = collect_rows(fed, classes, train, attack)         # [M, C, D], step 1-2
        # An upload with nan, infinity or numbers of 1e30 and more has no weight.
        is_valid = torch.tensor([is_usable(upload) for upload in uploads], device=fed.device)
        round_means, in_round = global_prototypes(uploads, counts * is_valid[:, None])   # step 3
        means = torch.where(in_round[:, None], round_means, means)           # [C, D]
        known = known | in_round                                             # [C]

        # All that the next round needs: models and optimizers of the clients, the prototypes.
        state = {"round": t, "clients": clients, "means": means, "known": known}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state), **evaluate_prototypes(fed, clients, means, known),
                   "bad_uploads": int((~is_valid).sum()),
                   **ledger(fed, counts, known, num_features)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedproto", run,
    scores={"client_accuracy_own": "clients, own classes", "client_accuracy": "clients",
            "prototype_accuracy_own": "prototypes, own classes"},
    keeps=("clients", "means", "known"), mixed_networks=True, plateau=("lr",),
    check_settings=check_settings, evaluate=evaluate,
    columns=("client_accuracy_own", "client_accuracy", "prototype_accuracy_own"))
