"""FedGen: FedAvg whose clients also train their last layer on features that a generator draws.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML
2021, arXiv:2105.10056. The defaults are the paper's settings; the generator's sizes and its Adam
are the public code's for MNIST. --paper fedgen replaces the weight 1 in Eq. (5) by the code's:
10 x 0.98^(t - 1) in round t.

Run:   python fedkd_minimal.py --algo fedgen
What travels: in each round the global model, the generator and the label shares p(y), down to each
active client; its trained model, its label counts and its number of samples, up.
Public data: none.

Paper              here                         shape         note
theta              server["model"]              state_dict    the global model
theta_k            upload["model"]              state_dict    client k's model after local training
h_k                model.classifier             d -> C        the last layer: features to logits
w, G_w             server["generator"]          snapshot      the generator; its Adam is not sent
p(y)               label_shares                 C numbers     shares of the labels trained on
c_k                label_counts                 [C]           labels of client k in local training
y', z'             drawn, features              [B'], [B', d] labels from p(y), features for them
T, B, B'           local_steps, batch_size,     numbers       B' = B in the paper
                   generated

Algorithm 1, by the paper's line numbers:
2-3    the server draws active clients and sends them theta, w and p(y)
4-5    each of them starts at theta: theta_k <- theta
6-7    for T steps: the next B of its own samples (x, y), in shuffled passes; B' labels y' ~ p(y)
         and features z' ~ G_w(z | y') for them
8        it counts the labels y in c_k
9        theta_k <- a step of SGD on Eq. (5): mean CE(h_k(f_k(x)), y) + mean CE(h_k(z'), y'), the
         second with --generated-weight, 1 in the paper. After T steps it sends theta_k and c_k
13     theta <- the mean of theta_k, by the clients' numbers of samples (D1); p(y) <- the shares of
       the labels in the sum of all c_k
14     w <- steps of Adam on Eq. (4): CE(plain mean over k of the logits h_k(z), y), for B labels
       y ~ p(y) and features z ~ G_w(z | y)
f_k, the layers below h_k, learns from real images alone. The generator's noise is N(0, I).
--generated 0 is FedAvg.

Modes: clients train in train mode, with --augment on augmented images; both losses of Eq. (5) are
means over their batches, as is Eq. (4). Features for clients are generated without gradient. The
test images are predicted in eval mode.
Kept between rounds: by the server theta, p(y), the generator and its Adam. Clients keep nothing.
Scores: `accuracy` and server_accuracy are of theta after line 13.
Bad upload (nan or infinity): `collect` leaves it out of lines 13 and 14, with its counts. If none
is left, the server stays as it is.
Departures (docs/DEPARTURES.md has more):
D1  line 13: models are averaged by numbers of samples, as in FedAvg; the paper's mean is plain
D2  in round 1 p(y) is uniform, and the generator that is sent is untrained
D3  line 14 also has the diversity loss: the paper names it, the formula is the public code's
"""
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from algorithms import Algorithm, checked, fedavg
from algorithms.fedavg import aggregate, evaluate
from federation import seeded, stream, timed
from federation.communication import FLOAT_BYTES, INDEX_BYTES, weights_ledger
from federation.parallel import on_server, sample_clients
from federation.training import forward, load_model, network, restore, shuffled, snapshot
from federation.uploads import collect

# The generator, in the public code for MNIST:
NOISE, HIDDEN = 32, 256      # inputs of noise, hidden units
GENERATOR_L2 = 1e-2          # L2 penalty of its Adam
LR_DECAY = 0.98              # its learning rate is multiplied by this after every round


def generator_loss(client_logits, labels):
    """Cross-entropy of the mean over the clients of their logits: a scalar.        Eq. (4)

    client_logits    [M, B, C]: logits of M clients' last layers on B generated features
    labels           int64 [B]: what the features were generated for
    >>> logits = torch.tensor([[[4., 0.]], [[-2., 0.]]])     # mean logits: [1, 0]
    >>> generator_loss(logits, torch.tensor([0]))            # not the mean of both losses, 1.0725
    tensor(0.3133)
    """
    shares = torch.full_like(client_logits[:, 0, 0], 1 / len(client_logits))             # [M]
    # The mean over the clients. `mean(0)` would round otherwise than the runs in docs/results.
    mean_logits = torch.tensordot(shares, client_logits, dims=1)                         # [B, C]
    return F.cross_entropy(mean_logits, labels)


def diversity_loss(features, noise):
    """Small where different noise gives different features: [B, d], [B, n] -> scalar in (0, 1].

    exp(- mean over all pairs of samples of (mean square difference of noise x mean absolute
    difference of features)), as in the public code; the paper has no formula
    """
    feature_distance = (features[:, None] - features).abs().mean(-1)                     # [B, B]
    noise_distance = (noise[:, None] - noise).square().mean(-1)                          # [B, B]
    return (-noise_distance * feature_distance).mean().exp()


def new_generator(fed, num_features):
    """A network that reads noise and a one-hot label: [B, NOISE + C] -> [B, num_features]."""
    with seeded(fed.seed, "generator"):
        return nn.Sequential(nn.Linear(NOISE + fed.num_classes, HIDDEN), nn.ReLU(),
                             nn.Linear(HIDDEN, num_features)).to(fed.device)


def draw_features(fed, generator, label_shares, count, rng):
    """`count` (B) labels y ~ p(y) [B], noise N(0, I) [B, NOISE], features z ~ G_w(z | y) [B, d]."""
    labels = torch.from_numpy(rng.choice(fed.num_classes, count, p=label_shares)).to(fed.device)
    noise = torch.from_numpy(rng.standard_normal((count, NOISE))).float().to(fed.device)
    inputs = torch.cat([noise, F.one_hot(labels, fed.num_classes)], dim=1)     # [B, NOISE + C]
    return labels, noise, forward(fed, generator, inputs)


def start_server(fed, architecture, generated):
    """The server before round 1: FedAvg's, plus a generator and label shares if generated > 0."""
    server = fedavg.start_server(fed, architecture)
    if generated == 0:
        return server
    generator = new_generator(fed, network(fed, architecture).classifier.in_features)
    return server | {"generator": snapshot(generator),
                     "label_shares": [1 / fed.num_classes] * fed.num_classes}            # D2


def train_client(fed, i, t, server, *, local_epochs, local_steps, batch_size, lr, generated,
                 generated_weight, generated_weight_decay):
    """Local training of client i in round t, from what the server sent. Returns its upload.

    Each step is SGD on real images and, through the last layer alone, on generated features.
    """
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, server)                                          # line 4-5
    local_optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    if generated:
        generator = new_generator(fed, model.classifier.in_features)
        generator.load_state_dict(server["generator"]["model"])
    weight = generated_weight * generated_weight_decay**(t - 1)
    label_counts = torch.zeros(fed.num_classes, dtype=torch.int64, device=fed.device)
    rng = stream(fed.seed, "generated", t, i)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):   # line 6
        label_counts += labels[rows].bincount(minlength=fed.num_classes)     # line 8
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        if generated:
            with torch.no_grad():
                drawn, _, features = draw_features(fed, generator, server["label_shares"],
                                                   generated, rng)           # line 7
            loss = loss + weight * F.cross_entropy(
                forward(fed, model.classifier, features), drawn)             # Eq. (5)
        local_optimizer.zero_grad()
        loss.backward()
        local_optimizer.step()                                               # line 9
    return {"model": model.state_dict(), "label_counts": label_counts}


@timed
@on_server
def train_generator(fed, t, server, uploads, *, batch_size, generator_steps, generator_lr,
                    diversity):
    """Sets p(y) from the uploads, trains the generator on Eq. (4), and returns the new server.

    The generator's teachers are the last layers of the uploaded models. Without a generator or
    without any upload the server stays as it is.
    """
    if "generator" not in server or not uploads:
        return server
    counts = sum(upload["label_counts"] for upload in uploads.values()).tolist()     # [C]
    label_shares = [count / sum(counts) for count in counts]                         # line 13
    models = [upload["model"] for upload in uploads.values()]
    heads = [(model["classifier.weight"], model.get("classifier.bias")) for model in models]
    generator = new_generator(fed, heads[0][0].shape[1])
    new_optimizer = partial(torch.optim.Adam, lr=generator_lr * LR_DECAY**(t - 1),
                            weight_decay=GENERATOR_L2)
    optimizer = new_optimizer(generator.parameters())
    restore(server["generator"], generator, optimizer)    # with the new rate
    rng = stream(fed.seed, "generator", t)
    for _ in range(generator_steps):
        labels, noise, features = draw_features(fed, generator, label_shares, batch_size, rng)
        client_logits = torch.stack([F.linear(features, *head) for head in heads])   # [M, B, C]
        loss = generator_loss(client_logits, labels)                                 # Eq. (4)
        loss = loss + diversity * diversity_loss(features, noise)                    # D3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                             # line 14
    return server | {"generator": snapshot(generator, optimizer), "label_shares": label_shares}


def ledger(fed, server, num_clients):
    """Bytes of a round: the model both ways, label counts up, generator and label shares down."""
    found = weights_ledger([(network(fed, server["architecture"]), num_clients)])
    if "generator" in server:
        numbers = sum(w.numel() for w in server["generator"]["model"].values()) + fed.num_classes
        found["bytes_down"] += FLOAT_BYTES * numbers * num_clients
        found["bytes_up"] += INDEX_BYTES * fed.num_classes * num_clients
    return found


def check_settings(fed, **settings):
    """Raises ValueError unless the clients' network has a linear layer `classifier`."""
    if not isinstance(getattr(fed.client_model(0), "classifier", None), nn.Linear):
        raise ValueError("fedgen generates inputs of the last layer, so a network must end with a "
                         f"linear layer named classifier; {fed.architecture[0]} does not")


@checked
def run(fed, state=None, *, rounds: int = 200, participation: float = 0.5, local_epochs: int = 1,
        local_steps: int | None = 20, batch_size: int = 32, lr: float = 0.01,
        generated: int = 32, generated_weight: float = 1.0, generated_weight_decay: float = 1.0,
        generator_steps: int = 50, generator_lr: float = 3e-4, diversity: float = 1.0, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    batch_size    batch size of a client and of the generator
    hyperparameters.py explains the other keywords.
    """
    at_client = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                     lr=lr, generated=generated, generated_weight=generated_weight,
                     generated_weight_decay=generated_weight_decay)
    at_server = dict(batch_size=batch_size, generator_steps=generator_steps,
                     generator_lr=generator_lr, diversity=diversity)
    if state is None:
        state = {"round": 0, "server": start_server(fed, fed.architecture[0], generated)}
        yield evaluate(fed, state), state
    server = state["server"]
    for t in range(state["round"] + 1, rounds + 1):
        # A share of the clients takes part. Each also trains its last layer on features that the
        # generator of the round before draws.
        active = sample_clients(len(fed.private), participation,
                                stream(fed.seed, "active", t))               # line 2-3
        uploads = collect(fed, active, lambda i: train_client(
            fed, i, t, server, **at_client), attack)                         # line 4-9
        # The new global model is the average of theirs.
        server = aggregate(fed, server, uploads)                             # line 13, D1
        # The generator learns features to which the clients' mean logits give their label.
        server = train_generator(fed, t, server, uploads, **at_server)       # line 13-14

        state = {"round": t, "server": server}
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **ledger(fed, server, len(active))}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgen", run,
    scores={"server_accuracy": "server"}, keeps=("server",),
    check_settings=check_settings, plateau=("lr",), evaluate=evaluate)
