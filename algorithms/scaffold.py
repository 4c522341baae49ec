"""SCAFFOLD: control variates correct each local step for the client's drift (option II).

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
Algorithm 1; here as the baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1), whose settings are
the defaults.

Run:   python fedkd_minimal.py --algo scaffold
What travels: in each round the global model and the server's control c, down to each active client;
its trained model and the change of its own control c_i, up. A control has one number for each
parameter.
Public data: none.

Paper              here                         shape         note
x                  server["model"]              state_dict    the global model
c                  server["control"]            state_dict    parameters only; zeros at the start
c_i                client_control               state_dict    zeros until client i's first round;
                   server["client_controls"]    {i: c_i}      client i's own, in no message
y_i                model, upload["model"]       state_dict    during and after local training
Delta c_i          upload["control_change"]     state_dict    c_i+ - c_i
K                  steps                        number        optimizer steps of a client in a round
eta_l, eta_g       lr, global_lr                numbers       local and global learning rate
|S|, N             len(sent), num_clients       numbers       clients that upload, all clients

A round, with the lines of the paper's Algorithm 1:
 7     an active client starts at y_i = x
10     K steps of plain SGD on cross-entropy: y_i = y_i - eta_l (g - c_i + c), g a batch's gradient
12     its new control is c_i+ = c_i - c + (x - y_i) / (K eta_l)
13     it uploads y_i and Delta c_i (the paper: y_i - x, which is as large)
16-17  x = x + eta_g mean(y_i - x), c = c + |S| / N mean(Delta c_i): clients count equally; buffers
       of BatchNorm are averaged as in fedavg.py

Modes: clients train in train mode, with --augment on augmented images; the loss is the mean over
the batch. The test images are predicted in eval mode.
Kept between rounds: the global model and c on the server, c_i on client i. No optimizer is kept.
Scores: `accuracy` and server_accuracy are of the global model after line 17.
Bad upload (nan or infinity): `collect` leaves it out of both means, and its client keeps its old
c_i. If none is left, x and c stay.
Departures (docs/DEPARTURES.md has more): none that changes an equation.
"""
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked, fedavg
from federation import stream
from federation.communication import weights_ledger
from federation.parallel import sample_clients
from federation.training import forward, load_model, network, shuffled
from federation.uploads import collect

COPIES = 2      # a message has twice the model's parameters: the model and a control


def start_server(fed, architecture, init=0):
    """The global model before round 1 and its control; `init` picks the seed of its weights."""
    server = fedavg.start_server(fed, architecture, init)
    return server | {"control": zero_control(load_model(fed, server)), "client_controls": {}}


def zero_control(model):
    """A control variate of zeros: one tensor per parameter, none for BatchNorm's buffers."""
    return {name: torch.zeros_like(w) for name, w in model.named_parameters()}


def corrected_gradient(grad, client_control, server_control):
    """g - c_i + c: the batch's gradient, corrected for the client's drift.   Alg. 1, line 10

    returns    a tensor of grad's shape
    >>> g, c_i, c = torch.tensor(2.0), torch.tensor(0.5), torch.tensor(0.1)
    >>> corrected_gradient(g, client_control=c_i, server_control=c)
    tensor(1.6000)
    """
    return grad - client_control + server_control


def updated_client_control(client_control, server_control, global_params, local_params, steps, lr):
    """c_i+ = c_i - c + (x - y_i) / (K eta_l), of one tensor.           Alg. 1, line 12

    all four tensors              of one shape: one parameter of the network
    global_params, local_params   x and y_i: before and after `steps` (K) steps of plain SGD with
                                  rate `lr` (eta_l); this is option II of the paper
    property                      at a constant rate c_i+ is the mean of the K mini-batch
                                  gradients, for any c_i and c
    >>> c_i, c, x, y = map(torch.tensor, (0.5, 0.1, 1.0, 0.6))
    >>> updated_client_control(c_i, c, x, y, steps=2, lr=0.1)
    tensor(2.4000)
    """
    return client_control - server_control + (global_params - local_params) / (steps * lr)


def train_client(fed, i, t, server, *, local_epochs, local_steps=None, batch_size, lr):
    """Local training of client i in round t, from what the server sent. Returns its upload.

    The upload also holds "client_control", which stays on the client: no message counts it.
    """
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, server)                                          # Alg. 1, line 7
    client_control = server["client_controls"].get(i) or zero_control(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    steps = 0
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        for name, w in model.named_parameters():                             # Alg. 1, line 10
            gradient = torch.zeros_like(w) if w.grad is None else w.grad     # None: it is frozen
            w.grad = corrected_gradient(gradient, client_control[name], server["control"][name])
        optimizer.step()
        steps += 1
    new_control = {name: updated_client_control(client_control[name], server["control"][name],
                                                server["model"][name], w.detach(), steps, lr)
                   for name, w in model.named_parameters()}                  # Alg. 1, line 12
    control_change = {name: new_control[name] - client_control[name] for name in new_control}
    return {"model": model.state_dict(), "control_change": control_change,   # Alg. 1, line 13
            "client_control": new_control}


def aggregate(fed, server, uploads, global_lr=1.0):
    """The server after the uploads {client: upload}: the model x + eta_g mean(y_i - x), the control
    c + |S|/N mean(Delta c_i), and buffers averaged as in FedAvg.

    N counts the clients that can hold a control of this model: those of its network.
    Without uploads the server stays as it is.
    """
    if not uploads:
        return server
    num_clients = fed.architecture.count(server["architecture"])             # N
    sent = list(uploads.values())                                            # of |S| clients
    model = fedavg.aggregate(fed, server, uploads)["model"]                  # the buffers
    control = {}
    for name, c in server["control"].items():
        x = server["model"][name]
        model_change = sum(upload["model"][name] - x for upload in sent) / len(sent)
        control_change = sum(upload["control_change"][name] for upload in sent) / len(sent)
        model[name] = x + global_lr * model_change                           # Alg. 1, line 16-17
        control[name] = c + len(sent) / num_clients * control_change         # Alg. 1, line 16-17
    client_controls = server["client_controls"] | {i: upload["client_control"]
                                                   for i, upload in uploads.items()}
    return server | {"model": model, "control": control, "client_controls": client_controls}


@checked
def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4,
        local_epochs: int = 40, local_steps: int | None = None, batch_size: int = 64,
        lr: float = 0.8, global_lr: float = 1.0):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    hyperparameters.py explains the keywords.
    """
    settings = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                    lr=lr)
    if state is None:
        state = {"round": 0, "server": start_server(fed, fed.architecture[0])}
        yield fedavg.evaluate(fed, state), state
    server = state["server"]
    for t in range(state["round"] + 1, rounds + 1):
        # A share of the clients takes part: each trains the global model on its own data.
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        uploads = collect(fed, active,
                          lambda i: train_client(fed, i, t, server, **settings))
        # The server's model and control move by the means of the clients' changes.
        server = aggregate(fed, server, uploads, global_lr)                  # Alg. 1, line 16-17

        state = {"round": t, "server": server}
        model = network(fed, server["architecture"])
        metrics = {**fedavg.evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(model, len(active))], COPIES)}
        yield metrics, state


ALGORITHM = Algorithm("scaffold", run, scores={"server_accuracy": "server"}, keeps=("server",))
