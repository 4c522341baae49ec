"""FedNTD: FedAvg whose clients also learn from the global model, on all classes but the label's.

Lee, Jeong, Shin, Bae and Yun, "Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning", NeurIPS 2022, arXiv:2106.03097. Written from the authors' code for
CIFAR-10 (100 clients), whose settings are the defaults, without the paper's text to read.

Run:   python fedkd_minimal.py --algo fedntd
What travels: in each round the global model, down to each active client; its trained model and its
number of samples, up.
Public data: none.

Paper              here                         shape         note
w                  server["model"]              state_dict    the global model
z                  logits                       [B, C]        of the client's model
g                  teacher_logits               [B, C]        of the global model, in eval mode
tau                temperature                  number        of both softmaxes
beta               beta (--beta)                number        0 is FedAvg with these settings

Algorithm 1, as in the code; the numbers of its lines are ours:
 1  initialize w
 2  in each round the server draws active clients and sends them w
 3  a client's model starts at w; its teacher is w
 4  for local_epochs, for each batch (x, y): z and g are the logits of the same x
 5  leave out the logit of y: z and g have C - 1 classes, the not-true ones
 6  L_NTD = tau² times the mean over the batch of KL(softmax(g / tau) || softmax(z / tau))
 7  step on CE(z, y) + beta L_NTD, by --optimizer (SGD with momentum 0.9) and --weight-decay
 8  the client uploads its model; w = their average by numbers of samples
--keep-true leaves out line 5: distillation over all classes, known as FedAvg + KD.

Modes: clients train in train mode, with --augment on augmented images. The teacher predicts the
same augmented images in eval mode. Both losses of line 7 are means over the batch.
Kept between rounds: the global model. A client keeps nothing; its optimizer is new in every round.
Scores: `accuracy` and server_accuracy are of the global model after line 8.
Bad upload (nan or infinity): `collect` leaves it out of the average. If none is left, the global
model stays.
Departures (docs/DEPARTURES.md has more):
D1  the learning rate stays the same; the code multiplies it by .99 after each round
"""
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import distillation_loss
from algorithms.fedavg import COPIES, aggregate, evaluate, start_server
from federation import stream
from federation.communication import weights_ledger
from federation.parallel import sample_clients
from federation.training import (OPTIMIZERS, Optimizer, forward, load_model, network,
                                 predict_logits, shuffled)
from federation.uploads import collect


def not_true(logits, labels):
    """The logits of all classes but the label's: [B, C], [B] -> [B, C - 1].   Alg. 1, line 5

    >>> not_true(torch.tensor([[5., 1., 0.], [5., 1., 0.]]), torch.tensor([0, 1]))
    tensor([[1., 0.],
            [5., 0.]])
    """
    num_samples, num_classes = logits.shape
    is_other = torch.ones_like(logits, dtype=torch.bool).scatter(1, labels[:, None], False)
    return logits[is_other].view(num_samples, num_classes - 1)


def not_true_loss(logits, labels, teacher_logits, temperature):
    """tau² times the mean of KL(teacher || student) over the C - 1 not-true classes: a scalar.

    logits, labels, teacher_logits    [B, C], [B], [B, C]; the teacher gets no gradient
    source                            Alg. 1, line 6
    """
    return distillation_loss(not_true(teacher_logits, labels), not_true(logits, labels),
                             temperature)


def client_loss(logits, labels, teacher_logits, temperature, beta, keep_true):
    """CE plus beta times the distillation loss over not-true or all classes.   Alg. 1, line 7"""
    ce = F.cross_entropy(logits, labels)
    if keep_true:
        return ce + beta * distillation_loss(teacher_logits, logits, temperature)
    return ce + beta * not_true_loss(logits, labels, teacher_logits, temperature)


def train_client(fed, i, t, server, *, local_epochs, local_steps=None, batch_size, lr, temperature,
                 beta, keep_true, optimizer, weight_decay):
    """Local training of client i in round t, from what the server sent. Returns its upload."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model, teacher = load_model(fed, server), load_model(fed, server)        # line 3
    # The learning rate is the same in every round (D1).
    local_optimizer = OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        teacher_logits = predict_logits(fed, teacher, batch)                 # line 4
        loss = client_loss(forward(fed, model, batch), labels[rows], teacher_logits,
                           temperature, beta, keep_true)                     # line 5-7
        local_optimizer.zero_grad()
        loss.backward()
        local_optimizer.step()
    return {"model": model.state_dict()}


@checked
def run(fed, state=None, *, rounds: int = 200, participation: float = 0.1, local_epochs: int = 5,
        local_steps: int | None = None, batch_size: int = 50, lr: float = 0.01,
        temperature: float = 1.0, beta: float = 1.0, keep_true: bool = False,
        optimizer: Optimizer = "momentum", weight_decay: float = 1e-5, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    hyperparameters.py explains the keywords.
    """
    settings = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                    lr=lr, temperature=temperature, beta=beta, keep_true=keep_true,
                    optimizer=optimizer, weight_decay=weight_decay)
    if state is None:
        state = {"round": 0, "server": start_server(fed, fed.architecture[0])}      # line 1
        yield evaluate(fed, state), state
    server = state["server"]
    for t in range(state["round"] + 1, rounds + 1):                          # line 2
        # A share of the clients takes part: each learns from its labels and from the global model.
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        uploads = collect(fed, active,
                          lambda i: train_client(fed, i, t, server, **settings), attack)
        # The new global model is the average of theirs.
        server = aggregate(fed, server, uploads)                             # line 8

        state = {"round": t, "server": server}
        model = network(fed, server["architecture"])
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(model, len(active))], COPIES)}
        yield metrics, state


ALGORITHM = Algorithm("fedntd", run, scores={"server_accuracy": "server"}, keeps=("server",),
                      plateau=("lr",), evaluate=evaluate)
