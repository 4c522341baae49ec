"""FedGEMS: where a large server model is wrong, its own earlier logits or small clients teach it.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, whose settings are the defaults.

Run:   python fedkd_minimal.py --algo fedgems
What travels: in each round the server requests public samples by their indices, each client sends
its logits of these, and the server sends its logits of all public samples.
Public data: labeled, on the server and on every client. All networks may differ.

Paper                      here                     shape         note
X^0, Y^0                   fed.public               [N, ...], [N] N public samples and their labels
L_Global                   pool.logits, pool.mask   [N, C], [N]   the pool; C classes
S_Correct                  correct                  bool [B]      of a batch of B public samples
l_{C_j}                    client_logits            [M, n, C]     M clients; n samples are not yet
                                                                  in the pool when a round starts
C_Reliable                 reliable                 bool [M, n]   client j is right on the sample
alpha_{C_j}                weights                  [M, n]        Eq. (4)
sum_j alpha_{C_j} l_{C_j}  fused_logits             [n, C]        Eq. (5)
L_s                        server_logits            [N, C]        the clients learn from these
epsilon                    epsilon (--epsilon)      number        weight of CE in Eq. (2), (5), (6)

A round, with the lines of the paper's Algorithm 1 in brackets. CE is cross-entropy; with a teacher
the loss is epsilon CE + (1 - epsilon) KL(teacher || student), at temperature 1. The server and each
client have one optimizer each for all training, AMSGrad by default (--optimizer).
 a  Each client trains on its own samples, for local_epochs: CE [25-27]. Then the simulation lets it
    predict all n samples outside the pool at once [31-33]; its network does not change in b, so
    the logits are those that it would send on request. Only requested ones are counted as sent.
 b  The server trains on all public samples, for server_epochs [4]. Before a batch's step [14] it
    predicts the batch in eval mode, which gives each sample its case:
      self_training          right: no teacher, CE, Eq. (1) [5-6]; these logits go to the pool [7]
      self_distillation      wrong, in the pool: the pool's logits teach, Eq. (2) [8-9]
      ensemble_distillation  wrong, not in the pool: the server requests the sample; the teacher is
                             the fused logits of the clients that are right, Eq. (3)-(5) [10-12]
      nobody_right           wrong, not in the pool, and no client is right: no teacher, CE; not in
                             the paper
 c  The server predicts all public samples and sends these logits L_s to all clients [15, 17].
 d  Each client trains on all public samples, for public_epochs: L_s teaches, Eq. (6) [19-23].

Modes: all training is in train mode, with --augment on augmented images; each loss is a single mean
over the batch, in which samples with and without a teacher count alike. All predictions (in a,
before each step of b, in c) are of clean images in eval mode.
Kept between rounds: server: network, optimizer, pool (newer logits of a sample replace older).
Client: network, optimizer. A network and its optimizer are in a snapshot, a dict of state_dicts.
Scores: server_accuracy (and `accuracy`) after b; means over clients: client_accuracy_private after
a, client_accuracy_distilled after d. evaluation.py says on which test images.
Bad upload (nan or infinity): `reliable_clients` takes a client for wrong on a sample of which its
logits are not usable. On other samples it may teach; it trains as always. bad_uploads counts the
clients with such logits of a requested sample.
Departures (docs/DEPARTURES.md has more):
D1  private training opens the round, as in section 3.2. In Algorithm 1 it ends the round, so that
    untrained clients would teach first
D2  Eq. (4)'s softmax is over the reliable clients alone, so that their weights sum to 1
D3  epsilon weighs CE, as the equations print it: CE has 0.75. The text says that it weighs the
    distillation
D4  the pool takes the logits that were just found right; line 7 takes L_s of the round before
D5  all of L_s is of the server after the last step of b; line 15 is inside the loop over batches
"""
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import kl_divergence
from federation import evaluation, timed
from federation.communication import logits_ledger
from federation.parallel import in_parallel, on_server
from federation.training import (OPTIMIZERS, Optimizer, forward, predict_logits, restore, shuffled,
                                 snapshot)
from federation.uploads import Trained, collect_rows, is_usable

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
    """True where a client is right, by usable logits: [M, n, C], [n] -> bool [M, n].

    source    section 3.3.2; uploads.py says which logits are usable
    """
    usable = (client_logits.abs() < 1e30).all(-1)            # [M, n], as in uploads.py
    return (client_logits.argmax(-1) == labels) & usable


def entropy_weights(client_logits, reliable):
    """The weight of each client on each sample: softmax over the reliable clients of 1/H.   Eq. (4)

    At small entropies the most certain client has nearly all weight: of H = 0.01 and 0.02 the ratio
    is e^50.
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

    A client with weight 0 adds nothing, even if its logits are nan. Nothing is differentiated here.
    """
    weights = weights.unsqueeze(-1)                                                      # [M, n, 1]
    return torch.where(weights != 0, weights * client_logits, 0.0).sum(0)    # 0 x nan counts as 0


def server_loss(logits, labels, teacher_logits, has_teacher, epsilon):
    """CE where has_teacher is False, epsilon CE + (1 - epsilon) KL(teacher || server) where True.

    logits, teacher_logits   [B, C]; where has_teacher is False the teacher may be anything
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


class ServerResult(NamedTuple):     # what the server's training in a round gives
    server: dict                    # its snapshot
    server_logits: torch.Tensor     # [N, C]: L_s
    pool: Pool
    cases: torch.Tensor             # bool [4, N]: row c is the case CASES[c] in the last epoch
    requested: torch.Tensor         # bool [N]: samples that the server requested in any epoch


def train_client(fed, i, t, client, public_rows, *, local_epochs, batch_size, new_optimizer):
    """Private training of client i by CE, then its logits [n, C] of the public samples public_rows.

    Training goes on from its network and optimizer, the snapshot `client`, to a new snapshot.
    """
    images, labels = fed.private[i]
    model = fed.client_model(i)
    optimizer = new_optimizer(model.parameters())
    restore(client, model, optimizer)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size):                      # Alg. 1, line 25
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])     # Alg. 1, line 26
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 27
    logits = predict_logits(fed, model, fed.public.images[public_rows])      # Alg. 1, line 31-33
    return Trained(logits, snapshot(model, optimizer))


def distill_client(fed, i, t, client, server_logits, *, public_epochs, batch_size, new_optimizer,
                  epsilon):
    """Client i after training on all public samples, taught by server_logits [N, C]: Eq. (6).

    Training goes on from its network and optimizer, the snapshot `client`, to a new snapshot.
    """
    images, labels = fed.public
    model = fed.client_model(i)
    optimizer = new_optimizer(model.parameters())
    restore(client, model, optimizer)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("public", t, i), epochs=public_epochs,
                                batch_size=batch_size):                      # Alg. 1, line 21
        loss = client_loss(forward(fed, model, batch), labels[rows], server_logits[rows],
                           epsilon)                                          # Alg. 1, line 22
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 23
    return snapshot(model, optimizer)


def server_result_metrics(fed, public_rows, client_logits, weights, result):
    """Shares of the four cases in the server's last epoch, share of samples in the pool, bytes.

    effective_teachers is the mean of 1 / sum_j w_j² over the samples that clients teach: 1 where
    one client has all the weight.
    """
    requested = result.requested[public_rows]                                # bool [n]
    taught = weights[:, requested & (weights > 0).any(0)]                    # [M, samples taught]
    effective = (1 / taught.square().sum(0)).mean().item() if taught.numel() else None
    sent, num_public = int(requested.sum()), len(result.requested)
    return {**dict(zip(CASES, result.cases.float().mean(1).tolist())),
            "pool": result.pool.mask.float().mean().item(), "effective_teachers": effective,
            "bad_uploads": sum(not is_usable(logits[requested]) for logits in client_logits),
            **logits_ledger(len(client_logits), fed.num_classes, up=sent, down=num_public,
                            indices=sent)}


def who_teaches(correct, in_pool):
    """(self_training, self_distillation, requests), bool [B]: exactly one is True for each sample.

    correct, in_pool    bool [B]: the server is right in this check; it was right in an earlier one
    requests            ensemble_distillation if a client is right, otherwise nobody_right
    """
    self_training = correct                                                  # Alg. 1, line 5
    self_distillation = ~correct & in_pool                                   # Alg. 1, line 8
    requests = ~correct & ~in_pool                                           # Alg. 1, line 10-11
    return self_training, self_distillation, requests


def may_request(rule, pool):
    """The public rows [n] that `rule` requests of a server that is wrong on every sample.

    By `who_teaches` these are all rows outside the pool. No rule may request others.
    """
    correct = torch.zeros_like(pool.mask)
    _, _, requests = rule(correct, pool.mask)
    return torch.nonzero(requests)[:, 0]


@timed
@on_server
def train_server(fed, t, server, pool, public_rows, fused_logits, has_reliable, *, server_epochs,
                 batch_size, new_optimizer, epsilon, rule=who_teaches):
    """Selective knowledge fusion in round t: the `ServerResult` after Alg. 1, line 3-15.

    Training goes on from the server's network and optimizer, the snapshot `server`.
    public_rows, fused_logits, has_reliable    [n], [n, C], bool [n]: what the clients can teach
    """
    images, labels = fed.public
    model = fed.server_model()
    optimizer = new_optimizer(model.parameters())
    restore(server, model, optimizer)
    pool = Pool(pool.logits.clone(), pool.mask.clone())      # the caller's state does not change
    all_fused_logits = torch.zeros_like(pool.logits)                                     # [N, C]
    all_has_reliable = torch.zeros_like(pool.mask)                                       # [N]
    all_fused_logits[public_rows], all_has_reliable[public_rows] = fused_logits, has_reliable
    cases = torch.zeros(len(CASES), len(labels), dtype=torch.bool, device=fed.device)    # [4, N]
    requested = torch.zeros_like(pool.mask)                                  # [N]
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("server", t), epochs=server_epochs,
                                batch_size=batch_size):                      # Alg. 1, line 4
        # The check is of the clean images, in eval mode; then the model is in train mode again.
        checked_logits = predict_logits(fed, model, images[rows])                        # [B, C]
        correct = checked_logits.argmax(1) == labels[rows]                   # Alg. 1, line 5
        self_training, self_distillation, requests = rule(correct, pool.mask[rows])
        ensemble_distillation = requests & all_has_reliable[rows]                        # bool [B]
        nobody_right = requests & ~all_has_reliable[rows]                                # bool [B]
        has_teacher = self_distillation | ensemble_distillation                          # bool [B]
        teacher_logits = torch.where(self_distillation[:, None], pool.logits[rows],
                                     all_fused_logits[rows])                             # [B, C]
        pool.logits[rows[correct]] = checked_logits[correct]                 # D4: Alg. 1, line 7
        pool.mask[rows[correct]] = True
        requested[rows[requests]] = True
        cases[:, rows] = torch.stack([self_training, self_distillation,
                                      ensemble_distillation, nobody_right])
        loss = server_loss(forward(fed, model, batch), labels[rows],         # Alg. 1, line 6, 9, 12
                           teacher_logits, has_teacher, epsilon)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 14
    server_logits = predict_logits(fed, model, images)                       # D5: Alg. 1, line 15
    return ServerResult(snapshot(model, optimizer), server_logits, pool, cases, requested)


@checked
def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
        server_epochs: int = 1, batch_size: int = 256, server_batch_size: int = 256,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, epsilon: float = 0.75, attack=None, rule=who_teaches):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    optimizer    optimizer of clients and server, kept over the rounds
    rule         decides the case of each sample; fedgems_ablations.py has others
    hyperparameters.py explains the other keywords.
    """
    make = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    client_training = dict(batch_size=batch_size, new_optimizer=partial(make, lr=lr))
    server_training = dict(batch_size=server_batch_size, new_optimizer=partial(make, lr=server_lr))
    ids, labels = range(len(fed.private)), fed.public.labels
    if state is None:
        pool = Pool(torch.zeros(len(labels), fed.num_classes, device=fed.device),
                    torch.zeros_like(labels, dtype=torch.bool))
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model()), "pool": pool._asdict()}
        yield {**evaluate(fed, state), "pool": 0.0}, state
    clients, server, pool = state["clients"], state["server"], Pool(**state["pool"])
    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # a (D1): clients train on their own data, and predict the samples that may be requested.
        # Results: their logits [M, n, C], after the attack; the clients after training.
        public_rows = may_request(rule, pool)                                            # [n]
        client_logits, trained = collect_rows(fed, public_rows, lambda i: train_client(
            fed, i, t, clients[i], public_rows, local_epochs=local_epochs,
            **client_training), attack)                              # Alg. 1, line 25-27, 31-33

        # On each sample only clients that are right teach, and the more certain ones more.
        reliable = reliable_clients(client_logits, labels[public_rows])                  # [M, n]
        weights = entropy_weights(client_logits, reliable)                   # Eq. (4), [M, n]
        fused_logits = fuse_logits(client_logits, weights)                   # Eq. (5), [n, C]

        # b, c: the server trains by labels, its pool or the clients: Alg. 1, line 3-15.
        result = train_server(fed, t, server, pool, public_rows, fused_logits, reliable.any(0),
                              server_epochs=server_epochs, epsilon=epsilon, rule=rule,
                              **server_training)
        server, pool = result.server, result.pool

        # d: all clients learn from the server's logits of all public samples.
        clients = in_parallel(fed, lambda i: distill_client(                 # Alg. 1, line 17, 19
            fed, i, t, trained[i], result.server_logits, public_epochs=public_epochs,
            epsilon=epsilon, **client_training), ids)

        state = {"round": t, "clients": clients, "server": server, "pool": pool._asdict()}
        metrics = {**evaluate(fed, state, trained),
                   **server_result_metrics(fed, public_rows, client_logits, weights, result)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgems", run,
    scores={"server_accuracy": "server",
            "client_accuracy_distilled": "clients, after distillation",
            "client_accuracy_private": "clients, after private training"},
    keeps=("clients", "server", "pool"), public="labeled", mixed_networks=True, server="images",
    plateau=("lr", "server_lr"), evaluate=evaluate,
    columns=("server_accuracy", "client_accuracy_distilled", *CASES))
