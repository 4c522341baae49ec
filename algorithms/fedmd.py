"""FedMD: parties with models of their own design learn from the consensus of their logits on public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", arXiv:1910.03581; what the text leaves open is as
in its authors' code (CIFAR, iid), whose settings are the defaults. FedGEMS compares with FedMD in a setting of its own, where
public and private data are of one task: --paper fedgems.
What travels: logits of a fresh public subset, up and down. Public data: labelled, at every party.
With a foreign public set (--joint) every model has one output layer over the public classes and, behind them, the task's.
Run:   python fedkd_minimal.py --algo fedmd --paper fedmd

Paper              here                         shape            note
D_0                fed.public                   [N, ...], [N]    public samples, labelled
D_k                fed.private[i]               [n, ...], [n]    the few private samples of party k
d_0                rows                         [n]              the public subset of a round
f_k(x^0)           client_logits                [M, n, C]        before any softmax
f~(x^0)            consensus_logits             [n, C]           the mean, or a weighted one (--consensus-weights)
c_k                consensus_weights            [M]              equal if not given

Algorithm 1, whose steps are numbered here as follows:
 0  transfer: each party trains on the public samples until it gets no better, then on its own             (rounds -1 and 0)
 1  the server draws a public subset
 2  communicate: each party predicts it
 3  aggregate: the consensus
 4  digest: each party comes near the consensus on the subset
 5  revisit: each party trains on its own samples

Where the paper is silent or we differ:
D1  digest is the mean absolute error on raw logits (the text: softmax at a temperature would make no large difference)
                                                                      [test_digest_loss_is_the_mean_absolute_error]
D2  the penalty 1e-3 |W|^2 on the last layer's kernel is in all losses, as in the code         [test_fedmd_round_by_hand]
D3  early stopping looks at a tenth of the public samples, then at the task's validation set; the code looks at test sets
                                                                      [test_transfer_never_sees_a_test_set]
D4  the last epoch's weights stay, not the best's                      [test_early_stopping_keeps_the_last_weights]
D5  two optimisers per party, for digest and revisit, live through all rounds                  [test_fedmd_round_by_hand]
D6  a row tells the accuracies after the revisit of its round, which are those before the digest of the next
                                                                      [test_fedmd_round_by_hand]
D7  an upload with nan or infinity is left out of the consensus; without any there is no digest in the round
                                                                      [test_non_finite_logits_are_left_out]
D8  parties with the same network start from different weights         [test_every_client_starts_from_weights_of_its_own]
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from algorithms.common import (OPTIMIZERS, Data, Optimizer, accuracy, asleep, client_metrics, is_finite, new_learner,
                               predict_logits, run_clients, seconds, stream, test_accuracies, train, wake)
from communication import logits_ledger

PUBLIC = "joint"
VALIDATION = ("early_stopping",)            # keywords that need the task's validation set, unless they are off
MIXED = True    # may clients have different networks?
COLUMNS = ("client_accuracy", "client_accuracy_min", "client_accuracy_max", "gain")
PUBLIC_STAGE = dict(min_delta=0.005, patience=3)         # early stopping of the transfer phase, in epochs
PRIVATE_STAGE = dict(min_delta=0.001, patience=10)


def consensus(client_logits, weights=None):
    """The weighted mean of the clients' logits: [M, N, C] -> [N, C].                                     Alg. 1, step 3

    weights    [M], >= 0, normalised here to sum to 1; None: equal
    raises     ValueError: not one weight for each client, a negative or non-finite one, or all 0
    >>> consensus(torch.tensor([[[3., 0.]], [[0., 6.]]]), weights=[2, 1])
    tensor([[2., 2.]])
    """
    if weights is None:
        return client_logits.mean(0)
    weights = torch.as_tensor(weights, dtype=client_logits.dtype, device=client_logits.device)
    if weights.shape != client_logits.shape[:1] or not (weights.isfinite() & (weights >= 0)).all() or weights.sum() == 0:
        raise ValueError(f"needs a weight >= 0 for each of {len(client_logits)} clients, not all 0, not {weights.tolist()}")
    return torch.tensordot(weights / weights.sum(), client_logits, dims=1)


def digest_loss(logits, consensus_logits):
    """The mean over samples and classes of |logits - consensus_logits|: [B, C], [B, C] -> scalar.           Alg. 1, step 4"""
    return (logits - consensus_logits.detach()).abs().mean()


def public_subset(labels, size, rng):
    """Sorted rows of `size` of the samples (of all, if there are fewer), of each class its share to one. labels: int array [N]."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    size = len(labels) if size is None else min(size, len(labels))
    return np.sort(by_class[((np.arange(size) + rng.random()) * len(labels) / size).astype(np.int64)])


def penalty(model, kernel_l2):
    """kernel_l2 times the squared norm of the last layer's kernel: a scalar."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    return kernel_l2 * last.weight.square().sum()


def train_until_no_better(fed, model, update, data, validation, *, epochs, batch_size, kernel_l2, keys, min_delta, patience):
    """Cross-entropy training that ends when the accuracy on `validation` (None: never) has not grown by min_delta for `patience`
    epochs. The last epoch's weights stay."""
    best, best_epoch = float("-inf"), 0
    for epoch in range(1, epochs + 1):
        train(fed, model, update, data.images,
              lambda logits, rows: F.cross_entropy(logits, data.labels[rows]) + penalty(model, kernel_l2),
              epochs=1, batch_size=batch_size, keys=(*keys, epoch))
        now = validation and accuracy(predict_logits(fed, model, validation.images), validation.labels)
        if now is not None and now > best + min_delta:
            best, best_epoch = now, epoch
        elif now is not None and epoch - best_epoch >= patience:
            break


def learn_public(fed, i, model_state, *, transfer_public_epochs, transfer_public_batch_size, lr, optimizer, weight_decay,
                 kernel_l2, early_stopping):
    """Party i's state_dict after training on the public samples; a tenth of them only says when it is enough. Alg. 1, step 0"""
    model = fed.client_model(i)
    model.load_state_dict(model_state)
    update = OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
    rows = torch.from_numpy(stream(fed.seed, "transfer").permutation(len(fed.public.labels))).to(fed.device)
    held_out, kept = rows.tensor_split([len(rows) // 10]) if early_stopping and len(rows) >= 10 else (None, rows)
    validation = None if held_out is None else Data(fed.public.images[held_out], fed.public.labels[held_out])
    train_until_no_better(fed, model, update, Data(fed.public.images[kept], fed.public.labels[kept]), validation,
                          epochs=transfer_public_epochs, batch_size=transfer_public_batch_size, kernel_l2=kernel_l2,
                          keys=("transfer public", i), **PUBLIC_STAGE)
    return model.state_dict()


def learn_private(fed, i, model_state, *, transfer_local_epochs, transfer_batch_size, lr, optimizer, weight_decay, kernel_l2,
                  early_stopping):
    """Party i's state_dict after training on its own samples, and its test accuracies.                  Alg. 1, step 0"""
    model = fed.client_model(i)
    model.load_state_dict(model_state)
    update = OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
    train_until_no_better(fed, model, update, fed.private[i], fed.validation if early_stopping else None,
                          epochs=transfer_local_epochs, batch_size=transfer_batch_size, kernel_l2=kernel_l2,
                          keys=("transfer local", i), **PRIVATE_STAGE)
    return model.state_dict(), test_accuracies(fed, model)


def predict_party(fed, i, party, rows):
    """Party i's logits [n, C] on the public subset.                                                       Alg. 1, step 2"""
    model = fed.client_model(i)
    model.load_state_dict(party["model"])
    return predict_logits(fed, model, fed.public.images[rows])


def digest_and_revisit(fed, i, t, party, rows, consensus_logits, *, public_epochs, public_batch_size, local_epochs, batch_size, lr,
                       optimizer, weight_decay, kernel_l2):
    """Party i after a round's training: (the party, its test accuracies). consensus_logits: [n, C], of the public rows [n]."""
    model = fed.client_model(i)
    digest = wake({"model": party["model"], "optimizer": party["digest"]}, model, optimizer, lr, weight_decay)
    train(fed, model, digest, fed.public.images[rows],
          lambda logits, places: digest_loss(logits, consensus_logits[places]) + penalty(model, kernel_l2),  # Alg. 1, step 4
          epochs=public_epochs, batch_size=public_batch_size, keys=("digest", t, i))
    revisit = wake({"model": model.state_dict(), "optimizer": party["revisit"]}, model, optimizer, lr, weight_decay)
    images, labels = fed.private[i]
    train(fed, model, revisit, images,
          lambda logits, places: F.cross_entropy(logits, labels[places]) + penalty(model, kernel_l2),        # Alg. 1, step 5
          epochs=local_epochs, batch_size=batch_size, keys=("revisit", t, i))
    party = {"model": model.state_dict(), "digest": digest.state_dict(), "revisit": revisit.state_dict()}
    return party, test_accuracies(fed, model)


def metrics_of(scores, start):
    """Each party's accuracy, their mean, and what they gained on average since the transfer, whose accuracies are `start`."""
    metrics = client_metrics(scores)
    gain = sum(own - before for (own, _), before in zip(scores, start, strict=True)) / len(scores)
    return {"accuracy": metrics["client_accuracy"], **metrics, "gain": gain,
            **{f"client_accuracy_{i}": own for i, (own, _) in enumerate(scores)}}


def run(fed, state=None, *, rounds: int = 20, transfer_public_epochs: int = 20, transfer_public_batch_size: int = 128,
        transfer_local_epochs: int = 25, transfer_batch_size: int = 32, early_stopping: bool = True, subset_size: int | None = 5000,
        public_epochs: int = 1, public_batch_size: int = 256, local_epochs: int = 4, batch_size: int = 5, lr: float = 1e-3,
        optimizer: Optimizer = "adam", weight_decay: float = 0.0, kernel_l2: float = 1e-3,
        consensus_weights: tuple[float, ...] | None = None, attack=None):
    """Yields (metrics, state) after the transfer phase, round 0, and after every round; before, checkpoints alone: (None, state).

    subset_size         public samples per round; none: all
    public_epochs       of digest; local_epochs: of revisit
    consensus_weights   one per party
    attack              (uploads [M, n, C], client ids, rows [n], t) -> uploads: what malicious parties make of theirs
    """
    if early_stopping and fed.validation is None:
        raise ValueError("fedmd needs a validation set for --early-stopping")
    if consensus_weights is not None:
        consensus(torch.zeros(len(fed.private), 1, 1), consensus_weights)                # raises ValueError
    transfer = dict(lr=lr, optimizer=optimizer, weight_decay=weight_decay, kernel_l2=kernel_l2, early_stopping=early_stopping)
    settings = dict(public_batch_size=public_batch_size, local_epochs=local_epochs, batch_size=batch_size, lr=lr,
                    optimizer=optimizer, weight_decay=weight_decay, kernel_l2=kernel_l2)
    ids = range(len(fed.private))
    if state is None:
        parties = [{"model": fed.client_model(i, init=i).state_dict(), "digest": None, "revisit": None} for i in ids]
        state = {"round": -2, "parties": parties, "start": []}
        yield None, state
    parties, start = state["parties"], state["start"]
    for t in range(state["round"] + 1, rounds + 1):
        began = seconds(fed.device)
        if t == -1:
            trained = run_clients(lambda i: learn_public(
                fed, i, parties[i]["model"], transfer_public_epochs=transfer_public_epochs,
                transfer_public_batch_size=transfer_public_batch_size, **transfer), ids, fed.device)
            parties = [party | {"model": model_state} for party, model_state in zip(parties, trained)]
            yield None, {"round": t, "parties": parties, "start": start}
            continue
        if t == 0:
            trained = run_clients(lambda i: learn_private(
                fed, i, parties[i]["model"], transfer_local_epochs=transfer_local_epochs, transfer_batch_size=transfer_batch_size,
                **transfer), ids, fed.device)
            parties = [party | {"model": model_state} for party, (model_state, _) in zip(parties, trained)]
            start = [own for _, (own, _) in trained]
            yield metrics_of([score for _, score in trained], start), {"round": t, "parties": parties, "start": start}
            continue
        rows = torch.from_numpy(public_subset(fed.public.labels.cpu().numpy(), subset_size, stream(fed.seed, "subset", t)))
        rows = rows.to(fed.device)                                                       # [n]             Alg. 1, step 1
        client_logits = torch.stack(run_clients(lambda i: predict_party(fed, i, parties[i], rows), ids, fed.device))  # [M, n, C]
        client_logits = attack(client_logits, ids, rows, t) if attack else client_logits
        good = [i for i, logits in zip(ids, client_logits) if is_finite(logits)]
        own_weights = [1.0 if consensus_weights is None else consensus_weights[i] for i in good]
        heard = sum(own_weights) > 0                                                     # from nobody nothing is learned
        consensus_logits = consensus(client_logits[good], own_weights) if heard else client_logits[0]      # [n, C]
        trained = run_clients(lambda i: digest_and_revisit(fed, i, t, parties[i], rows, consensus_logits,
                                                           public_epochs=public_epochs * heard, **settings), ids, fed.device)
        parties = [party for party, _ in trained]
        metrics = {**metrics_of([score for _, score in trained], start), "bad_uploads": len(ids) - len(good),
                   "local_seconds": seconds(fed.device) - began,
                   **logits_ledger(len(ids), fed.num_classes, up=len(rows), down=len(rows), indices=len(rows))}
        yield metrics, {"round": t, "parties": parties, "start": start}


def pooled(fed, state=None, *, rounds: int = 50, transfer_public_epochs: int = 20, transfer_public_batch_size: int = 128,
           batch_size: int = 32, early_stopping: bool = True, lr: float = 1e-3,
           optimizer: Optimizer = "adam", weight_decay: float = 0.0, kernel_l2: float = 1e-3):
    """FedMD's upper bound: every party's network, trained on the public samples and then on all private ones, pooled.

    Yields (metrics, state) after round 0, the training on the public samples, and after every round, an epoch of the pooled ones.
    Before that (None, state), a checkpoint alone.
    """
    ids = range(len(fed.private))
    pool = Data(*(torch.cat(parts) for parts in zip(*fed.private)))
    adam = dict(lr=lr, optimizer=optimizer, weight_decay=weight_decay)
    if state is None:
        state = {"round": -1, "learners": [new_learner(fed.client_model(i, init=i)) for i in ids]}
        yield None, state
    learners = state["learners"]

    def learn(i, t):
        model = fed.client_model(i)
        if t == 0:
            model.load_state_dict(learn_public(fed, i, learners[i]["model"], transfer_public_epochs=transfer_public_epochs,
                                               transfer_public_batch_size=transfer_public_batch_size, kernel_l2=kernel_l2,
                                               early_stopping=early_stopping, **adam))
            return new_learner(model), test_accuracies(fed, model)
        update = wake(learners[i], model, **adam)
        train(fed, model, update, pool.images,
              lambda logits, rows: F.cross_entropy(logits, pool.labels[rows]) + penalty(model, kernel_l2),
              epochs=1, batch_size=batch_size, keys=("pooled", t, i))
        return asleep(model, update), test_accuracies(fed, model)

    for t in range(state["round"] + 1, rounds + 1):
        began = seconds(fed.device)
        trained = run_clients(lambda i: learn(i, t), ids, fed.device)
        learners = [learner for learner, _ in trained]
        metrics = client_metrics([score for _, score in trained])
        metrics |= {"accuracy": metrics["client_accuracy"], "bytes_up": 0, "bytes_down": 0,
                    "local_seconds": seconds(fed.device) - began}
        yield metrics, {"round": t, "learners": learners}
