"""FedGEMS: small clients teach a large server model where it is wrong and they are right.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027.

Run:   python fedkd_minimal.py --algo fedgems
       (small settings of experiment/presets.py: rounds 10, local_epochs 5, batch_size 64; the
       defaults of `run` below are the paper's: --paper fedgems-homogeneous)
What travels: in each round the indices of the public samples that the server requests, down; all
clients' logits of them, up; then the server's logits of all public samples, down. No weights.
Public data: labeled, on the server and on every client. All networks may differ.

Paper                      here                     shape         note
X^0, Y^0                   fed.public               [N, ...], [N] public samples and their labels
L_Global                   pool.logits, pool.mask   [N, C], [N]   the pool: the server's own logits
S_Correct                  correct                  bool [B]      of one batch
l_{C_j}                    client_logits            [M, n, C]     of the n samples outside the pool
C_Reliable                 reliable                 bool [M, n]   client j is right on the sample
alpha_{C_j}                weights                  [M, n]        Eq. (4)
sum_j alpha_{C_j} l_{C_j}  fused_logits             [n, C]        Eq. (5)
L_s                        server_logits            [N, C]        the clients learn from these
epsilon                    epsilon (--epsilon)      number        weight of CE in Eq. (2), (5), (6)

Algorithm 1 in the order of a round here (D1), with the paper's line numbers. CE is cross-entropy;
with a teacher the loss is epsilon CE + (1 - epsilon) KL(teacher || student), at temperature 1. Each
network has one optimizer for all of its trainings: AMSGrad, a kind of Adam (--optimizer).
24-27  each client trains on its own samples, for local_epochs: CE. Then it predicts all samples
       that the server may request (29-33); `bytes_up` counts those that it does request
 4     the server trains on all public samples, for server_epochs, in batches. Before each step on
       a batch's mean loss (14) it predicts the batch, in eval mode, not augmented. A sample's case:
 5- 7    self_training, if the server is right: CE, Eq. (1). These logits go to the pool
 8- 9    self_distillation, if it is wrong, but was right before: the pool teaches, Eq. (2)
10-12    ensemble_distillation otherwise. The server requests the sample; the clients that are right
         teach it: the sum of their logits, weighed by softmax(1/H), where H is the entropy of a
         client's prediction, Eq. (3)-(5). nobody_right: if none is, CE; the paper leaves this open
15     after the last step the server predicts all public samples: L_s
17-23  each client trains on all public samples, for public_epochs, taught by L_s, Eq. (6)

Kept between rounds: all networks, the states of their optimizers, and the pool, which only grows.
Scores: server_accuracy (also `accuracy`) and client_accuracy_distilled at the end of a round,
client_accuracy_private after line 27; the clients' are means. --public half, the default, halves
the test set, too: the server is scored on the public half, the clients on the private half.
Bad upload: a client counts as wrong on a sample of which its logits hold nan, infinity or a number
of 1e30 or more; it teaches on the others. bad_uploads: clients with such a requested sample.

Departures (more: docs/DEPARTURES.md):
D1  private training opens a round, as in section 3.2; in Algorithm 1 and section 3.4 it closes it
D2  Eq. (4)'s softmax is over the reliable clients alone; the paper does not say over which
D3  epsilon weighs CE, as in the equations; the text says that it weighs the distillation
D4  the pool keeps the logits that were just checked; line 7 stores those of the round before
D5  L_s is of the server after its last step; line 15 stands inside the loop over the batches
"""
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from algorithms import evaluation
from algorithms.clients import run_clients, run_server
from algorithms.communication import logits_ledger
from algorithms.declaration import Algorithm
from algorithms.equations import kl_divergence
from algorithms.training import (OPTIMIZERS, Optimizer, batches, forward, predict_logits, restore,
                                 snapshot, train, train_with_labels)
from algorithms.uploads import Trained, collect_rows, is_usable
from federation import seeded, stream, timed

CASES = ("self_training", "self_distillation", "ensemble_distillation", "nobody_right")
evaluate = partial(evaluation.evaluate, main_metric="server_accuracy")


def entropy(logits):
    """H = - sum_c p_c ln p_c in nats, p = softmax(logits): [..., C] -> [...].   Eq. (3)

    >>> entropy(torch.tensor([[0., 0.], [0., 1.]]))
    tensor([0.6931, 0.5822])
    """
    probs = logits.softmax(-1)
    return torch.special.entr(probs).sum(-1)                     # entr(p) = -p ln p, and 0 at 0


def reliable_clients(client_logits, labels):
    """True where a client is right, by usable logits: [M, n, C], [n] -> bool [M, n].   3.3.2

    Not usable, as in uploads.py: nan, infinity, a number of 1e30 or more.
    """
    usable = (client_logits.abs() < 1e30).all(-1)                                        # [M, n]
    return (client_logits.argmax(-1) == labels) & usable


def entropy_weights(client_logits, reliable):
    """The weight of each client on each sample: softmax over the reliable clients of 1/H.   Eq. (4)

    The smaller the entropies, the more one client decides: of H = 0.01 and 0.02 the ratio is e^50.
    H below 1e-6 counts as 1e-6, so that 1/H is finite.
    client_logits, reliable   [M, n, C], bool [M, n]; logits may be nan where a client is unreliable
    returns                   [M, n]: 0 for unreliable clients; each column sums to 1, or is 0 where
                              no client is reliable
    >>> client_logits = torch.tensor([[[2., 0.]], [[1., 0.]], [[0., 9.]]])
    >>> entropy_weights(client_logits, torch.tensor([[True], [True], [False]])).T
    tensor([[0.7349, 0.2651, 0.0000]])
    """
    confidence = 1 / entropy(client_logits).clamp(min=1e-6)                              # [M, n]
    weights = confidence.masked_fill(~reliable, float("-inf")).softmax(0)    # D2
    return torch.where(reliable, weights, 0.0)               # a softmax of -inf alone is nan


def fuse_logits(client_logits, weights):
    """sum_j weights[j] * client_logits[j]: [M, n, C], [M, n] -> [n, C].   Inside Eq. (5)

    Where a weight is 0, logits that are not finite count as 0, but the weight's gradient is nan.
    """
    weights = weights.unsqueeze(-1)                                                      # [M, n, 1]
    return torch.where(weights != 0, weights * client_logits, 0.0).sum(0)    # 0 x nan counts as 0


def server_loss(logits, labels, teacher_logits, has_teacher, epsilon):
    """CE where has_teacher is False, epsilon CE + (1 - epsilon) KL(teacher || server) where True.

    logits, teacher_logits   [B, C]; without has_teacher the teacher may be nan
    labels, has_teacher      [B], bool [B]
    returns                  scalar, mean over the batch; no gradient to the teacher
    source                   Eq. (1), (2), (5)
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                               # [B]
    kl = kl_divergence(torch.where(has_teacher[:, None], teacher_logits, 0.0), logits)   # [B]
    return torch.where(has_teacher, epsilon * ce + (1 - epsilon) * kl, ce).mean()        # D3


def client_loss(logits, labels, server_logits, epsilon):
    """epsilon CE + (1 - epsilon) KL(server || client), the mean over the batch: a scalar.   Eq. (6)

    logits, labels, server_logits    [B, C], [B], [B, C]; no gradient to server_logits
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                               # [B]
    kl = kl_divergence(server_logits, logits)                                            # [B]
    return (epsilon * ce + (1 - epsilon) * kl).mean()                                    # D3


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
    """Private training of client i with cross-entropy, then its logits [n, C] of the public `rows`.

    Training goes on from its network and optimizer, the snapshot `client`, to a new snapshot.
    """
    model = fed.client_model(i)
    optimizer = restore(client, model, new_optimizer)
    train_with_labels(fed, model, optimizer, fed.private[i], epochs=local_epochs,
                      batch_size=batch_size, keys=("local", t, i))           # Alg. 1, line 25-27
    logits = predict_logits(fed, model, fed.public.images[rows])             # Alg. 1, line 31-33
    return Trained(logits, snapshot(model, optimizer))


def distill_client(fed, i, t, client, server_logits, *, public_epochs, batch_size, new_optimizer,
                  epsilon):
    """Client i after training on all public samples, taught by server_logits [N, C]: Eq. (6).

    Training goes on from its network and optimizer, the snapshot `client`, to a new snapshot.
    """
    model = fed.client_model(i)
    optimizer = restore(client, model, new_optimizer)
    images, labels = fed.public

    def loss(logits, rows):                                                  # Alg. 1, line 22
        return client_loss(logits, labels[rows], server_logits[rows], epsilon)

    train(fed, model, optimizer, images, loss, epochs=public_epochs,         # Alg. 1, line 21, 23
          batch_size=batch_size, keys=("public", t, i))
    return snapshot(model, optimizer)


def fusion_metrics(fed, rows, client_logits, weights, fusion):
    """Shares of the four cases in the server's last pass, share of samples in the pool, bytes.

    effective_teachers is the mean of 1 / sum_j w_j² over the samples that clients teach: 1 where
    one client has all the weight. bad_uploads counts the clients with logits that are not usable
    (uploads.py) among those of the requested samples.
    """
    requested = fusion.requested[rows]                                       # bool [n]
    taught = weights[:, requested & (weights > 0).any(0)]                    # [M, samples taught]
    effective = (1 / taught.square().sum(0)).mean().item() if taught.numel() else None
    sent, num_public = int(requested.sum()), len(fusion.requested)
    return {**dict(zip(CASES, fusion.cases.float().mean(1).tolist())),
            "pool": fusion.pool.mask.float().mean().item(), "effective_teachers": effective,
            "bad_uploads": sum(not is_usable(logits[requested]) for logits in client_logits),
            **logits_ledger(len(client_logits), fed.num_classes, sent, num_public, indices=sent)}


def who_teaches(correct, in_pool):
    """(alone, from_pool, requests), bool [B]: who teaches each sample of a batch, one of three.

    alone, from_pool, requests    nobody; the pool; the clients that are right, if there are any
    correct, in_pool              bool [B]: the server is right now; it was in an earlier check
    """
    alone = correct
    from_pool = ~correct & in_pool                                           # Alg. 1, line 8
    requests = ~correct & ~in_pool                                           # Alg. 1, line 10-11
    return alone, from_pool, requests


@timed
def train_server(fed, t, server, pool, client_rows, fused_logits, has_reliable, *, server_epochs,
                 batch_size, new_optimizer, epsilon, who_teaches=who_teaches):
    """Selective knowledge fusion in round t: the `Fusion` after Alg. 1, line 3-15.

    Training goes on from the server's network and optimizer, the snapshot `server`.
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
    rng = stream(fed.seed, "server", t)                                      # batches, augmentation
    with seeded(fed.seed, "server", t):                                      # for dropout
        for rows in batches(len(labels), batch_size, server_epochs,          # Alg. 1, line 4
                            rng, fed.device):
            # Checks and teachers are of clean images in eval mode; the step may see augmented ones.
            checked_logits = predict_logits(fed, model, images[rows])                    # [B, C]
            correct = checked_logits.argmax(1) == labels[rows]               # Alg. 1, line 5
            alone, from_pool, requests = who_teaches(correct, pool.mask[rows])
            from_clients = requests & any_reliable[rows]                                 # bool [B]
            has_teacher = from_pool | from_clients                                       # bool [B]
            teacher_logits = torch.where(from_pool[:, None], pool.logits[rows],
                                         all_fused_logits[rows])                         # [B, C]
            pool.logits[rows[correct]] = checked_logits[correct]             # D4: Alg. 1, line 7
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
    server_logits = predict_logits(fed, model, images)                       # D5: Alg. 1, line 15
    return Fusion(snapshot(model, optimizer), server_logits, pool, cases, requested)


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
        server_epochs: int = 1, batch_size: int = 256, server_batch_size: int = 256,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, epsilon: float = 0.75, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    optimizer    optimizer of clients and server, kept over the rounds
    The other keywords are in hyperparameters.py.
    """
    make = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    client_training = dict(batch_size=batch_size, new_optimizer=partial(make, lr=lr))
    server_training = dict(batch_size=server_batch_size, new_optimizer=partial(make, lr=server_lr))
    ids = range(len(fed.private))
    if state is None:
        ALGORITHM.check(fed)
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model()), "pool": empty_pool(fed)._asdict()}
        yield {**evaluate(fed, state), "pool": 0.0}, state
    clients, server, pool = state["clients"], state["server"], Pool(**state["pool"])
    labels = fed.public.labels
    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # D1: clients train on their own data, and predict the samples that the server may request.
        rows = torch.nonzero(~pool.mask)[:, 0]                                           # [n]
        client_logits, trained = collect_rows(fed, rows, lambda i: train_client(
            fed, i, t, clients[i], rows, local_epochs=local_epochs,          # line 25-27, 31-33
            **client_training), attack)

        # On each sample only clients that are right teach, and the more certain ones more.
        reliable = reliable_clients(client_logits, labels[rows])                         # [M, n]
        weights = entropy_weights(client_logits, reliable)                   # Eq. (4), [M, n]
        fused_logits = fuse_logits(client_logits, weights)                   # Eq. (5), [n, C]

        # The server learns alone, from its pool or from the clients: Alg. 1, line 3-15.
        fusion = run_server(
            fed, train_server, t, server, pool, rows, fused_logits, reliable.any(0),
            server_epochs=server_epochs, epsilon=epsilon, **server_training)
        server, pool = fusion.server, fusion.pool

        # All clients learn from the server's logits of all public samples.
        clients = run_clients(fed, lambda i: distill_client(                 # Alg. 1, line 17, 19
            fed, i, t, trained[i], fusion.server_logits, public_epochs=public_epochs,
            epsilon=epsilon, **client_training), ids)

        state = {"round": t, "clients": clients, "server": server, "pool": pool._asdict()}
        metrics = {**evaluate(fed, state, trained),
                   **fusion_metrics(fed, rows, client_logits, weights, fusion)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgems", run, public="labeled", mixed=True, server="images",
    plateau=("lr", "server_lr"), evaluate=evaluate,
    columns=("server_accuracy", "client_accuracy_distilled", *CASES))
