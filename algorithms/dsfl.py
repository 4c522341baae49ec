"""DS-FL: clients upload probabilities of public samples; all models learn from the sharpened mean.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient
Collaborative Training with Non-IID Private Data", arXiv:2008.06180; here as a baseline of FedGEMS
(Cheng et al., arXiv:2110.11027), whose settings (Table 13) are the defaults.

Run:    python fedkd_minimal.py --algo dsfl    small settings, less than a minute
        --paper fedgems-homogeneous or fedgems-heterogeneous has FedGEMS's, which are the
        defaults of `run`; there learning rates fall on a plateau (experiment/plateau.py)
Data:   clients: their own labeled images; server and clients: N unlabeled public images. All
        networks may differ
Sent:   up: each client's probabilities of all public images; down: their sharpened mean

A round; the numbers are ours:
 1  each client trains on its own images, by cross-entropy
 2  it predicts the public images, and uploads its probabilities p_k
 3  the server sends back y = softmax(mean of all p_k / temperature): ERA, "entropy reduction
    aggregation"; with --aggregation mean the mean itself: SA, "simple aggregation"
 4  the server trains its own model on the public images, by soft cross-entropy towards y
 5  each client trains its model on them in the same way

Scores: `accuracy` is client_accuracy_distilled, the mean over the clients after 5; also
        client_accuracy_private, after 1, and server_accuracy, after 4. With --public half, as in
        FedGEMS's settings, the server is tested on the public half of the test images, the
        clients on the other half
D1  all public samples take part in every round, as FedGEMS's cost table implies. This file was
    written from FedGEMS and public code, without DS-FL's text to read
"""
from typing import Literal

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import soft_cross_entropy
from federation import timed
from federation.communication import logits_ledger
from federation.evaluation import distillation_metrics, server_metrics
from federation.parallel import in_parallel, on_server
from federation.training import (OPTIMIZERS, Optimizer, forward, predict_logits, restore, shuffled,
                                 snapshot)
from federation.uploads import Trained, collect_rows, usable


def entropy_reduction(client_probs, temperature):
    """ERA: softmax(mean over the clients / temperature), [M, N, C] probabilities -> [N, C].

    The mean of probabilities lies in [0, 1]. So at temperature 0.1 and with 10 classes a one-hot
    mean becomes .9996, and a uniform mean stays uniform.
    >>> entropy_reduction(torch.tensor([[[.8, .2]], [[.4, .6]]]), temperature=0.1)
    tensor([[0.8808, 0.1192]])
    """
    return (client_probs.mean(0) / temperature).softmax(-1)


def train_client(fed, i, t, client, local_epochs, batch_size, lr, optimizer_name, weight_decay):
    """Client i after training on its own images; its upload: probabilities [N, C] of the public
    images."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both go on from the client's last step
    model.train()                        # `shuffled` augments the images with --augment
    # ("local", t, i) names the random numbers of this training: order, augmentation, dropout.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    probs = predict_logits(fed, model, fed.public.images).softmax(-1)    # eval mode, clean images
    return Trained(probs, snapshot(model, optimizer))


@timed
@on_server
def train_server(fed, t, server, target_probs, server_epochs, batch_size, lr, optimizer_name,
                 weight_decay):
    """The server after training on the public images, towards target_probs [N, C]."""
    model = fed.server_model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(server, model, optimizer)                    # both go on from the server's last step
    model.train()                        # `shuffled` augments the images with --augment
    for rows, batch in shuffled(fed, fed.public.images, ("server", t), epochs=server_epochs,
                                batch_size=batch_size):
        loss = soft_cross_entropy(forward(fed, model, batch), target_probs[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return snapshot(model, optimizer)


@timed
def distill(fed, i, t, client, target_probs, public_epochs, batch_size, lr, optimizer_name,
            weight_decay):
    """Client i after training on the public images, towards target_probs [N, C]."""
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both go on from the client's last step
    model.train()                        # `shuffled` augments the images with --augment
    for rows, batch in shuffled(fed, fed.public.images, ("public", t, i), epochs=public_epochs,
                                batch_size=batch_size):
        loss = soft_cross_entropy(forward(fed, model, batch), target_probs[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return snapshot(model, optimizer)


@timed
def evaluate(fed, state, trained=None):
    """Test accuracies of the clients and of the server's network; `accuracy` is the clients' mean
    after distillation.

    trained    the clients after private training; None: as in `state`
    """
    metrics = {**distillation_metrics(fed, state["clients"], trained),
               **server_metrics(fed, state["server"])}
    return {"accuracy": metrics["client_accuracy_distilled"], **metrics}


@checked
def run(fed, state=None, *,
        rounds: int = 300,                   # all clients take part in each
        local_epochs: int = 1,               # passes of a client over its own images in a round,
        public_epochs: int = 1,              #   and over the public images
        server_epochs: int = 2,              # passes of the server over the public images
        batch_size: int = 64,                # of a client
        server_batch_size: int = 64,
        lr: float = 1e-3,                    # of a client
        server_lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad",    # of each client and of the server, for all training
        weight_decay: float = 1e-4,          #   and its L2 penalty
        aggregation: Literal["era", "mean"] = "era",     # ERA or SA
        temperature: float = 0.1,            # T of ERA: a smaller one gives a sharper mean
        attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    ids = range(len(fed.private))                                            # M clients
    num_public = len(fed.public.images)                                      # N
    all_rows = torch.arange(num_public, device=fed.device)                   # [N], D1
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    clients, server = state["clients"], state["server"]

    for t in range(state["round"] + 1, rounds + 1):
        # 1, 2: clients train on their own images, and predict all public images.
        def train(i):
            return train_client(fed, i, t, clients[i], local_epochs, batch_size, lr, optimizer,
                                weight_decay)

        # In parallel: probabilities [M, N, C], those of attackers replaced; the trained clients.
        client_probs, trained = collect_rows(fed, all_rows, train, attack)

        # 3: the mean of the usable uploads: without nan, infinity or a number of 1e30 or more.
        valid_probs = usable(client_probs)                                   # [m, N, C]
        if aggregation == "era":
            target_probs = entropy_reduction(valid_probs, temperature)       # [N, C]
        else:
            target_probs = valid_probs.mean(0)                               # [N, C]

        def learn(i):
            return distill(fed, i, t, trained[i], target_probs, public_epochs, batch_size, lr,
                           optimizer, weight_decay)

        # 4, 5: server and clients learn from the mean; without a usable upload nobody does.
        clients = trained
        if len(valid_probs):
            server = train_server(fed, t, server, target_probs, server_epochs, server_batch_size,
                                  server_lr, optimizer, weight_decay)
            clients = in_parallel(fed, learn, ids)

        # All that the next round needs: networks with their optimizers.
        state = {"round": t, "clients": clients, "server": server}
        # Measured; no step above sees it.
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
