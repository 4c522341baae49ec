"""FedMD's upper bound: each client's network trains on public samples, then on all private ones.

Li and Wang, arXiv:1910.03581; the bound is in its authors' code.

Run:   python fedkd_minimal.py --algo fedmd-pooled
What travels: nothing; the private samples of all clients are trained on in one place.
Public data: labeled.

Paper              here                         shape         note
D_0                fed.public                   [N, ...], [N] public samples and their labels
union of D_k       private                      [n, ...], [n] all private samples
                   learn_public                               step 0's first stage, as in FedMD
                   best, best_round             numbers       of a network's validation accuracy

Each client's network, on its own:
 0  trains on D_0 until convergence, as in the first stage of FedMD's step 0 (fedmd_transfer.py)
 then in each round:
 1  trains for one epoch on all private samples: cross-entropy, the same penalty, its own Adam. It
    stops when the accuracy on the task's validation set has not grown by 0.001 for 10 rounds

Modes: training is in train mode, with --augment on augmented images; the loss is the mean over the
batch. The validation and the test images are predicted clean, in eval mode.
Kept between rounds: each network, its Adam, its best validation accuracy and the round of it.
Scores: `accuracy` and client_accuracy are the mean over the networks after step 1, in round 0 after
step 0.
Departures (docs/DEPARTURES.md has more):
D1  training stops by the task's validation set, in the code by a test set
"""
from functools import partial

from algorithms import Algorithm, checked
from algorithms.fedmd_transfer import PRIVATE_STAGE, learn_public, train_with_penalty
from federation import timed, union
from federation.evaluation import accuracy, by_client, client_metrics, client_scores
from federation.parallel import in_parallel
from federation.training import (OPTIMIZERS, Best, Optimizer, best_of, predict_logits, restore,
                                 snapshot)


def train_client(fed, i, t, client, private, *, early_stopping, batch_size, new_optimizer,
                 kernel_l2):
    """Client i after an epoch over all private samples; the same if its training has stopped.

    client    its snapshot, its best accuracy so far and the round of that accuracy
    """
    best = Best(client["best"], client["best_round"])
    if early_stopping and t - 1 - best.when >= PRIVATE_STAGE["patience"]:
        return client
    model = fed.client_model(i)
    optimizer = new_optimizer(model.parameters())
    restore(client, model, optimizer)
    train_with_penalty(fed, model, optimizer, private, kernel_l2, epochs=1, batch_size=batch_size,
                       keys=("pooled", t, i))
    if early_stopping:                                                                   # D1
        logits = predict_logits(fed, model, fed.validation.images)
        best = best_of(best, accuracy(logits, fed.validation.labels), t, PRIVATE_STAGE["min_delta"])
    return snapshot(model, optimizer) | {"best": best.accuracy, "best_round": best.when}


@timed
def evaluate(fed, clients):
    """Mean, minimum and maximum of the clients' test accuracies, and each client's."""
    scores = client_scores(fed, clients)
    metrics = client_metrics(scores)
    return {"accuracy": metrics["client_accuracy"], **metrics, **by_client(scores),
            "bytes_up": 0, "bytes_down": 0}


@checked
def run(fed, state=None, *, rounds: int = 50, transfer_public_epochs: int = 20,
        transfer_public_batch_size: int = 128, batch_size: int = 32, early_stopping: bool = True,
        min_delta: float = 0.005, lr: float = 1e-3, optimizer: Optimizer = "adam",
        weight_decay: float = 0.0, kernel_l2: float = 1e-3):
    """Yields (metrics, state) after round 0, the training on the public samples, and every round.

    rounds           epochs over all private samples, at most
    batch_size       batch size on the private samples
    lr, optimizer    of all training; the optimizer is kept over the rounds
    hyperparameters.py explains the other keywords.
    """
    training = dict(new_optimizer=partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay),
                    kernel_l2=kernel_l2, early_stopping=early_stopping)
    ids = range(len(fed.private))
    if state is None:
        models = in_parallel(fed, lambda i: learn_public(
            fed, i, epochs=transfer_public_epochs, batch_size=transfer_public_batch_size,
            min_delta=min_delta, **training), ids)
        clients = [{"model": model_state, "optimizer": None, "best": float("-inf"),
                    "best_round": 0} for model_state in models]
        state = {"round": 0, "clients": clients}
        yield evaluate(fed, clients), state
    clients = state["clients"]
    private = union(*fed.private)
    for t in range(state["round"] + 1, rounds + 1):
        clients = in_parallel(fed, lambda i: train_client(
            fed, i, t, clients[i], private, batch_size=batch_size, **training), ids)

        metrics = evaluate(fed, clients)
        yield metrics, {"round": t, "clients": clients}


ALGORITHM = Algorithm(
    "fedmd-pooled", run,
    scores={"client_accuracy": "clients"}, keeps=("clients",),
    public="joint", mixed_networks=True, validation_for=("early_stopping",),
    columns=("client_accuracy", "client_accuracy_min", "client_accuracy_max"))
