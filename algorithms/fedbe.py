"""FedBE: an ensemble of the average, the clients' models, and models drawn from their posterior.

Chen and Chao, "FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning", ICLR 2021;
written from the formulas that others quote, without its own text; here as the baseline of FedSDD
(Kwan and Song, arXiv:2312.17029v1), section 5.2 and Table 5, whose settings are the defaults.

Run:   python fedkd_minimal.py --algo fedbe --posterior dirichlet
What travels: in each round the global model, down to each active client; its trained model and its
number of samples, up.
Public data: none; with --distill, unlabeled images on the server alone.

Paper              here                         shape         note
w_i                client_states                M state_dicts the clients' models after training
w-bar              server["model"]              state_dict    their average by numbers of samples
p_i                sizes / their sum            [M]           clients' shares of all samples
w^(m)              drawn                        state_dicts   models drawn from the posterior
gamma              gamma                        [M]           one draw of a Dirichlet distribution
E                  len(members)                 number        models of the ensemble
the teacher        teacher_logits               [N, C]        their softmax is the sharpened mean
                                                              probability of the ensemble

A round:
 1  active clients train the global model on their own samples: cross-entropy, plain SGD
 2  w-bar is the average of their models, by numbers of samples: FedAvg's global model
 3  the ensemble is w-bar, the clients' models and --samples models drawn from the posterior, which
    --posterior names
 4  by default, as in FedSDD's Table 5, the ensemble only predicts; the next round starts at w-bar.
    With --distill, as in FedBE, w-bar first makes distill_steps steps of plain SGD on N public
    images, on KL(teacher || student): the teacher is the sharpened mean of the probabilities of
    all E models. (What ensemble_accuracy scores is the mean of their logits: D3)

Modes: clients and the student train in train mode, with --augment on augmented images; each loss is
the mean over the batch. All predictions are of clean images in eval mode: the student sees an
augmented image, its teacher the clean one.
Kept between rounds: the global model. No optimizer, no drawn model and no client's model is kept.
Scores: `accuracy` and server_accuracy are of the global model after step 4, ensemble_accuracy of
the ensemble of step 3; disagreement is among its members.
Bad upload (nan or infinity): `collect` leaves it out of the average and of the ensemble. If none is
left, the ensemble is the old global model alone, and nothing is distilled.
Departures (docs/DEPARTURES.md has more):
D3  the ensemble predicts by the mean of its logits, as FedSDD's does
D4  a teacher's probabilities are the mean ones, squared and normalized: FedBE sharpens, too; the
    exponent 2 is our choice
D5  --distill takes plain steps of SGD, at FedSDD's rate and batch size; FedBE averages the student
    over its path (SWA)
"""
import math
from typing import Literal

import torch

from algorithms import Algorithm, checked, fedavg, fedsdd
from algorithms.equations import average_weights, ensemble_logits
from federation import stream, timed
from federation.communication import weights_ledger
from federation.evaluation import accuracy, disagreement, global_metrics
from federation.parallel import run_students, sample_clients
from federation.training import network, predict_members
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


def draw_models(fed, t, uploads, posterior, samples, concentration):
    """`samples` models drawn from the posterior of round t: state_dicts; none without uploads."""
    if not uploads:
        return []
    client_states = [upload["model"] for upload in uploads.values()]
    sizes = [len(fed.private[i].labels) for i in uploads]
    rng = stream(fed.seed, "posterior", t)
    if posterior == "gaussian":
        return [gaussian_sample(client_states, sizes, rng) for _ in range(samples)]
    return [dirichlet_sample(client_states, sizes, rng, concentration) for _ in range(samples)]


@timed
def evaluate(fed, state, members=None):
    """Test accuracy of the global model and, after a round, of the ensemble of its `members`."""
    metrics = global_metrics(fed, [state["server"]])
    if members is None:
        return metrics
    member_logits = predict_members(fed, members, fed.test.images)                       # [E, N, C]
    logits = ensemble_logits(member_logits)                                          # [N, C], D3
    return metrics | {"ensemble_accuracy": accuracy(logits, fed.test.labels),
                      "disagreement": disagreement(member_logits)}


@checked
def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, local_epochs: int = 40,
        local_steps: int | None = None, batch_size: int = 64, lr: float = 0.8,
        posterior: Literal["gaussian", "dirichlet"] = "gaussian", samples: int = 10,
        concentration: float = 1.0, distill: bool = False, distill_steps: int = 5000,
        server_batch_size: int = 256, server_lr: float = 0.1):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    hyperparameters.py explains the keywords.
    """
    training = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                    lr=lr, optimizer_name="sgd", weight_decay=0.0)
    distillation = dict(distill_steps=distill_steps, server_batch_size=server_batch_size,
                        server_lr=server_lr)
    if state is None:
        state = {"round": 0, "server": fedavg.start_server(fed, fed.architecture[0])}
        yield evaluate(fed, state), state
    server = state["server"]
    for t in range(state["round"] + 1, rounds + 1):
        # FedAvg: active clients train the global model, and the server averages their models.
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        uploads = collect(fed, active,                                       # FedSDD Eq. (1)
                          lambda i: fedavg.train_client(fed, i, t, server, **training))
        server = fedavg.aggregate(fed, server, uploads)                      # FedSDD Eq. (2)

        # The ensemble: the average, the clients' models, and models drawn from their posterior.
        drawn = draw_models(fed, t, uploads, posterior, samples, concentration)
        members = [server, *(server | {"model": upload["model"]} for upload in uploads.values()),
                   *(server | {"model": model} for model in drawn)]

        # FedBE's distillation: the average learns from the ensemble.
        num_forwards = 0
        if distill and uploads:
            num_forwards = len(members) * len(fed.public.images)
            member_logits = predict_members(fed, members, fed.public.images)             # [E, N, C]
            teacher_logits = sharpened_teacher(member_logits)                            # [N, C]
            [server] = run_students(fed, lambda _: fedsdd.distill(                       # D5
                fed, server, teacher_logits, temperature=1.0, keys=("distil", t),
                **distillation), [0])

        state = {"round": t, "server": server}
        model = network(fed, server["architecture"])
        metrics = {**evaluate(fed, state, members), "bad_uploads": len(active) - len(uploads),
                   "teacher_forwards": num_forwards,
                   **weights_ledger([(model, len(active))], fedavg.COPIES)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedbe", run,
    scores={"server_accuracy": "server", "ensemble_accuracy": "ensemble"},
    keeps=("server",),
    public="unlabeled", public_for=("distill",),
    columns=("accuracy", "ensemble_accuracy", "disagreement"))
