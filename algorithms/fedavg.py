"""FedAvg: active clients train the global model on their own data; the server averages the results.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
2017, arXiv:1602.05629; here as the baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1), whose
equations are quoted and whose settings are the defaults.

Run:    python fedkd_minimal.py --algo fedavg    small settings, less than a minute
        --paper fedsdd has FedSDD's, which are the defaults of `run`
Data:   clients: their own labeled images; public images: none
Sent:   down: the global model, to each active client; up: its trained model, its sample count

A round; the numbers are ours:
 1  a share of the clients is drawn, and each gets the global model, FedSDD Eq. (1)
 2  each trains it on its own images by SGD on the cross-entropy
 3  the global model becomes the mean of their models, weighed by sample counts, FedSDD Eq. (2)

Scores: `accuracy` and `server_accuracy` are the global model's after line 3
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


def start_server(fed, architecture, init=0):
    """The global model before round 1; `init` picks the seed of its weights."""
    model = network(fed, architecture, init)
    return {"architecture": architecture, "model": model.state_dict()}


def train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr,
                 optimizer_name, weight_decay):
    """Client i's upload in round t: the global model after training on the client's own images."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, server)                                # a copy, FedSDD Eq. (1)
    # New in every round: a client keeps nothing.
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()
    # `shuffled` augments with --augment; ("local", t, i) names the random numbers of this training.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        logits = forward(fed, model, batch)                                  # [B, C]
        loss = F.cross_entropy(logits, labels[rows])                         # mean over the batch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"model": model.state_dict()}


def aggregate(fed, server, uploads):
    """The server after the uploads {client: upload}: the mean model, weighed by sample counts."""
    if not uploads:                                      # none was usable: the model stays
        return server
    models = [upload["model"] for upload in uploads.values()]
    sizes = [len(fed.private[i].labels) for i in uploads]
    return server | {"model": average_weights(models, sizes)}                # FedSDD Eq. (2)


@timed
def evaluate(fed, state):
    """Test accuracy of the global model, in eval mode."""
    return global_metrics(fed, [state["server"]])


@checked
def run(fed, state=None, *,
        rounds: int = 100,                   # of communication
        participation: float = 0.4,          # share of the clients that train in a round
        local_epochs: int = 40,              # passes of a client over its images in a round, or,
        local_steps: int | None = None,      #   if given, its steps
        batch_size: int = 64,                # of a client
        lr: float = 0.8,                     # of a client
        optimizer: Optimizer = "sgd",        # of a client, new in every round
        weight_decay: float = 0.0,           # L2 penalty of this optimizer
        attack=None):                        # replaces the models of malicious clients
    """Yields (metrics, state) after round 0, the untrained model, and after every round."""
    if state is None:
        state = {"round": 0, "server": start_server(fed, fed.architecture[0])}
        yield evaluate(fed, state), state
    server = state["server"]

    for t in range(state["round"] + 1, rounds + 1):
        # A share of the clients takes part: each trains the global model on its own images.
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))

        def train(i):
            return train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr,
                                optimizer, weight_decay)

        # {i: train(i)}, in parallel. Attackers' models are replaced; an upload with nan, infinity
        # or a number of 1e30 or more is left out.
        uploads = collect(fed, active, train, attack)
        # The new global model is the mean of theirs.
        server = aggregate(fed, server, uploads)                             # FedSDD Eq. (2)

        # All that the next round needs; clients and optimizers keep nothing.
        state = {"round": t, "server": server}
        # Measured; no step above sees it.
        model = network(fed, server["architecture"])
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(model, len(active))], 1)}
        yield metrics, state


ALGORITHM = Algorithm("fedavg", run, scores={"server_accuracy": "server"}, keeps=("server",),
                      plateau=("lr",), evaluate=evaluate)
