"""FedNTD: FedAvg whose clients also distill the global model, over all classes but the label's.

Lee, Jeong, Shin, Bae and Yun, "Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning", NeurIPS 2022, arXiv:2106.03097. Its text was not at hand: this file follows the
authors' public code.

    python fedkd_minimal.py --algo fedntd
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. Twenty seconds on two cores.
    python fedkd_minimal.py --algo fedntd --paper fedgen --dataset mnist
        runs it in the setting of FedGen's Table 1 (Zhu et al., 2021): a CNN with 6 and 16 filters,
        20 clients that divide half of the training images (alpha 0.1; about 100 to 5,500 each), of
        which 10 are active in each of 200 rounds, for 20 steps on 32 images of SGD at 0.01, without
        momentum and weight decay. No --paper has all of `PAPER`.

Clients hold labeled images of their own, and keep nothing between rounds. An active client is sent
the global model, and sends back its weights and its number of images.

The algorithm; the numbers are ours. C is the number of classes, tau the temperature:
  1   start with a global model of random weights
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client, in parallel:
  5           copy the global model twice: the student trains, the teacher stays as it is
  6           for each batch of the client's own images, with labels y:
  7               g, z = the logits of teacher and student
  8               g~, z~ = g and z without the logit of class y: of the C - 1 not-true classes
  9               step on CE(z, y) + beta tau² KL(softmax(g~ / tau) || softmax(z~ / tau))
 10       global model = the mean of the students, by numbers of images

With --keep-true step 8 is left out, which is known as FedAvg + KD. With --beta 0 it is FedAvg.

  step   who predicts        images    mode    gradient   augmented       loss, how often
  7      the teacher         its own   eval    no         as the student  none, local_epochs
  7      an active client    its own   train   yes        in each pass    step 9, local_epochs
  -      the global model    test      eval    no         no              `accuracy`, after step 10

A client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out of the mean.
If nobody is left, the global model stays.

Departures
  1  Public code: the learning rate is multiplied by 0.99 after every round. Here: it stays.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from federation import (OPTIMIZERS, Algorithm, Count, Natural, NonNegative, Optimizer, Positive,
                        Settings, Share, average_weights, count_weight_bytes, drop_bad_uploads,
                        minibatches, parallel_map, predict, score_global)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # of communication
    participation: Share = 0.4           # share of the clients that are active in a round
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.1                   # of a client, constant
    temperature: Positive = 1.0          # tau, of teacher and student
    beta: NonNegative = 1.0              # weight of the distillation; 0 is FedAvg
    keep_true: bool = False              # distill over all C classes, the label's too
    optimizer: Optimizer = "sgd"         # of a client, new in every round; sgd has no momentum
    weight_decay: NonNegative = 0.0      # L2 penalty of this optimizer


# The public code's for CIFAR-10, config/fedntd.json, where they differ from Config.
PAPER = dict(rounds=200, participation=0.1, batch_size=50, lr=0.01, optimizer="momentum",
             weight_decay=1e-5)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained model, and after every round.

    fed       a `Federation`; all clients have one architecture
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    if state is None:
        # Step 1: a global model of random weights.
        state = {"algorithm": "fedntd", "round": 0,
                 "server": {"model": fed.global_model().state_dict()}}
        yield score_global(fed, state), state
    weights = state["server"]["model"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-9: each active client trains a copy of the global model, on its own images.
        active = fed.sample_clients(cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, weights))
        uploads = attack.poison_weights(trained) if attack else trained
        uploads = drop_bad_uploads(uploads)                                  # {client: weights}

        # Step 10: the mean of their models, by numbers of images.
        if uploads:
            sizes = [len(fed.private[i].labels) for i in uploads]
            weights = average_weights([*uploads.values()], sizes)

        state = {**state, "round": t, "server": {"model": weights}}
        yield measure(fed, state, active, uploads), state


def train_client(fed, cfg, t, i, weights):
    """Client i starts from the global weights; returns new ones, trained on its own images."""
    images, labels = fed.private[i]
    student, teacher = fed.client_model(i), fed.client_model(i)
    student.load_state_dict(weights)
    teacher.load_state_dict(weights)
    optimizer = OPTIMIZERS[cfg.optimizer](student.parameters(), lr=cfg.lr,       # departure 1
                                          weight_decay=cfg.weight_decay)
    student.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            batch = fed.augment(images[rows], rng)
            teacher_logits = predict(teacher, batch)                             # [B, C], step 7
            logits = student(batch)                                              # [B, C]
            loss = client_loss(logits, labels[rows], teacher_logits, cfg.temperature, cfg.beta,
                               cfg.keep_true)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return student.state_dict()


def client_loss(logits, labels, teacher_logits, temperature, beta, keep_true):
    """CE + beta times the distillation loss, over not-true or all classes: a scalar.   Step 8-9

    logits, labels, teacher_logits    [B, C], [B], finite [B, C]; the teacher's get no gradient
    """
    ce = F.cross_entropy(logits, labels)
    if keep_true:
        return ce + beta * distillation_loss(logits, teacher_logits, temperature)
    return ce + beta * not_true_loss(logits, labels, teacher_logits, temperature)


def not_true_loss(logits, labels, teacher_logits, temperature):
    """temperature² KL(teacher || student) over the C - 1 classes other than the label's: a scalar.

    logits, labels, teacher_logits    [B, C], [B], finite [B, C]; the teacher's get no gradient
    """
    return distillation_loss(not_true(logits, labels), not_true(teacher_logits, labels),
                             temperature)


def not_true(logits, labels):
    """The logits of all classes but the label's: [B, C], [B] -> [B, C - 1].   Step 8

    >>> not_true(torch.tensor([[5., 1., 0.], [5., 1., 0.]]), torch.tensor([0, 1]))
    tensor([[1., 0.],
            [5., 0.]])
    """
    batch_size, num_classes = logits.shape
    is_other = torch.ones_like(logits, dtype=torch.bool).scatter(1, labels[:, None], False)
    return logits[is_other].view(batch_size, num_classes - 1)


def distillation_loss(student, teacher, temperature):
    """temperature² KL(teacher || student), the mean over the batch: a scalar.   Step 9

    student, teacher    finite logits [B, C], or of the not-true classes [B, C - 1]; the teacher's
                        get no gradient
    """
    log_p = (teacher.detach() / temperature).log_softmax(-1)
    log_q = (student / temperature).log_softmax(-1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean()


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, active, uploads):
    """The metrics of a round."""
    return {**score_global(fed, state), "bad_uploads": len(active) - len(uploads),
            **count_weight_bytes([(fed.global_model(), len(active))])}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "fedntd", run, Config, program=dict(
        paper=PAPER, scores={"accuracy": ("server", "test")}, plateau=("lr",),
        evaluate=score_global))
