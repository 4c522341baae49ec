"""FML: in each client a personal and a shared model teach each other; the shared ones are averaged.

Shen et al., "Federated Mutual Learning", arXiv:2006.16765; written without its text.

Run:    python fedkd_minimal.py --algo fml    small settings, about a minute
Data:   clients: their own labeled images; personal networks may differ (--model), the shared one is
        that of --server-model
Sent:   down: the shared model, to each active client; up: its trained copy, its sample count

A round; the numbers are ours:
 1  the server sends the shared model to the active clients
 2  each trains its personal model p and its copy m of the shared one on its own images. In each
    batch, both predictions before either step and the same augmented view, a teacher a constant:
      p:  alpha_ce CE(p) + (1 - alpha_ce) KL(m || p)
      m:  beta_ce CE(m) + (1 - beta_ce) KL(p || m)
 3  the shared model becomes the mean of the copies, weighed by numbers of samples
With alpha_ce = beta_ce = 1, without dropout, the shared model is FedAvg's with the same optimizer,
and the personal ones are those of local.py.

Scores: client_accuracy_own (and `accuracy`) is of the personal models, with the classes weighed as
        the client's own images have them; client_accuracy of these on all test images;
        server_accuracy of the shared model after step 3
D1  a client keeps the optimizer of its personal model; that of its copy is new in every round
"""
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import average_weights, kl_divergence
from federation import stream, timed
from federation.communication import weights_ledger
from federation.evaluation import client_metrics, client_scores, server_metrics
from federation.parallel import sample_clients
from federation.training import OPTIMIZERS, Optimizer, forward, restore, shuffled, snapshot
from federation.uploads import collect


def mutual_loss(logits, labels, teacher_logits, weight):
    """weight CE + (1 - weight) KL(teacher || student), the mean over the batch: a scalar.

    logits, labels, teacher_logits    [B, C], [B], [B, C]; the teacher gets no gradient
    """
    ce = F.cross_entropy(logits, labels)
    return weight * ce + (1 - weight) * kl_divergence(teacher_logits, logits).mean()


def train_client(fed, i, t, client, server, local_epochs, local_steps, batch_size, lr, alpha_ce,
                 beta_ce, optimizer_name, weight_decay):
    """Client i's upload in round t: its copy of the shared model; and "client", what it keeps."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    new_optimizer = OPTIMIZERS[optimizer_name]
    personal, shared = fed.client_model(i), fed.server_model()
    personal_optimizer = new_optimizer(personal.parameters(), lr=lr, weight_decay=weight_decay)
    shared_optimizer = new_optimizer(shared.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, personal, personal_optimizer)        # as the client kept them, D1
    shared.load_state_dict(server["model"])              # step 1
    personal.train()                     # with --augment both see the same augmented batch
    shared.train()
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):   # step 2
        personal_logits = forward(fed, personal, batch)                      # [B, C]
        shared_logits = forward(fed, shared, batch)                          # [B, C]
        personal_loss = mutual_loss(personal_logits, labels[rows], shared_logits, alpha_ce)
        shared_loss = mutual_loss(shared_logits, labels[rows], personal_logits, beta_ce)
        personal_optimizer.zero_grad()
        shared_optimizer.zero_grad()
        personal_loss.backward()
        shared_loss.backward()
        personal_optimizer.step()
        shared_optimizer.step()
    return {"model": shared.state_dict(), "client": snapshot(personal, personal_optimizer)}


def aggregate(fed, server, uploads):
    """The shared model after the uploads {client: upload}: their mean by numbers of samples."""
    if not uploads:                                      # none was usable: the model stays
        return server
    sizes = [len(fed.private[i].labels) for i in uploads]
    models = [upload["model"] for upload in uploads.values()]
    return server | {"model": average_weights(models, sizes)}


@timed
def evaluate(fed, state):
    """Test accuracies of the personal models and of the shared one."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    return {"accuracy": metrics.get("client_accuracy_own"), **metrics,
            **server_metrics(fed, state["server"])}


@checked
def run(fed, state=None, *,
        rounds: int = 100,
        participation: float = 1.0,          # share of the clients that train in a round
        local_epochs: int = 1,               # passes of a client over its images in a round, or,
        local_steps: int | None = None,      #   if given, steps of each of its two optimizers
        batch_size: int = 64,
        lr: float = 0.05,                    # of both models
        alpha_ce: float = 0.5,               # weight of CE in the personal model's loss
        beta_ce: float = 0.5,                # weight of CE in the shared model's loss
        optimizer: Optimizer = "momentum",
        weight_decay: float = 0.0,
        attack=None):                        # replaces the uploads of some clients
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    if state is None:
        clients = [snapshot(fed.client_model(i, init=i)) for i in range(len(fed.private))]
        state = {"round": 0, "server": snapshot(fed.server_model()), "clients": clients}
        yield evaluate(fed, state), state
    server, clients = state["server"], state["clients"]

    for t in range(state["round"] + 1, rounds + 1):
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))

        def train(i):
            return train_client(fed, i, t, clients[i], server, local_epochs, local_steps,
                                batch_size, lr, alpha_ce, beta_ce, optimizer, weight_decay)

        # {i: train(i)}, in parallel. Attackers' models are replaced, unusable uploads left out;
        # a client whose upload is left out keeps what it had before.
        uploads = collect(fed, active, train, attack)                        # step 1-2
        server = aggregate(fed, server, uploads)                             # step 3
        clients = [uploads[i]["client"] if i in uploads else client
                   for i, client in enumerate(clients)]

        # All that the next round needs: the shared model; personal models and their optimizers.
        state = {"round": t, "server": server, "clients": clients}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(fed.server_model(), len(active))], 1)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fml", run,
    scores={"client_accuracy_own": "clients, own classes", "client_accuracy": "clients",
            "server_accuracy": "shared model"},
    keeps=("server", "clients"), mixed_networks=True, server="images", plateau=("lr",),
    evaluate=evaluate, columns=("client_accuracy_own", "client_accuracy", "server_accuracy"))
