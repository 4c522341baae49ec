"""FedKD: a client's own mentor and a shared mentee teach each other; SVD factors of changes travel.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature
Communications 2022, arXiv:2108.13323; written without its text.

Run:    python fedkd_minimal.py --algo fedkd    small settings, about a minute
Data:   clients: their own labeled images; mentors' networks may differ (--model), the mentee's is
        that of --server-model; the last layer of each is named `classifier`, its input are features
Sent:   up: the factors of the mentee's change in local training, the sample count; down, to all
        clients: the factors of the mean change. BatchNorm's buffers travel as they are

A round; the numbers are ours:
 1  each active client trains its mentor t and its copy of the mentee s on its own images. In each
    batch, after both have predicted the same augmented view, the losses are, with the teacher and
    S = CE(t) + CE(s) as constants: the worse both predict, the less they teach;
      t:  CE(t) + (KL(s || t) + H) / S,    s:  CE(s) + (KL(t || s) + H) / S
    H is the mean square difference between t's features and W times s's; W is the client's own
 2  it uploads the change of s: each matrix by its fewest singular values whose squares have the
    share `energy` of the sum of all, which rises from round to round; the matrix as it is, if the
    factors have no fewer numbers
 3  the server averages the changes, by numbers of samples, and compresses the mean in the same way
 4  the server and all clients add it to the mentee

Scores: on the test images, in the mean over all clients. client_accuracy is of the mentors, after
        step 1; client_accuracy_own (and `accuracy`) of these, with the classes weighed as the
        client's own images have them; server_accuracy is of the mentee, after step 4
D1  W learns with the mentee; the mentor's loss takes W s as a constant
D2  S counts as 1e-6 where it is smaller
D3  what travels is the change in a whole local training; with --local-steps 1 that of one gradient
"""
import torch
import torch.nn.functional as F
from torch import nn

from algorithms import Algorithm, checked
from algorithms.equations import average_weights, kl_divergence
from federation import seeded, stream, timed
from federation.communication import FLOAT_BYTES, weights_ledger
from federation.evaluation import client_metrics, client_scores, server_metrics
from federation.parallel import by_architecture, sample_clients
from federation.training import (OPTIMIZERS, Optimizer, feature_size, forward_with_features,
                                 network, restore, shuffled, snapshot)
from federation.uploads import collect


def adaptive_losses(mentor_logits, mentee_logits, labels, hidden=(0.0, 0.0)):
    """(the mentor's loss, the mentee's loss), scalars, each without gradient to the other.

    mentor_logits, mentee_logits, labels    [B, C], [B, C], [B]
    hidden    H of each of the two losses, see `hidden_losses`
    """
    mentor_ce = F.cross_entropy(mentor_logits, labels)
    mentee_ce = F.cross_entropy(mentee_logits, labels)
    S = (mentor_ce + mentee_ce).detach().clamp(min=1e-6)                     # D2
    # `kl_divergence` gives no gradient to the teacher, its first argument.
    mentor_kl = kl_divergence(mentee_logits, mentor_logits).mean()           # KL(s || t)
    mentee_kl = kl_divergence(mentor_logits, mentee_logits).mean()           # KL(t || s)
    return mentor_ce + (mentor_kl + hidden[0]) / S, mentee_ce + (mentee_kl + hidden[1]) / S


def hidden_losses(mentor_features, mapped):
    """(H in the mentor's loss, H in the mentee's): mean square difference of [B, d_t], [B, d_t].

    mapped    W times the mentee's features: a constant in the first, where the mentor learns; in
              the second, where mentee and W learn, the mentor's features are the constant, D1
    """
    return (F.mse_loss(mentor_features, mapped.detach()),                    # D1
            F.mse_loss(mapped, mentor_features.detach()))


def compress(matrix, energy):
    """(U [P, K], s [K], V [K, Q]) of the K largest singular values of a matrix [P, Q], or a copy.

    K is the smallest number of singular values whose squares have the share `energy` of the sum of
    all squares. A copy of the matrix itself comes back where the factors have P K + K + K Q >= P Q
    numbers, and where a number of the matrix is not finite.
    """
    if not matrix.isfinite().all():
        return matrix.clone()
    U, s, V = torch.linalg.svd(matrix, full_matrices=False)      # s: largest first
    # Neither too large nor too small to add; on the CPU, for a GPU's cumsum is not deterministic.
    squares = (s / s.max()).square().cpu()
    shares = squares.cumsum(0) / squares.sum()
    K = min(int((shares < energy).sum()) + 1, len(s))
    factors = U[:, :K], s[:K], V[:K]
    return factors if count_numbers(factors) < matrix.numel() else matrix.clone()


def count_numbers(message):
    """How many numbers a tensor, or the factors (U, s, V), have."""
    return message.numel() if isinstance(message, torch.Tensor) else sum(x.numel() for x in message)


def compressed(tensor, energy):
    """(what arrives of a tensor [out, ...], how many numbers were sent for it).

    A kernel of a convolution [out, in, k, k] is a matrix [out, in k k]; a vector is sent as it is.
    """
    if tensor.ndim < 2:
        return tensor, tensor.numel()
    message = compress(tensor.flatten(1), energy)
    if isinstance(message, torch.Tensor):
        return tensor, tensor.numel()
    U, s, V = message
    return (U * s @ V).view(tensor.shape), count_numbers(message)


def energy_of_round(t, energy_first, energy_last, energy_rounds):
    """The share of the squared singular values that is kept in round t: it rises linearly."""
    progress = min((t - 1) / max(energy_rounds - 1, 1), 1.0)
    return energy_first + (energy_last - energy_first) * progress


def new_mapping(fed, i):
    """W [d_t, d_s] before round 1: of the mentee's d_s features it makes d_t, as client i's has."""
    d_s, d_t = (model.classifier.in_features for model in (fed.server_model(), fed.client_model(i)))
    with seeded(fed.seed, "mapping", i):
        return nn.Linear(d_s, d_t, bias=False).weight.detach().to(fed.device)


def train_client(fed, i, t, client, server, energy, local_epochs, local_steps, batch_size, lr,
                 hidden, optimizer_name, weight_decay):
    """Client i's upload in round t: the mentee's change as it arrives; and "client", what it keeps.

    The upload "model" has the changes of the weights, and BatchNorm's buffers; "numbers" tells how
    many numbers were sent for the changes.
    """
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    new_optimizer = OPTIMIZERS[optimizer_name]
    mentor, mentee = fed.client_model(i), fed.server_model()
    W = client["mapping"].clone().requires_grad_()                           # [d_t, d_s]
    mentor_optimizer = new_optimizer(mentor.parameters(), lr=lr, weight_decay=weight_decay)
    mentee_optimizer = new_optimizer([*mentee.parameters(), W], lr=lr,
                                     weight_decay=weight_decay)              # new in every round
    restore(client, mentor, mentor_optimizer)            # as the client kept them
    mentee.load_state_dict(server["model"])
    mentor.train()                       # with --augment both see the same augmented batch
    mentee.train()
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):   # step 1
        mentor_features, mentor_logits = forward_with_features(fed, mentor, batch)
        mentee_features, mentee_logits = forward_with_features(fed, mentee, batch)
        H = hidden_losses(mentor_features, mentee_features @ W.T) if hidden else (0.0, 0.0)
        mentor_loss, mentee_loss = adaptive_losses(mentor_logits, mentee_logits, labels[rows], H)
        mentor_optimizer.zero_grad()
        mentee_optimizer.zero_grad()
        mentor_loss.backward()
        mentee_loss.backward()
        mentor_optimizer.step()
        mentee_optimizer.step()

    buffers = dict(mentee.named_buffers())
    model, numbers = {}, 0
    for name, w in mentee.state_dict().items():                              # step 2, D3
        if name in buffers:
            model[name] = w
        else:
            model[name], sent = compressed(w - server["model"][name], energy)
            numbers += sent
    kept = snapshot(mentor, mentor_optimizer) | {"mapping": W.detach()}
    return {"model": model, "numbers": torch.tensor(numbers), "client": kept}


def aggregate(fed, server, uploads, energy):
    """(the mentee after the uploads {client: upload}, how many numbers were sent down to a client).

    Without uploads the mentee stays, and nothing is sent.
    """
    if not uploads:
        return server, 0
    sizes = [len(fed.private[i].labels) for i in uploads]
    mean = average_weights([upload["model"] for upload in uploads.values()], sizes)      # step 3
    buffers = dict(fed.server_model().named_buffers())
    model, numbers = {}, 0
    for name, w in server["model"].items():                                  # step 4
        if name in buffers:
            model[name] = mean[name]
        else:
            change, sent = compressed(mean[name], energy)
            model[name] = w + change
            numbers += sent
    return server | {"model": model}, numbers


@timed
def evaluate(fed, state):
    """Test accuracies of the mentors and of the mentee."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    return {"accuracy": metrics.get("client_accuracy_own"), **metrics,
            **server_metrics(fed, state["server"])}


def ledger(fed, uploads, numbers_down):
    """Bytes of a round: those of the usable uploads up, the mean change down to all clients."""
    numbers_up = sum(int(upload["numbers"]) for upload in uploads.values())
    receivers = len(fed.private) if uploads else 0
    up, down = (weights_ledger([(fed.server_model(), n)]) for n in (len(uploads), receivers))
    return {"bytes_up": FLOAT_BYTES * numbers_up,
            "bytes_down": FLOAT_BYTES * numbers_down * receivers,
            "bytes_up_buffers": up["bytes_up_buffers"],
            "bytes_down_buffers": down["bytes_down_buffers"]}


def check_settings(fed, **settings):
    """Raises ValueError unless the last layers are named `classifier`."""
    feature_size(fed.server_model(), "the server's network")
    for name in by_architecture(fed):
        feature_size(network(fed, name), name)


@checked
def run(fed, state=None, *,
        rounds: int = 100,
        participation: float = 1.0,          # share of the clients that train in a round
        local_epochs: int = 1,               # passes of a client over its images in a round, or,
        local_steps: int | None = None,      #   if given, steps of each of its two optimizers
        batch_size: int = 64,
        lr: float = 0.05,                    # of both models
        hidden: bool = True,                 # both losses have H
        energy_first: float = 0.95,          # share of the squared singular values, in round 1
        energy_last: float = 0.98,           #   and from round
        energy_rounds: int = 100,            #   energy_rounds on
        optimizer: Optimizer = "momentum",
        weight_decay: float = 0.0,
        attack=None):                        # replaces the uploads of some clients
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    if state is None:
        clients = [snapshot(fed.client_model(i, init=i))
                   | {"mapping": new_mapping(fed, i)} for i in range(len(fed.private))]
        state = {"round": 0, "server": snapshot(fed.server_model()), "clients": clients}
        yield evaluate(fed, state), state
    server, clients = state["server"], state["clients"]

    for t in range(state["round"] + 1, rounds + 1):
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        energy = energy_of_round(t, energy_first, energy_last, energy_rounds)

        def train(i):
            return train_client(fed, i, t, clients[i], server, energy, local_epochs, local_steps,
                                batch_size, lr, hidden, optimizer, weight_decay)

        # {i: train(i)}, in parallel. Attackers' changes are replaced, unusable uploads left out;
        # a client whose upload is left out keeps the mentor that it had before.
        uploads = collect(fed, active, train, attack)                        # step 1-2
        server, numbers_down = aggregate(fed, server, uploads, energy)       # step 3-4
        clients = [uploads[i]["client"] if i in uploads else client
                   for i, client in enumerate(clients)]

        # All that the next round needs: the mentee; of each client its mentor, optimizer and W.
        state = {"round": t, "server": server, "clients": clients}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **ledger(fed, uploads, numbers_down)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedkd", run,
    scores={"client_accuracy_own": "mentors, own classes", "client_accuracy": "mentors",
            "server_accuracy": "mentee"},
    keeps=("server", "clients"), mixed_networks=True, server="images", plateau=("lr",),
    check_settings=check_settings, evaluate=evaluate,
    columns=("client_accuracy_own", "client_accuracy", "server_accuracy"))
