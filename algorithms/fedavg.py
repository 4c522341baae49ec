"""FedAvg: every active client trains the global model on its own data; the server averages the results.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017; here as the
baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1), whose equations are quoted and whose settings are the defaults.
What travels: weights, down and up. Public data: none.
Run:   python fedkd_minimal.py --algo fedavg

Paper (FedSDD)     here                         shape            note
w*_{t-1}           server["model"]              state_dict       the global model
w^l*_{t,n}         upload["model"]              state_dict       the model of client n after local training
N_t                len(active)                  number           clients of round t
|X_{t,n}|          len(fed.private[i].labels)   number           the weight of a client in the average

Where the paper is silent or we differ:
D1  BatchNorm's running statistics are averaged like weights      [test_average_weights_averages_running_statistics]
    and its counters take the maximum                             [test_average_weights_keeps_counters_whole]
D2  the average's weights are normalised over the active clients  [test_fedavg_round_by_hand]
D3  an upload with nan or infinity is left out and counted        [test_non_finite_upload_is_left_out]
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


def train_client(fed, i, t, server, client, *, local_epochs, batch_size, lr, optimizer="sgd", weight_decay=0.0):
    """Local training of client i in round t, from what the server sent. Returns (upload, the client's own state: none here)."""
    images, labels = fed.private[i]                                                      # [n, c, h, w], [n]
    model = fed.client_model(i)
    model.load_state_dict(server["model"])                                               # Eq. (1)
    model.train()
    update = OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
    rng = stream(fed.seed, "local", t, i)
    with seeded(fed.seed, "local", t, i):
        for rows in batches(len(labels), batch_size, local_epochs, rng, fed.device):     # rows: [B]
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
            update.zero_grad()
            loss.backward()
            update.step()
    return {"model": model.state_dict()}, client


def aggregate(fed, server, uploads):
    """The server after the uploads {client: upload} of one group: their models averaged by the clients' numbers of samples."""
    if not uploads:
        return server
    sizes = [len(fed.private[i].labels) for i in uploads]
    return {"model": average_weights([upload["model"] for upload in uploads.values()], sizes)}      # Eq. (2)


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, local_epochs: int = 40, batch_size: int = 64,
        lr: float = 0.8, optimizer: Optimizer = "sgd", weight_decay: float = 0.0, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    attack      (uploads [M, P], client ids, rows [P], t) -> uploads: what malicious clients make of theirs, as vectors
    """
    settings = dict(local_epochs=local_epochs, batch_size=batch_size, lr=lr, optimizer=optimizer, weight_decay=weight_decay)
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
