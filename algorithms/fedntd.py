"""FedNTD: FedAvg whose clients also learn from the global model, on all classes but the label's.

Lee, Jeong, Shin, Bae and Yun, "Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning", NeurIPS 2022, arXiv:2106.03097. Written from the authors' code for
CIFAR-10 (100 clients), whose settings are the defaults, without the paper's text to read.

Run:    python fedkd_minimal.py --algo fedntd    small settings, less than a minute
Data:   clients: their own labeled images; public images: none
Sent:   down: the global model, to each active client; up: its trained model, its sample count

Algorithm 1, as in the code; the numbers of its lines are ours:
 1  initialize the global model
 2  in each round a share of the clients is drawn, and each gets the global model
 3  a client's model, the student, starts as a copy of it; the teacher stays a copy of it
 4  for local_epochs, for each batch: the logits of student and teacher, of the same images
 5  leave out the label's logit in both: C - 1 of the C classes stay, the not-true ones
 6  L_NTD = temperature² times the mean over the batch of their KL(teacher || student)
 7  step on CE + beta L_NTD; the cross-entropy CE is of all C logits
 8  the global model becomes the mean of the clients' models, weighed by sample counts
--keep-true leaves out line 5: distillation over all classes, known as FedAvg + KD.

Scores: `accuracy` and `server_accuracy` are the global model's after line 8
D1  the learning rate stays the same; the code multiplies it by .99 after each round
"""
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import average_weights, distillation_loss
from federation import stream, timed
from federation.communication import weights_ledger
from federation.evaluation import global_metrics
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
    temperature                       tau, of both softmaxes
    source                            Alg. 1, line 6
    """
    return distillation_loss(not_true(teacher_logits, labels), not_true(logits, labels),
                             temperature)


def client_loss(logits, labels, teacher_logits, temperature, beta, keep_true):
    """CE plus beta times the distillation loss over not-true or all classes.   Alg. 1, line 7

    Both are means over the batch: a scalar.
    """
    ce = F.cross_entropy(logits, labels)
    if keep_true:
        return ce + beta * distillation_loss(teacher_logits, logits, temperature)
    return ce + beta * not_true_loss(logits, labels, teacher_logits, temperature)


def start_server(fed, architecture, init=0):
    """The global model before round 1; `init` picks the seed of its weights."""
    model = network(fed, architecture, init)
    return {"architecture": architecture, "model": model.state_dict()}


def train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr, temperature,
                 beta, keep_true, optimizer_name, weight_decay):
    """Client i's upload in round t: the global model after training on the client's own images."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model, teacher = load_model(fed, server), load_model(fed, server)        # two copies, line 3
    # New in every round: a client keeps nothing. The learning rate stays the same (D1).
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()
    # `shuffled` augments with --augment; ("local", t, i) names the random numbers of this training.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        # In eval mode and without gradient, of the same augmented images.
        teacher_logits = predict_logits(fed, teacher, batch)                 # [B, C], line 4
        logits = forward(fed, model, batch)                                  # [B, C], line 4
        loss = client_loss(logits, labels[rows], teacher_logits, temperature, beta,
                           keep_true)                                        # line 5-7
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
    return server | {"model": average_weights(models, sizes)}                # line 8


@timed
def evaluate(fed, state):
    """Test accuracy of the global model, in eval mode."""
    return global_metrics(fed, [state["server"]])


@checked
def run(fed, state=None, *,
        rounds: int = 200,                   # of communication
        participation: float = 0.1,          # share of the clients that train in a round
        local_epochs: int = 5,               # passes of a client over its images in a round, or,
        local_steps: int | None = None,      #   if given, its steps
        batch_size: int = 50,                # of a client
        lr: float = 0.01,                    # of a client
        temperature: float = 1.0,            # tau, of both softmaxes
        beta: float = 1.0,                   # weight of the distillation; 0 is FedAvg
        keep_true: bool = False,             # distill over all classes
        optimizer: Optimizer = "momentum",   # of a client, new in every round
        weight_decay: float = 1e-5,          # L2 penalty of this optimizer
        attack=None):                        # replaces the models of malicious clients
    """Yields (metrics, state) after round 0, the untrained model, and after every round."""
    if state is None:
        state = {"round": 0, "server": start_server(fed, fed.architecture[0])}      # line 1
        yield evaluate(fed, state), state
    server = state["server"]

    for t in range(state["round"] + 1, rounds + 1):                          # line 2
        # A share of the clients takes part: each learns from its labels and from the global model.
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))

        def train(i):
            return train_client(fed, i, t, server, local_epochs, local_steps, batch_size, lr,
                                temperature, beta, keep_true, optimizer, weight_decay)

        # {i: train(i)}, in parallel. Attackers' models are replaced; an upload with nan, infinity
        # or a number of 1e30 or more is left out.
        uploads = collect(fed, active, train, attack)
        # The new global model is the mean of theirs.
        server = aggregate(fed, server, uploads)                             # line 8

        # All that the next round needs; clients and optimizers keep nothing.
        state = {"round": t, "server": server}
        # Measured; no step above sees it.
        model = network(fed, server["architecture"])
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(model, len(active))], 1)}
        yield metrics, state


ALGORITHM = Algorithm("fedntd", run, scores={"server_accuracy": "server"}, keeps=("server",),
                      plateau=("lr",), evaluate=evaluate)
