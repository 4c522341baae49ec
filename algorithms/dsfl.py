"""DS-FL: clients upload probabilities of public samples; all models learn from the sharpened mean.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient
Collaborative Training with Non-IID Private Data", arXiv:2008.06180; here as a baseline of FedGEMS
(Cheng et al., arXiv:2110.11027), whose settings (Table 13) are the defaults.

Run:   python fedkd_minimal.py --algo dsfl
What travels: in each round every client's probabilities of all public samples, up; their sharpened
mean, down.
Public data: unlabeled, at the server and at every client.

Paper              here                         shape         note
p_k                client_probs                 [M, N, C]     of M clients on all N public samples
T                  temperature                  number        a smaller one sharpens more
ERA                entropy_reduction            [N, C]        "entropy reduction aggregation":
                                                              softmax(mean over the clients / T)
SA                 aggregation = "mean"         [N, C]        "simple aggregation": the mean itself
y                  target_probs                 [N, C]        the target of server and clients

In each round:
 1  each client trains on its own samples: cross-entropy, --optimizer (AMSGrad)
 2  it sends p_k, its probabilities of the public samples
 3  the server takes the mean of the p_k, sharpens it, and sends the result y to the clients
 4  the server trains its own model on the public samples: soft cross-entropy towards y, --optimizer
 5  each client trains its model on them, towards y

Kept between rounds: by each client its network and one optimizer, which makes the steps of 1 and 5;
by the server its network and its optimizer.
Modes: all training (steps 1, 4, 5) is in train mode, with --augment on augmented images; each loss
is the mean over the batch. Step 2 predicts clean images in eval mode.
Scores: `accuracy` and client_accuracy_distilled are the mean over the clients after step 5,
client_accuracy_private after step 1; server_accuracy is of the server's model after step 4.
evaluation.py says on which test images.
Bad upload (nan or infinity): `usable` leaves it out of the mean as a whole; its client still learns
towards y. If none is left, the round has no steps 4 and 5.
Departures (docs/DEPARTURES.md has more):
D1  all public samples take part in every round, as FedGEMS's cost table implies. This file was
    written from FedGEMS and public code, without DS-FL's text to read
"""
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import soft_cross_entropy
from federation import evaluation, timed
from federation.communication import logits_ledger
from federation.parallel import in_parallel, run_students
from federation.training import (OPTIMIZERS, Optimizer, forward, predict_logits, restore, shuffled,
                                 snapshot)
from federation.uploads import Trained, collect_rows, usable

evaluate = partial(evaluation.evaluate, main_metric="client_accuracy_distilled")


def entropy_reduction(client_probs, temperature):
    """ERA: softmax(mean over the clients / temperature), [M, N, C] probabilities -> [N, C].

    The mean of probabilities lies in [0, 1]. So at temperature 0.1 and with 10 classes a one-hot
    mean becomes .9996, and a uniform mean stays uniform.
    >>> entropy_reduction(torch.tensor([[[.8, .2]], [[.4, .6]]]), temperature=0.1)
    tensor([[0.8808, 0.1192]])
    """
    return (client_probs.mean(0) / temperature).softmax(-1)


def train_client(fed, i, t, client, *, local_epochs, batch_size, new_optimizer):
    """Private training of client i; it uploads its probabilities [N, C] of the public samples.

    Cross-entropy, with the one optimizer that the client keeps for this and for `distill`.
    """
    images, labels = fed.private[i]
    model = fed.client_model(i)
    optimizer = new_optimizer(model.parameters())
    restore(client, model, optimizer)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    probs = predict_logits(fed, model, fed.public.images).softmax(-1)
    return Trained(probs, snapshot(model, optimizer))


@timed
def distill(fed, saved, model, target_probs, *, epochs, batch_size, new_optimizer, keys):
    """The snapshot of a client or the server after training towards target_probs [N, C].

    saved    its snapshot before: weights and optimizer
    model    a network for these weights
    keys     of `shuffled`: they name this training
    """
    optimizer = new_optimizer(model.parameters())
    restore(saved, model, optimizer)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, fed.public.images, keys, epochs=epochs,
                                batch_size=batch_size):
        loss = soft_cross_entropy(forward(fed, model, batch), target_probs[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return snapshot(model, optimizer)


@checked
def run(fed, state=None, *, rounds: int = 300, local_epochs: int = 1, public_epochs: int = 1,
        server_epochs: int = 2, batch_size: int = 64, server_batch_size: int = 64,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, aggregation: Literal["era", "mean"] = "era",
        temperature: float = 0.1, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    optimizer      optimizer of clients and server, kept over the rounds
    temperature    of the sharpening: a smaller one gives a sharper mean
    hyperparameters.py explains the other keywords.
    """
    make = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    client_training = dict(batch_size=batch_size, new_optimizer=partial(make, lr=lr))
    server_training = dict(batch_size=server_batch_size, new_optimizer=partial(make, lr=server_lr))
    ids = range(len(fed.private))
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    clients, server = state["clients"], state["server"]
    num_public = len(fed.public.images)
    rows = torch.arange(num_public, device=fed.device)                                   # [N], D1
    for t in range(state["round"] + 1, rounds + 1):
        # Clients train on their own data, and upload their probabilities of the public samples.
        client_probs, trained = collect_rows(fed, rows, lambda i: train_client(          # [M, N, C]
            fed, i, t, clients[i], local_epochs=local_epochs, **client_training), attack)
        clients = trained
        # Server and clients learn from the mean; without a usable upload nobody does.
        valid_probs = usable(client_probs)                                               # [m, N, C]
        if len(valid_probs):
            target_probs = valid_probs.mean(0)                                           # [N, C]
            if aggregation == "era":
                target_probs = entropy_reduction(valid_probs, temperature)
            [server] = run_students(fed, lambda _: distill(
                fed, server, fed.server_model(), target_probs, epochs=server_epochs,
                keys=("server", t), **server_training), [0])
            clients = in_parallel(fed, lambda i: distill(
                fed, trained[i], fed.client_model(i), target_probs, epochs=public_epochs,
                keys=("public", t, i), **client_training), ids)

        state = {"round": t, "clients": clients, "server": server}
        metrics = {**evaluate(fed, state, trained),
                   "bad_uploads": len(ids) - len(valid_probs),
                   **logits_ledger(len(ids), fed.num_classes, up=num_public, down=num_public)}
        yield metrics, state


ALGORITHM = Algorithm(
    "dsfl", run,
    scores={"client_accuracy_distilled": "clients, after distillation",
            "client_accuracy_private": "clients, after private training",
            "server_accuracy": "server"},
    keeps=("clients", "server"),
    public="unlabeled", mixed_networks=True, server="images",
    plateau=("lr", "server_lr"), evaluate=evaluate,
    columns=("client_accuracy_distilled", "client_accuracy_private", "server_accuracy"))
