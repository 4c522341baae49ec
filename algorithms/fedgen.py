"""FedGen: FedAvg whose clients also train their last layer on features that a generator draws.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML
2021, arXiv:2105.10056. The generator's sizes and its Adam are those of the authors' public code for
MNIST.

    python fedkd_minimal.py --algo fedgen
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. It takes twenty seconds on two cores.
    python fedkd_minimal.py --algo fedgen --paper fedgen --dataset mnist
        runs `PAPER` with b_t = 10 x 0.98^(t - 1), as the public code has it, instead of 1: a CNN
        with 6 and 16 filters, and 20 clients that divide half of the training images (alpha 0.1;
        about 100 to 5,500 each), without augmentation.

Clients hold labeled images of their own; between rounds they keep nothing. There are no public
images. The server holds a generator G_w, a network with one hidden layer: it reads noise and a
one-hot label y, and its output z ~ G_w(z | y) is as long as the features that the clients' last
layer reads. It never sees an image, nor the features of one. An active client sends back its
weights, its number of images, and its counts of labels, but no features. Training: train mode,
images cropped and flipped with --augment, the mean loss of a batch. Prediction: eval mode, no
gradient, images as they are.

The algorithm; the numbers in brackets are lines of the paper's Algorithm 1. CE is cross-entropy, C
the number of classes, b_t = generated_weight generated_weight_decay^(t - 1):
  1   start with a global model theta and a generator w of random weights, and p(y) = 1/C
  2   for each round t:
  3       draw the active clients, a share of all, and send them theta, w, p(y)            [2-3]
  4       for each active client k, in parallel:
  5           theta_k = a copy of theta; h_k is its last layer, f_k the layers below       [4-5]
  6           for each batch of the client's own images x, with labels y:                  [6-7]
  7               add the numbers of images of each class to the client's counts c_k         [8]
  8               draw labels y' ~ p(y), features z' ~ G_w(z | y')                         [6-7]
  9               step on CE(h_k(f_k(x)), y) + b_t CE(h_k(z'), y')                 Eq. (5)   [9]
 10       theta = the mean of the theta_k, weighted by numbers of images                    [13]
 11       p(y) = the shares of the classes in the sum of the c_k                            [13]
 12       generator_steps times:                                                            [14]
              draw labels y ~ p(y), features z ~ G_w(z | y)
              step of Adam on CE(mean over k of h_k(z), y) + diversity exp(-d)     Eq. (4)
              d = the mean over all pairs of these samples of the mean square difference of their
                  noise, times the mean absolute difference of their features

So the f_k train on real images alone, and the generator on the last layers h_k that clients have
sent, which do not change meanwhile. With --generated 0, without y' and z', it is FedAvg, and the
generator does not train.

Accuracy is the global model's on the test images, after step 10.

Bad uploads: a client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out
of steps 10 to 12, with its counts. If nobody is left, theta, w and p(y) stay.

Departures
  1  Paper, line 13: the plain mean of the theta_k. Here, as in the public code: the mean is
     weighted by numbers of images.
  2  Paper: silent about p(y) and w in round 1. Here: p(y) = 1/C, and clients train on what the
     untrained generator draws.
  3  Paper: names a diversity loss, without a formula. Here: the public code's formula.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from algorithms import Algorithm, configured
from federation import (FLOAT_BYTES, INDEX_BYTES, accuracy, active_in, average_weights,
                        feature_size, loaded, minibatches, on_server, parallel_map, predict_models,
                        prepared, random_numbers, received, restored, snapshot, stream,
                        weights_ledger)

# active_in         the clients of a round, drawn at random without replacement
# average_weights   the weighted mean of every entry of models, BatchNorm's statistics too
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# on_server         one process computes the function, and sends the result to all
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict_models    logits [models, images, C], in eval mode, without gradient and augmentation
# prepared          the network itself, whose output is float32; with --amp it computes in bfloat16
# random_numbers    a generator for what is named; it also seeds torch, for weights and dropout
# received          {client: weights}: after an attack, and without the bad uploads
# restored          a network and its optimizer, after a snapshot has been copied into both; the
#                   learning rate is the one given here
# snapshot          {"model": weights, "optimizer": state or None}, copies
# stream            a generator for what is named
# weights_ledger    bytes that are sent up and down


@dataclass
class Config:
    rounds: int = 20                       # of communication
    participation: float = 0.4             # share of the clients that are active in a round
    local_epochs: int = 5                  # passes of a client over its images in a round
    local_steps: int | None = None         # if it is a number: so many steps, instead of passes
    batch_size: int = 32                   # of a client, and of the generator
    lr: float = 0.1                        # of a client, constant; --lr-patience lowers it
    generated: int = 32                    # labels y' in a step of a client; 0 is FedAvg
    generated_weight: float = 1.0          # weight of their loss, b_t, in round 1
    generated_weight_decay: float = 1.0    # b_t is multiplied by this after every round
    generator_steps: int = 50              # of Adam in a round
    generator_lr: float = 3e-4             # in round 1; it is multiplied by 0.98 after every round
    diversity: float = 1.0                 # weight of the diversity loss


# The setting of Table 1; lr and the generator's values are those of the public code for MNIST.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=200, participation=0.5, local_epochs=1, local_steps=20, batch_size=32, lr=0.01,
             generated=32, generated_weight=1.0, generated_weight_decay=1.0, generator_steps=50,
             generator_lr=3e-4, diversity=1.0)

# The generator, in the public code for MNIST.
NOISE, HIDDEN = 32, 256      # inputs of noise, hidden units
GENERATOR_L2 = 1e-2          # L2 penalty of its Adam
LR_DECAY = 0.98              # its learning rate is multiplied by this after every round


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained model, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
              fed.global_model(), and fed.client_model(i) for client i: new networks, all of one
              architecture; fed.augment: random crops and flips with --augment, else the images
              unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    if state is None:
        # Step 1: a global model and a generator of random weights, and equal label shares.
        state = {"round": 0, "server": {"model": fed.global_model().state_dict()},
                 "generator": snapshot(new_generator(fed)),
                 "label_shares": [1 / fed.num_classes] * fed.num_classes}    # departure 2
        yield evaluate(fed, state), state
    weights, generator = state["server"]["model"], state["generator"]
    label_shares = state["label_shares"]                     # C numbers

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-9: active clients train the global model, on their own images and on features.
        active = active_in(fed, cfg.participation, t)
        trained = parallel_map(                              # {client: (weights, label counts)}
            fed, active, lambda i: train_client(fed, cfg, t, i, weights, generator, label_shares))

        # What arrives, {client: weights}. An attack does not change the counts.
        uploads = received(fed, {i: own for i, (own, _) in trained.items()}, attack)
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

        state = {"round": t, "server": {"model": weights}, "generator": generator,
                 "label_shares": label_shares}
        yield {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
               **ledger(fed, cfg, generator, len(active))}, state


def new_generator(fed):
    """G, of random weights: noise and a one-hot label [B, NOISE + C] -> features [B, D]."""
    num_features = feature_size(fed.global_model(), fed.architecture[0])     # D
    with random_numbers(fed, "generator"):
        network = nn.Sequential(nn.Linear(NOISE + fed.num_classes, HIDDEN), nn.ReLU(),
                                nn.Linear(HIDDEN, num_features))
    return prepared(network.to(fed.device), fed.amp)


def train_client(fed, cfg, t, i, weights, generator, label_shares):
    """(weights of client i's model after training, the counts [C] of the labels in its batches)."""
    images, labels = fed.private[i]
    model = loaded(fed.client_model(i), weights)
    h = prepared(nn.Sequential(model.classifier), fed.amp)   # its last layer, the same weights
    G = loaded(new_generator(fed), generator["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)   # plain, new in every round
    weight = cfg.generated_weight * cfg.generated_weight_decay**(t - 1)      # b_t
    counts = torch.zeros(fed.num_classes, dtype=torch.int64, device=fed.device)
    generated_rng = stream(fed.seed, "generated", t, i)      # of labels and noise
    model.train()
    with random_numbers(fed, "local", t, i) as rng:          # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            counts += labels[rows].bincount(minlength=fed.num_classes)               # step 7
            logits = model(fed.augment(images[rows], rng))                           # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            if cfg.generated > 0:
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
    G, optimizer = restored(generator, new_generator(fed), "adam",
                            cfg.generator_lr * LR_DECAY**(t - 1), GENERATOR_L2)
    heads = [(model["classifier.weight"], model.get("classifier.bias")) for model in models]
    rng = stream(fed.seed, "generator", t)                   # of labels and noise
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

def evaluate(fed, state):
    """Test accuracy of the global model."""
    logits = predict_models(fed, [state["server"]["model"]], fed.test.images)[0]     # [N, C]
    return {"accuracy": accuracy(logits, fed.test.labels)}


def ledger(fed, cfg, generator, num_active):
    """Bytes of a round: the model both ways, label counts up, generator and p(y) down."""
    found = weights_ledger([(fed.global_model(), num_active)])
    if cfg.generated > 0:
        numbers = sum(w.numel() for w in generator["model"].values()) + fed.num_classes
        found["bytes_down"] += FLOAT_BYTES * numbers * num_active
        found["bytes_up"] += INDEX_BYTES * fed.num_classes * num_active
    return found


# --------------------------------------------------------------------------------------------------
# For the command line

def check(fed, cfg, attack):
    """Raises ValueError unless the clients' network ends in a linear layer `classifier`."""
    feature_size(fed.global_model(), fed.architecture[0])


ALGORITHM = Algorithm("fedgen", run, scores={"accuracy": "server"}, paper=PAPER,
                      check_settings=check, plateau=("lr",), evaluate=evaluate)
