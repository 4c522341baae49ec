"""FedGEMS: small clients teach a large server model where it is wrong and they are right.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027.
What travels: logits of the public samples that the server requests up, of all public samples down.
Public data: labeled, on the server and on every client. All networks may differ.
Run:   python fedkd_minimal.py --algo fedgems

Paper                      here                     shape         note
X^0, Y^0                   fed.public               [N, ...], [N] public samples and their labels
L_Global                   pool.logits, pool.mask   [N, C], [N]   the server's latest correct logits
S_Correct                  correct                  bool [B]      of one batch
l_{C_j}                    client_logits            [M, n, C]     of the n samples outside the pool
C_Reliable                 reliable                 bool [M, n]   client j is right on the sample
alpha_{C_j}                weights                  [M, n]        Eq. (4)
sum_j alpha_{C_j} l_{C_j}  fused_logits             [n, C]        Eq. (5)
L_s                        server_logits            [N, C]        the clients learn from these
epsilon                    epsilon (--epsilon)      number        weight of CE in Eq. (2), (5), (6)

Each public sample of a server batch is one of these cases:
  self_training          the server is right: cross-entropy alone, and its logits go to the pool
  self_distillation      the server is wrong but was right before: the pool teaches it
  ensemble_distillation  the server was never right: the clients that are right teach it
  nobody_right           the same, but no client is right: cross-entropy alone
In the last two cases the server requests the sample, and all clients upload their logits of it. No
sample leaves the pool. Clients predict all samples outside it; bytes count the requested ones.

Where the paper is silent or contradicts itself, or we differ:
D1  the order of section 3.2, private training first [test_a_round_is_the_papers_algorithm]
D2  Eq. (4)'s softmax is over reliable clients [test_eq4_unreliable_client_gets_exactly_zero]
D3  H is at least 1e-6, so that 1/H is finite [test_eq4_certain_clients_share_equally]
D4  no client is right: cross-entropy alone [test_nobody_right_is_plain_cross_entropy]
D5  the pool keeps the logits that were checked; Alg. 1, line 7 stores those of the round before
    [test_a_round_is_the_papers_algorithm]
D6  the check is in eval mode, on clean images, before the step [test_selection_is_in_eval_mode]
D7  clients learn from one pass of the trained server; Alg. 1, line 15 mixes all models of an epoch
    [test_a_round_is_the_papers_algorithm]
D8  epsilon weighs CE, as in the equations; the text says it weighs distillation [test_eq2_by_hand]
D9  one mean over the batch, not one per case [test_server_loss_is_one_mean_over_mixed_cases]
D10 clients start from different weights [test_every_client_starts_from_weights_of_its_own]
D11 Adam is AMSGrad, as in FedGKT's public code [test_amsgrad_is_the_papers_adam]
D12 --augment: who learns sees augmented images, who teaches clean ones; Eq. (2), (5) and (6) have
    one image for both [test_augmentation_is_for_what_is_trained_on_alone]
"""
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from algorithms import evaluation
from algorithms.common import Trained, collect_logits, is_finite, run_clients, timed
from algorithms.communication import logits_ledger
from algorithms.equations import kl_divergence
from algorithms.training import (OPTIMIZERS, Optimizer, batches, forward, predict_logits, restore,
                                 snapshot, train, train_with_labels)
from federation import needs_public, seeded, stream

PUBLIC = "labeled"
MIXED = True    # may clients have different networks?
PLATEAU = ("lr", "server_lr")    # what --lr-patience reduces
CASES = ("self_training", "self_distillation", "ensemble_distillation", "nobody_right")
COLUMNS = ("server_accuracy", "client_accuracy_distilled", *CASES)
evaluate = partial(evaluation.evaluate, main_metric="server_accuracy")


def entropy(logits):
    """H = - sum_c p_c ln p_c in nats, p = softmax(logits): [..., C] -> [...].   Eq. (3)

    >>> entropy(torch.tensor([[0., 0.], [0., 1.]]))
    tensor([0.6931, 0.5822])
    """
    probs = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return torch.special.entr(probs).sum(-1).to(logits.dtype)    # entr(p) = -p ln p, and 0 at 0


def reliable_clients(client_logits, labels):
    """True where a client is right with finite logits: [M, N, C], [N] -> bool [M, N].   3.3.2"""
    return (client_logits.argmax(-1) == labels) & torch.isfinite(client_logits).all(-1)


def entropy_weights(client_logits, reliable):
    """The weight of each client on each sample: softmax over the reliable clients of 1/H.   Eq. (4)

    client_logits, reliable   [M, N, C], bool [M, N]
    returns                   [M, N]: 0 for unreliable clients; each column sums to 1, or is 0 where
                              no client is reliable. Needs `entropy`.
    >>> client_logits = torch.tensor([[[2., 0.]], [[1., 0.]], [[0., 9.]]])
    >>> entropy_weights(client_logits, torch.tensor([[True], [True], [False]])).T
    tensor([[0.7349, 0.2651, 0.0000]])
    """
    wide = torch.promote_types(client_logits.dtype, torch.float32)       # 1e6 is inf in float16
    confidence = 1 / entropy(client_logits.to(wide)).clamp(min=1e-6)                     # [M, N]
    weights = confidence.masked_fill(~reliable, float("-inf")).softmax(0)
    return torch.where(reliable, weights, 0.0).to(client_logits.dtype)


def fuse_logits(client_logits, weights):
    """sum_j weights[j] * client_logits[j]: [M, N, C], [M, N] -> [N, C].   Eq. (5)"""
    weights = weights.unsqueeze(-1)                                                      # [M, N, 1]
    return torch.where(weights != 0, weights * client_logits, 0.0).sum(0)    # 0 x nan counts as 0


def server_loss(logits, labels, teacher_logits, has_teacher, epsilon):
    """CE where has_teacher is False, epsilon CE + (1 - epsilon) KL(teacher || server) where True.

    logits, teacher_logits   [B, C]; the teacher gets no gradient; without has_teacher it may be nan
    labels, has_teacher      [B], bool [B]
    returns                  scalar, mean over the batch. Eq. (1), (2), (5). Needs `kl_divergence`.
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                               # [B]
    kl = kl_divergence(torch.where(has_teacher[:, None], teacher_logits, 0.0), logits)   # [B]
    return torch.where(has_teacher, epsilon * ce + (1 - epsilon) * kl, ce).mean()


def client_loss(logits, labels, server_logits, epsilon):
    """epsilon CE + (1 - epsilon) KL(server || client), the mean over the batch: a scalar.   Eq. (6)

    logits, labels, server_logits    [B, C], [B], [B, C]. Needs `kl_divergence`.
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                               # [B]
    return (epsilon * ce + (1 - epsilon) * kl_divergence(server_logits, logits)).mean()


class Pool(NamedTuple):         # the server's logits of samples that it has predicted correctly
    logits: torch.Tensor        # [N, C]; zeros where mask is False
    mask: torch.Tensor          # bool [N]: samples that are in the pool


def empty_pool(fed):
    """The `Pool` before round 1."""
    num_samples = len(fed.public.labels)
    return Pool(torch.zeros(num_samples, fed.num_classes, device=fed.device),
                torch.zeros(num_samples, dtype=torch.bool, device=fed.device))


class Fusion(NamedTuple):       # what the server's training in a round gives
    server: dict                # a snapshot
    server_logits: torch.Tensor     # [N, C], of the final model on all public samples
    pool: Pool
    cases: torch.Tensor         # bool [4, N]: each sample's case in the last pass, as in CASES
    requested: torch.Tensor     # bool [N]: samples whose logits the clients uploaded


def train_client(fed, i, t, client, rows, *, local_epochs, batch_size, new_optimizer):
    """Private training of client i, then its logits [n, C] of the public `rows`."""
    model = fed.client_model(i)
    optimizer = restore(client, model, new_optimizer)
    train_with_labels(fed, model, optimizer, fed.private[i], epochs=local_epochs,
                      batch_size=batch_size, keys=("local", t, i))           # Alg. 1, line 25-27
    logits = predict_logits(fed, model, fed.public.images[rows])             # Alg. 1, line 31-33
    return Trained(logits, snapshot(model, optimizer))


def distill_client(fed, i, t, client, server_logits, *, public_epochs, batch_size, new_optimizer,
                  epsilon):
    """Client i, a snapshot, after training on all public samples with server_logits [N, C]."""
    model = fed.client_model(i)
    optimizer = restore(client, model, new_optimizer)
    images, labels = fed.public

    def loss(logits, rows):                                                  # Alg. 1, line 22
        return client_loss(logits, labels[rows], server_logits[rows], epsilon)

    train(fed, model, optimizer, images, loss, epochs=public_epochs,         # Alg. 1, line 21, 23
          batch_size=batch_size, keys=("public", t, i))
    return snapshot(model, optimizer)


def fusion_metrics(fed, rows, client_logits, weights, fusion):
    """Shares of the four cases, size of the pool, effective number of teachers, bytes."""
    requested = fusion.requested[rows]                                       # bool [n]
    taught = weights[:, requested & (weights > 0).any(0)]                    # [M, samples taught]
    effective = (1 / taught.square().sum(0)).mean().item() if taught.numel() else None
    up, down = int(requested.sum()), len(fusion.requested)
    return {**dict(zip(CASES, fusion.cases.float().mean(1).tolist())),
            "pool": fusion.pool.mask.float().mean().item(), "effective_teachers": effective,
            "bad_uploads": sum(not is_finite(logits[requested]) for logits in client_logits),
            **logits_ledger(len(client_logits), fed.num_classes, up, down, indices=up)}


def who_teaches(correct, in_pool):
    """(nobody, the pool, the clients): who teaches each sample of a batch, bool [B] each.

    correct, in_pool    bool [B]: the server is right now; it was right before
    """
    from_pool = ~correct & in_pool                                           # Alg. 1, line 8
    requests = ~correct & ~in_pool                                           # Alg. 1, line 10-11
    return correct, from_pool, requests


@timed
def train_server(fed, t, server, pool, client_rows, fused_logits, has_reliable, *, server_epochs,
                 batch_size, new_optimizer, epsilon, who_teaches=who_teaches):
    """Selective knowledge fusion in round t: the `Fusion` after Alg. 1, line 3-15.

    client_rows, fused_logits, has_reliable    [n], [n, C], bool [n]: what the clients can teach
    who_teaches    the function above, or another choice, as in fedgems_ablations.py
    """
    model = fed.server_model()
    optimizer = restore(server, model, new_optimizer)
    images, labels = fed.public
    pool = Pool(pool.logits.clone(), pool.mask.clone())
    all_fused_logits, any_reliable = torch.zeros_like(pool.logits), torch.zeros_like(pool.mask)
    all_fused_logits[client_rows] = fused_logits                             # [N, C]
    any_reliable[client_rows] = has_reliable                                 # [N]
    cases, requested = pool.mask.new_zeros(4, len(labels)), torch.zeros_like(pool.mask)
    rng = stream(fed.seed, "server", t)                                      # for batches
    with seeded(fed.seed, "server", t):                                      # for dropout
        for rows in batches(len(labels), batch_size, server_epochs,          # Alg. 1, line 4
                            rng, fed.device):
            checked_logits = predict_logits(fed, model, images[rows])                    # [B, C]
            correct = checked_logits.argmax(1) == labels[rows]               # Alg. 1, line 5
            alone, from_pool, requests = who_teaches(correct, pool.mask[rows])
            from_clients = requests & any_reliable[rows]                                 # bool [B]
            has_teacher = from_pool | from_clients                                       # bool [B]
            teacher_logits = torch.where(from_pool[:, None], pool.logits[rows],
                                         all_fused_logits[rows])                         # [B, C]
            pool.logits[rows[correct]] = checked_logits[correct]             # Alg. 1, line 7
            pool.mask[rows[correct]] = True
            requested[rows[requests]] = True
            nobody_right = requests & ~from_clients                                      # bool [B]
            cases[:, rows] = torch.stack([alone, from_pool, from_clients, nobody_right])
            model.train()
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = server_loss(forward(fed, model, batch), labels[rows],     # Alg. 1, line 6, 9, 12
                               teacher_logits, has_teacher, epsilon)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()                                                 # Alg. 1, line 14
    server_logits = predict_logits(fed, model, images)                       # Alg. 1, line 15
    return Fusion(snapshot(model, optimizer), server_logits, pool, cases, requested)


def check(fed, **settings):
    """Raises ValueError without labeled public images, or without a network of the server."""
    needs_public(fed, labels=True)
    fed.server_model()


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
        server_epochs: int = 1, batch_size: int = 256, server_batch_size: int = 256,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, epsilon: float = 0.75, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    optimizer    optimizer of clients and server, kept over the rounds
    The other keywords are in hyperparameters.py.
    """
    make = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    at_client = dict(batch_size=batch_size, new_optimizer=partial(make, lr=lr))
    at_server = dict(batch_size=server_batch_size, new_optimizer=partial(make, lr=server_lr))
    ids = range(len(fed.private))
    if state is None:
        check(fed)
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model()), "pool": empty_pool(fed)._asdict()}
        yield {**evaluate(fed, state), "pool": 0.0}, state
    clients, server, pool = state["clients"], state["server"], Pool(**state["pool"])
    labels = fed.public.labels
    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # Clients train on their own data, and predict the samples that the server may request.
        rows = torch.nonzero(~pool.mask)[:, 0]                                           # [n]
        client_logits, trained = collect_logits(                             # line 25-27, 31-33
            fed, rows, lambda i: train_client(fed, i, t, clients[i], rows,
                                                 local_epochs=local_epochs, **at_client), attack)

        # On each sample only clients that are right count; more certain clients count more.
        reliable = reliable_clients(client_logits, labels[rows])                         # [M, n]
        weights = entropy_weights(client_logits, reliable)                   # Eq. (4), [M, n]
        fused_logits = fuse_logits(client_logits, weights)                   # Eq. (5), [n, C]

        # The server learns alone, from its pool or from the clients: Alg. 1, line 3-15.
        fusion = train_server(fed, t, server, pool, rows, fused_logits, reliable.any(0),
                              server_epochs=server_epochs, epsilon=epsilon, **at_server)
        server, pool = fusion.server, fusion.pool

        # All clients learn from the server's logits of all public samples.
        clients = run_clients(fed, lambda i: distill_client(                 # Alg. 1, line 17, 19
            fed, i, t, trained[i], fusion.server_logits, public_epochs=public_epochs,
            epsilon=epsilon, **at_client), ids)

        state = {"round": t, "clients": clients, "server": server, "pool": pool._asdict()}
        metrics = {**evaluate(fed, state, trained),
                   **fusion_metrics(fed, rows, client_logits, weights, fusion)}
        yield metrics, state
