"""DS-FL: clients upload probabilities of public images; all models learn from the sharpened mean.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient
Collaborative Training with Non-IID Private Data", arXiv:2008.06180. Here it is a baseline of
FedGEMS (Cheng et al., arXiv:2110.11027). DS-FL's own text was not at hand: this file was written
from FedGEMS, section 2 and Table 13, and from public code (AIJack, Flower).

    python fedkd_minimal.py --algo dsfl
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 240 images each; the server has a CNN twice as wide;
        1,200 images are public. It takes less than a minute on two cores.
    python fedkd_minimal.py --algo dsfl --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`, FedGEMS's values: 16 clients with a ResNet-11 hold random shares of the
        images, 1,406 or 1,407 each; the server has a ResNet-56; half of the training images are
        public. Images are cropped and flipped. Both rates fall to a tenth after more than 10 rounds
        in which the accuracy, on 2,500 validation images that no client holds, has not grown.
        With fedgems-heterogeneous clients have seven networks, and shares by Dirichlet, alpha 0.5.

Clients hold labeled images of their own. The server and all clients hold N public images without
labels. All networks may differ. Training: train mode, images cropped and flipped with --augment,
the mean loss of a batch. Prediction: eval mode, no gradient, images as they are, but for public
ones: with --augment each is cropped and flipped once in a round, for all who predict or learn it.
CE is cross-entropy with the label; q are the probabilities, the softmax of the logits, of the model
that is trained.

The algorithm; the numbers are ours:
  1   start with a server's network and M clients' networks, each of random weights of its own
  2   for each round t:
  3       each client, in parallel, trains on its own images by CE                   (departure 1)
  4       each client i predicts all public images and sends the probabilities p_i, [N, C]
                                                                                     (departure 2)
  5       y = softmax(mean_i p_i / temperature), which the server sends to all clients. This is
              "entropy reduction aggregation", ERA. With --aggregation mean it is y = mean_i p_i:
              "simple aggregation", SA
  6       the server trains on the public images by - sum_c y_c ln q_c               (departure 3)
  7       each client, in parallel, trains on the public images by - sum_c y_c ln q_c

All clients take part in every round. Weights are never sent. Server and clients keep their weights
and one optimizer each, of all their training, which goes on from step to step and round to round.

Accuracy is the mean over the clients after step 7; client_accuracy_private is that after step 3,
server_accuracy the server's after step 6. They are of the test images; with --public half, as in
FedGEMS's settings, the server is tested on one half of these and the clients on the other.

Bad uploads: a client of which a number is nan, infinite, or 1e30 or more in magnitude is left out
of the mean. It receives y and trains as the others do. If nobody is left, steps 5 to 7 are skipped.

Departures
  1  FedGEMS, section 2: "a public dataset with soft labels jointly with local private dataset for
     local training". Here: two trainings after one another, steps 3 and 7, as its Table 13 counts
     epochs of each.
  2  FedGEMS does not say how many public images take part in a round. Here: all, as the bytes of
     its Table 4 imply.
  3  FedGEMS: the server trains, but only clients are reported. Here: the server's accuracy, too.
"""
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (Optimizer, distillation_metrics, loaded, logits_ledger, minibatches,
                        on_server, parallel_map, predict, public_view, random_numbers,
                        received_logits, restored, server_metrics, snapshot, usable)

# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# on_server         one process computes the function, and sends the result to all
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict           logits, in eval mode, without gradient; then the mode is as before
# public_view       the public samples of a round; with --augment each image is cropped and
#                   flipped once, for all who predict or learn it
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received_logits   [M, N, C] of {client: [N, C]}, after an attack; nothing is left out
# restored          a network and its optimizer, after a copy of a snapshot into both; None: a new
#                   optimizer. Its rate and weight decay are the ones given here
# snapshot          {"model": weights, "optimizer": its state, or None}
# usable            [m, N, C] of [M, N, C]: without the bad uploads


@dataclass
class Config:
    rounds: int = 10                     # of communication
    local_epochs: int = 5                # step 3: passes of a client over its own images
    public_epochs: int = 1               # step 7: passes of a client over the public images
    server_epochs: int = 2               # step 6: passes of the server over the public images
    batch_size: int = 64                 # of a client
    server_batch_size: int = 64
    lr: float = 1e-3                     # of a client
    server_lr: float = 1e-3              # both constant; --lr-patience lowers it
    optimizer: Optimizer = "amsgrad"     # of each client, and of the server
    weight_decay: float = 1e-4           # L2 penalty of the optimizers
    aggregation: Literal["era", "mean"] = "era"      # step 5: ERA or SA
    temperature: float = 0.1             # of ERA: a smaller one gives a sharper mean


# FedGEMS, Table 13, which has all but ERA and its temperature.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=300, local_epochs=1, public_epochs=1, server_epochs=2, batch_size=64,
             server_batch_size=64, lr=1e-3, server_lr=1e-3, optimizer="amsgrad", weight_decay=1e-4,
             aggregation="era", temperature=0.1)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
              fed.public.images [N, c, h, w]; fed.client_model(i, init=i): client i's new network,
              with the i-th random weights; fed.server_model(): the server's; fed.augment: with
              --augment random crops and flips, otherwise nothing
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ids = range(len(fed.private))                                            # M clients
    all_rows = torch.arange(len(fed.public.images), device=fed.device)       # [N], departure 2
    if state is None:
        # Step 1: networks of random weights.
        state = {"round": 0, "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids},
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    clients, server = state["clients"], state["server"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3: clients train on their own images (departure 1).
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 4: they send their probabilities of all public images.
        images = public_view(fed, t).images                                  # [N, c, h, w]
        uploads = parallel_map(fed, ids, lambda i: predict_client(fed, i, trained[i], images))
        client_probs = usable(received_logits(uploads, all_rows, attack))    # [m, N, C]

        # Step 5-7: server and clients train towards their mean, if there is an upload.
        clients = trained
        if len(client_probs) > 0:
            if cfg.aggregation == "era":
                target_probs = entropy_reduction(client_probs, cfg.temperature)      # y, [N, C]
            else:
                target_probs = client_probs.mean(0)
            server = train_server(fed, cfg, t, server, images, target_probs)
            clients = parallel_map(fed, ids, lambda i: distill_client(
                fed, cfg, t, i, trained[i], images, target_probs))

        state = {"round": t, "clients": clients, "server": server}
        yield {**evaluate(fed, state, trained), "bad_uploads": len(ids) - len(client_probs),
               **logits_ledger(len(ids), fed.num_classes, up=len(all_rows), down=len(all_rows))
               }, state


# --------------------------------------------------------------------------------------------------
# The steps. Between them a client, or the server, is a snapshot.

def train_client(fed, cfg, t, i, client):
    """Step 3: client i after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:          # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def predict_client(fed, i, client, images):
    """Step 4: client i's probabilities p_i, [N, C], of all public images [N, c, h, w]."""
    model = loaded(fed.client_model(i), client["model"])
    return predict(model, images).softmax(-1)


def entropy_reduction(client_probs, temperature=0.1):
    """ERA: softmax(mean over the clients / temperature): [M, N, C] -> [N, C].   Step 5

    client_probs    probabilities; so is their mean, and lies in [0, 1]. At temperature 0.1 and with
                    10 classes a one-hot mean becomes .9996, and a uniform mean stays uniform
    >>> entropy_reduction(torch.tensor([[[.8, .2]], [[.4, .6]]]), temperature=0.1)
    tensor([[0.8808, 0.1192]])
    """
    return (client_probs.mean(0) / temperature).softmax(-1)


@on_server
def train_server(fed, cfg, t, server, images, target_probs):
    """Step 6: the server after training on the public images, towards target_probs [N, C]."""
    model, optimizer = restored(server, fed.server_model(), cfg.optimizer, cfg.server_lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "server", t) as rng:
        for rows in minibatches(images, cfg.server_batch_size, rng, cfg.server_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = soft_cross_entropy(logits, target_probs[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def distill_client(fed, cfg, t, i, client, images, target_probs):
    """Step 7: client i after training on the public images, towards target_probs [N, C]."""
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "public", t, i) as rng:
        for rows in minibatches(images, cfg.batch_size, rng, cfg.public_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = soft_cross_entropy(logits, target_probs[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def soft_cross_entropy(logits, target_probs):
    """- sum_c y_c ln q_c of each sample, q = softmax(logits): [B, C], [B, C] -> [B].   Step 6, 7

    The target y gets no gradient. A class of y = 0 adds 0, also where the logit is -inf.
    >>> soft_cross_entropy(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]))
    tensor([0.6931])
    """
    log_q = logits.log_softmax(-1)                                               # [B, C]
    log_q = log_q.masked_fill(target_probs == 0, 0)                              # y = 0 adds 0
    return -(target_probs.detach() * log_q).sum(-1)


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state, trained=None):
    """Test accuracies of the clients and of the server's network.

    trained    the clients after step 3; None: as in `state`
    """
    metrics = {**distillation_metrics(fed, state["clients"], trained),
               **server_metrics(fed, state["server"])}                           # departure 3
    return {"accuracy": metrics.pop("client_accuracy_distilled"), **metrics}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "dsfl", run,
    scores={"accuracy": "clients, after distillation",
            "client_accuracy_private": "clients, after private training",
            "server_accuracy": "server"},
    paper=PAPER, public="unlabeled", mixed_networks=True, server="images",
    plateau=("lr", "server_lr"), evaluate=evaluate)
