"""FedMD's upper bound: each client's network trains on public images, then on all private ones.

Li and Wang, arXiv:1910.03581; the bound is in its authors' code.

Run:    python fedkd_minimal.py --algo fedmd-pooled    small settings, about two minutes
        --dataset cifar100 --paper fedmd has that code's, which are the defaults of `run`
Data:   as in fedmd.py; but the private images of all clients are trained on in one place
Sent:   nothing

Each client's network, on its own:
 0  trains on the public images, in the first stage of FedMD's step 0 (fedmd_transfer.py)
 then in each round:
 1  trains for one epoch on all private images: cross-entropy, the same penalty, its own optimizer;
    it stops when the accuracy on the task's validation images has not grown by 0.001 for 10 rounds

Scores: `accuracy` and client_accuracy are the mean over the networks after step 1, in round 0 after
        step 0
D1  training stops by the task's validation set, in the code by a test set
"""
from algorithms import Algorithm, checked
from algorithms.fedmd_transfer import (PRIVATE_MIN_DELTA, PRIVATE_PATIENCE, learn_public,
                                       train_epoch)
from federation import timed, union
from federation.evaluation import accuracy, by_client, client_metrics, client_scores
from federation.parallel import in_parallel
from federation.training import (OPTIMIZERS, Best, Optimizer, best_of, predict_logits, restore,
                                 snapshot)


def train_client(fed, i, t, client, private, batch_size, lr, kernel_l2, early_stopping,
                 optimizer_name, weight_decay):
    """Client i after an epoch over all private images; the same if its training has stopped.

    client    its snapshot, its best accuracy so far and the round of that accuracy
    """
    best = Best(client["best"], client["best_round"])
    if early_stopping and t - 1 - best.when >= PRIVATE_PATIENCE:
        return client
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)
    train_epoch(fed, model, optimizer, private, ("pooled", t, i), batch_size, kernel_l2)
    if early_stopping:                                                                   # D1
        logits = predict_logits(fed, model, fed.validation.images)           # in eval mode, clean
        best = best_of(best, accuracy(logits, fed.validation.labels), t, PRIVATE_MIN_DELTA)
    return snapshot(model, optimizer) | {"best": best.accuracy, "best_round": best.when}


@timed
def evaluate(fed, state):
    """Mean, minimum and maximum of the clients' test accuracies, and each client's."""
    scores = client_scores(fed, state["clients"])
    metrics = client_metrics(scores)
    return {"accuracy": metrics["client_accuracy"], **metrics, **by_client(scores),
            "bytes_up": 0, "bytes_down": 0}


@checked
def run(fed, state=None, *,
        rounds: int = 50,                          # epochs over all private images, at most
        transfer_public_epochs: int = 20,          # step 0's passes over the public images, at most
        transfer_public_batch_size: int = 128,
        batch_size: int = 32,                      # on the private images
        early_stopping: bool = True,               # training stops when accuracy has not grown, on
        min_delta: float = 0.005,                  #   public images by min_delta
        lr: float = 1e-3,                          # of all training, as the next three
        optimizer: Optimizer = "adam",
        weight_decay: float = 0.0,
        kernel_l2: float = 1e-3):                  # the penalty's factor
    """Yields (metrics, state) after round 0, the training on public images, and every round."""
    ids = range(len(fed.private))
    if state is None:
        def learn(i):
            return learn_public(fed, i, transfer_public_epochs, transfer_public_batch_size, lr,
                                kernel_l2, early_stopping, min_delta, optimizer, weight_decay)

        clients = [{"model": model_state, "optimizer": None, "best": float("-inf"),
                    "best_round": 0} for model_state in in_parallel(fed, learn, ids)]    # step 0
        state = {"round": 0, "clients": clients}
        yield evaluate(fed, state), state
    clients = state["clients"]
    private = union(*fed.private)                  # [n, c, h, w], [n]

    for t in range(state["round"] + 1, rounds + 1):
        def train(i):
            return train_client(fed, i, t, clients[i], private, batch_size, lr, kernel_l2,
                                early_stopping, optimizer, weight_decay)

        clients = in_parallel(fed, train, ids)                               # step 1

        # All that the next round needs: of each client its network, its optimizer, and its best
        # validation accuracy with the round of it.
        state = {"round": t, "clients": clients}
        # Measured; no step above sees it.
        metrics = evaluate(fed, state)
        yield metrics, state


ALGORITHM = Algorithm(
    "fedmd-pooled", run,
    scores={"client_accuracy": "clients"}, keeps=("clients",),
    public="joint", mixed_networks=True, validation_for=("early_stopping",),
    columns=("client_accuracy", "client_accuracy_min", "client_accuracy_max"))
