"""FedBE: an ensemble of the average, the clients' models, and models drawn from their posterior.

Chen and Chao, "FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning", ICLR 2021,
arXiv:2009.01974; written from the formulas that others quote, without its own text. The defaults
are the settings of FedSDD's Table 5 (Kwan and Song, arXiv:2312.17029v1).

Run:    python fedkd_minimal.py --algo fedbe --posterior dirichlet    small settings, under a minute
        --paper fedsdd has FedSDD's, which are the defaults of `run`
Data:   clients: their own labeled images; server: with --distill, N unlabeled public images
Sent:   down: the global model, to each active client; up: its trained model, its sample count

A round; the numbers are ours:
 1  active clients train the global model on their own images, by cross-entropy: w_i
 2  w-bar, the mean of their models, weighed by their shares p_i of all samples: the global model
 3  the ensemble is w-bar, the clients' models, and --samples models w^(m) drawn by --posterior from
      gaussian   N(w-bar, diag(sum_i p_i (w_i - w-bar)²))
      dirichlet  sum_i gamma_i p_i w_i / sum_i gamma_i p_i with gamma ~ Dir(concentration)
 4  in FedSDD's Table 5 it only predicts. With --distill, as in FedBE, w-bar then learns from it:
    SGD on KL(teacher || student); the teacher is the mean of its probabilities, sharpened

Scores: `accuracy` is the global model's after step 4, `ensemble_accuracy` the ensemble's of step 3
D3  the ensemble predicts by the mean of its logits, as FedSDD's does
D4  the teacher's probabilities are squared and normalized; FedBE sharpens, too: the power 2 is ours
D5  --distill takes plain steps of SGD, at FedSDD's rate and batch size; FedBE averages the student
    over its path (SWA)
"""
import math
from typing import Literal

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import average_weights, distillation_loss, ensemble_logits
from federation import stream, timed
from federation.communication import weights_ledger
from federation.evaluation import accuracy, disagreement, global_metrics
from federation.parallel import on_server, sample_clients
from federation.training import forward, load_model, network, predict_members, shuffled
from federation.uploads import collect

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")     # BatchNorm's: never drawn


def gaussian_sample(state_dicts, weights, rng):
    """A model drawn from N(w-bar, diag(sum_i p_i (w_i - w-bar)²)), entry by entry: a state_dict.

    state_dicts, weights   M models of one network and their weights p_i, normalized here
    rng                    a numpy Generator
    returns                BatchNorm's statistics and counters are the averaged ones
    limits                 an entry that is equal in all models stays, and so does a mask, whose
                           entries are truth values or -inf
    """
    average = average_weights(state_dicts, weights)
    sample = dict(average)
    for name, mean in average.items():
        is_mask = not mean.is_floating_point() or not mean.isfinite().all()
        if not is_mask and not name.endswith(BUFFERS):
            deviations = (p * (state_dict[name] - mean).square()
                          for p, state_dict in zip(weights, state_dicts))
            variance = sum(deviations) / sum(weights)
            noise = rng.standard_normal(tuple(mean.shape), dtype="float32")
            sample[name] = mean + variance.sqrt() * torch.from_numpy(noise).to(mean)
    return sample


def dirichlet_sample(state_dicts, weights, rng, concentration=1.0):
    """A random average sum_i gamma_i p_i w_i / sum_i gamma_i p_i: a state_dict.

    gamma ~ Dir(concentration, ..., concentration)
    state_dicts, weights   M models of one network and their weights p_i
    rng                    a numpy Generator
    returns                BatchNorm's statistics and counters are those of the average by p alone
    limits                 a large concentration gives the average, a small one gives one model
    """
    gamma = rng.dirichlet([concentration] * len(weights))                    # [M]
    sample = average_weights(state_dicts, [g * p for g, p in zip(gamma, weights)])
    average = average_weights(state_dicts, weights)
    return {name: average[name] if name.endswith(BUFFERS) else drawn
            for name, drawn in sample.items()}


def sharpened_teacher(member_logits):
    """Logits whose softmax is the squared, normalized mean of the members' probabilities.

    member_logits    [E, N, C]
    returns          [N, C]
    >>> member_logits = torch.tensor([[[.8, .2]], [[.4, .6]]]).log()
    >>> sharpened_teacher(member_logits).softmax(-1)             # means .6, .4; squares .36, .16
    tensor([[0.6923, 0.3077]])
    """
    log_mean = member_logits.log_softmax(-1).logsumexp(0) - math.log(len(member_logits))
    return 2 * log_mean                                                      # D4


def train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr):
    """Client i's upload in round t: the global model after SGD on its own images."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, server)                                       # FedSDD Eq. (1): a copy
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    # `shuffled` augments with --augment; ("local", t, i) names the random numbers of this training.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"model": model.state_dict()}


def aggregate(fed, server, uploads):
    """The global model: w-bar, the mean of the models {client: upload}, by sample counts."""
    if not uploads:                                      # none was usable: the model stays
        return server
    sizes = [len(fed.private[i].labels) for i in uploads]
    models = [upload["model"] for upload in uploads.values()]
    return server | {"model": average_weights(models, sizes)}                # FedSDD Eq. (2)


def draw_models(fed, t, uploads, posterior, samples, concentration):
    """`samples` models drawn from the posterior of round t: state_dicts."""
    if not uploads:                                      # none was usable: nothing to draw from
        return []
    models = [upload["model"] for upload in uploads.values()]
    sizes = [len(fed.private[i].labels) for i in uploads]
    rng = stream(fed.seed, "posterior", t)               # of this round's draws
    if posterior == "gaussian":
        return [gaussian_sample(models, sizes, rng) for _ in range(samples)]
    return [dirichlet_sample(models, sizes, rng, concentration) for _ in range(samples)]


@timed
@on_server
def train_server(fed, t, server, teacher_logits, distill_steps, server_batch_size, server_lr):
    """The global model after SGD towards teacher_logits [N, C] on the public images."""
    model = load_model(fed, server)
    optimizer = torch.optim.SGD(model.parameters(), lr=server_lr)
    model.train()
    # With --augment the student sees augmented images; the teacher saw the clean ones.
    for rows, batch in shuffled(fed, fed.public.images, ("distil", t),
                                batch_size=server_batch_size, steps=distill_steps):
        student_logits = forward(fed, model, batch)                                      # [B, C]
        loss = distillation_loss(teacher_logits[rows], student_logits, temperature=1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                                 # D5
    return server | {"model": model.state_dict()}


@timed
def evaluate(fed, server):
    """Test accuracy of the global model."""
    return global_metrics(fed, [server])


@timed
def evaluate_ensemble(fed, members):
    """Test accuracy of the ensemble, and how often two of its members differ."""
    member_logits = predict_members(fed, members, fed.test.images)                       # [E, N, C]
    logits = ensemble_logits(member_logits)                                          # [N, C], D3
    return {"ensemble_accuracy": accuracy(logits, fed.test.labels),
            "disagreement": disagreement(member_logits)}


@checked
def run(fed, state=None, *,
        rounds: int = 100,                                         # in all
        participation: float = 0.4,                                # share of the clients in a round
        local_epochs: int = 40,                                    # a client's passes in a round,
        local_steps: int | None = None,                            #   or, if given, its SGD steps
        batch_size: int = 64,                                      # of a client
        lr: float = 0.8,                                           # of a client
        posterior: Literal["gaussian", "dirichlet"] = "gaussian",  # of the clients' models
        samples: int = 10,                                         # models drawn from it
        concentration: float = 1.0,                                # of the Dirichlet distribution
        distill: bool = False,                                     # as in FedBE; off: Table 5
        distill_steps: int = 5000,                                 # SGD steps in a round
        server_batch_size: int = 256,                              # of these steps
        server_lr: float = 0.1):                                   # of these steps
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    if state is None:
        name = fed.architecture[0]                       # all clients have this network
        server = {"architecture": name, "model": network(fed, name).state_dict()}
        state = {"round": 0, "server": server}
        yield evaluate(fed, server), state
    server = state["server"]

    for t in range(state["round"] + 1, rounds + 1):
        # As in FedAvg, active clients train the global model, and the server averages the results.
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))

        def train(i):
            return train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr)

        # {i: train(i)}, in parallel; without unusable uploads: nan, infinity, 1e30 or more.
        uploads = collect(fed, active, train)                                # step 1
        average = aggregate(fed, server, uploads)                            # step 2

        # The ensemble: the average, the clients' models, and models drawn from a distribution that
        # is fitted to them. Without any usable upload it is the old global model alone.
        drawn = draw_models(fed, t, uploads, posterior, samples, concentration)
        client_models = [upload["model"] for upload in uploads.values()]
        members = [average,                                                  # step 3
                   *(average | {"model": model} for model in client_models + drawn)]

        # The average learns from the ensemble, whose members predict in eval mode.
        server = average
        if distill and uploads:
            member_logits = predict_members(fed, members, fed.public.images)             # [E, N, C]
            teacher_logits = sharpened_teacher(member_logits)                            # [N, C]
            server = train_server(fed, t, average, teacher_logits, distill_steps,        # step 4
                                  server_batch_size, server_lr)

        # All that the next round needs; the clients' and the drawn models are forgotten.
        state = {"round": t, "server": server}
        # Measured; no step above sees it.
        model = network(fed, server["architecture"])
        teacher_forwards = len(members) * len(fed.public.images) if distill and uploads else 0
        metrics = {**evaluate(fed, server), **evaluate_ensemble(fed, members),
                   "bad_uploads": len(active) - len(uploads), "teacher_forwards": teacher_forwards,
                   **weights_ledger([(model, len(active))], 1)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedbe", run,
    scores={"server_accuracy": "server", "ensemble_accuracy": "ensemble"},
    keeps=("server",),
    public="unlabeled", public_for=("distill",),
    columns=("accuracy", "ensemble_accuracy", "disagreement"))
