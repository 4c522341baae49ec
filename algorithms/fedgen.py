"""FedGen: FedAvg whose clients also train their last layer on features that a generator draws.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML
2021, arXiv:2105.10056. The generator's sizes and its Adam are the public code's for MNIST.

Run:    python fedkd_minimal.py --algo fedgen    small settings, about a minute
        --paper fedgen has the paper's, which are the defaults of `run`, except that the second
        term of Eq. (5) has the public code's weight, 10 x 0.98^(t - 1) in round t
Data:   clients: their own labeled images; server: none
Sent:   down: model theta, generator w, label shares p(y), to each active client; up: its trained
        model theta_k, its label counts c_k, its sample count

Algorithm 1, by the paper's line numbers:
2-3    the server draws active clients and sends them theta, w and p(y)
4-5    each starts at theta; h_k is its last layer, f_k are the layers below
6-7    for T steps: the next B of its images, x, y; B' labels y' ~ p(y), features z' ~ G_w(z | y')
8-9    it counts y in c_k; a step of SGD on Eq. (5): CE(h_k(f_k(x)), y) + CE(h_k(z'), y')
13     theta <- the mean of theta_k, by sample counts; p(y) <- the shares in the sum of all c_k
14     w <- steps of Adam on Eq. (4): CE(mean over k of the logits h_k(z), y), for B labels y ~ p(y)
         and features z ~ G_w(z | y)
f_k learns from real images alone. --generated 0 is FedAvg.

Scores: `accuracy` is the global model's after line 13
D1  line 13: models are averaged by numbers of samples, as in FedAvg; the paper's mean is plain
D2  in round 1 p(y) is uniform, and the generator that is sent is untrained
D3  line 14 also has the diversity loss: the paper names it, the formula is the public code's
"""
import torch
import torch.nn.functional as F
from torch import nn

from algorithms import Algorithm, checked
from algorithms.equations import average_weights
from federation import seeded, stream, timed
from federation.communication import FLOAT_BYTES, INDEX_BYTES, weights_ledger
from federation.evaluation import global_metrics
from federation.parallel import on_server, sample_clients
from federation.training import (feature_size, forward, load_model, network, restore, shuffled,
                                 snapshot)
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
    """The server before round 1: the global model and, if generated > 0, generator and p(y)."""
    model = network(fed, architecture)
    server = {"architecture": architecture, "model": model.state_dict()}
    if generated > 0:
        server["generator"] = snapshot(new_generator(fed, model.classifier.in_features))
        server["label_shares"] = [1 / fed.num_classes] * fed.num_classes     # C numbers, D2
    return server


def train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr, generated,
                 generated_weight, generated_weight_decay):
    """Client i's upload in round t: its model after local training, and its counts of labels.

    Each step is SGD on its own images and, through the last layer alone, on generated features.
    """
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, server)                                          # line 4-5: a copy
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    if generated > 0:
        generator = new_generator(fed, model.classifier.in_features)
        generator.load_state_dict(server["generator"]["model"])
    weight = generated_weight * generated_weight_decay**(t - 1)
    label_counts = torch.zeros(fed.num_classes, dtype=torch.int64, device=fed.device)    # [C]
    rng = stream(fed.seed, "generated", t, i)            # of this client's generated features
    model.train()
    # `shuffled` augments with --augment; ("local", t, i) names the random numbers of this training.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):   # line 6
        label_counts += labels[rows].bincount(minlength=fed.num_classes)     # line 8
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        if generated > 0:
            with torch.no_grad():                                            # line 7: [B'], [B', d]
                drawn, _, features = draw_features(fed, generator, server["label_shares"],
                                                   generated, rng)
            drawn_logits = forward(fed, model.classifier, features)          # [B', C]
            loss = loss + weight * F.cross_entropy(drawn_logits, drawn)      # Eq. (5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # line 9
    return {"model": model.state_dict(), "label_counts": label_counts}


def aggregate(fed, server, uploads):
    """The server with the mean of the models {client: upload}, weighed by sample counts."""
    if not uploads:                                      # none was usable: the model stays
        return server
    sizes = [len(fed.private[i].labels) for i in uploads]
    models = [upload["model"] for upload in uploads.values()]
    return server | {"model": average_weights(models, sizes)}                # line 13, D1


@timed
@on_server
def train_generator(fed, t, server, uploads, batch_size, generator_steps, generator_lr, diversity):
    """The server with label shares from the uploads, and a generator trained on Eq. (4).

    The generator's teachers are the last layers of the uploaded models.
    """
    if not uploads:                                      # none was usable: no teacher, no counts
        return server
    counts = sum(upload["label_counts"] for upload in uploads.values()).tolist()     # C numbers
    label_shares = [count / sum(counts) for count in counts]                         # line 13
    teachers = [upload["model"] for upload in uploads.values()]
    heads = [(model["classifier.weight"], model.get("classifier.bias")) for model in teachers]
    generator = new_generator(fed, heads[0][0].shape[1])
    optimizer = torch.optim.Adam(generator.parameters(), lr=generator_lr * LR_DECAY**(t - 1),
                                 weight_decay=GENERATOR_L2)
    restore(server["generator"], generator, optimizer)   # as they were, but with the new rate
    rng = stream(fed.seed, "generator", t)               # of this training's features
    for _ in range(generator_steps):
        labels, noise, features = draw_features(fed, generator, label_shares, batch_size, rng)
        client_logits = torch.stack([F.linear(features, *head) for head in heads])   # [M, B, C]
        loss = generator_loss(client_logits, labels)                                 # Eq. (4)
        loss = loss + diversity * diversity_loss(features, noise)                    # D3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                             # line 14
    return server | {"generator": snapshot(generator, optimizer), "label_shares": label_shares}


@timed
def evaluate(fed, state):
    """Test accuracy of the global model."""
    return global_metrics(fed, [state["server"]])


def ledger(fed, server, num_clients, generated):
    """Bytes of a round: the model both ways, label counts up, generator and label shares down."""
    found = weights_ledger([(network(fed, server["architecture"]), num_clients)], 1)
    if generated > 0:
        numbers = sum(w.numel() for w in server["generator"]["model"].values()) + fed.num_classes
        found["bytes_down"] += FLOAT_BYTES * numbers * num_clients
        found["bytes_up"] += INDEX_BYTES * fed.num_classes * num_clients
    return found


def check_settings(fed, **settings):
    """Raises ValueError unless the clients' network has a linear layer `classifier`."""
    feature_size(fed.client_model(0), fed.architecture[0])


@checked
def run(fed, state=None, *,
        rounds: int = 200,                     # in all
        participation: float = 0.5,            # share of the clients that train in a round
        local_epochs: int = 1,                 # only if local_steps is None: a client's passes
        local_steps: int | None = 20,          # T: a client's SGD steps in a round
        batch_size: int = 32,                  # B: of a client, and of the generator
        lr: float = 0.01,                      # of a client
        generated: int = 32,                   # B': generated features in each step of a client
        generated_weight: float = 1.0,         # of their term in Eq. (5), in round 1
        generated_weight_decay: float = 1.0,   #   times this after every round
        generator_steps: int = 50,             # of Adam, in a round
        generator_lr: float = 3e-4,            # in round 1, times LR_DECAY after every round
        diversity: float = 1.0,                # weight of the diversity loss (D3)
        attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    if state is None:
        state = {"round": 0, "server": start_server(fed, fed.architecture[0], generated)}
        yield evaluate(fed, state), state
    server = state["server"]

    for t in range(state["round"] + 1, rounds + 1):
        # Clients learn from their own images. Their last layers also learn from features that the
        # generator of the round before draws.
        rng = stream(fed.seed, "active", t)
        active = sample_clients(len(fed.private), participation, rng)        # line 2-3

        def train(i):
            return train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr,
                                generated, generated_weight, generated_weight_decay)

        # {i: train(i)}, in parallel. Attackers' models are replaced; unusable uploads (nan,
        # infinity, 1e30 or more) are left out, with their label counts.
        uploads = collect(fed, active, train, attack)                        # line 4-9
        server = aggregate(fed, server, uploads)                             # line 13, D1
        # The generator learns features to which the clients' mean logits give their label.
        if generated > 0:
            server = train_generator(fed, t, server, uploads, batch_size, generator_steps,
                                     generator_lr, diversity)                # line 13-14

        # All that the next round needs: the global model, p(y), the generator and its Adam.
        state = {"round": t, "server": server}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **ledger(fed, server, len(active), generated)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgen", run,
    scores={"server_accuracy": "server"}, keeps=("server",),
    check_settings=check_settings, plateau=("lr",), evaluate=evaluate)
