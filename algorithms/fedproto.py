"""FedProto: clients train networks whose features come near to the mean features of each class.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243. Its text was not at hand: this file follows later papers and the public code.

    python fedkd_minimal.py --algo fedproto
        runs `Config` on digits of 16x16 pixels: 20 clients hold 300 images each (Dirichlet, alpha
        0.5). Every second one has a network with one hidden layer (mlp), the others a CNN
        (cnn_large). A minute on two cores. No --paper has FedProto: `PAPER` is for use in Python.

Clients hold labeled images of their own; between rounds each keeps its network and its optimizer.
The server keeps the global prototypes. There are no public images, and no network is sent. Features
h(x) are the D numbers that a network's last layer, `classifier`, reads; D is the same for all.

The algorithm; the numbers are ours. CE is cross-entropy with the label, the mean over a batch:
  1   start with a network in each client, of random weights of its own; no class has a global
      prototype yet
  2   for each round t:
  3       for each client, in parallel; all are active:
  4           train its network on its own images by CE + prototype_weight R, where R = the mean
                  over the batch and the D features of (h(x) - the global prototype of x's label)²,
                  in which an image whose class has none counts as 0
  5           predict h(x) of its own images; the prototype of a class is the mean of h(x) over the
              client's images of the class
  6           upload the prototypes of its classes, and its numbers of images of each class
  7       the global prototype of a class = the mean of the clients' prototypes of it, weighted by
          their numbers of images of this class; all clients receive it                  Eq. (6)

  step   who predicts   images   mode    gradient   augmented      loss, how often
  4      a client       its own  train   yes        in each pass   step 4's, local_epochs
  5      a client       its own  eval    no         no             none, once
  -      all clients    test     eval    no         no             `accuracy`, `client_accuracy`
  -      all clients    test     eval    no         no             `prototype_accuracy`, and `_own`

Accuracies are means over all clients. `client_accuracy` weighs all test images alike, `accuracy`
the classes as they are in the client's own images, as does `prototype_accuracy_own`. A client's
prediction for `prototype_accuracy` is the class whose global prototype is nearest to h(x).

A client of whose prototypes a number is nan, infinite, or 1e30 or more in magnitude is left out of
step 7. A class that nobody else has keeps its global prototype, each client what it trained.

Departures; 3 and more are in docs/DEPARTURES.md
  1  Paper: R compares the client's prototypes. Here, as in the public code: each image's features.
  2  Paper, Eq. (6): a factor 1/|N_j| more, N_j being the clients that have class j; with it the
     weights would not sum to 1. Public code: the plain mean. Here: the weighted mean.
"""
from dataclasses import dataclass
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import nn

from federation import (FLOAT_BYTES, INDEX_BYTES, Algorithm, Count, Natural, NonNegative, Optimizer,
                        Positive, Settings, accuracy, drop_bad_uploads, mean_of, minibatches,
                        own_accuracy, parallel_map, resume, score_personal, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # of communication
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.01                  # of a client, constant
    prototype_weight: NonNegative = 1.0  # lambda: weight of R
    optimizer: Optimizer = "momentum"    # one for each client, kept over the rounds
    weight_decay: NonNegative = 0.0      # L2 penalty of this optimizer


# The public code's for MNIST, where they differ from Config, but for batch_size, there 4; its
# momentum is 0.5. For CIFAR-10 it has 110 rounds, batches of 32 and a prototype_weight of 0.1.
PAPER = dict(rounds=100, local_epochs=1, batch_size=8)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed       a `Federation`; clients may have different architectures, whose last layers,
              `classifier`, read equally many features
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    ids = range(len(fed.private))
    if state is None:
        # Step 1: each client starts from random weights of its own; no class has a prototype.
        D = fed.client_model(0).classifier.in_features
        state = {"algorithm": "fedproto", "round": 0,
                 "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids},
                 "means": torch.zeros(fed.num_classes, D, device=fed.device),
                 "known": torch.zeros(fed.num_classes, dtype=torch.bool, device=fed.device)}
        yield evaluate(fed, state), state
    clients = state["clients"]                                       # {i: snapshot}
    means, known = state["means"], state["known"]    # the global prototypes [C, D], and bool [C]:
    #                                                  the classes that have one

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each client trains its network, and uploads the prototypes of its classes.
        trained = parallel_map(
            fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i], means, known))
        clients = {i: client for i, (client, _) in trained.items()}
        sent = {i: upload for i, (_, upload) in trained.items()}
        uploads = attack.poison_weights(sent) if attack else sent
        uploads = drop_bad_uploads(uploads)      # {i: {"prototypes": [C, D], "counts": [C]}}

        # Step 7: the global prototypes. A class that no upload has keeps its own.       Eq. (6)
        if uploads:
            new_means, has_new = global_prototypes(
                torch.stack([upload["prototypes"] for upload in uploads.values()]),  # [M, C, D]
                torch.stack([upload["counts"] for upload in uploads.values()]))      # [M, C]
            means = torch.where(has_new[:, None], new_means, means)
            known = known | has_new

        state = {**state, "round": t, "clients": clients, "means": means, "known": known}
        yield measure(fed, state, uploads), state


def train_client(fed, cfg, t, i, client, means, known):
    """(client i after training, its upload).   Step 4-6

    client          a `snapshot` of its network and its optimizer
    means, known    [C, D], bool [C]: the global prototypes, and which classes have one
    """
    images, labels = fed.private[i]
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            features, logits = forward_with_features(model, fed.augment(images[rows], rng))
            R = prototype_loss(features, labels[rows], means, known)
            loss = F.cross_entropy(logits, labels[rows]) + cfg.prototype_weight * R
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    own_features = predict_features(model, images)                               # [n, D]
    own_means, own_counts = prototypes(own_features, labels, fed.num_classes)
    return snapshot(model, optimizer), {"prototypes": own_means, "counts": own_counts}


def forward_with_features(model, images):
    """(features [B, D], which the last layer `classifier` reads, logits [B, C])."""
    features = []
    hook = model.classifier.register_forward_pre_hook(
        lambda layer, inputs: features.append(inputs[0].float()))
    logits = model(images)
    hook.remove()
    return features[0], logits


def prototype_loss(features, labels, means, known):
    """R: the mean over batch and dimensions of (features - the label's prototype)²: a scalar.

    features, labels    [B, D], int64 [B]
    means, known        [C, D], bool [C]: the global prototypes, which get no gradient, and which
                        classes have one; a sample of another class counts as 0
    >>> features, means = torch.tensor([[1., 1.], [7., 9.]]), torch.tensor([[0., 1.], [0., 0.]])
    >>> prototype_loss(features, torch.tensor([0, 1]), means, known=torch.tensor([True, False]))
    tensor(0.2500)
    """
    known = known[labels][:, None]                                               # [B, 1]
    means = means[labels].detach().masked_fill(~known, 0.0)      # nan here would reach the gradient
    squares = (features - means).square()                                        # [B, D]
    return torch.where(known, squares, 0.0).mean()                               # departure 1


@torch.no_grad()
def predict_features(model, images):
    """Features [n, D] of images [n, c, h, w], in eval mode, without augmentation."""
    model.eval()
    return torch.cat([forward_with_features(model, batch)[0] for batch in images.split(64)])


def prototypes(features, labels, num_classes):
    """([C, D] mean features of each class, int64 [C] its number of samples).

    features, labels    [N, D], int64 [N]
    A class without samples is a row of zeros with the count 0. A nan stays in its own class.
    """
    counts = labels.bincount(minlength=num_classes)                              # [C]
    sums = torch.stack([features[labels == c].sum(0) for c in range(num_classes)])       # [C, D]
    return sums / counts.clamp(min=1)[:, None], counts


def global_prototypes(client_prototypes, counts):
    """([C, D] means over the clients, bool [C]: the classes that any client has).   Eq. (6)

    client_prototypes, counts    [M, C, D], [M, C]: a client's prototype of a class weighs by its
                                 number of samples of the class
    >>> global_prototypes(torch.tensor([[[1., 0.]], [[0., 2.]]]), torch.tensor([[3], [1]]))
    (tensor([[0.7500, 0.5000]]), tensor([True]))
    """
    weights = counts.to(client_prototypes)[..., None]                            # [M, C, 1]
    sums = (weights * client_prototypes.masked_fill(weights == 0, 0.0)).sum(0)   # [C, D]
    totals = weights.sum(0)                                                      # [C, 1]
    return sums / totals.clamp(min=1), totals[:, 0] > 0                          # departure 2


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, uploads):
    """The metrics of a round. Up travel the prototypes of each client's classes, and C counts, down
    those of all known classes, for the training of the next round."""
    M, (num_classes, D) = len(fed.private), state["means"].shape
    sent = sum(len(labels.unique()) for _, labels in fed.private)
    known = int(state["known"].sum())
    return {**evaluate(fed, state), **evaluate_prototypes(fed, state),
            "bad_uploads": M - len(uploads),
            "bytes_up": FLOAT_BYTES * sent * D + INDEX_BYTES * M * num_classes,
            "bytes_down": FLOAT_BYTES * M * known * D}


def evaluate(fed, state):
    """Test accuracies of the clients' networks."""
    return score_personal(fed, state["clients"])


def evaluate_prototypes(fed, state):
    """Test accuracies of answers with the class whose global prototype is nearest."""
    means, known = state["means"], state["known"]
    if not known.any():                                  # before the first usable upload
        return {"prototype_accuracy": None, "prototype_accuracy_own": None}

    def test(i):
        model = fed.client_model(i)
        model.load_state_dict(state["clients"][i]["model"])
        features = predict_features(model, fed.test.images)                      # [N, D]
        # By differences: x² - 2xy + y², cdist's default, has no digits left where x² is large.
        distances = torch.cdist(features, means,
                                compute_mode="donot_use_mm_for_euclid_dist")     # [N, C]
        distances[:, ~known] = torch.finfo(distances.dtype).max
        return (accuracy(-distances, fed.test.labels),
                own_accuracy(-distances, fed.test.labels, fed.private[i].labels))

    everywhere, own = zip(*parallel_map(fed, state["clients"], test).values())
    return {"prototype_accuracy": fmean(everywhere), "prototype_accuracy_own": mean_of(own)}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError unless the features of all networks are of one size."""
    layers = {name: getattr(fed.client_model(ids[0]), "classifier", None)
              for name, ids in fed.clients_by_architecture().items()}
    if not all(isinstance(layer, nn.Linear) for layer in layers.values()):
        raise ValueError("fedproto: the last layer of every network must be linear, and its name "
                         "classifier")
    sizes = {name: layer.in_features for name, layer in layers.items()}
    if len({*sizes.values()}) > 1:
        each = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"fedproto: the last layers must have inputs of one size, not {each}")


ALGORITHM = Algorithm(
    "fedproto", run, Config, mixed_networks=True, check_more=check, program=dict(
        paper=PAPER,
        scores={"accuracy": ("clients", "own classes"), "client_accuracy": ("clients", "test"),
                "prototype_accuracy_own": ("prototypes", "own classes")},
        server_score="client_accuracy",
        plateau=("lr",), evaluate=evaluate, model=("cnn_large", "mlp")))
