"""Split learning: one network in two halves; feature maps go up and their gradients come down.

Gupta and Raskar, "Distributed Learning of Deep Neural Network over Multiple Agents", 2018;
Vepakomma et al., arXiv:1812.00564. Here it is the baseline of FedGKT's communication (He et al.,
arXiv:2007.14513), and only FedGKT's text was at hand, which describes it in sections 1, 3.1 and 4.1
and in Eq. (12).

    python fedkd_minimal.py --algo split-learning
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. The clients' half is one layer, the server's four.
        Half a minute on two cores.
    python fedkd_minimal.py --algo split-learning --paper fedgkt --dataset cifar10
        runs `PAPER` with FedGKT's 16 clients, images and networks: the clients' half is the first
        layer of a ResNet-56, the server's the other 55. Rates are constant.

Clients hold labeled images of their own. The server holds the second half of the network; all
clients share one first half, which only one of them holds at a time. All clients take part.

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

  step   who predicts           images         mode    gradient   augmented      loss, how often
  6      a client               its own        train   yes        in each pass   step 7's
  7      the server             feature maps   train   yes        as in step 6   CE, local_epochs
  -      both halves together   test           eval    no         no             `accuracy`

`accuracy` is after the last client of a round. Bytes are those of feature maps and gradients, as in
Eq. (12), of float32 also with --amp; labels and the first half are not counted. Nobody looks for
nan: a client whose feature maps have it spoils both halves.

Departures
  1  FedGKT, Eq. (12): counts epochs over all images. Here: a round is `local_epochs` passes over
     one client's images, then over the next one's.
  2  FedGKT: silent about optimizers. Here: each half keeps its own over clients and rounds.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from algorithms.fedgkt import check, feature_numbers, new_edge, predict_stacked
from federation import (FLOAT_BYTES, Algorithm, Count, Natural, NonNegative, Optimizer, Positive,
                        Settings, accuracy, minibatches, resume, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 10                 # passes of the first half from client to client
    local_epochs: Count = 1              # passes of a client over its own images in a round
    batch_size: Count = 32               # images whose feature maps go up at once
    lr: Positive = 1e-3                  # of both halves, constant
    optimizer: Optimizer = "amsgrad"     # of each half, kept over clients and rounds
    weight_decay: NonNegative = 1e-4     # L2 penalty of both halves


# FedGKT, Table 10, iid, where it differs from Config: FedGKT's values, not split learning's.
PAPER = dict(rounds=200, batch_size=256)


def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained halves, and after every round.

    fed      a `Federation`. The first half is `extract` of a client's network, images -> feature
             maps, whose other layers are neither used nor changed; the second is server_model()
    cfg      a `Config`
    state    one that it has yielded, to go on from; None: from the start
    """
    ALGORITHM.check(fed, cfg, state)
    if state is None:
        # Step 1: two halves, each with its optimizer.
        state = {"algorithm": "split-learning", "round": 0,
                 "clients": {0: snapshot(new_edge(fed, 0))},
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    first, second = state["clients"][0], state["server"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-9: the first half goes from client to client, and is trained there.
        for i in range(len(fed.private)):                                    # departure 1
            first, second = train_halves(fed, cfg, t, i, first, second)

        # The first half goes back to client 0.
        state = {**state, "round": t, "clients": {0: first}, "server": second}
        yield {**evaluate(fed, state), **sent_bytes(fed, cfg)}, state


def train_halves(fed, cfg, t, i, first, second):
    """Step 4-9: both halves and their optimizers after training on client i's images."""
    images, labels = fed.private[i]
    edge, edge_optimizer = resume(first, new_edge(fed, 0), cfg.optimizer, cfg.lr,
                                  cfg.weight_decay)                              # departure 2
    server, server_optimizer = resume(second, fed.server_model(), cfg.optimizer, cfg.lr,
                                      cfg.weight_decay)
    edge.train()
    server.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
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

def evaluate(fed, state):
    """Test accuracy of the two halves together."""
    edge, server = new_edge(fed, 0), fed.server_model()
    edge.load_state_dict(state["clients"][0]["model"])
    server.load_state_dict(state["server"]["model"])
    return {"accuracy": accuracy(predict_stacked(edge, server, fed.test.images), fed.test.labels)}


def sent_bytes(fed, cfg):
    """Bytes of a round: a feature map up and its gradient down, for each image in each pass."""
    samples = cfg.local_epochs * sum(len(labels) for _, labels in fed.private)
    one_way = FLOAT_BYTES * samples * feature_numbers(fed)                   # FedGKT Eq. (12)
    return {"bytes_up": one_way, "bytes_down": one_way}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def models(state, client_network, server_network):
    """{name: [(network, weights), ...]}: the first half of the network, then the server's."""
    server = (server_network, state["server"]["model"])
    return {f"client {i}": [(client_network(i), client["model"]), server]
            for i, client in state["clients"].items()}


ALGORITHM = Algorithm(
    "split-learning", run, Config, server="features", check_more=check, program=dict(
        scores={"accuracy": ("both halves", "test")}, paper=PAPER, models=models,
        model=("gkt_edge_small",), server_model="gkt_server_small"))
