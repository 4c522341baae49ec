"""FML: personal models and copies of a shared one distill from each other; the copies are averaged.

Shen et al., "Federated Mutual Learning", arXiv:2006.16765. Its text was not at hand: this file
follows the authors' public code, github.com/ZJU-DAI/Federated-Mutual-Learning of 2021 (b547bbf).

    python fedkd_minimal.py --algo fml
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. The personal network of every second client has
        one hidden layer (mlp), that of the others is a CNN (cnn_large); the shared one is a smaller
        CNN (cnn). 100 seconds on two cores.

Clients hold labeled images of their own; between rounds each keeps its personal model and the
optimizer of this model, whether it is active or not. The server keeps the shared model. There are
no public images. An active client is sent the shared model, and sends back the weights of its copy
and its number of images. Personal models are never sent.

The algorithm; the numbers are ours. CE is cross-entropy with the label, KL is at temperature 1:
  1   start with a personal model in each client and a shared model, all of random weights
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client, in parallel:
  5           copy the shared model
  6           train the personal model and the copy on the client's own images, in each batch by
                  loss(personal) = alpha_ce CE(personal) + (1 - alpha_ce) KL(copy || personal)
                  loss(copy)     = beta_ce  CE(copy)     + (1 - beta_ce)  KL(personal || copy)
              Both predict before either takes its step. The first argument of a KL is constant.
  7       shared model = the mean of the trained copies, weighted by numbers of images

  step  who predicts         images   mode   gradient  augmented     loss, how often
  6     the personal model   its own  train  yes       in each pass  step 6's, local_epochs
  6     the copy             its own  train  yes       as it         step 6's, local_epochs
  -     all personal models  test     eval   no        no            `accuracy`, `client_accuracy`
  -     the shared model     test     eval   no        no            `server_accuracy`, after step 7

Accuracies of personal models are means over all clients, also those that were never active.
`client_accuracy` weighs all test images alike, `accuracy` the classes as they are in the client's
own images; it leaves out a client none of whose classes has a test image.

A client of whose copy a weight is nan, infinite, or 1e30 or more in magnitude is left out of the
mean, and keeps its personal model. If nobody is left, the shared model stays.

Departure
  1  Public code: step 7 is the plain mean. Here: it is weighted by numbers of images.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from federation import (OPTIMIZERS, Algorithm, Count, Fraction, Natural, NonNegative, Optimizer,
                        Positive, Settings, Share, accuracy, average_weights, count_weight_bytes,
                        drop_bad_uploads, minibatches, parallel_map, predict_models, resume,
                        score_personal, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # of communication
    participation: Share = 1.0           # share of the clients that are active in a round
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.01                  # of both models, constant
    alpha_ce: Fraction = 0.5             # weight of CE in the personal model's loss
    beta_ce: Fraction = 0.5              # weight of CE in the loss of the copy
    optimizer: Optimizer = "momentum"    # the personal model's is kept over the rounds, the copy's
    #                                      is new in every round
    weight_decay: NonNegative = 0.0      # L2 penalty of both optimizers


# The public code has, as Config, all clients active, alpha_ce, beta_ce and the momentum; it has 5
# clients, 50 rounds of 5 epochs, batches of 128, a rate of 0.01 that falls to a tenth after rounds
# 16, 32 and 48, and a weight decay of 5e-4.


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       a `Federation`, whose server_model is the shared network; clients may have different
              architectures
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    if state is None:
        # Step 1: personal models and a shared model, of different random weights.
        clients = {i: snapshot(fed.client_model(i, init=i)) for i in range(len(fed.private))}
        state = {"algorithm": "fml", "round": 0,
                 "server": {"model": fed.server_model().state_dict()}, "clients": clients}
        yield evaluate(fed, state), state
    shared, clients = state["server"]["model"], state["clients"]     # weights, {i: snapshot}

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each active client trains its personal model and its copy of the shared one.
        active = fed.sample_clients(cfg.participation, t)
        trained = parallel_map(                              # {client: (snapshot, its copy)}
            fed, active, lambda i: train_client(fed, cfg, t, i, clients[i], shared))
        clients = clients | {i: client for i, (client, _) in trained.items()}

        # Step 7: the copies are uploaded; the shared model is their mean, by numbers of images.
        copies = {i: copy for i, (_, copy) in trained.items()}
        uploads = attack.poison_weights(copies) if attack else copies
        uploads = drop_bad_uploads(uploads)                                  # {client: weights}
        if uploads:
            sizes = [len(fed.private[i].labels) for i in uploads]            # departure 1
            shared = average_weights([*uploads.values()], sizes)

        state = {**state, "round": t, "server": {"model": shared}, "clients": clients}
        yield measure(fed, state, active, uploads), state


def train_client(fed, cfg, t, i, client, shared):
    """(client i after training, the weights of its trained copy of the shared model).   Step 5-6

    client    a `snapshot` of its personal model and of the optimizer of this model
    shared    weights of the shared model
    """
    images, labels = fed.private[i]
    personal, personal_optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                          cfg.weight_decay)
    copy = fed.server_model()
    copy.load_state_dict(shared)
    copy_optimizer = OPTIMIZERS[cfg.optimizer](copy.parameters(), lr=cfg.lr,
                                               weight_decay=cfg.weight_decay)
    personal.train()
    copy.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
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
    teacher_logits    finite, [B, C]: of the other model; the teacher's get no gradient
    >>> student, teacher = torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]).log()
    >>> mutual_loss(student, torch.tensor([0]), teacher, weight=0.0)
    tensor(0.1927)
    """
    ce = F.cross_entropy(logits, labels)
    log_p, log_q = teacher_logits.detach().log_softmax(-1), logits.log_softmax(-1)       # [B, C]
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return weight * ce + (1 - weight) * kl


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, active, uploads):
    """The metrics of a round."""
    return {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
            **count_weight_bytes([(fed.server_model(), len(active))])}


def evaluate(fed, state):
    """Test accuracies of the personal models and of the shared one."""
    images, labels = fed.test
    logits = predict_models(fed, [state["server"]["model"]], images, fed.server_model)[0]
    return {**score_personal(fed, state["clients"]), "server_accuracy": accuracy(logits, labels)}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "fml", run, Config, mixed_networks=True, server="images", program=dict(
        scores={"accuracy": ("clients", "own classes"), "client_accuracy": ("clients", "test"),
                "server_accuracy": ("shared model", "test")}, server_score="server_accuracy",
        plateau=("lr",), evaluate=evaluate, model=("cnn_large", "mlp"), server_model="cnn"))
