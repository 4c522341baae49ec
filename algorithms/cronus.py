"""Cronus: clients upload probabilities of public samples; a robust mean leaves out the outliers.

Chang et al., "Cronus: Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge
Transfer", arXiv:1912.11279, with the filter of Diakonikolas et al., "Being Robust (in High
Dimensions) Can Be Practical", ICML 2017; here as a baseline of FedGEMS (Cheng et al.,
arXiv:2110.11027), whose settings (Table 13) are the defaults.

Run:    python fedkd_minimal.py --algo cronus    small settings, less than a minute
        --paper fedgems-homogeneous or fedgems-heterogeneous has FedGEMS's, which are the
        defaults of `run`; there learning rates fall on a plateau (experiment/plateau.py)
Data:   clients: their own labeled images, and N unlabeled public images. Their networks may differ;
        the server has none
Sent:   up: each client's probabilities of all public images; down: their robust mean

A round; the numbers are ours:
 1  each client trains on its own images, by cross-entropy
 2  it predicts the public images, and uploads its probabilities Y_k
 3  the server sends back their robust mean: of each sample, without the clients that are farthest
    from the others
 4  each client trains on the public images, by soft cross-entropy towards it

Scores: `accuracy` is client_accuracy_distilled, the mean over the clients after 4; also
        client_accuracy_private, after 1. With --public half, as in FedGEMS's settings, they are
        tested on the private half of the test images
D1  the filter is ours, from FedGEMS and the filter's idea, without Cronus's text to read: for each
    sample at most two passes over the M usable uploads; each leaves out the ceil(epsilon M / 2)
    clients farthest along the direction of largest variance; a pass that would keep fewer than
    M / 2 + 1 clients is not made, so that 3 clients or fewer give the plain mean
D2  the robust mean is not projected onto the simplex, outside which only an attacker's upload lies
"""
import math

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import soft_cross_entropy
from federation import timed
from federation.communication import logits_ledger
from federation.evaluation import distillation_metrics
from federation.parallel import in_parallel, on_server
from federation.training import (OPTIMIZERS, Optimizer, forward, predict_logits, restore, shuffled,
                                 snapshot)
from federation.uploads import Trained, collect_rows, usable


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
        farthest = scores.topk(dropped, dim=0).indices       # [dropped, N]; who is out has score 0
        kept = kept.scatter(0, farthest, False)
    return mean_of_kept(probs, kept).to(client_probs.dtype)                              # D2


def mean_of_kept(probs, kept):
    """The mean over the clients that are kept: [M, N, C], bool [M, N] -> [N, C]."""
    return torch.where(kept[..., None], probs, 0.0).sum(0) / kept.sum(0)[:, None]


@on_server
def robust_target(fed, client_probs, malicious_fraction):
    """`robust_mean`, computed by one process for all."""
    return robust_mean(client_probs, malicious_fraction)


def train_client(fed, i, t, client, local_epochs, batch_size, lr, optimizer_name, weight_decay):
    """Client i after training on its own images; its upload: probabilities [N, C] of the public
    images."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both go on from the client's last step
    model.train()                        # `shuffled` augments the images with --augment
    # ("local", t, i) names the random numbers of this training: order, augmentation, dropout.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    probs = predict_logits(fed, model, fed.public.images).softmax(-1)    # eval mode, clean images
    return Trained(probs, snapshot(model, optimizer))


@timed
def distill(fed, i, t, client, target_probs, public_epochs, batch_size, lr, optimizer_name,
            weight_decay):
    """Client i after training on the public images, towards target_probs [N, C]."""
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both go on from the client's last step
    model.train()                        # `shuffled` augments the images with --augment
    for rows, batch in shuffled(fed, fed.public.images, ("public", t, i), epochs=public_epochs,
                                batch_size=batch_size):
        loss = soft_cross_entropy(forward(fed, model, batch), target_probs[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return snapshot(model, optimizer)


@timed
def evaluate(fed, state, trained=None):
    """Test accuracies of the clients; `accuracy` is their mean after distillation.

    trained    the clients after private training; None: as in `state`
    """
    metrics = distillation_metrics(fed, state["clients"], trained)
    return {"accuracy": metrics["client_accuracy_distilled"], **metrics}


@checked
def run(fed, state=None, *,
        rounds: int = 200,                   # all clients take part in each
        local_epochs: int = 1,               # passes of a client over its own images in a round,
        public_epochs: int = 1,              #   and over the public images
        batch_size: int = 64,
        lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad",    # of each client, for all training,
        weight_decay: float = 1e-4,          #   and its L2 penalty
        malicious_fraction: float = 0.1,     # epsilon: assumed share of malicious clients
        attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    ids = range(len(fed.private))                                            # M clients
    num_public = len(fed.public.images)                                      # N
    all_rows = torch.arange(num_public, device=fed.device)                   # [N]
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids]}
        yield evaluate(fed, state), state
    clients = state["clients"]

    for t in range(state["round"] + 1, rounds + 1):
        # 1, 2: clients train on their own images, and predict all public images.
        def train(i):
            return train_client(fed, i, t, clients[i], local_epochs, batch_size, lr, optimizer,
                                weight_decay)

        # In parallel: probabilities [M, N, C], those of attackers replaced; the trained clients.
        client_probs, trained = collect_rows(fed, all_rows, train, attack)

        # 3, 4: clients learn from the robust mean of the usable uploads (no nan, no infinity,
        # nothing of 1e30 or more); without a usable upload nobody learns.
        clients = trained
        valid_probs = usable(client_probs)                                   # [m, N, C]
        if len(valid_probs):
            target_probs = robust_target(fed, valid_probs, malicious_fraction)           # [N, C]

            def learn(i):
                return distill(fed, i, t, trained[i], target_probs, public_epochs, batch_size, lr,
                               optimizer, weight_decay)

            clients = in_parallel(fed, learn, ids)

        # All that the next round needs: networks with their optimizers; the server keeps nothing.
        state = {"round": t, "clients": clients}
        # Measured; no step above sees it.
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
