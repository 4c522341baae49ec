"""FedMD: clients with networks of their own design learn from the mean of their logits.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", arXiv:1910.03581;
where the text is silent or vague, the authors' code for CIFAR, iid, decides. Its settings are the
defaults.

Run:   python fedkd_minimal.py --algo fedmd
What travels: in each round the server sends the positions of some public samples; each client sends
its logits of these samples; the server sends the mean of these logits. No weights travel.
Public data: labeled, held by every client and the server. With --joint, the default if it is of
another data set, it has classes of its own: the one output layer has these first, then the task's,
and C is their total. Labels of private and test images are shifted behind the public ones.

Paper              here                         shape         note
D_0                fed.public                   [N, ...], [N] public samples and their labels
D_k                fed.private[i]               [n_i, ...]    few; client i is the paper's party k
subset of D_0      public_rows                  [n]           positions in D_0, new in each round
f_k(x^0), all k    client_logits                [M, n, C]     of M clients, before any softmax
f~(x^0)            consensus_logits             [n, C]        the mean, or a weighted mean
c_k                consensus_weights            [M]           divided by their sum; or all 1 / M

Algorithm 1. The paper does not number its steps; these numbers are ours:
 0  transfer learning (fedmd_transfer.py): each client trains on D_0, then on its own D_k, each time
    until the accuracy on held-out images stops growing, or for all passes (--no-early-stopping)
 then in each round:
 1  the server draws a subset of D_0
 2  communicate: each client sends its logits of the subset
 3  aggregate: the server computes the consensus f~ = sum_k c_k f_k; distribute: it sends f~ to all
 4  digest: each client trains on the subset for public_epochs; the loss is the mean of |f_k - f~|
 5  revisit: each client trains on its own D_k for local_epochs, with cross-entropy
All training uses --optimizer, Adam by default. All losses have the penalty kernel_l2 |W|² on the
last layer's weights W.

Modes: all training (steps 0, 4, 5) is in train mode, with --augment on augmented images.
Cross-entropy is a mean over the batch, the digest's loss over batch and classes. All predictions
(step 2, scores, early stopping) are of clean images in eval mode.
Kept between rounds: client: its network (a state_dict) and the states of two Adams, one of all its
digests and one of all its revisits; both start in round 1. Server: nothing.
Scores: means over the clients: client_accuracy_distilled after step 4, client_accuracy_private and
`accuracy` after step 5, in round 0 all three after step 0, and client_accuracy_public_stage after
its first stage. With --joint, predicting a public class counts as an error.
Bad upload (nan or infinity): `usable_consensus` leaves it out and scales the other c_k to sum to 1;
its client receives f~, too. If no c_k > 0 is left, step 4 is skipped, and client_accuracy_distilled
is last round's `accuracy`.
Departures (docs/DEPARTURES.md has more):
D1  from the text, which names no loss for the digest: the mean absolute error of raw logits, as in
    the authors' code
D2  from the code, where Adam goes on from step 0's training on D_k: the first revisit starts anew
D3  from the text, which asks for a random subset: it has each class in proportion, as in the code
D4  from the text, which lowers two clients' c_k without numbers: all are equal, as in the code
"""
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.fedmd_transfer import learn_private, learn_public, penalty
from federation import stream, timed
from federation.communication import logits_ledger
from federation.evaluation import by_client, client_metrics, client_scores, two_phase_metrics
from federation.parallel import in_parallel
from federation.training import (OPTIMIZERS, Optimizer, forward, predict_logits, restore,
                                 shuffled)
from federation.uploads import Trained, collect_rows, is_usable


def consensus(client_logits, weights=None):
    """f~ = sum_k c_k f_k, the weighted mean of the clients' logits: [M, n, C] -> [n, C].

    weights    [M], >= 0 and not all 0; divided here by their sum, they are the c_k. None: equal
    source     Alg. 1, step 3
    >>> consensus(torch.tensor([[[3., 0.]], [[0., 6.]]]), weights=[2, 1])
    tensor([[2., 2.]])
    """
    weights = [1.0] * len(client_logits) if weights is None else weights
    weights = torch.as_tensor(weights, dtype=client_logits.dtype, device=client_logits.device)
    return torch.tensordot(weights / weights.sum(), client_logits, dims=1)


def digest_loss(logits, consensus_logits):
    """The mean of |logits - consensus_logits|: [B, C], [B, C] -> scalar.   Alg. 1, step 4

    The consensus gets no gradient.
    """
    return (logits - consensus_logits.detach()).abs().mean()                                   # D1


def public_subset(labels, size, rng):
    """Sorted rows of a random subset of `size` samples; all if size is None or too large.

    labels, rng    int array [N], a numpy Generator
    Each class gets its share of the subset, to within one sample: the samples stand in a row, class
    after class, in random order within a class, and every (N / size)-th is taken, from a random
    start.
    >>> labels = np.array([0, 1, 0, 1, 1, 1])           # a third of 0, two thirds of 1
    >>> np.sort(labels[public_subset(labels, 3, np.random.default_rng(0))])
    array([0, 1, 1])
    """
    order = rng.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    size = len(labels) if size is None else min(size, len(labels))
    places = (np.arange(size) + rng.random()) * len(labels) / size
    return np.sort(by_class[places.astype(np.int64)])


def usable_consensus(client_logits, weights):
    """(the consensus [n, C] of the clients with usable logits, the number of these clients).

    weights    one for each client; None: equal
    The consensus is None if no client with usable logits (uploads.py) has a weight above 0.
    """
    usable = [i for i, logits in enumerate(client_logits) if is_usable(logits)]
    weights = [1.0 if weights is None else weights[i] for i in usable]                         # D4
    consensus_logits = consensus(client_logits[usable], weights) if sum(weights) > 0 else None
    return consensus_logits, len(usable)


def upload_logits(fed, i, client, images):
    """Client i's upload: its logits [n, C] of the public subset [n, c, h, w].   Alg. 1, step 2"""
    model = fed.client_model(i)
    model.load_state_dict(client["model"])
    return Trained(upload=predict_logits(fed, model, images), client=None)    # nothing was trained


def digest(fed, i, t, client, images, consensus_logits, *, public_epochs, public_batch_size,
           new_optimizer, kernel_l2):
    """Client i after training on the public subset, towards the consensus.   Alg. 1, step 4

    It goes on with the optimizer of its last digest.
    images, consensus_logits    [n, c, h, w], [n, C]
    """
    model = fed.client_model(i)                      # a new network, into which `restore` loads
    saved = {"model": client["model"], "optimizer": client["digest_optimizer"]}
    optimizer = new_optimizer(model.parameters())
    restore(saved, model, optimizer)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("digest", t, i), epochs=public_epochs,
                                batch_size=public_batch_size):       # rows: positions in `images`
        loss = digest_loss(forward(fed, model, batch), consensus_logits[rows])                 # D1
        loss = loss + penalty(model, kernel_l2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return client | {"model": model.state_dict(), "digest_optimizer": optimizer.state_dict()}


def revisit(fed, i, t, client, *, local_epochs, batch_size, new_optimizer, kernel_l2):
    """Client i after training on its own samples with cross-entropy.   Alg. 1, step 5

    It goes on with the optimizer of its last revisit.
    """
    images, labels = fed.private[i]                                      # [n_i, c, h, w], [n_i]
    model = fed.client_model(i)
    saved = {"model": client["model"], "optimizer": client["revisit_optimizer"]}
    optimizer = new_optimizer(model.parameters())
    restore(saved, model, optimizer)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("revisit", t, i), epochs=local_epochs,
                                batch_size=batch_size):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows]) + penalty(model, kernel_l2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return client | {"model": model.state_dict(), "revisit_optimizer": optimizer.state_dict()}


@timed
def evaluate(fed, state, digested=None):
    """The clients' test accuracies after the digest and, as `accuracy`, after the revisit.

    digested    the clients after the digest; None in round 0, which has none
    """
    revisited = client_scores(fed, state["clients"])
    metrics = two_phase_metrics(client_scores(fed, digested) if digested else revisited, revisited)
    return {"accuracy": metrics["client_accuracy_private"], **metrics,
            **by_client(revisited, "client_accuracy_private")}


def check_settings(fed, *, consensus_weights, **settings):
    """Raises ValueError unless each client has a weight, and one of them is above 0."""
    if consensus_weights is not None and (
            sum(consensus_weights) == 0 or len(consensus_weights) != len(fed.private)):
        raise ValueError("fedmd: consensus_weights needs a weight >= 0 for each of "
                         f"{len(fed.private)} clients, not all 0, not {[*consensus_weights]}")


@checked
def run(fed, state=None, *, rounds: int = 20, transfer_public_epochs: int = 20,
        transfer_public_batch_size: int = 128, transfer_local_epochs: int = 25,
        transfer_batch_size: int = 32, early_stopping: bool = True, min_delta: float = 0.005,
        subset_size: int | None = 5000, public_epochs: int = 1, public_batch_size: int = 256,
        local_epochs: int = 4, batch_size: int = 5, lr: float = 1e-3, optimizer: Optimizer = "adam",
        weight_decay: float = 0.0, kernel_l2: float = 1e-3,
        consensus_weights: tuple[float, ...] | None = None, attack=None):
    """Yields (metrics, state) after round 0, the transfer learning, and after every round.

    public_epochs, public_batch_size    of the digest over the public subset; 0 epochs: no digest
    local_epochs, batch_size            of the revisit
    lr, optimizer                       of all training; the optimizers of digest and revisit are
                                        kept over the rounds
    consensus_weights                   the text lowers those of CIFAR's networks 0 and 9 but gives
                                        no numbers; for example .9,1,1,1,1,1,1,1,1,.9
    hyperparameters.py explains the other keywords.
    """
    new_optimizer = partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay)
    training = dict(new_optimizer=new_optimizer, kernel_l2=kernel_l2)
    digesting = dict(public_epochs=public_epochs, public_batch_size=public_batch_size, **training)
    revisiting = dict(local_epochs=local_epochs, batch_size=batch_size, **training)
    ids = range(len(fed.private))
    if state is None:
        after_public = in_parallel(fed, lambda i: learn_public(              # Alg. 1, step 0
            fed, i, epochs=transfer_public_epochs, batch_size=transfer_public_batch_size,
            min_delta=min_delta, early_stopping=early_stopping, **training), ids)
        after_private = in_parallel(fed, lambda i: learn_private(
            fed, i, after_public[i], epochs=transfer_local_epochs, batch_size=transfer_batch_size,
            early_stopping=early_stopping, **training), ids)
        clients = [{"model": model_state, "digest_optimizer": None, "revisit_optimizer": None}
                   for model_state in after_private]                         # D2
        state = {"round": 0, "clients": clients}
        public_scores = client_scores(fed, [{"model": model_state} for model_state in after_public])
        yield {**evaluate(fed, state),
               **client_metrics(public_scores, "client_accuracy_public_stage")}, state
    clients, public_labels = state["clients"], fed.public.labels.cpu().numpy()
    for t in range(state["round"] + 1, rounds + 1):
        # The server draws a public subset, and each client uploads its logits of it.
        subset = public_subset(public_labels, subset_size, stream(fed.seed, "subset", t))      # D3
        public_rows = torch.from_numpy(subset).to(fed.device)                # [n], Alg. 1, step 1
        images = fed.public.images[public_rows]                              # [n, c, h, w]
        # client_logits [M, n, C]: after the attack. The second value, trained clients, is empty.
        client_logits, _ = collect_rows(fed, public_rows, lambda i: upload_logits(
            fed, i, clients[i], images), attack)                             # Alg. 1, step 2
        # The server averages the logits that are usable.
        consensus_logits, num_usable = usable_consensus(                     # Alg. 1, step 3
            client_logits, consensus_weights)
        # Each client trains towards the consensus. Without a consensus clients stay as they are.
        digested = clients
        if consensus_logits is not None:
            digested = in_parallel(fed, lambda i: digest(                    # Alg. 1, step 4
                fed, i, t, clients[i], images, consensus_logits, **digesting), ids)
        # Then each client trains on its own samples.
        clients = in_parallel(                                               # Alg. 1, step 5
            fed, lambda i: revisit(fed, i, t, digested[i], **revisiting), ids)

        state = {"round": t, "clients": clients}
        metrics = {**evaluate(fed, state, digested), "bad_uploads": len(ids) - num_usable,
                   **logits_ledger(len(ids), fed.num_classes, up=len(images),
                                   down=len(images), indices=len(images))}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedmd", run,
    scores={"client_accuracy_private": "clients, after private training",
            "client_accuracy_distilled": "clients, after distillation"},
    keeps=("clients",), public="joint", mixed_networks=True, validation_for=("early_stopping",),
    check_settings=check_settings, plateau=("lr",), evaluate=evaluate,
    columns=("client_accuracy_distilled", "client_accuracy_private"))
