"""Local training: each client trains a model of its own on its own images; nothing is sent.

The baseline of FML, FedProto, FedKD and FD, with the same optimizers, steps and participation: what
a client gains from the others is the difference to it.

Run:    python fedkd_minimal.py --algo local    small settings, about half a minute
Data:   clients: their own labeled images; networks may differ
Sent:   nothing

A round:
 1  the clients that take part train on their own images, from where their last training ended

Scores: client_accuracy_own (and `accuracy`) weighs the classes as the client's own images have
        them, client_accuracy is on all test images; both are means over all clients after step 1
"""
import torch.nn.functional as F

from algorithms import Algorithm, checked
from federation import stream, timed
from federation.evaluation import client_metrics, client_scores
from federation.parallel import in_parallel, sample_clients
from federation.training import OPTIMIZERS, Optimizer, forward, restore, shuffled, snapshot


def train_client(fed, i, t, client, local_epochs, local_steps, batch_size, lr, optimizer_name,
                 weight_decay):
    """Client i after training in round t: a snapshot of its model and its optimizer."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both as the client kept them
    model.train()                        # with --augment the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return snapshot(model, optimizer)


@timed
def evaluate(fed, state):
    """Test accuracies of the clients' models; `accuracy` is the mean of those on own classes."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    return {"accuracy": metrics.get("client_accuracy_own"), **metrics}


@checked
def run(fed, state=None, *,
        rounds: int = 100,
        participation: float = 1.0,          # share of the clients that train in a round
        local_epochs: int = 1,               # passes of a client over its images in a round, or,
        local_steps: int | None = None,      #   if given, its optimizer's steps
        batch_size: int = 64,
        lr: float = 0.05,
        optimizer: Optimizer = "momentum",   # kept over the rounds
        weight_decay: float = 0.0):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    if state is None:
        clients = [snapshot(fed.client_model(i, init=i)) for i in range(len(fed.private))]
        state = {"round": 0, "clients": clients}
        yield evaluate(fed, state), state
    clients = state["clients"]

    for t in range(state["round"] + 1, rounds + 1):
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))

        def train(i):
            return train_client(fed, i, t, clients[i], local_epochs, local_steps, batch_size, lr,
                                optimizer, weight_decay)

        trained = dict(zip(active, in_parallel(fed, train, active)))
        clients = [trained.get(i, client) for i, client in enumerate(clients)]

        # All that the next round needs: models and optimizers of the clients.
        state = {"round": t, "clients": clients}
        yield {**evaluate(fed, state), "bytes_up": 0, "bytes_down": 0}, state


ALGORITHM = Algorithm(
    "local", run,
    scores={"client_accuracy_own": "clients, own classes", "client_accuracy": "clients"},
    keeps=("clients",), mixed_networks=True, plateau=("lr",), evaluate=evaluate,
    columns=("client_accuracy_own", "client_accuracy"))
