"""DS-FL: clients upload probabilities of public images; all models learn from the sharpened mean.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient
Collaborative Training with Non-IID Private Data", arXiv:2008.06180. Its text was not at hand: this
file was written from FedGEMS, of which DS-FL is a baseline (Cheng et al., arXiv:2110.11027, section
2 and Table 13), and from public code (AIJack, Flower).

    python fedkd_minimal.py --algo dsfl
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 240 images each; the server has a CNN twice as wide;
        1,200 images are public. Less than a minute on two cores.
    python fedkd_minimal.py --algo dsfl --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`, FedGEMS's values, with a ResNet-11 for each of 16 clients and a ResNet-56 for
        the server; half of the training images are public. With fedgems-heterogeneous clients have
        seven networks, and shares by Dirichlet, alpha 0.5.

Clients hold labeled images of their own; they and the server hold N public images without labels.
M clients and the server keep a network and its optimizer each, of all their training.

The algorithm; the numbers are ours:
  1   start with M + 1 networks of different random weights
  2   for each round t:
  3       each client, in parallel, trains on its own images                         (departure 1)
  4       each client i sends p_i, its probabilities of the public images, [N, C]    (departure 2)
  5       the server sends y = softmax(mean_i p_i / temperature) to all clients: "entropy reduction
          aggregation", ERA. With --aggregation mean it is y = mean_i p_i
  6       the server trains on the public images by - sum_c y_c ln q_c, q being its probabilities
  7       each client, in parallel, trains on the public images likewise

  step   who predicts       images    mode    gradient   augmented       loss, how often
  3      each client        its own   train   yes        in each pass    CE, local_epochs
  4      each client        public    eval    no         once a round    none, once
  6      the server         public    train   yes        as in step 4    of step 6, server_epochs
  7      each client        public    train   yes        as in step 4    of step 6, public_epochs
  -      all M, after 7     test      eval    no         no              `accuracy`: the mean
  -      all M, after 3     test      eval    no         no              `client_accuracy_private`
  -      the server         test      eval    no         no              `server_accuracy`

A client of which a number is nan, infinite, or 1e30 or more in magnitude is left out of the mean,
and trains as the others do. If nobody is left, steps 5 to 7 are left out: y is not sent.

Departures, from FedGEMS's account of DS-FL
  1  FedGEMS: "a public dataset with soft labels jointly with local private dataset". Here: steps 3
     and 7 one after the other, as its Table 13 counts epochs of each.
  2  FedGEMS: not said how many public images a round has. Here: all, as its Table 4's bytes imply.
"""
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from federation import (Algorithm, Count, Natural, NonNegative, Optimizer, Positive, Settings,
                        count_logit_bytes, drop_bad_uploads, minibatches, on_server, parallel_map,
                        predict, resume, score_clients, score_server, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 10                 # of communication
    local_epochs: Count = 5              # step 3: passes of a client over its own images
    public_epochs: Natural = 1           # step 7: passes of a client over the public images
    server_epochs: Count = 2             # step 6: passes of the server over the public images
    batch_size: Count = 64               # of a client
    server_batch_size: Count = 64
    lr: Positive = 1e-3                  # of a client, constant
    server_lr: Positive = 1e-3           # constant
    optimizer: Optimizer = "amsgrad"     # of each client, and of the server
    weight_decay: NonNegative = 1e-4     # L2 penalty of the optimizers
    aggregation: Literal["era", "mean"] = "era"      # step 5. An attacker may send numbers below 0:
    #                                      then a mean may be negative, and the loss unbounded
    temperature: Positive = 0.1          # of ERA: a smaller one gives a sharper mean


# FedGEMS's Table 13, where it differs from Config. It has neither ERA nor a temperature.
PAPER = dict(rounds=300, local_epochs=1)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       a `Federation`, with public images and a network of the server
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    ids = range(len(fed.private))                                            # M clients
    all_rows = torch.arange(len(fed.public.images), device=fed.device)       # [N], departure 2
    if state is None:
        # Step 1: networks of random weights.
        state = {"algorithm": "dsfl", "round": 0,
                 "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids},
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    clients, server = state["clients"], state["server"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3: each client trains on its own images (departure 1).
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 4: it sends its probabilities of all public images.
        images = fed.augment_public(t)                                       # [N, c, h, w]
        sent = parallel_map(fed, ids, lambda i: predict_client(fed, i, trained[i], images))
        uploads = attack.poison_rows(sent, all_rows) if attack else sent
        uploads = drop_bad_uploads(uploads)                                  # {client: [N, C]}

        clients = trained
        if uploads:
            # Step 5: the server sends y to all clients.
            client_probs = torch.stack([*uploads.values()])                  # [uploads, N, C]
            if cfg.aggregation == "era":
                y = entropy_reduction(client_probs, cfg.temperature)         # [N, C]
            else:
                y = client_probs.mean(0)

            # Step 6-7: server and clients train towards y.
            server = distill_server(fed, cfg, t, server, images, y)
            clients = parallel_map(
                fed, ids, lambda i: distill_client(fed, cfg, t, i, trained[i], images, y))

        state = {**state, "round": t, "clients": clients, "server": server}
        yield measure(fed, state, trained, uploads), state


# --------------------------------------------------------------------------------------------------
# The steps. Between them a client, or the server, is a snapshot.

def train_client(fed, cfg, t, i, client):
    """Step 3: client i after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("local", t, i) as rng:          # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def predict_client(fed, i, client, images):
    """Step 4: client i's probabilities p_i, [N, C], of all public images [N, c, h, w]."""
    model = fed.client_model(i)
    model.load_state_dict(client["model"])
    return predict(model, images).softmax(-1)


def entropy_reduction(client_probs, temperature=0.1):
    """ERA: softmax(mean over the clients / temperature): [M, N, C] -> [N, C].   Step 5

    At temperature 0.1 and with 10 classes a one-hot mean becomes .9996, a uniform one stays uniform
    >>> entropy_reduction(torch.tensor([[[.8, .2]], [[.4, .6]]]), temperature=0.1)
    tensor([[0.8808, 0.1192]])
    """
    return (client_probs.mean(0) / temperature).softmax(-1)


@on_server
def distill_server(fed, cfg, t, server, images, y):
    """Step 6: the server after training on the public images [N, c, h, w] towards y, [N, C]."""
    model, optimizer = resume(server, fed.server_model(), cfg.optimizer, cfg.server_lr,
                              cfg.weight_decay)
    with fed.random_numbers("server", t) as rng:
        batches = minibatches(images, cfg.server_batch_size, rng, cfg.server_epochs)
        distill(model, optimizer, images, y, batches)
    return snapshot(model, optimizer)


def distill_client(fed, cfg, t, i, client, images, y):
    """Step 7: client i after training on the public images [N, c, h, w] towards y, [N, C]."""
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    with fed.random_numbers("public", t, i) as rng:
        batches = minibatches(images, cfg.batch_size, rng, cfg.public_epochs)
        distill(model, optimizer, images, y, batches)
    return snapshot(model, optimizer)


def distill(model, optimizer, images, y, batches):
    """Trains the model in place on these batches of rows of images [N, c, h, w] and y, [N, C]."""
    model.train()
    for rows in batches:
        loss = soft_cross_entropy(model(images[rows]), y[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def soft_cross_entropy(logits, target_probs):
    """- sum_c y_c ln q_c of each sample, q = softmax(logits): [B, C], [B, C] -> [B].   Step 6, 7

    logits, target_probs    of q and y; the target y gets no gradient
    >>> soft_cross_entropy(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]))
    tensor([0.6931])
    """
    log_q = logits.log_softmax(-1)                                               # [B, C]
    return -(target_probs.detach() * log_q).sum(-1)


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, trained, uploads):
    """The metrics of a round; `trained` are the clients after step 3."""
    M, N = len(fed.private), len(fed.public.images)
    return {**evaluate(fed, state, trained), "bad_uploads": M - len(uploads),
            **count_logit_bytes(M, fed.num_classes, up=N, down=N if uploads else 0)}


def evaluate(fed, state, trained=None):
    """Test accuracies of all clients after step 7, and after step 3, and of the server's network.

    trained    the clients after step 3; None: as in `state`
    With --public half the server's are of one half of the test images, the clients' of the other.
    """
    distilled = score_clients(fed, state["clients"], "client_accuracy_distilled")
    private = score_clients(fed, trained or state["clients"], "client_accuracy_private")
    return {"accuracy": distilled.pop("client_accuracy_distilled"), **distilled, **private,
            **score_server(fed, state["server"])}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "dsfl", run, Config, public="unlabeled", mixed_networks=True, server="images", program=dict(
        scores={"accuracy": ("clients, after distillation", "test"),
                "client_accuracy_private": ("clients, after private training", "test"),
                "server_accuracy": ("server", "public half")},
        more_scores={"server_accuracy_private_test": ("server", "test")},
        server_score="server_accuracy", paper=PAPER, plateau=("lr", "server_lr"),
        evaluate=evaluate))
