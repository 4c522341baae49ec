"""FedProx: FedAvg whose clients are held near the global model by a proximal term.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020; here as the baseline of FedSDD (Kwan and Song,
arXiv:2312.17029v1), whose settings are the defaults.
What travels: weights, down and up. Public data: none.
Run:   python fedkd_minimal.py --algo fedprox

Paper              here                         shape            note
w^t                server["model"]              state_dict       the global model: where a client starts, and is held
w                  model                        state_dict       the client's model while it trains
mu                 mu (--mu)                    number           0 is FedAvg, bit for bit
N_t                len(active)                  number           clients of round t
|X_{t,n}|          len(fed.private[i].labels)   number           the weight of a client in the average

Where the paper is silent or we differ:
D1  the distance is over the parameters alone, not BatchNorm's statistics     [test_proximal_term_ignores_buffers]
D2  averaging as in FedAvg (its D1-D3), which the paper leaves to the reader  [test_fedprox_with_mu_0_is_fedavg_bit_for_bit]
"""
import torch.nn.functional as F

from algorithms.common import (OPTIMIZERS, Optimizer, average_weights, batches, forward, is_finite, run_clients, sample_clients,
                               seconds, seeded, stream, test_accuracy)
from attacks import attack_uploads
from communication import weights_ledger

PUBLIC = "none"
MIXED = False   # may clients have different networks?
COLUMNS = ("accuracy",)
COPIES = 1     # tensors the size of the parameters in a message


def start_server(fed, init=0, i=0):
    """What the server knows before round 1, and sends down: the global model, of client i's network."""
    return {"model": fed.client_model(i, init).state_dict()}


def proximal_term(model, global_state, mu):
    """(mu / 2) * ||w - w^t||², the squared distance between the model's parameters and the global ones: a scalar.   FedProx Eq. (2)

    model          the client's network; global_state: a state_dict with (at least) its parameters; buffers do not count
    returns        a scalar whose gradient is mu (w - w^t); none flows to global_state
    >>> model = torch.nn.Linear(1, 1, bias=False); _ = model.weight.data.fill_(3.0)
    >>> proximal_term(model, {"weight": torch.tensor([[1.0]])}, mu=0.5).item()         # 0.5 / 2 * (3 - 1)²
    1.0
    """
    squared_distance = sum((w - global_state[name].detach()).square().sum() for name, w in model.named_parameters())
    return mu / 2 * squared_distance                                                     # Eq. (2)


def train_client(fed, i, t, server, client, *, local_epochs, batch_size, lr, mu, optimizer="sgd", weight_decay=0.0):
    """Local training of client i in round t, from what the server sent. Returns (upload, the client's own state: none here)."""
    images, labels = fed.private[i]                                                      # [n, c, h, w], [n]
    model = fed.client_model(i)
    model.load_state_dict(server["model"])                                               # FedSDD Eq. (1)
    model.train()
    update = OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
    rng = stream(fed.seed, "local", t, i)
    with seeded(fed.seed, "local", t, i):
        for rows in batches(len(labels), batch_size, local_epochs, rng, fed.device):     # rows: [B]
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = F.cross_entropy(forward(fed, model, batch), labels[rows]) + proximal_term(model, server["model"], mu)
            update.zero_grad()
            loss.backward()
            update.step()
    return {"model": model.state_dict()}, client


def aggregate(fed, server, uploads):
    """The server after the uploads {client: upload} of one group: their models averaged by the clients' numbers of samples."""
    if not uploads:
        return server
    sizes = [len(fed.private[i].labels) for i in uploads]
    return {"model": average_weights([upload["model"] for upload in uploads.values()], sizes)}      # FedSDD Eq. (2)


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, local_epochs: int = 40, batch_size: int = 64,
        lr: float = 0.8, mu: float = 0.001, optimizer: Optimizer = "sgd", weight_decay: float = 0.0,
        attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    attack      (uploads [M, P], client ids, rows [P], t) -> uploads: what malicious clients make of theirs, as vectors
    """
    settings = dict(local_epochs=local_epochs, batch_size=batch_size, lr=lr, mu=mu, optimizer=optimizer,
                    weight_decay=weight_decay)
    model = fed.client_model(0)                          # a workbench: states are loaded into it to predict
    if state is None:
        state = {"round": 0, "server": start_server(fed), "clients": {}}
        server_accuracy = test_accuracy(fed, model, state["server"]["model"])
        yield {"accuracy": server_accuracy, "server_accuracy": server_accuracy}, state
    server, clients = state["server"], state["clients"]
    for t in range(state["round"] + 1, rounds + 1):
        start = seconds(fed.device)
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        trained = run_clients(lambda i: train_client(fed, i, t, server, clients.get(i), **settings), active, fed.device)
        trained = attack_uploads(attack, trained, active, t) if attack else trained
        good = {i: result for i, result in zip(active, trained) if is_finite(result)}
        server = aggregate(fed, server, {i: upload for i, (upload, _) in good.items()})
        clients = clients | {i: client for i, (_, client) in good.items()}
        trained_at = seconds(fed.device)
        server_accuracy = test_accuracy(fed, model, server["model"])
        metrics = {"accuracy": server_accuracy, "server_accuracy": server_accuracy, "bad_uploads": len(active) - len(good),
                   "local_seconds": trained_at - start, **weights_ledger([(model, len(active))], COPIES)}
        yield metrics, {"round": t, "server": server, "clients": clients}
