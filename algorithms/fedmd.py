"""FedMD: clients with networks of their own design learn from the mean of their logits.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", arXiv:1910.03581;
where the text is silent or vague, the authors' code for CIFAR, iid, decides.

Run:    python fedkd_minimal.py --algo fedmd    small settings, about a minute
        --dataset cifar100 --paper fedmd has that code's, which are the defaults of `run`
Data:   clients: a few labeled images each; clients and server: labeled public images. With --joint,
        the default if these are another data set, one output layer has their classes first, then
        the task's: C in total
Sent:   down: the numbers of some public images, then the consensus; up: a client's logits of them

Algorithm 1; the paper does not number its steps, these numbers are ours:
 0  transfer: each client trains on the public images, then on its own (fedmd_transfer.py)
 then in each round:
 1  the server draws a subset of the public images
 2  communicate: each client i, the paper's party k, sends its logits f_k of the subset
 3  aggregate, distribute: the server sends the consensus f~ = sum_k c_k f_k to all clients
 4  digest: each client trains on the subset; the loss is the mean of |f_k - f~|
 5  revisit: each client trains on its own images, with cross-entropy
All losses have the penalty kernel_l2 |W|² on the last layer's weights W, as in the code.

Scores: means over the clients: `accuracy` and client_accuracy_private after step 5, in round 0
        after step 0; client_accuracy_distilled after step 4
D1  the digest's loss is the mean absolute error of raw logits, as in the code; the text names none
D2  the first revisit starts a new Adam; in the code that of step 0's private training goes on
D3  the subset has each class in proportion, as in the code; the text says only: random
D4  all c_k are equal, as in the code; the text lowers those of two networks, without numbers
"""
import numpy as np
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.fedmd_transfer import penalty, transfer
from federation import stream, timed
from federation.communication import logits_ledger
from federation.evaluation import by_client, client_metrics, client_scores
from federation.parallel import in_parallel
from federation.training import OPTIMIZERS, Optimizer, forward, predict_logits, restore, shuffled
from federation.uploads import collect_logits, is_usable


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


def predict_client(fed, i, client, images):
    """Client i's upload: its logits [n, C] of the public subset [n, c, h, w].   Alg. 1, step 2"""
    model = fed.client_model(i)
    model.load_state_dict(client["model"])
    return predict_logits(fed, model, images)                # in eval mode; the images are clean


def digest_client(fed, i, t, client, images, consensus_logits, public_epochs, public_batch_size, lr,
                  kernel_l2, optimizer_name, weight_decay):
    """Client i after training on the public subset, towards the consensus.   Alg. 1, step 4

    images, consensus_logits    [n, c, h, w], [n, C]
    """
    model = fed.client_model(i)
    # It goes on with the optimizer of its last digest.
    saved = {"model": client["model"], "optimizer": client["digest_optimizer"]}
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(saved, model, optimizer)
    model.train()
    # `shuffled` augments with --augment; ("digest", t, i) names this training's random numbers.
    for rows, batch in shuffled(fed, images, ("digest", t, i), epochs=public_epochs,
                                batch_size=public_batch_size):       # rows: positions in `images`
        loss = digest_loss(forward(fed, model, batch), consensus_logits[rows])         # step 4, D1
        loss = loss + penalty(model, kernel_l2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return client | {"model": model.state_dict(), "digest_optimizer": optimizer.state_dict()}


def revisit_client(fed, i, t, client, local_epochs, batch_size, lr, kernel_l2, optimizer_name,
                   weight_decay):
    """Client i after training on its own images with cross-entropy.   Alg. 1, step 5"""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = fed.client_model(i)
    # It goes on with the optimizer of its last revisit.
    saved = {"model": client["model"], "optimizer": client["revisit_optimizer"]}
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(saved, model, optimizer)
    model.train()
    for rows, batch in shuffled(fed, images, ("revisit", t, i), epochs=local_epochs,
                                batch_size=batch_size):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])               # step 5
        loss = loss + penalty(model, kernel_l2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return client | {"model": model.state_dict(), "revisit_optimizer": optimizer.state_dict()}


@timed
def evaluate(fed, state, digested=None):
    """Test accuracies of the clients after the digest and, as `accuracy`, after the revisit.

    digested    the clients after the digest; None in round 0, which has none
    The test images are of the task. With --joint, a public class as the answer is an error.
    """
    private_scores = client_scores(fed, state["clients"])
    distilled_scores = client_scores(fed, digested) if digested else private_scores
    private = client_metrics(private_scores, "client_accuracy_private")
    distilled = client_metrics(distilled_scores, "client_accuracy_distilled")
    return {"accuracy": private["client_accuracy_private"], **distilled, **private,
            **by_client(private_scores, "client_accuracy_private")}


def check_settings(fed, *, consensus_weights, **settings):
    """Raises ValueError unless each client has a weight, and one of them is above 0."""
    if consensus_weights is not None and (
            sum(consensus_weights) == 0 or len(consensus_weights) != len(fed.private)):
        raise ValueError("fedmd: consensus_weights needs a weight >= 0 for each of "
                         f"{len(fed.private)} clients, not all 0, not {[*consensus_weights]}")


@checked
def run(fed, state=None, *,
        rounds: int = 20,
        transfer_public_epochs: int = 20,                    # transfer, on public images: passes,
        transfer_public_batch_size: int = 128,               #   at most
        transfer_local_epochs: int = 25,                     # transfer, on its own images: passes,
        transfer_batch_size: int = 32,                       #   at most
        early_stopping: bool = True,                         # a stage stops if accuracy has not
        min_delta: float = 0.005,                            #   grown, on public images by this
        subset_size: int | None = 5000,                      # public images in a round; None: all
        public_epochs: int = 1,                              # digest: passes; 0: no digest
        public_batch_size: int = 256,
        local_epochs: int = 4,                               # revisit: passes
        batch_size: int = 5,
        lr: float = 1e-3,                                    # of all training, as the next three
        optimizer: Optimizer = "adam",
        weight_decay: float = 0.0,
        kernel_l2: float = 1e-3,                             # the penalty's factor
        consensus_weights: tuple[float, ...] | None = None,  # c_k, up to a factor; None: equal
        attack=None):
    """Yields (metrics, state) after round 0, the transfer learning, and after every round."""
    ids = range(len(fed.private))
    if state is None:
        after_public, after_private = transfer(                              # Alg. 1, step 0
            fed, transfer_public_epochs, transfer_public_batch_size, transfer_local_epochs,
            transfer_batch_size, lr, kernel_l2, early_stopping, min_delta, optimizer, weight_decay)
        clients = [{"model": model, "digest_optimizer": None, "revisit_optimizer": None}       # D2
                   for model in after_private]
        state = {"round": 0, "clients": clients}
        public_scores = client_scores(fed, [{"model": model} for model in after_public])
        yield {**evaluate(fed, state),
               **client_metrics(public_scores, "client_accuracy_public_stage")}, state
    clients, public_labels = state["clients"], fed.public.labels.cpu().numpy()
    weights = torch.tensor(consensus_weights or [1.0] * len(ids))            # [M], D4

    for t in range(state["round"] + 1, rounds + 1):
        # The server draws a part of the public images, so that messages stay small.
        subset = public_subset(public_labels, subset_size, stream(fed.seed, "subset", t))
        public_rows = torch.from_numpy(subset).to(fed.device)          # [n], Alg. 1, step 1, D3
        images = fed.public.images[public_rows]                        # [n, c, h, w]

        def predict(i):
            return predict_client(fed, i, clients[i], images)

        # [predict(i) for all i], in parallel. Attackers' logits are replaced.
        client_logits = collect_logits(fed, public_rows, predict, attack)    # [M, n, C], step 2

        # Uploads with nan, infinity or numbers of 1e30 or more are left out. If no weight is left,
        # nobody digests, and client_accuracy_distilled is the accuracy of the round before.
        usable = [i for i in ids if is_usable(client_logits[i])]
        digested = clients
        if weights[usable].sum() > 0:
            consensus_logits = consensus(client_logits[usable], weights[usable])  # [n, C], step 3

            def digest(i):
                return digest_client(fed, i, t, clients[i], images, consensus_logits, public_epochs,
                                     public_batch_size, lr, kernel_l2, optimizer, weight_decay)

            digested = in_parallel(fed, digest, ids)                         # Alg. 1, step 4

        def revisit(i):
            return revisit_client(fed, i, t, digested[i], local_epochs, batch_size, lr, kernel_l2,
                                  optimizer, weight_decay)

        # Then each client trains on its own images, with labels of the task.
        clients = in_parallel(fed, revisit, ids)                             # Alg. 1, step 5

        # All that the next round needs: the clients' networks, each with its two optimizers.
        state = {"round": t, "clients": clients}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state, digested), "bad_uploads": len(ids) - len(usable),
                   **logits_ledger(len(ids), fed.num_classes, up=len(images), down=len(images),
                                   indices=len(images))}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedmd", run,
    scores={"client_accuracy_private": "clients, after private training",
            "client_accuracy_distilled": "clients, after distillation"},
    keeps=("clients",), public="joint", mixed_networks=True, validation_for=("early_stopping",),
    check_settings=check_settings, plateau=("lr",), evaluate=evaluate,
    columns=("client_accuracy_distilled", "client_accuracy_private"))
