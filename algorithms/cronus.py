"""Cronus: clients upload probabilities of public samples; a robust mean leaves out the outliers.

Chang et al., "Cronus: Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge
Transfer", arXiv:1912.11279, with the filter of Diakonikolas et al., "Being Robust (in High
Dimensions) Can Be Practical", ICML 2017; here as a baseline of FedGEMS (Cheng et al.,
arXiv:2110.11027), whose settings (Table 13) are the defaults.

Run:   python fedkd_minimal.py --algo cronus
What travels: in each round every client's probabilities of all public samples, up; their robust
mean, down.
Public data: unlabeled, at every client. The server has no model.

Paper              here                         shape         note
Y_k                client_probs                 [M, N, C]     of M clients on all N public samples
epsilon            malicious_fraction           number        assumed share of malicious clients
v                  scores                       [M, N]        squared projections on the direction
                                                              of largest variance
                   kept                         bool [M, N]   clients kept, sample by sample
Y bar              target_probs                 [N, C]        the clients' target

In each round:
 1  each client trains on its own samples: cross-entropy, --optimizer (AMSGrad), by `train_client`
    of dsfl.py
 2  it sends Y_k, its probabilities of the public samples
 3  the server sends back their robust mean Y bar
 4  each client trains on the public samples: soft cross-entropy towards Y bar, --optimizer, by
    `distill` of dsfl.py

Kept between rounds: by each client its network and one optimizer, which makes the steps of 1 and 4.
The server keeps nothing.
Modes: all training (steps 1, 4) is in train mode, with --augment on augmented images; each loss is
the mean over the batch. Step 2 predicts clean images in eval mode.
Scores: means over the clients: `accuracy` and client_accuracy_distilled after step 4,
client_accuracy_private after step 1.
Bad upload (nan or infinity): `usable` leaves it out of the mean as a whole; its client still learns
towards it. If none is left, the round has no step 4.
Departures (docs/DEPARTURES.md has more):
D1  the filter is ours, from FedGEMS and the filter's idea, without Cronus's text to read: for each
    sample at most two passes over the M usable uploads; each leaves out the ceil(epsilon M / 2)
    clients farthest along the direction of largest variance; a pass that would keep fewer than
    M / 2 + 1 clients is not made, so that 3 clients or fewer give the plain mean
D2  the robust mean is not projected onto the simplex, outside which only an attacker's upload lies
"""
import math
from functools import partial

import torch

from algorithms import Algorithm, checked
from algorithms.dsfl import distill, evaluate, train_client
from federation.communication import logits_ledger
from federation.parallel import in_parallel, on_server
from federation.training import OPTIMIZERS, Optimizer, snapshot
from federation.uploads import collect_rows, usable


def robust_mean(client_probs, malicious_fraction):
    """The mean of the clients that the filter keeps, sample by sample.

    client_probs         [M, N, C], finite
    malicious_fraction   in [0, 0.5): the share of clients that may be malicious; 0 gives the mean
    returns              [N, C]
    A pass projects the clients' deviations from their mean on the top eigenvector of their
    covariance, and leaves out the ceil(malicious_fraction * M / 2) largest squares.
    raises               ValueError: malicious_fraction is not in [0, 0.5)
    >>> probs = torch.tensor([[[.8, .2]], [[.8, .2]], [[.7, .3]], [[.7, .3]], [[0., 1.]]])
    >>> robust_mean(probs, 0.2)
    tensor([[0.7500, 0.2500]])
    """
    if not 0 <= malicious_fraction < 0.5:
        raise ValueError(f"malicious_fraction is {malicious_fraction}: it must be in [0, 0.5)")
    num_clients, _, num_classes = client_probs.shape
    # Rounded first: .28 x 50 / 2 is 7.000000000000001, of which ceil would make 8.
    dropped = math.ceil(round(malicious_fraction * num_clients / 2, 9))
    if dropped == 0:
        return client_probs.mean(0)
    probs = client_probs.double()            # squares of large float32 numbers overflow
    kept = torch.ones_like(probs[..., 0], dtype=torch.bool)                              # [M, N]
    for remaining in (num_clients - dropped, num_clients - 2 * dropped):                 # D1
        if remaining < num_clients / 2 + 1:
            break
        deviation = torch.where(kept[..., None], probs - mean_of_kept(probs, kept), 0.0)
        deviation = deviation.movedim(0, 1)                                              # [N, M, C]
        if num_classes <= num_clients:
            _, vectors = torch.linalg.eigh(deviation.mT @ deviation)                     # [N, C, C]
            scores = (deviation @ vectors[..., -1:]).squeeze(-1).square().T              # [M, N]
        else:       # the same scores, up to a factor, from the smaller Gram matrix
            _, vectors = torch.linalg.eigh(deviation @ deviation.mT)                     # [N, M, M]
            scores = vectors[..., -1].square().T                                         # [M, N]
        farthest = scores.masked_fill(~kept, -1).topk(dropped, dim=0).indices    # [dropped, N]
        kept = kept.scatter(0, farthest, False)
    return mean_of_kept(probs, kept).to(client_probs.dtype)                              # D2


def mean_of_kept(probs, kept):
    """The mean over the clients that are kept: [M, N, C], bool [M, N] -> [N, C]."""
    return torch.where(kept[..., None], probs, 0.0).sum(0) / kept.sum(0)[:, None]


@on_server
def robust_target(fed, client_probs, malicious_fraction):
    """`robust_mean`, computed by one process for all."""
    return robust_mean(client_probs, malicious_fraction)


@checked
def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
        batch_size: int = 64, lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, malicious_fraction: float = 0.1, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    hyperparameters.py explains the keywords.
    """
    make = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    client_training = dict(batch_size=batch_size, new_optimizer=partial(make, lr=lr))
    ids = range(len(fed.private))
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids]}
        yield evaluate(fed, state), state
    clients, num_public = state["clients"], len(fed.public.images)
    rows = torch.arange(num_public, device=fed.device)                                   # [N]
    for t in range(state["round"] + 1, rounds + 1):
        # Clients train on their own data, and upload their probabilities of the public samples.
        client_probs, trained = collect_rows(fed, rows, lambda i: train_client(          # [M, N, C]
            fed, i, t, clients[i], local_epochs=local_epochs, **client_training), attack)
        clients = trained
        # Clients learn from the robust mean; without a usable upload nobody does.
        valid_probs = usable(client_probs)                                               # [m, N, C]
        if len(valid_probs):
            target_probs = robust_target(fed, valid_probs, malicious_fraction)           # [N, C]
            clients = in_parallel(fed, lambda i: distill(
                fed, trained[i], fed.client_model(i), target_probs, epochs=public_epochs,
                keys=("public", t, i), **client_training), ids)

        state = {"round": t, "clients": clients}
        metrics = {**evaluate(fed, state, trained),
                   "bad_uploads": len(ids) - len(valid_probs),
                   **logits_ledger(len(ids), fed.num_classes, up=num_public, down=num_public)}
        yield metrics, state


ALGORITHM = Algorithm(
    "cronus", run,
    scores={"client_accuracy_distilled": "clients, after distillation",
            "client_accuracy_private": "clients, after private training"},
    keeps=("clients",),
    public="unlabeled", mixed_networks=True, plateau=("lr",), evaluate=evaluate,
    columns=("client_accuracy_distilled", "client_accuracy_private"))
