"""FedMD: clients with networks of their own design learn from the mean of their logits.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", arXiv:1910.03581.
"Code" below is the authors' for CIFAR, iid, which decides where the text is silent or vague.

    python fedkd_minimal.py --algo fedmd
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the digits (Dirichlet, alpha 0.5), 270 images each. 4,160 letters of 26 classes are public;
        600 digits, which no client holds, are for validation. It takes about a minute on two cores.
    python fedkd_minimal.py --algo fedmd --paper fedmd --dataset cifar100
        runs `PAPER`: 10 clients hold three images of each class (the paper has six classes:
        --classes 0,2,20,63,71,82). Each has another CNN of Table 1, as in the code; the paper's
        for CIFAR are those of Table 2. All training images of CIFAR-10 are public, a tenth of
        CIFAR-100's are for validation. Images are not augmented, and rates are constant.

Clients hold a few labeled images of their own; the server and all clients hold labeled public
images. If these are of another task, as in both commands, the output layer is joint: P public
classes come first, then the task's K. So there are C = P + K logits, and the task's labels are P to
P + K - 1. Every loss, every mean and every answer to a test image is over all C.

Training: train mode, images cropped and flipped with --augment, the mean loss of a batch.
Prediction: eval mode, no gradient, images as they are, but for public ones: with --augment each is
cropped and flipped once in a round, for all who predict or learn it. CE is cross-entropy with the
label. Every loss below also has the penalty kernel_l2 |W|²: the sum of the squared weights, without
the bias, of the network's last linear layer (departure 6).

Algorithm 1. The paper does not number its steps; these numbers are ours. Its party k is client i.
  0   transfer: each client, in parallel, trains a network of random weights of its own by CE,
          first on the public images, for at most transfer_public_epochs passes. It stops earlier
              when 3 passes in a row brought no gain of min_delta or more on a tenth of these
              images, which all clients leave out;
          then on its own images, for at most transfer_local_epochs passes. It stops earlier when
              10 in a row brought no gain of 0.001 or more on the validation images; in the 10
              passes of `Config` that never happens                                  (departure 5)
      for each round t:
  1       the server draws n public images, of each class its share                  (departure 3)
  2       communicate: each client, in parallel, predicts them and sends its logits f_i, [n, C]
  3       aggregate: f~ = sum_i c_i f_i, c_i = 1 / M, which the server sends to all M clients
                                                                                     (departure 4)
  4       digest: each client, in parallel, trains on the n images by the mean of |f_i - f~| over
              images and classes                                                     (departure 1)
  5       revisit: each client, in parallel, trains on its own images by CE          (departure 2)

All clients take part in every round. Weights are never sent. Public labels are used in step 0, and
in step 1 to draw; no loss of a round has them. Images without labels will do with
--transfer-public-epochs 0: then any n are drawn, and the output layer has the task's classes. A
client keeps its weights and two optimizers, the digest's and the revisit's, which go on in the next
round; the two of step 0 are dropped after it.

Accuracy is the mean over the clients, on the test images of the task, after step 5;
client_accuracy_distilled is that after step 4. In round 0 both are after step 0, and
client_accuracy_public_stage is after the first half of it.

Bad uploads: a client of which a logit is nan, infinite, or 1e30 or more in magnitude is left out
of f~, and the other c_i are divided by their sum. It receives f~ and trains as the others do. If
nobody is left whose c_i is above 0, there is no step 4, and client_accuracy_distilled is null. A
client whose own weights have become nan is left out from then on, and counts in the accuracy.

Departures
  1  Paper: parties "align" raw logits by a loss that it does not name. Here, as in the code: the
     mean absolute error.
  2  Code: the private training of step 0 and all revisits share an Adam. Here: the first revisit
     starts a new one.
  3  Paper: a random subset. Here, as in the code: random within a class, of each class its share.
  4  Paper: for CIFAR the c_i of networks 0 and 9 are "slightly" lower. Here, as in the code: all
     are 1 / M, unless --consensus-weights says otherwise.
  5  Paper: "until convergence". Code: until the accuracy on test images does not grow. Here: on
     held-out public images and on validation images. The last weights stay, as in the code.
  6  Paper: has no penalty. Here, as in the code: kernel_l2 |W|².
  7  Paper: six classes of CIFAR-100, and the networks of Table 2. Here with --paper, as in the
     code: all classes, unless --classes says otherwise, and the networks of Table 1.
"""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from algorithms import Algorithm, configured
from federation import (OPTIMIZERS, Optimizer, accuracy, by_client, client_metrics, client_scores,
                        is_usable, loaded, logits_ledger, minibatches, parallel_map, pick, predict,
                        public_view, random_numbers, received_logits, restored, stream)

# is_usable         False if a number is nan, infinite, or 1e30 or more in magnitude
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# pick              the images and labels of these rows
# predict           logits, in eval mode, without gradient; then the mode is as before
# public_view       the public samples of a round; with --augment each image is cropped and
#                   flipped once, for all who predict or learn it
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received_logits   [M, n, C] of {client: [n, C]}, after an attack; nothing is left out
# restored          a network and its optimizer, after a copy of what was saved into both; None: a
#                   new optimizer. Its rate and weight decay are the ones given here
# stream            a generator for what is named


@dataclass
class Config:
    rounds: int = 10                        # of communication
    transfer_public_epochs: int = 5         # step 0, public images: passes of a client, at most
    transfer_public_batch_size: int = 128
    transfer_local_epochs: int = 10         # step 0, own images: passes of a client, at most
    transfer_batch_size: int = 32
    early_stopping: bool = True             # False: step 0 makes all passes, over all public images
    min_delta: float = 0.005                # step 0, public images: a smaller gain is none
    subset_size: int | None = 1000          # n, step 1; None: all public images
    public_epochs: int = 1                  # digest: passes of a client over the n images
    public_batch_size: int = 64
    local_epochs: int = 1                   # revisit: passes of a client over its own images
    batch_size: int = 5
    lr: float = 1e-3                        # of all training; constant; --lr-patience lowers it
    optimizer: Optimizer = "adam"           # of all training
    weight_decay: float = 0.0               # L2 penalty of the optimizers
    kernel_l2: float = 1e-3                 # factor of |W|² in all losses
    consensus_weights: tuple[float, ...] | None = None   # c_i, up to a factor; None: equal


# The code for CIFAR, iid; of these the paper has Adam and n (section 3).
# Clients, partition, networks (departure 7), augmentation: experiment/presets.py.
PAPER = dict(rounds=20, transfer_public_epochs=20, transfer_public_batch_size=128,
             transfer_local_epochs=25, transfer_batch_size=32, early_stopping=True, min_delta=0.005,
             subset_size=5000, public_epochs=1, public_batch_size=256, local_epochs=4, batch_size=5,
             lr=1e-3, optimizer="adam", weight_decay=0.0, kernel_l2=1e-3, consensus_weights=None)

# Step 0 in the code.
PUBLIC_PATIENCE = 3         # public images: epochs without a gain, after which training stops
OWN_PATIENCE = 10           # own images: the same
OWN_MIN_DELTA = 0.001       # own images: a smaller gain is none


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the transfer, and after every round.

    fed       fed.private[i]: client i's images [m, c, h, w] and labels [m]; fed.public,
              fed.validation and fed.test likewise; fed.client_model(i, init=i): client i's new
              network, with the i-th random weights; fed.augment: random crops and flips with
              --augment, else the images unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ids = range(len(fed.private))                                            # M clients
    if state is None:
        # Step 0: each client trains on the public images, then on its own.
        after_public = parallel_map(fed, ids, lambda i: transfer_public(fed, cfg, i))
        clients = parallel_map(fed, ids, lambda i: transfer_own(fed, cfg, i, after_public[i]))
        state = {"round": 0, "clients": clients}
        yield {**evaluate(fed, state, clients), **evaluate_public_stage(fed, after_public)}, state
    clients = state["clients"]
    consensus_weights = cfg.consensus_weights or [1.0] * len(ids)            # c_i, up to a factor
    if fed.public.labels is None:
        labels = np.zeros(len(fed.public.images))            # [N], as if of one class
    else:
        labels = fed.public.labels.cpu().numpy()

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: the server draws n public images.
        subset = public_subset(labels, cfg.subset_size, stream(fed.seed, "subset", t))
        subset = torch.from_numpy(subset).to(fed.device)                     # [n], row numbers
        images = public_view(fed, t).images[subset]                          # [n, c, h, w]

        # Step 2: clients predict them, and send their logits.
        uploads = parallel_map(fed, ids, lambda i: predict_client(fed, i, clients[i], images))
        client_logits = received_logits(uploads, subset, attack)             # [M, n, C]

        # Step 3: the server averages the usable ones.
        usable = [i for i in ids if is_usable(client_logits[i])]
        weights = [consensus_weights[i] for i in usable]                     # departure 4
        has_consensus = sum(weights) > 0

        # Step 4: clients train towards the mean, f~, if there is one.
        if has_consensus:
            mean_logits = consensus(client_logits[usable], weights)          # f~, [n, C]
            digested = parallel_map(fed, ids, lambda i: digest_client(
                fed, cfg, t, i, clients[i], images, mean_logits))
        else:
            digested = clients

        # Step 5: clients train on their own images.
        clients = parallel_map(fed, ids, lambda i: revisit_client(fed, cfg, t, i, digested[i]))

        state = {"round": t, "clients": clients}
        n, N = len(images), len(fed.public.images)
        yield {**evaluate(fed, state, digested if has_consensus else None),
               "bad_uploads": len(ids) - len(usable),
               **logits_ledger(len(ids), fed.num_classes, up=n, down=n,
                               indices=n if n < N else 0)}, state


# --------------------------------------------------------------------------------------------------
# Step 0. Between all steps a client is a dict, whose "model" are the weights of its network.

def transfer_public(fed, cfg, i):
    """Client i after training on the public images."""
    model = fed.client_model(i, init=i)
    if cfg.transfer_public_epochs == 0:                      # the images may have no labels
        return {"model": model.state_dict()}
    order = stream(fed.seed, "transfer").permutation(len(fed.public.labels))     # alike for all i
    num_held_out = len(order) // 10 if cfg.early_stopping else 0
    held_out, rest = torch.from_numpy(order).to(fed.device).tensor_split([num_held_out])
    validation = pick(fed.public, held_out) if num_held_out > 0 else None        # departure 5
    train_until_converged(
        fed, cfg, model, pick(fed.public, rest), validation, ("transfer public", i),
        epochs=cfg.transfer_public_epochs, batch_size=cfg.transfer_public_batch_size,
        min_delta=cfg.min_delta, patience=PUBLIC_PATIENCE)
    return {"model": model.state_dict()}


def transfer_own(fed, cfg, i, client):
    """Client i after training on its own images."""
    model = loaded(fed.client_model(i), client["model"])
    validation = fed.validation if cfg.early_stopping else None                  # departure 5
    train_until_converged(
        fed, cfg, model, fed.private[i], validation, ("transfer local", i),
        epochs=cfg.transfer_local_epochs, batch_size=cfg.transfer_batch_size,
        min_delta=OWN_MIN_DELTA, patience=OWN_PATIENCE)
    # None: the first digest and the first revisit start new optimizers: departure 2.
    return {"model": model.state_dict(), "digest_optimizer": None, "revisit_optimizer": None}


def train_until_converged(fed, cfg, model, data, validation, name, epochs, batch_size, min_delta,
                          patience):
    """Trains the model in place, by CE, in at most `epochs` passes over (images, labels) `data`.

    It ends when `patience` epochs in a row have brought no gain. A gain is an accuracy on
    `validation` that is above the one of the last gain by min_delta or more. validation None: it
    makes all passes.
    """
    optimizer = OPTIMIZERS[cfg.optimizer](model.parameters(), lr=cfg.lr,
                                          weight_decay=cfg.weight_decay)
    best_accuracy, best_epoch = float("-inf"), 0
    for epoch in range(1, epochs + 1):
        train(fed, cfg, model, optimizer, data, (*name, epoch), epochs=1, batch_size=batch_size)
        if validation is not None:
            now = accuracy(predict(model, validation.images), validation.labels)
            # Rounded: .11 - .1 is .009999999999999995, and is a gain of .01.
            if round(now - best_accuracy, 12) >= min_delta:
                best_accuracy, best_epoch = now, epoch
            if epoch - best_epoch >= patience:
                break


# --------------------------------------------------------------------------------------------------
# Steps 1 to 5. A client also has the state of its "digest_optimizer" and "revisit_optimizer".

def public_subset(labels, size, rng):
    """Sorted row numbers of `size` random samples, int64 [n]; of each class its share, to within 1.

    labels    int array [N]
    size      None, or N or more: all samples
    It is a systematic sample. The N samples stand in a line, class after class, in random order
    within a class; every (N / n)-th is taken, from a random start. For n = 3 of N = 6 these are
    places 0, 2, 4 or 1, 3, 5 of the line.
    >>> labels = np.array([0, 1, 0, 1, 1, 1])           # a third of 0, two thirds of 1
    >>> np.sort(labels[public_subset(labels, 3, np.random.default_rng(0))])
    array([0, 1, 1])
    """
    N = len(labels)
    n = N if size is None else min(size, N)
    shuffled = rng.permutation(N)
    line = shuffled[np.argsort(labels[shuffled], kind="stable")]
    places = (np.arange(n) + rng.random()) * N / n          # from [0, N / n) on, N / n apart
    return np.sort(line[places.astype(np.int64)])           # rounded down; departure 3


def predict_client(fed, i, client, images):
    """Step 2: client i's logits [n, C] of images [n, c, h, w]."""
    return predict(loaded(fed.client_model(i), client["model"]), images)


def consensus(client_logits, weights=None):
    """f~ = sum_i c_i f_i, the weighted mean of the clients' logits: [M, n, C] -> [n, C].   Step 3

    weights    [M], >= 0 and not all 0; divided here by their sum, they are the c_i. None: equal
    >>> consensus(torch.tensor([[[3., 0.]], [[0., 6.]]]), weights=[2, 1])
    tensor([[2., 2.]])
    """
    weights = [1.0] * len(client_logits) if weights is None else weights
    weights = torch.as_tensor(weights, dtype=client_logits.dtype, device=client_logits.device)
    return torch.tensordot(weights / weights.sum(), client_logits, dims=1)


def digest_client(fed, cfg, t, i, client, images, mean_logits):
    """Step 4: client i after training on images [n, c, h, w] towards mean_logits [n, C]."""
    model, optimizer = restored(
        {"model": client["model"], "optimizer": client["digest_optimizer"]},
        fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with random_numbers(fed, "digest", t, i) as rng:         # order, dropout
        for rows in minibatches(images, cfg.public_batch_size, rng, cfg.public_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = digest_loss(logits, mean_logits[rows]) + penalty(model, cfg.kernel_l2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return client | {"model": model.state_dict(), "digest_optimizer": optimizer.state_dict()}


def digest_loss(logits, consensus_logits):
    """The mean of |f_i - f~| over images and classes: [B, C], [B, C] -> scalar.   Step 4

    The consensus gets no gradient.
    """
    return (logits - consensus_logits.detach()).abs().mean()                     # departure 1


def revisit_client(fed, cfg, t, i, client):
    """Step 5: client i after training on its own images."""
    model, optimizer = restored(
        {"model": client["model"], "optimizer": client["revisit_optimizer"]},
        fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    train(fed, cfg, model, optimizer, fed.private[i], ("revisit", t, i), cfg.local_epochs,
          cfg.batch_size)
    return client | {"model": model.state_dict(), "revisit_optimizer": optimizer.state_dict()}


# --------------------------------------------------------------------------------------------------
# Training on labels, in step 0 and step 5

def train(fed, cfg, model, optimizer, data, name, epochs, batch_size):
    """Trains the model in place, by CE, in `epochs` passes over (images, labels) `data`.

    name    of its random numbers
    """
    images, labels = data
    model.train()
    with random_numbers(fed, *name) as rng:                  # order, augmentation, dropout
        for rows in minibatches(images, batch_size, rng, epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows]) + penalty(model, cfg.kernel_l2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def penalty(model, kernel_l2):
    """kernel_l2 |W|², a scalar; W are the weights of the last linear layer."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"the network {type(model).__name__} has no linear layer")
    return kernel_l2 * linear[-1].weight.square().sum()                          # departure 6


# --------------------------------------------------------------------------------------------------
# Metrics; no step uses them

def evaluate(fed, state, digested=None):
    """Test accuracies of the clients after the revisit, and after the digest.

    digested    the clients after the digest; None: there was none, and these accuracies are null
    With a joint output layer, `_as_public` is the share of public classes among the answers.
    """
    scores = client_scores(fed, state["clients"])
    private = client_metrics(scores, "client_accuracy_private")
    distilled = client_metrics(client_scores(fed, digested or state["clients"]),
                               "client_accuracy_distilled")
    if digested is None:
        distilled = dict.fromkeys(distilled)                                     # all null
    return {"accuracy": private.pop("client_accuracy_private"), **distilled, **private,
            **by_client(scores, "client_accuracy_private")}


def evaluate_public_stage(fed, after_public):
    """Test accuracies of the clients after the public images of step 0."""
    return client_metrics(client_scores(fed, after_public), "client_accuracy_public_stage")


# --------------------------------------------------------------------------------------------------
# For the command line

def check(fed, cfg, attack):
    """Raises ValueError unless each client has a weight, and one of them is above 0.

    That none is below 0 is checked by ranges.py.
    """
    given = cfg.consensus_weights
    if given is not None and (sum(given) == 0 or len(given) != len(fed.private)):
        raise ValueError("fedmd: consensus_weights needs a weight >= 0 for each of "
                         f"{len(fed.private)} clients, not all 0, not {[*given]}")


ALGORITHM = Algorithm(
    "fedmd", run,
    scores={"accuracy": "clients, after private training",
            "client_accuracy_distilled": "clients, after distillation"},
    paper=PAPER, public="joint", labels_for=("transfer_public_epochs",), mixed_networks=True,
    validation_for=("early_stopping",), check_settings=check, plateau=("lr",), evaluate=evaluate)
