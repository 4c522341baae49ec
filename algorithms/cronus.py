"""Cronus: clients share class probabilities of unlabelled public samples; a robust mean keeps out those that lie far off.

Chang et al., "Cronus: Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge Transfer", arXiv:1912.11279,
with the filter of Diakonikolas et al., "Being Robust (in High Dimensions) Can Be Practical", ICML 2017; here as a baseline of
FedGEMS (Cheng et al., arXiv:2110.11027), whose settings (Table 13) are the defaults.
What travels: probabilities, up and down. Public data: unlabelled, on every client. The server has no model.
Run:   python fedkd_minimal.py --algo cronus

Paper              here                         shape            note
Y_k                client_probs                 [M, N, C]        of the M clients on all N public samples
epsilon            malicious_fraction           number           the share of the clients that is assumed to lie
v                  scores                       [M, N]           squared projections on the direction of largest variance
                   kept                         bool [M, N]      sample by sample
Y bar              target_probs                 [N, C]           what the clients learn from: soft cross-entropy

Where the paper is silent or we differ:
D1  written from FedGEMS and the filter's idea, without Cronus's text at hand: two passes, each of which leaves out the
    ceil(epsilon M / 2) clients farthest along the direction of largest variance, sample by sample; a pass that would leave
    fewer than M / 2 + 1 clients is not made                           [test_robust_mean_by_slow_loop]
D2  the robust mean is not projected onto the simplex                  [test_robust_mean_of_identical_clients_is_theirs]
D3  an upload with nan or infinity is left out; without any there is no distillation in the round
                                                                      [test_non_finite_logits_are_left_out]
D4  clients start from different weights, and keep their optimisers   [test_every_client_starts_from_weights_of_its_own]
"""
import math

import torch

from algorithms.common import (Optimizer, asleep, client_metrics, finite, new_learner, predict_logits, run_clients, seconds,
                               soft_cross_entropy, test_accuracies, train, train_with_labels, wake)
from communication import logits_ledger

PUBLIC = "unlabelled"
MIXED = True    # may clients have different networks?
COLUMNS = ("client_accuracy", "client_accuracy_min", "client_accuracy_max")


def robust_mean(client_probs, malicious_fraction):
    """The mean of the clients that are left after two passes of the filter, sample by sample: [M, N, C] -> [N, C].

    malicious_fraction   in [0, 0.5): the share of the clients that may lie; 0 is the mean
    A pass projects the clients' deviations from the mean on the top eigenvector of their covariance, and leaves out the
    ceil(malicious_fraction * M / 2) largest squares. Needs `math` and `mean_of`.
    >>> robust_mean(torch.tensor([[[.8, .2]], [[.8, .2]], [[.7, .3]], [[.7, .3]], [[0., 1.]]]), 0.2)
    tensor([[0.7500, 0.2500]])
    """
    num_clients, _, num_classes = client_probs.shape
    dropped = math.ceil(round(malicious_fraction * num_clients / 2, 9))                  # .28 x 50 / 2 is 7, not 7.000000000000001
    if dropped == 0:
        return client_probs.mean(0)
    probs = client_probs.double()                                                        # whose squares of float32 never overflow
    kept = torch.ones_like(probs[..., 0], dtype=torch.bool)                              # [M, N]
    for left in (num_clients - dropped, num_clients - 2 * dropped):
        if left < num_clients / 2 + 1:
            break
        deviation = torch.where(kept[..., None], probs - mean_of(probs, kept), 0.0).movedim(1, 0)        # [N, M, C]
        if num_classes <= num_clients:
            _, vectors = torch.linalg.eigh(deviation.mT @ deviation)                     # [N, C, C], the last has the largest value
            scores = (deviation @ vectors[..., -1:]).squeeze(-1).square().T              # [M, N]
        else:                                            # the same squares, up to a factor, from the M x M Gram matrix
            _, vectors = torch.linalg.eigh(deviation @ deviation.mT)                     # [N, M, M]
            scores = vectors[..., -1].square().T                                         # [M, N]
        farthest = scores.masked_fill(~kept, -1).topk(dropped, dim=0).indices            # [dropped, N]
        kept = kept.scatter(0, farthest, False)
    return mean_of(probs, kept).to(client_probs.dtype)


def mean_of(probs, kept):
    """The mean over the clients that are kept: [M, N, C], bool [M, N] -> [N, C]."""
    return torch.where(kept[..., None], probs, 0.0).sum(0) / kept.sum(0)[:, None]


def train_client(fed, i, t, client, *, local_epochs, batch_size, lr, optimizer, weight_decay):
    """Private training of client i: (its probabilities [N, C] of the public samples, the client, its test accuracies)."""
    model = fed.client_model(i)
    update = wake(client, model, optimizer, lr, weight_decay)
    train_with_labels(fed, model, update, fed.private[i], epochs=local_epochs, batch_size=batch_size, keys=("local", t, i))
    return predict_logits(fed, model, fed.public.images).softmax(-1), asleep(model, update), test_accuracies(fed, model)


def distil_client(fed, i, t, client, target_probs, *, epochs, batch_size, lr, optimizer, weight_decay):
    """Client i after learning from target_probs [N, C] on the public samples: (the client, its test accuracies)."""
    model = fed.client_model(i)
    update = wake(client, model, optimizer, lr, weight_decay)
    train(fed, model, update, fed.public.images, lambda logits, rows: soft_cross_entropy(logits, target_probs[rows]).mean(),
          epochs=epochs, batch_size=batch_size, keys=("public", t, i))
    return asleep(model, update), test_accuracies(fed, model)


def metrics_of(client_scores):
    """The accuracies of a round; the headline is the clients'."""
    clients = client_metrics(client_scores)
    return {"accuracy": clients["client_accuracy"], **clients}


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1, batch_size: int = 64,
        lr: float = 1e-3, optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4,
        malicious_fraction: float = 0.1, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    attack      (uploads [M, N, C], client ids, rows [N], t) -> uploads: what malicious clients make of theirs
    """
    settings = dict(batch_size=batch_size, lr=lr, optimizer=optimizer, weight_decay=weight_decay)
    ids, num_public = range(len(fed.private)), len(fed.public.images)
    rows = torch.arange(num_public, device=fed.device)                                   # [N]
    if state is None:
        state = {"round": 0, "clients": [new_learner(fed.client_model(i, init=i)) for i in ids]}
        yield metrics_of([test_accuracies(fed, fed.client_model(i, init=i)) for i in ids]), state
    clients = state["clients"]
    for t in range(state["round"] + 1, rounds + 1):
        start = seconds(fed.device)
        trained = run_clients(lambda i: train_client(fed, i, t, clients[i], local_epochs=local_epochs, **settings), ids, fed.device)
        client_probs = torch.stack([probs for probs, _, _ in trained])                   # [M, N, C]
        client_probs = attack(client_probs, ids, rows, t) if attack else client_probs

        good = finite(client_probs)                                                      # [m, N, C], m <= M
        heard = len(good) > 0                                                            # from nobody nothing is learned
        target_probs = robust_mean(good, malicious_fraction) if heard else client_probs[0]               # [N, C]
        distilled = run_clients(lambda i: distil_client(fed, i, t, trained[i][1], target_probs, epochs=public_epochs * heard,
                                                        **settings), ids, fed.device)
        clients = [client for client, _ in distilled]
        metrics = {**metrics_of([score for _, score in distilled]),
                   **client_metrics([score for _, _, score in trained], "client_accuracy_private"),
                   "bad_uploads": len(ids) - len(good), "local_seconds": seconds(fed.device) - start,
                   **logits_ledger(len(ids), fed.num_classes, up=num_public, down=num_public)}
        yield metrics, {"round": t, "clients": clients}
