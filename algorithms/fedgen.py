"""FedGen: FedAvg whose clients also train their last layer on features that a generator draws.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML
2021, arXiv:2105.10056. The generator's sizes and its Adam are the public code's for MNIST.

    python fedkd_minimal.py --algo fedgen
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. Twenty seconds on two cores.
    python fedkd_minimal.py --algo fedgen --paper fedgen --dataset mnist
        runs `PAPER`, with b_t below as in the public code: 20 clients divide half of the images.

Clients hold labeled images of their own, and keep nothing between rounds. The server holds a
generator, a network w that makes features z ~ G_w(z | y) of a label y and noise; it sees no image.

The algorithm; in brackets are lines of the paper's Algorithm 1. CE is cross-entropy, b_t a weight:
  1   start with a global model theta and a generator w of random weights, and a uniform p(y)
  2   for each round t:
  3       draw the active clients, a share of all, and send them theta, w, p(y)            [2-3]
  4       for each active client k, in parallel:
  5           theta_k = a copy of theta; its last layer h_k reads features f_k(x)          [4-5]
  6           for each batch of the client's own images x, with labels y:                  [6-7]
  7               add the numbers of images of each class to the client's counts c_k         [8]
  8               draw labels y' ~ p(y), features z' ~ G_w(z | y')                         [6-7]
  9               step on CE(h_k(f_k(x)), y) + b_t CE(h_k(z'), y')                 Eq. (5)   [9]
 10       theta = the mean of the theta_k, weighted by numbers of images                    [13]
 11       p(y) = the shares of the classes in the sum of the c_k                            [13]
 12       generator_steps times: draw y ~ p(y), z ~ G_w(z | y), and train the generator by  [14]
              CE(mean over k of h_k(z), y) + diversity exp(-d), where d = the mean,        Eq. (4)
              over all pairs of these samples, of mean((noise - noise')²) mean(|z - z'|)

  step   who predicts           what             mode   gradient  augmented     loss, how often
  8      the generator          y', noise        -      no        -             none, each batch
  9      an active client       its own images   train  yes       in each pass  CE, local_epochs
  9      the client's h_k       z'               -      yes       -             CE, each batch
 12      the generator          y, noise         -      yes       -             generator_steps
 12      h_k of all uploads     z                -      yes, to z -             Eq. (4)
  -      the global model       test images      eval   no        no            `accuracy`, after 10

A client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out of steps 10 to
12, with its counts. If nobody is left, theta, w and p(y) stay.

Departures; 4 and more are in docs/DEPARTURES.md
  1  Paper, line 13: the plain mean of the theta_k. Here, as in the public code: step 10.
  2  Public code: clients train on generated features from round 2 on. Here: from round 1 on.
  3  Paper: names a diversity loss, without a formula. Here: the public code's formula.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from federation import (FLOAT_BYTES, INDEX_BYTES, Algorithm, Count, Natural, NonNegative, Positive,
                        Settings, Share, average_weights, count_weight_bytes, drop_bad_uploads,
                        in_bfloat16, minibatches, on_server, parallel_map, resume, score_global,
                        snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 20                   # of communication
    participation: Share = 0.4             # share of the clients that are active in a round
    local_epochs: Count = 5                # passes of a client over its images in a round
    local_steps: Count | None = None       # if it is a number: so many steps, instead of passes
    batch_size: Count = 32                 # of a client, and of the generator
    lr: Positive = 0.1                     # of a client, constant; SGD without momentum
    generated: Natural = 32                # labels y' in a step of a client; 0 is FedAvg
    generated_weight: NonNegative = 1.0    # weight of their loss, b_t, in round 1
    generated_weight_decay: Positive = 1.0  # b_t is multiplied by this after every round
    generator_steps: Count = 50            # of Adam in a round
    generator_lr: Positive = 3e-4          # in round 1; it is multiplied by 0.98 after every round
    diversity: NonNegative = 1.0           # weight of the diversity loss


# The setting of Table 1, where it differs from Config; lr is the public code's for MNIST.
PAPER = dict(rounds=200, participation=0.5, local_epochs=1, local_steps=20, lr=0.01)

# The generator, in the public code for MNIST.
NOISE, HIDDEN = 32, 256      # inputs of noise, hidden units
GENERATOR_L2 = 1e-2          # L2 penalty of its Adam
LR_DECAY = 0.98              # its learning rate is multiplied by this after every round


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained model, and after every round.

    fed       a `Federation`; all clients have one architecture, with a last layer `classifier`
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    if state is None:
        # Step 1: a global model and a generator of random weights, and equal label shares.
        state = {"algorithm": "fedgen", "round": 0,
                 "server": {"model": fed.global_model().state_dict()},
                 "generator": snapshot(new_generator(fed)),
                 "label_shares": [1 / fed.num_classes] * fed.num_classes}
        yield score_global(fed, state), state
    weights, generator = state["server"]["model"], state["generator"]
    label_shares = state["label_shares"]                     # C numbers

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-9: active clients train the global model, on their own images and on features.
        active = fed.sample_clients(cfg.participation, t)
        trained = parallel_map(                              # {client: (weights, label counts)}
            fed, active, lambda i: train_client(fed, cfg, t, i, weights, generator, label_shares))

        uploads = {i: own for i, (own, _) in trained.items()}                # {client: weights}
        uploads = attack.poison_weights(uploads) if attack else uploads      # not the counts
        uploads = drop_bad_uploads(uploads)
        if uploads:
            # Step 10: the mean of their models, by numbers of images.
            sizes = [len(fed.private[i].labels) for i in uploads]
            weights = average_weights([*uploads.values()], sizes)            # departure 1

            # Step 11: the shares of the labels that they have counted.
            counts = sum(own for i, (_, own) in trained.items() if i in uploads).tolist()
            label_shares = [count / sum(counts) for count in counts]         # C numbers

            # Step 12: the generator trains on the last layers of their models.
            if cfg.generated > 0:
                generator = train_generator(fed, cfg, t, generator, [*uploads.values()],
                                            label_shares)

        state = {**state, "round": t, "server": {"model": weights}, "generator": generator,
                 "label_shares": label_shares}
        yield measure(fed, cfg, state, active, uploads), state


def new_generator(fed):
    """G, of random weights: noise and a one-hot label [B, NOISE + C] -> features [B, D]."""
    num_features = fed.global_model().classifier.in_features                 # D
    with fed.random_numbers("generator"):
        network = nn.Sequential(nn.Linear(NOISE + fed.num_classes, HIDDEN), nn.ReLU(),
                                nn.Linear(HIDDEN, num_features))
    network = network.to(fed.device)
    if fed.amp:
        network.forward = in_bfloat16(network.forward)
    return network


def train_client(fed, cfg, t, i, weights, generator, label_shares):
    """(new weights of client i's model, the counts [C] of the labels in its batches)."""
    images, labels = fed.private[i]
    model = fed.client_model(i)
    model.load_state_dict(weights)
    h = in_bfloat16(model.classifier) if fed.amp else model.classifier   # the last layer
    G = new_generator(fed)
    G.load_state_dict(generator["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    weight = cfg.generated_weight * cfg.generated_weight_decay**(t - 1)      # b_t
    counts = torch.zeros(fed.num_classes, dtype=torch.int64, device=fed.device)
    generated_rng = fed.rng("generated", t, i)      # of labels and noise
    model.train()
    with fed.random_numbers("local", t, i) as rng:          # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            counts += labels[rows].bincount(minlength=fed.num_classes)               # step 7
            logits = model(fed.augment(images[rows], rng))                           # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            if cfg.generated > 0:                                                    # departure 2
                with torch.no_grad():                                                # step 8
                    drawn, _, features = draw_features(fed, G, label_shares, cfg.generated,
                                                       generated_rng)
                loss = loss + weight * F.cross_entropy(h(features), drawn)           # Eq. (5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict(), counts


def draw_features(fed, G, label_shares, count, rng):
    """`count` labels y ~ p(y) [B], noise N(0, I) [B, NOISE], features z ~ G_w(z | y) [B, D]."""
    labels = torch.from_numpy(rng.choice(fed.num_classes, count, p=label_shares)).to(fed.device)
    noise = torch.from_numpy(rng.standard_normal((count, NOISE))).float().to(fed.device)
    inputs = torch.cat([noise, F.one_hot(labels, fed.num_classes)], dim=1)   # [B, NOISE + C]
    return labels, noise, G(inputs)


@on_server
def train_generator(fed, cfg, t, generator, models, label_shares):
    """The generator and its Adam, a snapshot, after training on Eq. (4).   Step 12

    generator    its snapshot before
    models       the weights of M clients' models, whose last layers are used
    """
    G, optimizer = resume(generator, new_generator(fed), "adam",
                          cfg.generator_lr * LR_DECAY**(t - 1), GENERATOR_L2)
    heads = [(model["classifier.weight"], model.get("classifier.bias")) for model in models]
    rng = fed.rng("generator", t)                   # of labels and noise
    for _ in range(cfg.generator_steps):
        labels, noise, features = draw_features(fed, G, label_shares, cfg.batch_size, rng)
        client_logits = torch.stack([F.linear(features, *h) for h in heads])         # [M, B, C]
        loss = (generator_loss(client_logits, labels)                                # Eq. (4)
                + cfg.diversity * diversity_loss(features, noise))                   # departure 3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return snapshot(G, optimizer)


def generator_loss(client_logits, labels):
    """Cross-entropy of the mean over the clients of their logits: a scalar.   Eq. (4)

    client_logits    [M, B, C]: logits of M clients' last layers on B generated features
    labels           int64 [B]: what the features were generated for
    >>> logits = torch.tensor([[[4., 0.]], [[-2., 0.]]])     # mean logits: [1, 0]
    >>> generator_loss(logits, torch.tensor([0]))            # not the mean of both losses, 1.0725
    tensor(0.3133)
    """
    shares = torch.full_like(client_logits[:, 0, 0], 1 / len(client_logits))         # [M]
    # The mean over the clients. mean(0) would round otherwise than the runs in docs/results.
    mean_logits = torch.tensordot(shares, client_logits, dims=1)                     # [B, C]
    return F.cross_entropy(mean_logits, labels)


def diversity_loss(features, noise):
    """exp(-d), small where different noise gives different features: a scalar in (0, 1].   Step 12

    features, noise    [B, D], [B, n]
    d = the mean over all B² pairs of the mean |difference| of their features times the mean squared
    difference of their noise.
    """
    exact = "donot_use_mm_for_euclid_dist"
    feature_distance = torch.cdist(features, features, p=1) / features.shape[1]      # [B, B]
    noise_distance = torch.cdist(noise, noise, compute_mode=exact).square() / noise.shape[1]
    return (-noise_distance * feature_distance).mean().exp()


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, cfg, state, active, uploads):
    """The metrics of a round. The model travels both ways, label counts up, generator and p(y)
    down."""
    found = {**score_global(fed, state), "bad_uploads": len(active) - len(uploads),
             **count_weight_bytes([(fed.global_model(), len(active))])}
    if cfg.generated > 0:
        generator = state["generator"]["model"]
        numbers = sum(w.numel() for w in generator.values()) + fed.num_classes
        found["bytes_down"] += FLOAT_BYTES * numbers * len(active)
        found["bytes_up"] += INDEX_BYTES * fed.num_classes * len(active)
    return found


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError unless the clients' network ends in a linear layer `classifier`."""
    if not isinstance(getattr(fed.global_model(), "classifier", None), nn.Linear):
        raise ValueError("fedgen: the last layer of the network must be linear, and its name "
                         "classifier")


ALGORITHM = Algorithm(
    "fedgen", run, Config, check_more=check, program=dict(
        paper=PAPER, scores={"accuracy": ("server", "test")}, plateau=("lr",),
        evaluate=score_global))
