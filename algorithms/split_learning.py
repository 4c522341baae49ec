"""Split learning: one network in two halves; feature maps go up and their gradients come down.

Gupta and Raskar, "Distributed Learning of Deep Neural Network over Multiple Agents", 2018;
Vepakomma et al., arXiv:1812.00564. Here it is the baseline of FedGKT's communication (He et al.,
arXiv:2007.14513), and only FedGKT's text was at hand, which describes it in sections 1, 3.1 and 4.1
and in Eq. (12).

    python fedkd_minimal.py --algo split-learning
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. The clients' half is a convolution, whose feature
        maps are 8x8x8; the server's is two convolutions and two linear layers. It takes half a
        minute on two cores.
    python fedkd_minimal.py --algo split-learning --paper fedgkt --dataset cifar10
        runs `PAPER`, iid: 16 clients, 2,812 or 2,813 images each, which are cropped and flipped.
        The clients' half is a convolution, whose feature maps are 16x32x32; the server's is the
        other 55 layers of a ResNet-56. Rates are constant. 5,000 more images are held out, as
        FedGKT needs them for validation.

Clients hold labeled images of their own. There are no public images. The server holds the second
half of the network; all clients share one first half, which only one of them holds at a time.
Training: train mode, images cropped and flipped with --augment, the mean loss of a batch.
Prediction: eval mode, no gradient, images as they are. Nothing is averaged, and all clients take
part.

The algorithm; the numbers are ours:
  1   start with two halves of random weights, and an optimizer for each
  2   for each round t:
  3       for each client, one after the other:
  4           receive the first half and its optimizer from the client before
  5           for each batch of the client's own images:
  6               the client computes the feature maps of the batch, and sends them and the labels
  7               the server computes logits and their cross-entropy, and makes a step of its half
  8               it sends back the gradient of the loss by the feature maps, from before the step
  9               the client propagates it back through the first half, and makes a step of it
So both halves together train as one network would.

Accuracy is of the two halves together on the test images, after the last client of a round. Bytes
are those of feature maps and gradients, as in Eq. (12); labels and the first half are not counted.

A client whose feature maps have nan spoils both halves: nobody looks for it.

Departures
  1  FedGKT, Eq. (12): counts epochs over all images. Here: a round is `local_epochs` passes over
     one client's images, then over the next one's.
  2  FedGKT: silent about optimizers. Here: each half has one, which it keeps over clients and
     rounds.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from algorithms.fedgkt import CHUNK, check, feature_numbers
from federation import (FLOAT_BYTES, Optimizer, accuracy, loaded, minibatches, predict,
                        random_numbers, restored, snapshot)

# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# predict           logits, in eval mode and without gradient
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# restored          a network and its optimizer, after a copy of a snapshot into both
# snapshot          {"model": weights, "optimizer": its state, or None for a new one}


@dataclass
class Config:
    rounds: int = 10                     # passes of the first half from client to client
    local_epochs: int = 1                # passes of a client over its own images in a round
    batch_size: int = 32                 # images whose feature maps go up at once
    lr: float = 1e-3                     # of both halves
    optimizer: Optimizer = "amsgrad"     # of each half, kept over clients and rounds
    weight_decay: float = 1e-4           # L2 penalty of both halves


# The paper's values for FedGKT (Table 10, iid): it has none for split learning.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=200, local_epochs=1, batch_size=256, lr=1e-3, optimizer="amsgrad",
             weight_decay=1e-4)


@configured(Config)
def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained halves, and after every round.

    fed      fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
             fed.client_model(0): a new network, of which `extract`, images -> feature maps, is the
             first half (the rest is never used and stays as it is); fed.server_model(): the second
             half, new; fed.augment: random crops and flips with --augment, else the images
             unchanged
    state    of an earlier round, to go on from; None: from the start
    """
    if state is None:
        # Step 1: two halves, each with its optimizer.
        state = {"round": 0, "clients": {0: snapshot(fed.client_model(0))},
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    first, second = state["clients"][0], state["server"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-9: the first half goes from client to client, and is trained there.
        for i in range(len(fed.private)):                                    # departure 1
            first, second = train_halves(fed, cfg, t, i, first, second)

        # The first half goes back to client 0.
        state = {"round": t, "clients": {0: first}, "server": second}
        yield {**evaluate(fed, state), **sent_bytes(fed, cfg)}, state


def train_halves(fed, cfg, t, i, first, second):
    """Step 4-9: both halves and their optimizers after training on client i's images."""
    images, labels = fed.private[i]
    edge, edge_optimizer = restored(first, fed.client_model(0), cfg.optimizer, cfg.lr,
                                    cfg.weight_decay)                        # departure 2
    server, server_optimizer = restored(second, fed.server_model(), cfg.optimizer, cfg.lr,
                                        cfg.weight_decay)
    edge.train()
    server.train()
    with random_numbers(fed, "local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            features = edge.extract(fed.augment(images[rows], rng))              # [B, ...]
            sent = features.detach().requires_grad_()                            # step 6, up
            loss = F.cross_entropy(server(sent), labels[rows])
            server_optimizer.zero_grad()
            loss.backward()                              # also makes sent.grad, [B, ...]
            server_optimizer.step()                                              # step 7
            edge_optimizer.zero_grad()
            features.backward(sent.grad)                                         # step 8, down
            edge_optimizer.step()                                                # step 9
    return snapshot(edge, edge_optimizer), snapshot(server, server_optimizer)


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

@torch.no_grad()
def evaluate(fed, state):
    """Test accuracy of the two halves together."""
    edge = loaded(fed.client_model(0), state["clients"][0]["model"]).eval()
    server = loaded(fed.server_model(), state["server"]["model"])
    logits = [predict(server, edge.extract(images).float())
              for images in fed.test.images.split(CHUNK)]          # not all feature maps at once
    return {"accuracy": accuracy(torch.cat(logits), fed.test.labels)}


def sent_bytes(fed, cfg):
    """Bytes of a round: a feature map up and its gradient down, for each image in each pass."""
    samples = cfg.local_epochs * sum(len(labels) for _, labels in fed.private)
    one_way = FLOAT_BYTES * samples * feature_numbers(fed)                   # FedGKT Eq. (12)
    return {"bytes_up": one_way, "bytes_down": one_way}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "split-learning", run, scores={"accuracy": "both halves"}, paper=PAPER, server="features",
    model=("gkt_edge_small",), server_model="gkt_server_small", check_settings=check)
