"""FedMD's upper bound: each party's network trains on public samples, then on all private ones.

Li and Wang, arXiv:1910.03581; the bound is in its authors' code.
What travels: nothing. Public data: labeled.
Run:   python fedkd_minimal.py --algo fedmd-pooled --paper fedmd

Paper              here                         shape         note
D_0                fed.public                   [N, ...], [N] public samples and their labels
union of D_k       pool                         [n, ...], [n] all private samples
                   learn_public                               step 0's first stage, as in FedMD
                   parties, optimizer                         one for each network

Where the paper is silent or we differ:
D1  a round is one epoch over the pooled samples [test_pooled_is_public_training_and_then_epochs]
"""
from functools import partial

import torch

from algorithms.common import Data, run_clients, timed
from algorithms.evaluation import client_metrics, client_scores
from algorithms.fedmd_transfer import learn_public, train_with_penalty
from algorithms.training import OPTIMIZERS, Optimizer, restore, snapshot

PUBLIC = "joint"
VALIDATION = ("early_stopping",)            # keywords that need the task's validation set
MIXED = True    # may clients have different networks?
COLUMNS = ("client_accuracy", "client_accuracy_min", "client_accuracy_max")


def train_party(fed, i, t, party, pool, *, batch_size, new_optimizer, kernel_l2):
    """Party i's snapshot after an epoch over the pooled samples."""
    model = fed.client_model(i)
    optimizer = restore(party, model, new_optimizer)
    train_with_penalty(fed, model, optimizer, pool, kernel_l2, epochs=1, batch_size=batch_size,
                       keys=("pooled", t, i))
    return snapshot(model, optimizer)


@timed
def evaluate(fed, parties):
    """Mean, minimum and maximum of the parties' test accuracies."""
    metrics = client_metrics(client_scores(fed, parties))
    return {"accuracy": metrics["client_accuracy"], **metrics, "bytes_up": 0, "bytes_down": 0}


def run(fed, state=None, *, rounds: int = 50, transfer_public_epochs: int = 20,
        transfer_public_batch_size: int = 128, batch_size: int = 32, early_stopping: bool = True,
        lr: float = 1e-3, optimizer: Optimizer = "adam", weight_decay: float = 0.0,
        kernel_l2: float = 1e-3):
    """Yields (metrics, state) after round 0, the training on the public samples, and after every
    round. Before round 0 it yields (None, state): a checkpoint without metrics.

    rounds                        epochs over the pooled private samples
    transfer_public_epochs        passes over the public data before them, at most
    transfer_public_batch_size    batch size of these passes
    batch_size                    batch size on the pooled samples
    early_stopping                training on the public data stops when it stops improving
    lr                            learning rate of all training
    optimizer                     optimizer of all training, kept over the rounds
    weight_decay                  L2 penalty of the optimizer
    kernel_l2                     L2 penalty on the last layer's weights
    """
    training = dict(new_optimizer=partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay),
                    kernel_l2=kernel_l2)
    ids = range(len(fed.private))
    pool = Data(*(torch.cat(parts) for parts in zip(*fed.private)))
    if state is None:
        state = {"round": -1, "parties": [snapshot(fed.client_model(i, init=i)) for i in ids]}
        yield None, state
    parties = state["parties"]
    if state["round"] < 0:
        models = run_clients(lambda i: learn_public(
            fed, i, parties[i]["model"], transfer_public_epochs=transfer_public_epochs,
            transfer_public_batch_size=transfer_public_batch_size, early_stopping=early_stopping,
            **training), ids, fed.device)
        parties = [{"model": model_state, "optimizer": None} for model_state in models]
        state = {"round": 0, "parties": parties}
        yield evaluate(fed, parties), state
    for t in range(state["round"] + 1, rounds + 1):
        parties = run_clients(lambda i: train_party(
            fed, i, t, parties[i], pool, batch_size=batch_size, **training), ids, fed.device)

        metrics = evaluate(fed, parties)
        yield metrics, {"round": t, "parties": parties}
