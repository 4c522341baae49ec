"""FedMD: clients with networks of their own design learn from the mean of their logits.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", arXiv:1910.03581.
"Code" is the authors', github.com/diogenes0319/FedMD_clean, for CIFAR.

    python fedkd_minimal.py --algo fedmd
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 270 images each. 4,160 letters are public. A minute.
    python fedkd_minimal.py --algo fedmd --paper fedmd --dataset cifar100
        runs `PAPER`: 10 clients with Table 1's CNNs hold three images of each class (in the paper
        there are six: --classes 0,2,20,63,71,82). CIFAR-10's training images are public.

Client k of m holds a few labeled private images; all hold N labeled public ones. If these are of
another task than private and test images, the output layer is joint: its C classes are the public
ones, then the task's. The labels in `fed` are numbered so, and a prediction is the largest of
all C logits. A client keeps its weights, and an optimizer for each of the steps 4 and 5.

Algorithm 1. The numbers are ours; steps 1 to 5 are a round, of which there are P.
  0   transfer: each client trains a network of random weights on the public images, then on its
          private ones, both times until its accuracy stops growing            (departure 2, 3)
  1   the server draws n public images, of each class its share, and sends their row numbers
  2   communicate: each client k sends f_k, its logits of these images, [n, C]
  3   aggregate: the server sends all f~ = sum_k c_k f_k, c_k = 1 / m or of `consensus_weights`
  4   digest: each client trains on the n images by the mean of |f_k - f~|        (departure 1)
  5   revisit: each client trains on its private images                           (departure 2)

  step   clients predict   mode    gradient   augmented      loss, how often
  0      public            train   yes        in each pass   CE, transfer_public_epochs at most
  0      held out          eval    no         no             none, after each pass (departure 3)
  0      private           train   yes        in each pass   CE, transfer_local_epochs at most
  2      the n             eval    no         once a round   none, once; all see the same crops
  4      the n             train   yes        as in step 2   |f_k - f~|, public_epochs
  5      private           train   yes        in each pass   CE, local_epochs
  -      test              eval    no         no             `accuracy`: the mean, after step 5
  -      test              eval    no         no             `client_accuracy_distilled`, after 4

If a client's logits have nan, infinity, or 1e30 or more in magnitude, its c_k is 0 in this round,
and the others sum to 1. If all are 0, nobody digests, and `client_accuracy_distilled` is null.

Departures; 5 and more are in docs/DEPARTURES.md
  1  Paper: names no loss for step 4. Here, as in the code: the mean absolute error.
  2  Code: step 0 and revisits share one Adam. Here: that of the revisits is new in round 1.
  3  Code: step 0 stops by the accuracy on test images. Here: on a held-out tenth of the public
     images, then on validation images, which no client has.
  4  Paper: no penalty. Here, as in the code: every loss has kernel_l2 |W|², W of the last layer.
"""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from federation import (OPTIMIZERS, Algorithm, Count, Data, Natural, NonNegative, Optimizer,
                        Positive, Settings, accuracy, count_logit_bytes, drop_bad_uploads,
                        minibatches, parallel_map, predict, resume, score_clients)


@dataclass
class Config(Settings):
    rounds: Natural = 10                    # P
    transfer_public_epochs: Natural = 5     # step 0: passes over the public images, at most
    transfer_public_batch_size: Count = 128
    transfer_local_epochs: Natural = 10     # step 0: passes over the private images, at most;
    #                                         up to 10 are all made, see PRIVATE_PATIENCE
    transfer_batch_size: Count = 32
    early_stopping: bool = True             # False: step 0 makes all passes, and holds none out
    min_delta: NonNegative = 0.005          # step 0, public images: a smaller gain is none
    subset_size: Count | None = 1000        # n; None: all public images
    public_epochs: Natural = 1              # digest: passes over the n public images
    public_batch_size: Count = 64
    local_epochs: Count = 1                 # revisit: passes over the private images
    batch_size: Count = 5
    lr: Positive = 1e-3                     # of all training, constant
    optimizer: Optimizer = "adam"           # of all training
    weight_decay: NonNegative = 0.0         # L2 penalty of the optimizers, on all weights
    kernel_l2: NonNegative = 1e-3           # factor of |W|², the penalty on the last layer
    consensus_weights: tuple[NonNegative, ...] | None = None   # one of each client, of any sum;
    #                                         c_k is its share of it. None: equal, departure 6


# The code's values, where they differ from Config; of these the paper gives n alone. Clients,
# classes, networks: experiment/presets.py.
PAPER = dict(rounds=20, transfer_public_epochs=20, transfer_local_epochs=25, subset_size=5000,
             public_batch_size=256, local_epochs=4)

# Step 0 in the code: it ends after so many passes in a row without a gain. The first pass always
# brings one.
PUBLIC_PATIENCE, PRIVATE_PATIENCE = 3, 10
PRIVATE_MIN_DELTA = 0.001       # private images: a smaller gain is none


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the transfer, and after every round.

    fed       a `Federation`, with public images, and validation images for early stopping. If no
              client trains on public labels (transfer_public_epochs=0), it needs none: any n of
              the images are drawn
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    ids = range(len(fed.private))                                        # k = 0, ..., m - 1
    if state is None:
        # Step 0: each client trains on the public images, then on its private ones.
        after_public = parallel_map(fed, ids, lambda k: transfer_public(fed, cfg, k))
        clients = parallel_map(fed, ids, lambda k: transfer_private(fed, cfg, k, after_public[k]))
        state = {"algorithm": "fedmd", "round": 0, "clients": clients}
        yield {**evaluate(fed, state, clients),
               **score_clients(fed, after_public, "client_accuracy_public_stage")}, state
    clients = state["clients"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: the server draws n public images.
        rows = public_subset(fed.public, cfg.subset_size, fed.rng("subset", t))      # [n]
        images = fed.augment_public(t)[rows]                                 # [n, c, h, w]

        # Step 2: each client sends its logits of them.
        sent = parallel_map(fed, ids, lambda k: predict_client(fed, k, clients[k], images))
        uploads = attack.poison_rows(sent, rows) if attack else sent
        uploads = drop_bad_uploads(uploads)                                  # {client: f_k, [n, C]}

        # Step 3: the server sends their mean to all.
        weights = [cfg.consensus_weights[k] if cfg.consensus_weights else 1.0 for k in uploads]
        if sum(weights) > 0:
            f = consensus(torch.stack([*uploads.values()]), weights)         # f~, [n, C]

            # Step 4: each client digests it.
            digested = parallel_map(
                fed, ids, lambda k: digest_client(fed, cfg, t, k, clients[k], images, f))
        else:
            digested = None

        # Step 5: each client revisits its private images.
        start = digested or clients
        clients = parallel_map(fed, ids, lambda k: revisit_client(fed, cfg, t, k, start[k]))

        state = {**state, "round": t, "clients": clients}
        yield measure(fed, state, digested, uploads, n=len(rows)), state


# --------------------------------------------------------------------------------------------------
# Step 0. Between steps a client is a dict, whose "model" is the state_dict of its network.

def transfer_public(fed, cfg, k):
    """Client k after training on the public images, less a tenth that all clients hold out.

    Of fewer than ten images none is held out; then it makes all passes.
    """
    model = fed.client_model(k, init=k)
    if cfg.transfer_public_epochs == 0:                      # the images may have no labels
        return {"model": model.state_dict()}
    order = fed.rng("transfer").permutation(len(fed.public.labels))          # alike for all k
    order = torch.from_numpy(order).to(fed.device)
    tenth = len(order) // 10 if cfg.early_stopping else 0
    held_out, rest = (Data(fed.public.images[rows], fed.public.labels[rows])
                      for rows in (order[:tenth], order[tenth:]))            # departure 3
    train_until_converged(
        fed, cfg, model, rest, held_out if tenth else None, ("transfer public", k),
        epochs=cfg.transfer_public_epochs, batch_size=cfg.transfer_public_batch_size,
        min_delta=cfg.min_delta, patience=PUBLIC_PATIENCE)
    return {"model": model.state_dict()}


def transfer_private(fed, cfg, k, client):
    """Client k after training on its private images."""
    model = fed.client_model(k)
    model.load_state_dict(client["model"])
    held_out = fed.validation if cfg.early_stopping else None                # departure 3
    train_until_converged(
        fed, cfg, model, fed.private[k], held_out, ("transfer local", k),
        epochs=cfg.transfer_local_epochs, batch_size=cfg.transfer_batch_size,
        min_delta=PRIVATE_MIN_DELTA, patience=PRIVATE_PATIENCE)
    # None: the first digest and the first revisit start new optimizers: departure 2.
    return {"model": model.state_dict(), "digest_optimizer": None, "revisit_optimizer": None}


def train_until_converged(fed, cfg, model, data, held_out, name, epochs, batch_size, min_delta,
                          patience):
    """Trains the model in place, by CE, in at most `epochs` passes over (images, labels) `data`.

    It ends, with the weights of its last pass, when `patience` passes in a row have brought no
    gain. A gain is an accuracy on `held_out` that is above the one of the last gain by min_delta or
    more. held_out None: it makes all passes.
    """
    optimizer = OPTIMIZERS[cfg.optimizer](model.parameters(), lr=cfg.lr,
                                          weight_decay=cfg.weight_decay)
    best_accuracy, best_epoch = float("-inf"), 0
    for epoch in range(1, epochs + 1):
        train(fed, cfg, model, optimizer, data, (*name, epoch), 1, batch_size)
        if held_out is None:
            continue
        now = accuracy(predict(model, held_out.images), held_out.labels)
        if round(now - best_accuracy, 12) >= min_delta:      # rounded, for .11 - .1 is below .01
            best_accuracy, best_epoch = now, epoch
        if epoch - best_epoch >= patience:
            break


# --------------------------------------------------------------------------------------------------
# Steps 1 to 5. A client also has the state of its "digest_optimizer" and "revisit_optimizer".

def public_subset(data, size, rng):
    """Sorted row numbers of n random images, int64 [n]: of each class its share, to within 1.

    data    images and labels of N samples; without labels any n are drawn
    size    n; None, or more than N: all
    It is a systematic sample (departure 5). The N samples stand in a line, class after class, in
    random order within a class; every (N / n)-th is taken, from a random start. For n = 3 of N = 6
    these are places 0, 2, 4 or 1, 3, 5 of the line.
    >>> labels = torch.tensor([0, 1, 0, 1, 1, 1])       # a third of 0, two thirds of 1
    >>> rows = public_subset(Data(torch.zeros(6, 4), labels), 3, np.random.default_rng(0))
    >>> labels[rows].sort().values
    tensor([0, 1, 1])
    """
    N = len(data.images)
    n = min(size or N, N)
    line = torch.from_numpy(rng.permutation(N)).to(data.images.device)
    if data.labels is not None:
        line = line[data.labels[line].argsort(stable=True)]
    places = (np.arange(n) + rng.random()) * N / n          # from [0, N / n) on, N / n apart
    return line[places.astype(np.int64)].sort().values      # rounded down


def predict_client(fed, k, client, images):
    """Step 2: client k's logits f_k, [n, C], of public images [n, c, h, w]."""
    model = fed.client_model(k)
    model.load_state_dict(client["model"])
    return predict(model, images)


def consensus(client_logits, weights):
    """f~ = sum_k c_k f_k, the weighted mean of the clients' logits: [m, n, C] -> [n, C].   Step 3

    weights    m numbers, >= 0 and not all 0; c_k is weights[k] / sum(weights)
    >>> consensus(torch.tensor([[[3., 0.]], [[0., 6.]]]), weights=[2, 1])
    tensor([[2., 2.]])
    """
    weights = client_logits.new_tensor(weights)                                  # [m]
    return torch.tensordot(weights / weights.sum(), client_logits, dims=1)


def digest_client(fed, cfg, t, k, client, images, f):
    """Step 4: client k after training on public images [n, c, h, w] towards f~, [n, C]."""
    saved = {"model": client["model"], "optimizer": client["digest_optimizer"]}
    model, optimizer = resume(saved, fed.client_model(k), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("digest", t, k) as rng:         # order, dropout
        for rows in minibatches(images, cfg.public_batch_size, rng, cfg.public_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = digest_loss(logits, f[rows]) + penalty(model, cfg.kernel_l2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return client | {"model": model.state_dict(), "digest_optimizer": optimizer.state_dict()}


def digest_loss(logits, consensus_logits):
    """The mean of |f_k - f~| over images and classes, a scalar.   Step 4

    logits, consensus_logits    f_k and f~, [B, C]; the consensus gets no gradient
    >>> digest_loss(torch.tensor([[1., 0.]]), torch.tensor([[0., 2.]]))          # (1 + 2) / 2
    tensor(1.5000)
    """
    return (logits - consensus_logits.detach()).abs().mean()                     # departure 1


def revisit_client(fed, cfg, t, k, client):
    """Step 5: client k after training on its private images."""
    saved = {"model": client["model"], "optimizer": client["revisit_optimizer"]}
    model, optimizer = resume(saved, fed.client_model(k), cfg.optimizer, cfg.lr, cfg.weight_decay)
    train(fed, cfg, model, optimizer, fed.private[k], ("revisit", t, k), cfg.local_epochs,
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
    with fed.random_numbers(*name) as rng:                  # order, augmentation, dropout
        for rows in minibatches(images, batch_size, rng, epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows]) + penalty(model, cfg.kernel_l2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def penalty(model, kernel_l2):
    """kernel_l2 |W|², a scalar; W are the weights, without the bias, of the linear layer that the
    network registered last. With kernel_l2 = 0 it needs none."""
    if kernel_l2 == 0:
        return 0.0
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"fedmd: the network {type(model).__name__} has no linear layer")
    return kernel_l2 * linear[-1].weight.square().sum()                          # departure 4


# --------------------------------------------------------------------------------------------------
# Metrics; no step uses them

def measure(fed, state, digested, uploads, n):
    """The metrics of a round, in which n public images were drawn.

    digested    the clients after step 4; None: nobody digested, as the server had nothing to send
    """
    m, down = len(fed.private), 0 if digested is None else n
    indices = n if n < len(fed.public.images) else 0         # of all images nobody needs a list
    return {**evaluate(fed, state, digested), "bad_uploads": m - len(uploads),
            **count_logit_bytes(m, fed.num_classes, up=n, down=down, indices=indices)}


def evaluate(fed, state, digested=None):
    """Test accuracies of all clients after step 5, and after step 4: `score_clients`.

    digested    the clients after step 4; None: these accuracies are null
    """
    private = score_clients(fed, state["clients"], "client_accuracy_private", each=True)
    if digested:
        distilled = score_clients(fed, digested, "client_accuracy_distilled")
    else:                                                # without those of a single client
        distilled = {name.replace("private", "distilled"): None for name in private
                     if not name[-1].isdigit()}
    return {"accuracy": private.pop("client_accuracy_private"), **distilled, **private}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError unless each client has a weight c_k, and one of them is above 0."""
    given = cfg.consensus_weights
    if given is not None and (sum(given) == 0 or len(given) != len(fed.private)):
        raise ValueError("fedmd: consensus_weights needs a weight >= 0 for each of "
                         f"{len(fed.private)} clients, not all 0, not {[*given]}")


def needs(cfg):
    """Public images always; their labels and validation images for what step 0 does with them."""
    return ({"public"} | ({"labels"} if cfg.transfer_public_epochs > 0 else set())
            | ({"validation"} if cfg.early_stopping else set()))


ALGORITHM = Algorithm(
    "fedmd", run, Config, public="joint", mixed_networks=True, needs_for=needs,
    check_more=check, program=dict(
        scores={"accuracy": ("clients, after private training", "test"),
                "client_accuracy_distilled": ("clients, after distillation", "test")},
        paper=PAPER, plateau=("lr",), evaluate=evaluate))
