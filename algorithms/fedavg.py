"""FedAvg: active clients train the global model on their own data; the server averages the results.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
2017; here as the baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1), whose equations are quoted
and whose settings are the defaults.

Run:   python fedkd_minimal.py --algo fedavg
What travels: in each round the global model, down to each active client; its trained model and its
number of samples, up.
Public data: none.

Paper (FedSDD)     here                         shape         note
w*_{t-1}           server["model"]              state_dict    the global model
w^l*_{t,n}         upload["model"]              state_dict    client n's model after local training
N_t                len(active)                  number        clients of round t
|X_{t,n}|          len(fed.private[i].labels)   number        the weight of a client's model

A round:
 1  the server draws active clients and sends them the global model, FedSDD Eq. (1)
 2  each trains it on its own samples: cross-entropy, --optimizer (plain SGD)
 3  the global model is the average of theirs, by numbers of samples, FedSDD Eq. (2)

Modes: clients train in train mode, with --augment on augmented images; the loss is the mean over
the batch. The test images are predicted in eval mode.
Kept between rounds: the global model. A client keeps nothing: its optimizer is new in every round.
Scores: `accuracy` and server_accuracy are of the global model after step 3.
Bad upload (nan or infinity): `collect` leaves it out of the average. If none is left, the global
model stays.
Departures (docs/DEPARTURES.md has more): none that changes an equation.
"""
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import average_weights
from federation import stream, timed
from federation.communication import weights_ledger
from federation.evaluation import global_metrics
from federation.parallel import sample_clients
from federation.training import OPTIMIZERS, Optimizer, forward, load_model, network, shuffled
from federation.uploads import collect

COPIES = 1      # a message has as many numbers as the model has parameters


def start_server(fed, architecture, init=0):
    """The global model before round 1; `init` picks the seed of its weights."""
    model = network(fed, architecture, init)
    return {"architecture": architecture, "model": model.state_dict()}


def train_client(fed, i, t, server, *, local_epochs, local_steps=None, batch_size, lr,
                 optimizer="sgd", weight_decay=0.0):
    """Local training of client i in round t, from what the server sent. Returns its upload."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, server)                                          # Eq. (1)
    local_optimizer = OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        local_optimizer.zero_grad()
        loss.backward()
        local_optimizer.step()
    return {"model": model.state_dict()}


def aggregate(fed, server, uploads):
    """The server after the uploads {client: upload}: models averaged by numbers of samples.

    Without uploads the server stays as it is.
    """
    if not uploads:
        return server
    sizes = [len(fed.private[i].labels) for i in uploads]
    average = average_weights([upload["model"] for upload in uploads.values()], sizes)
    return server | {"model": average}                                       # Eq. (2)


@timed
def evaluate(fed, state):
    """Test accuracy of the global model."""
    return global_metrics(fed, [state["server"]])


@checked
def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4,
        local_epochs: int = 40, local_steps: int | None = None, batch_size: int = 64,
        lr: float = 0.8, optimizer: Optimizer = "sgd", weight_decay: float = 0.0, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    hyperparameters.py explains the keywords.
    """
    settings = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                    lr=lr, optimizer=optimizer, weight_decay=weight_decay)
    if state is None:
        state = {"round": 0, "server": start_server(fed, fed.architecture[0])}
        yield evaluate(fed, state), state
    server = state["server"]
    for t in range(state["round"] + 1, rounds + 1):
        # A share of the clients takes part: each trains the global model on its own data.
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        uploads = collect(fed, active,
                          lambda i: train_client(fed, i, t, server, **settings), attack)
        # The new global model is the average of theirs.
        server = aggregate(fed, server, uploads)                             # Eq. (2)

        state = {"round": t, "server": server}
        model = network(fed, server["architecture"])
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(model, len(active))], COPIES)}
        yield metrics, state


ALGORITHM = Algorithm("fedavg", run, scores={"server_accuracy": "server"}, keeps=("server",),
                      plateau=("lr",), evaluate=evaluate)
