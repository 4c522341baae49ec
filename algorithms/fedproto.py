"""FedProto: clients train networks whose features come near to the mean features of each class.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243. Its text was not at hand: this file follows later descriptions of it, and the
authors' public code, github.com/yuetan031/fedproto of 2022 (97e42e2).

    python fedkd_minimal.py --algo fedproto
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. Every second client has a network with one hidden
        layer (mlp), the others have a CNN (cnn_large); both have 128 features. It takes a minute on
        two cores.

No --paper has it. From Python, fedproto.run(fed, **PAPER) runs `PAPER`.

Clients hold labeled images of their own; between rounds each keeps its network and its optimizer.
The server keeps the global prototypes. There are no public images. A network's features h(x) are
the D numbers that its last layer, `classifier`, reads; D is the same for all clients. Training:
train mode, images cropped and flipped with --augment, the mean loss of a batch. Prediction: eval
mode, no gradient, images as they are.

The algorithm; the numbers are ours. CE is cross-entropy with the label, the mean over a batch:
  1   start with a network in each client, of random weights of its own; no class has a global
      prototype yet
  2   for each round t:
  3       for each client, in parallel:
  4           train its network on its own images by CE + prototype_weight R, where
                  R = the mean over the batch and the D features of
                      (h(x) - the global prototype of x's label)²
              An image whose class has no global prototype counts as 0 in this mean, so R is 0 in
              round 1. The global prototypes are constants.
  5           predict h(x) of its own images; the prototype of a class is the mean of h(x) over the
              client's images of the class
  6           upload the prototypes of its classes, and its numbers of images of each class
  7       the global prototype of a class = the mean of the clients' prototypes of it, weighted by
          their numbers of images of this class; all clients receive it                  Eq. (6)

All clients are active in every round. Networks and images are never sent. A client keeps what it
trained, also if the server leaves its upload out.

Accuracy is of the clients' networks on the test images, after step 4: the mean over the clients,
each with the classes weighted as in its own images. `client_accuracy` is the same with all test
images weighted alike. For `prototype_accuracy` a client answers with the class whose global
prototype, after step 7, is nearest to h(x); `prototype_accuracy_own` has the weights of accuracy.

Bad uploads: a client of whose prototypes a number is nan, infinite, or 1e30 or more in magnitude is
left out of step 7, for all classes. A class that nobody else has keeps its global prototype.

Departures
  1  Paper: R is a distance of the client's prototypes from the global ones. Here, as in the public
     code: the mean square difference of each image's features.
  2  Paper, Eq. (6): a factor 1/|N_j| more, N_j being the clients that have class j; with it the
     weights would not sum to 1. Public code: the plain mean. Here: the weighted mean.
  3  Public code: step 5 averages h(x) of the last pass of training, in train mode, each from before
     its batch's step. Here: all of the trained network.
  4  Public code: a client has a new optimizer in every round. Here: it keeps one.
  5  Public code: answers by prototypes are among the classes that the client has. Here: among all
     classes that have a global prototype.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (FLOAT_BYTES, INDEX_BYTES, Optimizer, accuracy, client_metrics,
                        client_scores, feature_size, loaded, mean_accuracy, mean_own, minibatches,
                        own_accuracy, parallel_map, random_numbers, received, restored, snapshot,
                        with_features)

# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received          {client: upload} of dicts of tensors: after an attack, which replaces tensors of
#                   floating-point numbers, and without the bad uploads
# restored          a network and its optimizer, after a snapshot has been copied into both; the
#                   learning rate and the weight decay are those given here
# snapshot          {"model": weights, "optimizer": state or None}, to be kept
# with_features     (what the layer `classifier` reads [B, D], logits [B, C]) of a forward pass in
#                   the network's mode


@dataclass
class Config:
    rounds: int = 20                     # of communication
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.01                     # of a client, constant; --lr-patience lowers it
    prototype_weight: float = 1.0        # lambda: weight of R
    optimizer: Optimizer = "momentum"    # one for each client, kept over the rounds
    weight_decay: float = 0.0            # L2 penalty of this optimizer


# The public code's values for MNIST, but for batch_size, there 4, and the momentum, there 0.5. For
# CIFAR-10 it has 110 rounds, batches of 32 and a prototype_weight of 0.1. Its batches are all of
# one size: images that do not fill the last one are left out.
PAPER = dict(rounds=100, local_epochs=1, batch_size=8, lr=0.01, prototype_weight=1.0,
             optimizer="momentum", weight_decay=0.0)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.client_model(i,
              init=k): a new network of client i, with the k-th random weights; fed.augment: random
              crops and flips with --augment, else the images unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ids = range(len(fed.private))
    if state is None:
        # Step 1: each client starts from random weights of its own; no class has a prototype.
        D = fed.client_model(0).classifier.in_features
        state = {"round": 0, "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids},
                 "means": torch.zeros(fed.num_classes, D, device=fed.device),
                 "known": torch.zeros(fed.num_classes, dtype=torch.bool, device=fed.device)}
        yield evaluate(fed, state), state
    clients = state["clients"]           # {i: {"model": weights, "optimizer": state or None}}
    means = state["means"]               # [C, D]: the global prototypes
    known = state["known"]               # bool [C]: the classes that have one

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each client trains its network, and uploads the prototypes of its classes.
        trained = parallel_map(
            fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i], means, known))
        clients = {i: client for i, (client, _) in trained.items()}
        sent = {i: upload for i, (_, upload) in trained.items()}
        uploads = received(fed, sent, attack).values()   # M x {"prototypes": [C, D], "counts": [C]}

        # Step 7: the global prototypes. A class that no upload has keeps its own.
        if uploads:
            new_means, has_new = global_prototypes(
                torch.stack([upload["prototypes"] for upload in uploads]),       # [M, C, D]
                torch.stack([upload["counts"] for upload in uploads]))           # [M, C]
            means = torch.where(has_new[:, None], new_means, means)
            known = known | has_new

        state = {"round": t, "clients": clients, "means": means, "known": known}
        yield {**evaluate(fed, state), **evaluate_prototypes(fed, state),
               "bad_uploads": len(ids) - len(uploads), **ledger(fed, state)}, state


def train_client(fed, cfg, t, i, client, means, known):
    """(client i after training, its upload).   Step 4-6

    client          a snapshot of its network and its optimizer
    means, known    [C, D], bool [C]: the global prototypes, and which classes have one
    """
    images, labels = fed.private[i]
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,  # departure 4
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:      # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            features, logits = with_features(model, fed.augment(images[rows], rng))
            R = prototype_loss(features, labels[rows], means, known)
            loss = F.cross_entropy(logits, labels[rows]) + cfg.prototype_weight * R
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    own_features = predict_features(model, images)                               # [n, D]
    own_means, own_counts = prototypes(own_features, labels, fed.num_classes)    # departure 3
    return snapshot(model, optimizer), {"prototypes": own_means, "counts": own_counts}


def prototype_loss(features, labels, means, known):
    """R: the mean over batch and dimensions of (features - the label's prototype)²: a scalar.

    features, labels    [B, D], int64 [B]
    means, known        [C, D], bool [C]: the global prototypes, which get no gradient, and which
                        classes have one; a sample of another class counts as 0
    >>> features, means = torch.tensor([[1., 1.], [7., 9.]]), torch.tensor([[0., 1.], [0., 0.]])
    >>> prototype_loss(features, torch.tensor([0, 1]), means, known=torch.tensor([True, False]))
    tensor(0.2500)
    """
    squares = (features - means[labels].detach()).square()                       # [B, D]
    return torch.where(known[labels][:, None], squares, 0.0).mean()              # departure 1


@torch.no_grad()
def predict_features(model, images):
    """Features [n, D] of images [n, c, h, w], in eval mode, without augmentation."""
    model.eval()
    return torch.cat([with_features(model, batch)[0] for batch in images.split(64)])


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
                                 number of samples of the class; where this is 0 it may be anything
    >>> global_prototypes(torch.tensor([[[1., 0.]], [[0., 2.]]]), torch.tensor([[3], [1]]))
    (tensor([[0.7500, 0.5000]]), tensor([True]))
    """
    weights = counts.to(client_prototypes)[..., None]                            # [M, C, 1]
    sums = torch.where(weights > 0, weights * client_prototypes, 0.0).sum(0)     # [C, D]
    totals = weights.sum(0)                                                      # [C, 1]
    return sums / totals.clamp(min=1), totals[:, 0] > 0                          # departure 2


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracies of the clients' networks."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    own = metrics.pop("client_accuracy_own", None)       # None: no test image is of their classes
    return {"accuracy": own, **metrics}


def evaluate_prototypes(fed, state):
    """Test accuracies of answers with the class whose global prototype is nearest."""
    clients, means, known = state["clients"], state["means"], state["known"]
    if not known.any():                                  # before the first usable upload
        return {"prototype_accuracy": None, "prototype_accuracy_own": None}

    def accuracies(i):
        model = loaded(fed.client_model(i), clients[i]["model"])
        features = predict_features(model, fed.test.images)                      # [N, D]
        # A sample whose features are not finite is wrong, as its distances are not finite.
        # By differences: x² - 2xy + y², cdist's default, has no digits left where x² is large.
        distances = torch.cdist(features, means,
                                compute_mode="donot_use_mm_for_euclid_dist")     # [N, C]
        distances[:, ~known] = torch.finfo(distances.dtype).max                  # departure 5
        return (accuracy(-distances, fed.test.labels),
                own_accuracy(-distances, fed.test.labels, fed.private[i].labels))

    everywhere, own = zip(*parallel_map(fed, clients, accuracies).values())
    return {"prototype_accuracy": mean_accuracy(everywhere),
            "prototype_accuracy_own": mean_own(own)}


def ledger(fed, state):
    """Bytes of a round: prototypes of the clients' classes and C counts up, those known down.

    What goes down is for the training of the next round.
    """
    num_classes, D = state["means"].shape
    sent = sum(len(labels.unique()) for _, labels in fed.private)
    known = int(state["known"].sum())
    return {"bytes_up": FLOAT_BYTES * sent * D + INDEX_BYTES * len(fed.private) * num_classes,
            "bytes_down": FLOAT_BYTES * len(fed.private) * known * D}


# --------------------------------------------------------------------------------------------------
# For the command line

def check(fed, cfg, attack):
    """Raises ValueError unless the features of all networks are of one size."""
    sizes = {name: feature_size(fed.client_model(fed.architecture.index(name)), name)
             for name in dict.fromkeys(fed.architecture)}
    if len({*sizes.values()}) > 1:
        each = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"fedproto: the last layers must have inputs of one size, not {each}")


ALGORITHM = Algorithm(
    "fedproto", run,
    scores={"accuracy": "clients, own classes", "client_accuracy": "clients",
            "prototype_accuracy_own": "prototypes, own classes"},
    paper=PAPER, mixed_networks=True, model=("cnn_large", "mlp"), server_model="cnn",
    plateau=("lr",), check_settings=check, evaluate=evaluate)
