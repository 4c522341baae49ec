"""SCAFFOLD: control variates correct each local step for the client's drift (option II).

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
arXiv:1910.06378, Algorithm 1; here as the baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1),
whose settings are the defaults.

Run:    python fedkd_minimal.py --algo scaffold    small settings, less than a minute
        --paper fedsdd has FedSDD's, which are the defaults of `run`
Data:   clients: their own labeled images; public images: none
Sent:   down: the global model x and the server's control c, to each active client; up: its trained
        model y_i, the change of its own control c_i and its sample count. A control is as large as
        the parameters

A round, with the lines of the paper's Algorithm 1:
 7     an active client starts at y_i = x
10     in each of K steps it moves to y_i - lr (g - c_i + c), where g is the batch's gradient
12     its new control is c_i+ = c_i - c + (x - y_i) / (K lr)
13     it uploads y_i and c_i+ - c_i (the paper: y_i - x, which is as large)
16-17  x = x + global_lr mean(y_i - x) and c = c + |S| / N mean(c_i+ - c_i): the |S| clients that
       upload count equally, whatever their sizes; N is the number of all clients

Scores: `accuracy` and `server_accuracy` are the global model's after line 17
"""
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import average_weights
from federation import stream, timed
from federation.communication import weights_ledger
from federation.evaluation import global_metrics
from federation.parallel import sample_clients
from federation.training import forward, load_model, network, shuffled
from federation.uploads import collect


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


def zero_control(model):
    """A control of zeros: one tensor per parameter, none for BatchNorm's buffers."""
    return {name: torch.zeros_like(w) for name, w in parameters_of(model)}


def parameters_of(model):
    """[(name, parameter)]; a weight that two layers share has both names, as in the state_dict."""
    return list(model.named_parameters(remove_duplicate=False))


def start_server(fed, architecture, init=0):
    """The global model before round 1 and its control; `init` picks the seed of its weights.

    "client_controls" has {i: c_i} of the clients that have taken part. They stay on the clients: no
    message has them.
    """
    model = network(fed, architecture, init)
    return {"architecture": architecture, "model": model.state_dict(),
            "control": zero_control(model), "client_controls": {}}


def train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr):
    """Client i's upload in round t: its model after local training, and the change of its control.

    "client_control", its new control, stays on the client: no message counts it.
    """
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, server)                                # a copy, Alg. 1, line 7
    control = server["client_controls"].get(i) or zero_control(model)        # zeros at first
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)     # c_i+ is right for plain SGD alone
    steps = 0
    model.train()
    # `shuffled` augments with --augment; ("local", t, i) names the random numbers of this training.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        logits = forward(fed, model, batch)                                  # [B, C]
        loss = F.cross_entropy(logits, labels[rows])                         # mean over the batch
        optimizer.zero_grad()
        loss.backward()
        for name, w in model.named_parameters():                             # Alg. 1, line 10
            gradient = torch.zeros_like(w) if w.grad is None else w.grad     # None: it is frozen
            w.grad = corrected_gradient(gradient, control[name], server["control"][name])
        optimizer.step()
        steps += 1

    new_control = {name: updated_client_control(control[name], server["control"][name],
                                                server["model"][name], w.detach(), steps, lr)
                   for name, w in parameters_of(model)}                      # Alg. 1, line 12
    control_change = {name: new_control[name] - control[name] for name in new_control}
    return {"model": model.state_dict(), "control_change": control_change,   # Alg. 1, line 13
            "client_control": new_control}


def aggregate(fed, server, uploads, global_lr):
    """The server after the uploads {client: upload}: model and control moved by the mean changes.

    BatchNorm's buffers, which have no control, are averaged by sample counts as in FedAvg.
    """
    if not uploads:                         # none was usable: model and controls stay
        return server
    sent = list(uploads.values())                                            # of |S| clients
    num_clients = fed.architecture.count(server["architecture"])             # N: of this network
    sizes = [len(fed.private[i].labels) for i in uploads]
    model = average_weights([upload["model"] for upload in sent], sizes)     # for the buffers
    control = {}
    for name, c in server["control"].items():
        x = server["model"][name]
        model_change = sum(upload["model"][name] - x for upload in sent) / len(sent)
        control_change = sum(upload["control_change"][name] for upload in sent) / len(sent)
        model[name] = x + global_lr * model_change                           # Alg. 1, line 16-17
        control[name] = c + len(sent) / num_clients * control_change         # Alg. 1, line 16-17
    # A client whose upload was left out keeps its control.
    own = {i: upload["client_control"] for i, upload in uploads.items()}
    return server | {"model": model, "control": control,
                     "client_controls": server["client_controls"] | own}


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
        lr: float = 0.8,                     # of a client, eta_l
        global_lr: float = 1.0):             # eta_g; 1 takes the mean of the clients' models
    """Yields (metrics, state) after round 0, the untrained model, and after every round."""
    if state is None:
        state = {"round": 0, "server": start_server(fed, fed.architecture[0])}
        yield evaluate(fed, state), state
    server = state["server"]

    for t in range(state["round"] + 1, rounds + 1):
        # A share of the clients takes part: each trains the global model on its own images.
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))

        def train(i):
            return train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr)

        # {i: train(i)}, in parallel; an upload with nan, infinity or a number of 1e30 or more is
        # left out.
        uploads = collect(fed, active, train)
        # The global model and its control move by the means of the clients' changes.
        server = aggregate(fed, server, uploads, global_lr)                  # Alg. 1, line 16-17

        # All that the next round needs, the clients' controls too; no optimizer is kept.
        state = {"round": t, "server": server}
        # Measured; no step above sees it. 2: a message has a model and a control.
        model = network(fed, server["architecture"])
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(model, len(active))], 2)}
        yield metrics, state


ALGORITHM = Algorithm("scaffold", run, scores={"server_accuracy": "server"}, keeps=("server",))
