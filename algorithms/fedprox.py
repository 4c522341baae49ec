"""FedProx: FedAvg with a proximal term that keeps each client near the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020; here as the baseline of
FedSDD (Kwan and Song, arXiv:2312.17029v1), whose settings are the defaults.

Run:   python fedkd_minimal.py --algo fedprox
What travels: in each round the global model, down to each active client; its trained model and its
number of samples, up.
Public data: none.

Paper              here                         shape         note
w^t                server["model"]              state_dict    the global model
w                  model                        network       the client's model while it trains
mu                 mu (--mu)                    number        0 is FedAvg, bit for bit
N_t                len(active)                  number        clients of round t
|X_{t,n}|          len(fed.private[i].labels)   number        the weight of a client's model

A round:
 1  the server draws active clients and sends them the global model w^t
 2  each trains it on its own samples, with --optimizer (plain SGD):
    cross-entropy + (mu / 2) ||w - w^t||², Eq. (2)
 3  the global model is the average of theirs, by numbers of samples

Modes: clients train in train mode, with --augment on augmented images; the cross-entropy is the
mean over the batch. The test images are predicted in eval mode.
Kept between rounds: the global model. A client keeps nothing: its optimizer is new in every round.
Scores: `accuracy` and server_accuracy are of the global model after step 3.
Bad upload (nan or infinity): `collect` leaves it out of the average. If none is left, the global
model stays.
Departures (docs/DEPARTURES.md has more):
D2  clients are drawn uniformly and weigh by samples, as in FedAvg; the paper's Algorithm 2 draws
    client k with probability p_k and takes the plain mean
"""
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.fedavg import COPIES, aggregate, evaluate, start_server
from federation import stream
from federation.communication import weights_ledger
from federation.parallel import sample_clients
from federation.training import OPTIMIZERS, Optimizer, forward, load_model, network, shuffled
from federation.uploads import collect


def proximal_term(model, global_state, mu):
    """(mu / 2) ||w - w^t||²: the penalty on the distance to w^t, a scalar.   FedProx Eq. (2)

    model           the client's network; only its parameters count, not its buffers
    global_state    a state_dict that holds at least these parameters; it gets no gradient
    returns         a scalar, whose gradient is mu (w - w^t)
    >>> model = torch.nn.Linear(1, 1, bias=False); _ = model.weight.data.fill_(3.0)
    >>> global_state = {"weight": torch.tensor([[1.0]])}
    >>> proximal_term(model, global_state, mu=0.5).item()                    # 0.5 / 2 * (3 - 1)²
    1.0
    """
    squared_distance = sum((w - global_state[name].detach()).square().sum()
                           for name, w in model.named_parameters())
    return mu / 2 * squared_distance                                         # Eq. (2)


def train_client(fed, i, t, server, *, local_epochs, local_steps=None, batch_size, lr, mu,
                 optimizer="sgd", weight_decay=0.0):
    """Local training of client i in round t, from what the server sent. Returns its upload."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, server)                                          # FedSDD Eq. (1)
    local_optimizer = OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        loss = loss + proximal_term(model, server["model"], mu)
        local_optimizer.zero_grad()
        loss.backward()
        local_optimizer.step()
    return {"model": model.state_dict()}


@checked
def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4,
        local_epochs: int = 40, local_steps: int | None = None, batch_size: int = 64,
        lr: float = 0.8, mu: float = 0.001, optimizer: Optimizer = "sgd",
        weight_decay: float = 0.0, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    hyperparameters.py explains the keywords.
    """
    settings = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                    lr=lr, mu=mu, optimizer=optimizer, weight_decay=weight_decay)
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
        server = aggregate(fed, server, uploads)                             # FedSDD Eq. (2), D2

        state = {"round": t, "server": server}
        model = network(fed, server["architecture"])
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(model, len(active))], COPIES)}
        yield metrics, state


ALGORITHM = Algorithm("fedprox", run, scores={"server_accuracy": "server"}, keeps=("server",))
