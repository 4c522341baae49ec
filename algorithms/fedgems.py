"""FedGEMS: where a large server model is wrong, its own earlier logits or small clients teach it.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, whose settings are the defaults.

Run:    python fedkd_minimal.py --algo fedgems    small settings, about a minute
        --paper fedgems-homogeneous or fedgems-heterogeneous has the paper's, which are the
        defaults of `run`; there learning rates fall on a plateau (experiment/plateau.py)
Data:   clients: their own labeled images; server and clients: N labeled public images. All
        networks may differ
Sent:   down: which public images the server requests; at the end of a round its logits of all N
        up: each client's logits of the requested images

A round; in brackets the lines of Algorithm 1. CE is cross-entropy. The loss of a sample with a
teacher is epsilon CE + (1 - epsilon) KL(teacher || student), at temperature 1; of others, CE.
 a  each client trains on its own images [25-27], and predicts public ones for the server [31-33]
 b  the server trains on the public images [4-14]. Where it is right, it has no teacher, and its
    logits go to a pool. Where it is wrong, the pool teaches it, or if the sample is not there the
    clients that are right; if none is, nobody does: four cases, four lines of `train_server`
 c  the server predicts all public images, and sends these logits, L_s, to the clients [15-17]
 d  each client trains on the public images, and L_s teaches, Eq. (6) [19-23]

Scores: `accuracy` is server_accuracy, after b; means over the clients: client_accuracy_private
        after a, client_accuracy_distilled after d. The test images are nobody's training images. By
        default (--public half) the server is tested on one half of them, the clients on the other
D1  private training opens the round, as in section 3.2; in Algorithm 1 it ends it
D2  Eq. (4)'s softmax is over the reliable clients alone, so that their weights sum to 1
D3  epsilon weighs CE, as the equations print it; by the text it would weigh the distillation
D4  the pool takes the logits that were just found right; line 7 takes L_s of the round before
D5  all of L_s is of the server after the last step of b; line 15 is inside the loop over batches
"""
from typing import NamedTuple

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import kl_divergence
from attacks import HUGE
from federation import timed
from federation.communication import logits_ledger
from federation.evaluation import distillation_metrics, predicted_classes, server_metrics
from federation.parallel import in_parallel, on_server
from federation.training import (OPTIMIZERS, Optimizer, forward, predict_logits, restore, shuffled,
                                 snapshot)
from federation.uploads import Trained, collect_rows, is_usable

CASES = ("self_training", "self_distillation", "ensemble_distillation", "nobody_right")


def entropy(logits):
    """H = - sum_c p_c ln p_c in nats, p = softmax(logits): [..., C] -> [...].   Eq. (3)

    >>> entropy(torch.tensor([[0., 0.], [0., 1.]]))
    tensor([0.6931, 0.5822])
    """
    probs = logits.softmax(-1)
    return torch.special.entr(probs).sum(-1)                     # entr(p) = -p ln p, and 0 at 0


def reliable_clients(client_logits, labels):
    """True where a client is right: [M, n, C], [n] -> bool [M, n].   Section 3.3.2

    A client with nan, infinity or a number of 1e30 or more counts as wrong on this sample. On other
    samples it may teach, and it trains as always.
    """
    usable = (client_logits.abs() < HUGE).all(-1)            # [M, n], as in uploads.py
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


class Pool(NamedTuple):         # the server's logits of samples on which it was right: L_Global
    logits: torch.Tensor        # [N, C]; zeros where mask is False
    mask: torch.Tensor          # bool [N]: samples that are in the pool


class ServerResult(NamedTuple):     # what the server's training in a round gives
    server: dict                    # its snapshot
    server_logits: torch.Tensor     # [N, C]: L_s
    pool: Pool
    cases: torch.Tensor             # bool [4, N]: row c is the case CASES[c] in the last epoch
    requested: torch.Tensor         # bool [N]: samples that the server requested in any epoch


def train_client(fed, i, t, client, public_rows, local_epochs, batch_size, lr, optimizer_name,
                 weight_decay):
    """Client i after training on its own images; its upload: logits [n, C] of rows public_rows."""
    images, labels = fed.private[i]                                          # [m, c, h, w], [m]
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both go on from the client's last step
    model.train()                        # `shuffled` augments the images with --augment
    # ("local", t, i) names the random numbers of this training: order, augmentation, dropout.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size):                      # Alg. 1, line 25
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])     # Alg. 1, line 26
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 27
    # Eval mode, clean images.
    logits = predict_logits(fed, model, fed.public.images[public_rows])      # Alg. 1, line 31-33
    return Trained(logits, snapshot(model, optimizer))


@timed
@on_server
def train_server(fed, t, server, pool, public_rows, fused_logits, has_reliable, server_epochs,
                 batch_size, lr, epsilon, optimizer_name, weight_decay):
    """Selective knowledge fusion in round t: the `ServerResult` after Alg. 1, line 3-15.

    public_rows                   [n]: the public samples that the clients have predicted
    fused_logits, has_reliable    [n, C], bool [n]: their teacher, and if a client is right
    """
    images, labels = fed.public                                              # [N, c, h, w], [N]
    model = fed.server_model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(server, model, optimizer)    # both go on from the last step; the rate is lr
    pool = Pool(pool.logits.clone(), pool.mask.clone())      # the caller's state does not change
    clients_logits = torch.zeros_like(pool.logits)                                       # [N, C]
    clients_logits[public_rows] = fused_logits
    any_client_right = torch.zeros_like(pool.mask)                                       # bool [N]
    any_client_right[public_rows] = has_reliable
    cases = torch.zeros(len(CASES), len(labels), dtype=torch.bool, device=fed.device)    # [4, N]
    requested = torch.zeros_like(pool.mask)                                              # bool [N]
    model.train()                        # `shuffled` augments the images with --augment
    for rows, batch in shuffled(fed, images, ("server", t), epochs=server_epochs,
                                batch_size=batch_size):                      # Alg. 1, line 4
        # Before the step: on which samples is the server right? Clean images, in eval mode, without
        # gradient; then the model is in train mode again. Logits that are not finite are wrong.
        checked_logits = predict_logits(fed, model, images[rows])                        # [B, C]
        correct = predicted_classes(checked_logits) == labels[rows]          # bool [B]: S_Correct
        in_pool = pool.mask[rows]                                            # bool [B]
        client_right = any_client_right[rows]                                # bool [B]

        # The four cases, each with its teacher. Samples of the last two are requested.
        self_training = correct                                     # line 5: no teacher, Eq. (1)
        self_distillation = ~correct & in_pool                      # line 8: the pool, Eq. (2)
        ensemble_distillation = ~correct & ~in_pool & client_right  # line 10: the clients, Eq. (5)
        nobody_right = ~correct & ~in_pool & ~client_right          # no teacher; not in the paper

        has_teacher = self_distillation | ensemble_distillation              # bool [B]
        teacher_logits = torch.where(self_distillation[:, None], pool.logits[rows],
                                     clients_logits[rows])                   # [B, C]
        pool.logits[rows[correct]] = checked_logits[correct]                 # Alg. 1, line 7, D4
        pool.mask[rows[correct]] = True
        logits = forward(fed, model, batch)                                  # [B, C], train mode
        loss = server_loss(logits, labels[rows], teacher_logits, has_teacher,
                           epsilon)                                      # Alg. 1, line 6, 9, 12
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 14
        # For the metrics.
        cases[:, rows] = torch.stack([self_training, self_distillation, ensemble_distillation,
                                      nobody_right])
        requested[rows] |= ensemble_distillation | nobody_right
    # Eval mode, clean images.
    server_logits = predict_logits(fed, model, images)                       # Alg. 1, line 15, D5
    return ServerResult(snapshot(model, optimizer), server_logits, pool, cases, requested)


def distill_client(fed, i, t, client, server_logits, public_epochs, batch_size, lr, epsilon,
                   optimizer_name, weight_decay):
    """Client i after training on all public images, taught by server_logits [N, C]."""
    images, labels = fed.public                                              # [N, c, h, w], [N]
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both go on from the client's last step
    model.train()                        # `shuffled` augments the images with --augment
    for rows, batch in shuffled(fed, images, ("public", t, i), epochs=public_epochs,
                                batch_size=batch_size):                      # Alg. 1, line 21
        logits = forward(fed, model, batch)                                              # [B, C]
        loss = client_loss(logits, labels[rows], server_logits[rows], epsilon)   # line 22, Eq. (6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 23
    return snapshot(model, optimizer)


@timed
def evaluate(fed, state, trained=None):
    """Test accuracies of the server's network and of the clients'; `accuracy` is the server's.

    trained    the clients after private training; None: as in `state`
    """
    metrics = {**distillation_metrics(fed, state["clients"], trained),
               **server_metrics(fed, state["server"])}
    return {"accuracy": metrics["server_accuracy"], **metrics}


def server_result_metrics(fed, public_rows, client_logits, weights, result):
    """Shares of the four cases in the server's last epoch, share of samples in the pool, bytes.

    effective_teachers is the mean of 1 / sum_j w_j² over the samples that clients teach: 1 where
    one client has all the weight. bad_uploads counts the clients of which the logits of a
    requested sample are not usable.
    """
    requested = result.requested[public_rows]                                # bool [n]
    taught = weights[:, requested & (weights > 0).any(0)]                    # [M, samples taught]
    effective = (1 / taught.square().sum(0)).mean().item() if taught.numel() else None
    sent, num_public = int(requested.sum()), len(result.requested)
    shares = result.cases.float().mean(1).tolist()                           # [4]
    return {**{case: share for case, share in zip(CASES, shares)},
            "pool": result.pool.mask.float().mean().item(), "effective_teachers": effective,
            "bad_uploads": sum(not is_usable(logits[requested]) for logits in client_logits),
            **logits_ledger(len(client_logits), fed.num_classes, up=sent, down=num_public,
                            indices=sent)}


@checked
def run(fed, state=None, *,
        rounds: int = 200,                   # T; all clients take part in each
        local_epochs: int = 1,               # passes of a client over its own images in a round,
        public_epochs: int = 1,              #   and over the public images
        server_epochs: int = 1,              # passes of the server over the public images
        batch_size: int = 256,               # of a client
        server_batch_size: int = 256,
        lr: float = 1e-3,                    # of a client
        server_lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad",    # of each client and of the server, for all training
        weight_decay: float = 1e-4,          #   and its L2 penalty
        epsilon: float = 0.75,               # weight of CE; 1 - epsilon is that of KL
        attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    ids = range(len(fed.private))                                            # M clients
    labels = fed.public.labels                                               # [N]
    if state is None:
        pool = Pool(torch.zeros(len(labels), fed.num_classes, device=fed.device),
                    torch.zeros_like(labels, dtype=torch.bool))
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model()), "pool": pool._asdict()}
        yield {**evaluate(fed, state), "pool": 0.0}, state
    clients, server, pool = state["clients"], state["server"], Pool(**state["pool"])

    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # a (D1): clients train on their own images, and predict the n samples outside the pool.
        # They do not change in b, so these are the logits that they would send on request.
        public_rows = torch.nonzero(~pool.mask)[:, 0]                        # [n]

        def train(i):
            return train_client(fed, i, t, clients[i], public_rows, local_epochs, batch_size, lr,
                                optimizer, weight_decay)

        # In parallel: logits [M, n, C], those of attackers replaced; the clients after training.
        client_logits, trained = collect_rows(fed, public_rows, train, attack)  # line 25-27, 31-33

        # On each sample only clients that are right teach, and the more certain ones more.
        reliable = reliable_clients(client_logits, labels[public_rows])      # bool [M, n]
        weights = entropy_weights(client_logits, reliable)                   # Eq. (4), [M, n]
        fused_logits = fuse_logits(client_logits, weights)                   # Eq. (5), [n, C]

        # b, c: the server trains, by the labels, its pool and the clients.
        result = train_server(fed, t, server, pool, public_rows, fused_logits, reliable.any(0),
                              server_epochs, server_batch_size, server_lr, epsilon, optimizer,
                              weight_decay)                                  # Alg. 1, line 3-15
        server, pool = result.server, result.pool

        # d: all clients learn from the server's logits of all public images.
        def distill(i):
            return distill_client(fed, i, t, trained[i], result.server_logits, public_epochs,
                                  batch_size, lr, epsilon, optimizer, weight_decay)

        clients = in_parallel(fed, distill, ids)                             # Alg. 1, line 19-23

        # All that the next round needs: networks with their optimizers, and the pool.
        state = {"round": t, "clients": clients, "server": server, "pool": pool._asdict()}
        # Measured; no step above sees it.
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
