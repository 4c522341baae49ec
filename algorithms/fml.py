"""FML: personal models and copies of a shared one distill from each other; the copies are averaged.

Shen et al., "Federated Mutual Learning", arXiv:2006.16765. Its text was not at hand: this file
follows the authors' public code, github.com/ZJU-DAI/Federated-Mutual-Learning of 2021 (b547bbf).

    python fedkd_minimal.py --algo fml
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. The personal network of every second client has
        one hidden layer (mlp), that of the others is a CNN (cnn_large); the shared one is a smaller
        CNN (cnn). It takes 100 seconds on two cores.

No --paper has it. From Python, fml.run(fed, **PAPER) runs `PAPER`.

Clients hold labeled images of their own; between rounds each keeps its personal model and the
optimizer of this model. The server keeps the shared model. There are no public images. Training:
train mode, images cropped and flipped with --augment, the mean loss of a batch. Prediction, for the
accuracies alone: eval mode, no gradient, images as they are.

The algorithm; the numbers are ours. CE is cross-entropy with the label, KL is at temperature 1:
  1   start with a personal model in each client and a shared model, all of random weights
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client, in parallel:
  5           copy the shared model
  6           train the personal model and the copy on the client's own images, in each batch by
                  loss(personal) = alpha_ce CE(personal) + (1 - alpha_ce) KL(copy || personal)
                  loss(copy)     = beta_ce  CE(copy)     + (1 - beta_ce)  KL(personal || copy)
              Both predict the same images before either takes its step. The first argument of a
              KL is a constant: a loss has no gradient for the other model.
  7       shared model = the mean of the trained copies, weighted by numbers of images

Personal models are never sent. A client that is not active keeps its personal model and its
optimizer. An active one keeps what it trained, also if the server leaves its upload out.

Accuracy is of the personal models on the test images, after step 6: the mean over all clients, each
with the classes weighted as in its own images. `client_accuracy` is the same with all test images
weighted alike; `server_accuracy` is the shared model's, after step 7.

Bad uploads: a client of whose copy a weight is nan, infinite, or 1e30 or more in magnitude is left
out of the mean. If nobody is left, the shared model stays.

Departure
  1  Public code: step 7 is the plain mean. Here: it is weighted by numbers of images.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (OPTIMIZERS, Optimizer, active_in, average_weights, client_metrics,
                        client_scores, loaded, minibatches, parallel_map, random_numbers, received,
                        restored, server_metrics, snapshot, weights_ledger)

# active_in         the clients of a round, drawn at random without replacement
# average_weights   the weighted mean of every entry of models, BatchNorm's statistics too
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received          {client: weights}: after an attack, and without the bad uploads
# restored          a network and its optimizer, after a snapshot has been copied into both; the
#                   learning rate and the weight decay are those given here
# snapshot          {"model": weights, "optimizer": state or None}, to be kept


@dataclass
class Config:
    rounds: int = 20                     # of communication
    participation: float = 1.0           # share of the clients that are active in a round
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.01                     # of both models, constant; --lr-patience lowers it
    alpha_ce: float = 0.5                # weight of CE in the personal model's loss
    beta_ce: float = 0.5                 # weight of CE in the loss of the copy
    optimizer: Optimizer = "momentum"    # the personal model's is kept over the rounds, the copy's
    #                                      is new in every round
    weight_decay: float = 0.0            # L2 penalty of both optimizers


# alpha_ce, beta_ce and the momentum are the public code's; the other values are ours. The code has
# 5 clients, all active, 50 rounds of 5 epochs, batches of 128, a rate of 0.01 that falls to a tenth
# after rounds 16, 32 and 48, and a weight decay of 5e-4.
PAPER = dict(rounds=100, participation=1.0, local_epochs=1, batch_size=64, lr=0.05, alpha_ce=0.5,
             beta_ce=0.5, optimizer="momentum", weight_decay=0.0)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.client_model(i,
              init=k): a new personal network of client i, with the k-th random weights;
              fed.server_model(): a new shared network; fed.augment: with --augment random crops and
              flips, otherwise nothing
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    if state is None:
        # Step 1: personal models and a shared model, of different random weights.
        clients = {i: snapshot(fed.client_model(i, init=i)) for i in range(len(fed.private))}
        state = {"round": 0, "server": {"model": fed.server_model().state_dict()},
                 "clients": clients}
        yield evaluate(fed, state), state
    shared = state["server"]["model"]    # weights
    clients = state["clients"]           # {i: {"model": weights, "optimizer": state or None}}

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each active client trains its personal model and its copy of the shared one.
        active = active_in(fed, cfg.participation, t)
        trained = parallel_map(fed, active,
                               lambda i: train_client(fed, cfg, t, i, clients[i], shared))
        clients = clients | {i: client for i, (client, _) in trained.items()}

        # Step 7: the copies are uploaded; the shared model is their mean, by numbers of images.
        copies = {i: copy for i, (_, copy) in trained.items()}
        uploads = received(fed, copies, attack)                              # {client: weights}
        if uploads:
            sizes = [len(fed.private[i].labels) for i in uploads]            # departure 1
            shared = average_weights([*uploads.values()], sizes)

        state = {"round": t, "server": {"model": shared}, "clients": clients}
        yield {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
               **weights_ledger([(fed.server_model(), len(active))])}, state


def train_client(fed, cfg, t, i, client, shared):
    """(client i after training, the weights of its trained copy of the shared model).   Step 5-6

    client    a snapshot of its personal model and of the optimizer of this model
    shared    weights of the shared model
    """
    images, labels = fed.private[i]
    personal, personal_optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                            cfg.weight_decay)
    copy = loaded(fed.server_model(), shared)
    copy_optimizer = OPTIMIZERS[cfg.optimizer](copy.parameters(), lr=cfg.lr,
                                               weight_decay=cfg.weight_decay)
    personal.train()
    copy.train()
    with random_numbers(fed, "local", t, i) as rng:      # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            batch = fed.augment(images[rows], rng)       # both models see the same crops
            personal_logits = personal(batch)                                    # [B, C]
            copy_logits = copy(batch)                                            # [B, C]
            personal_loss = mutual_loss(personal_logits, labels[rows], copy_logits, cfg.alpha_ce)
            copy_loss = mutual_loss(copy_logits, labels[rows], personal_logits, cfg.beta_ce)
            personal_optimizer.zero_grad()
            copy_optimizer.zero_grad()
            personal_loss.backward()
            copy_loss.backward()
            personal_optimizer.step()
            copy_optimizer.step()
    return snapshot(personal, personal_optimizer), copy.state_dict()


def mutual_loss(logits, labels, teacher_logits, weight):
    """weight CE + (1 - weight) KL(teacher || student), means over the batch: a scalar.

    logits, labels    [B, C], [B]: of the student, the model that this loss trains
    teacher_logits    [B, C]: of the other model, which gets no gradient
    A class of p = 0, such as a teacher's logit of -inf, adds 0 whatever the student's q is.
    >>> student, teacher = torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]).log()
    >>> mutual_loss(student, torch.tensor([0]), teacher, weight=0.0)
    tensor(0.1927)
    """
    ce = F.cross_entropy(logits, labels)
    log_p, log_q = teacher_logits.detach().log_softmax(-1), logits.log_softmax(-1)       # [B, C]
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)                 # p = 0 adds 0
    kl = (log_p.exp() * log_ratio).sum(-1).mean()
    return weight * ce + (1 - weight) * kl


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracies of the personal models and of the shared one."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    own = metrics.pop("client_accuracy_own", None)       # None: no test image is of their classes
    return {"accuracy": own, **metrics, **server_metrics(fed, state["server"])}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "fml", run, scores={"accuracy": "clients, own classes", "client_accuracy": "clients",
                        "server_accuracy": "shared model"},
    paper=PAPER, mixed_networks=True, server="images", model=("cnn_large", "mlp"),
    server_model="cnn", plateau=("lr",), evaluate=evaluate)
