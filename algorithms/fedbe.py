"""FedBE: the clients' models are read as draws from a posterior over models; more are sampled from it, and all of them vote.

Chen and Chao, "FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning", ICLR 2021; here as the baseline of
FedSDD (Kwan and Song, arXiv:2312.17029v1), section 5.2 and Table 5, whose settings are the defaults. The global model is
FedAvg's; the ensemble of the average, the clients' models and the samples only predicts. With --distill the average learns from
the ensemble on public images, as in FedBE's own paper.
What travels: weights, down and up. Public data: unlabelled, on the server, for --distill.
Run:   python fedkd_minimal.py --algo fedbe --posterior dirichlet

Paper              here                         shape            note
w_i                own                          M state_dicts    the clients' models after local training
w-bar              server["model"]              state_dict       their average, weighted by the numbers of samples
p_i                shares                       [M]              a client's share of the samples of the round
w^(m)              sampled                      state_dicts      drawn from the posterior
gamma              gamma                        [M]              one draw of a Dirichlet distribution
p_i-bar            teacher_logits               [N, C]           ln of the ensemble's sharpened probabilities

Where the paper is silent or we differ:
D1  written from FedBE's formulas, given in the functions below and pinned by their moments, without its text at hand
    [test_gaussian_samples_have_the_average_and_the_clients_variance]
    [test_dirichlet_samples_of_equal_clients_have_their_average]
D2  samples take the average's BatchNorm statistics, which a draw could make negative     [test_samples_have_the_averages_buffers]
D3  the ensemble predicts by its mean logits, as FedSDD's do        [test_ensemble_is_the_mean_of_average_clients_and_samples]
D4  the teacher of --distill is the mean of the probabilities, squared and normalised (FedBE sharpens; the power is ours)
                                                                    [test_teacher_is_the_sharpened_mean_of_probabilities]
D5  --distill makes plain steps of SGD at FedSDD's rate and batch size; FedBE averages the student over its path (SWA)
                                                                    [test_distil_is_plain_sgd_from_the_average]
"""
import itertools
import math
from typing import Literal

import torch

from algorithms import fedavg
from algorithms.common import (accuracy, average_weights, batches, disagreement, distillation_loss, forward, is_finite,
                               predict_members, run_clients, sample_clients, seconds, seeded, stream, test_accuracy)
from communication import weights_ledger

PUBLIC = "unlabelled"
MIXED = False   # may clients have different networks?
COLUMNS = ("accuracy", "ensemble_accuracy", "disagreement")
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")     # BatchNorm's, which are averaged and never drawn


def gaussian_sample(state_dicts, weights, rng):
    """A model drawn from N(w-bar, diag(sum_i p_i (w_i - w-bar)²)), entry by entry.

    state_dicts, weights   M models of one network and their weights p_i, normalised here; rng: a numpy Generator
    returns                a state_dict; BatchNorm's statistics and counters are the averaged ones
    limits                 where the models agree nothing is drawn. Needs `average_weights` and `BUFFERS`.
    """
    average = average_weights(state_dicts, weights)
    sample = dict(average)
    for name, mean in average.items():
        if not name.endswith(BUFFERS):
            variance = sum(p * (w[name] - mean).square() for p, w in zip(weights, state_dicts)) / sum(weights)
            noise = torch.from_numpy(rng.standard_normal(tuple(mean.shape), dtype="float32")).to(mean)
            sample[name] = mean + variance.sqrt() * noise
    return sample


def dirichlet_sample(state_dicts, weights, rng, concentration=1.0):
    """A random average: sum_i gamma_i p_i w_i / sum_i gamma_i p_i with gamma ~ Dir(concentration, ..., concentration).

    state_dicts, weights   M models of one network and their weights p_i; rng: a numpy Generator
    returns                a state_dict; BatchNorm's statistics and counters are those of the average by p alone
    limits                 large concentration: the average; small: one of the models. Needs `average_weights` and `BUFFERS`.
    """
    gamma = rng.dirichlet([concentration] * len(weights))                                # [M]
    sample = average_weights(state_dicts, [g * p for g, p in zip(gamma, weights)])
    average = average_weights(state_dicts, weights)
    return {name: average[name] if name.endswith(BUFFERS) else w for name, w in sample.items()}


def sharpened_teacher(member_logits):
    """ln of the squared mean of the members' probabilities, [M, N, C] -> [N, C]: its softmax is the sharpened teacher.

    >>> sharpened_teacher(torch.tensor([[[.8, .2]], [[.4, .6]]]).log()).softmax(-1)      # means .6, .4; squares .36, .16
    tensor([[0.6923, 0.3077]])
    """
    log_mean = member_logits.log_softmax(-1).logsumexp(0) - math.log(len(member_logits))
    return 2 * log_mean


def distil(fed, t, model_state, teacher_logits, *, distill_steps, server_batch_size, server_lr):
    """The state_dict of the global model after `distill_steps` steps of SGD towards teacher_logits [N, C] on the public images."""
    model = fed.client_model(0)
    model.load_state_dict(model_state)
    model.train()
    update = torch.optim.SGD(model.parameters(), lr=server_lr)
    rng = stream(fed.seed, "distil", t)
    images = fed.public.images
    with seeded(fed.seed, "distil", t):
        passes = batches(len(images), server_batch_size, distill_steps, rng, fed.device)    # more than enough: a pass is >= 1 step
        for rows in itertools.islice(passes, distill_steps):                             # rows: [B]
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = distillation_loss(teacher_logits[rows], forward(fed, model, batch))
            update.zero_grad()
            loss.backward()
            update.step()
    return model.state_dict()


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, local_epochs: int = 40, batch_size: int = 64,
        lr: float = 0.8, posterior: Literal["gaussian", "dirichlet"] = "gaussian", samples: int = 10, concentration: float = 1.0,
        distill: bool = False, distill_steps: int = 5000, server_batch_size: int = 256, server_lr: float = 0.1,
        secure_sum: bool = False):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    samples         models drawn in a round; 0: the average and the clients alone
    concentration   of --posterior dirichlet
    distill         the global model learns from the ensemble; otherwise the ensemble only predicts
    secure_sum      an error that says why
    """
    if secure_sum:
        raise ValueError("fedbe cannot have --secure-sum: the clients' own models are in its ensemble, so the server must see them "
                         "one by one, and a secure sum hides them; fedsdd can, whose teachers are averages")
    draw = {"gaussian": gaussian_sample, "dirichlet": lambda *three: dirichlet_sample(*three, concentration)}[posterior]
    settings = dict(local_epochs=local_epochs, batch_size=batch_size, lr=lr)
    model = fed.client_model(0)                          # a workbench: states are loaded into it to predict
    if state is None:
        state = {"round": 0, "server": fedavg.start_server(fed)}
        server_accuracy = test_accuracy(fed, model, state["server"]["model"])
        yield {"accuracy": server_accuracy, "server_accuracy": server_accuracy}, state
    server = state["server"]
    for t in range(state["round"] + 1, rounds + 1):
        start = seconds(fed.device)
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        trained = run_clients(lambda i: fedavg.train_client(fed, i, t, server, None, **settings), active,
                              fed.device)                                                # FedSDD Eq. (1)
        good = {i: upload for i, (upload, _) in zip(active, trained) if is_finite(upload)}
        server = fedavg.aggregate(fed, server, good)                                     # FedSDD Eq. (2)
        trained_at = seconds(fed.device)

        own = [upload["model"] for upload in good.values()]                              # M
        shares, rng = [len(fed.private[i].labels) for i in good], stream(fed.seed, "posterior", t)
        sampled = [draw(own, shares, rng) for _ in range(samples)] if good else []
        members = [server["model"], *own, *sampled]                                      # 1 + M + samples
        bench = [model] * len(members)
        teacher_forwards = 0                                                             # samples predicted by a teacher
        if distill:
            member_logits = predict_members(fed, bench, members, fed.public.images)      # [1 + M + samples, N, C]
            teacher_forwards = member_logits.shape[0] * member_logits.shape[1]
            teacher_logits = sharpened_teacher(member_logits)                            # [N, C]
            server = {"model": distil(fed, t, server["model"], teacher_logits, distill_steps=distill_steps,
                                      server_batch_size=server_batch_size, server_lr=server_lr)}
        distilled_at = seconds(fed.device)

        member_logits = predict_members(fed, bench, members, fed.test.images)            # [1 + M + samples, N_test, C]
        server_accuracy = test_accuracy(fed, model, server["model"])
        metrics = {"accuracy": server_accuracy, "server_accuracy": server_accuracy,
                   "ensemble_accuracy": accuracy(member_logits.mean(0), fed.test.labels),
                   "disagreement": disagreement(member_logits), "teacher_forwards": teacher_forwards,
                   "bad_uploads": len(active) - len(good),
                   "local_seconds": trained_at - start, "distill_seconds": distilled_at - trained_at,
                   **weights_ledger([(model, len(active))], fedavg.COPIES)}
        yield metrics, {"round": t, "server": server}
