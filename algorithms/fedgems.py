"""FedGEMS: a large server model learns from labels, from itself, and from clients that are right.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027.

    python fedkd_minimal.py --algo fedgems
        runs `Config` on digits of 16x16 pixels. 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 150 images each; 3,000 images are public. The server has
        a CNN twice as wide. It takes 40 seconds on two cores.
    python fedkd_minimal.py --algo fedgems --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`: 16 clients with a ResNet-11 hold 1,406 images each, iid; 25,000 images are
        public; the server has a ResNet-56. Images are cropped and flipped. After more than 10
        rounds without a better accuracy of the server on 2,500 validation images, which nobody
        trains on, the program divides both learning rates by ten (plateau.py). With --paper
        fedgems-heterogeneous clients have eight networks, two of them alike as printed, and unequal
        shares of the classes (Dirichlet, alpha 0.5).

Each client holds labeled images of its own. The server and all clients hold N labeled public
images. All networks may differ. Clients send logits of public images, the server sends logits and
the numbers of the images that it asks for; neither weights nor a client's own images are ever sent.

Training: train mode, images cropped and flipped with --augment, the mean loss of a batch.
Prediction: eval mode, no gradient, images as they are, but for public ones: with --augment each is
cropped and flipped once in a round, for all who predict or learn it. Each client and the server
keep their network, which starts with random weights of its own, and one optimizer over all steps
and rounds. The server also keeps a pool: its logits of the public images that it has predicted
correctly, of each image the newest, with --augment of that round's crop. The pool starts empty, and
nothing leaves it.

A round, in which all clients take part; the numbers in brackets are lines of Algorithm 1 in arXiv's
HTML (in the PDF of ICLR's submission they are 1 less from 14 on, 2 less from 29 on). CE is
cross-entropy with the label, e is epsilon, and KL(teacher || student) is at temperature 1.
  1   Each client trains on its own images by CE.                                            [25-27]
  2   Each client predicts the public images that are not in the pool.                       [31-33]
  3   The server trains on the public images. Before each step it predicts the images of the  [4-14]
      batch. The loss of an image is
        CE                                     if the server is right,              Eq. (1)    [5-6]
        e CE + (1 - e) KL(pool || server)      else if the image is in the pool,    Eq. (2)    [8-9]
        e CE + (1 - e) KL(ensemble || server)  else if a client is right,           Eq. (5)  [10-12]
        CE                                     else.
      Where the server is right, its logits enter the pool.                                      [7]
      The ensemble is the weighted mean of the logits of the clients that are right. Each has
      the weight softmax(1 / H) among them; H is the entropy of its prediction, in nats.
                                                                             Eq. (3), (4)
  4   The server predicts all public images, and sends these server_logits to the clients.   [15-17]
  5   Each client trains on all public images by                                             [19-23]
        e CE + (1 - e) KL(server_logits || client).                                 Eq. (6)

Accuracy is the server's after step 3. The means over the clients are client_accuracy_private after
step 1 and client_accuracy_distilled after step 5. The server is tested on one half of the test
images and the clients on the other, as in the paper.

Bad uploads: where a client's logits of an image are nan, infinite, or 1e30 or more in magnitude,
the client counts as wrong on this image, and trains on as always. A nan on the server never enters
the pool, but its server_logits would spoil all clients. A lie is not caught: the labels are public,
so an attacker that answers them with great certainty has H near 0, and nearly all weight.

Departures; docs/DEPARTURES.md has smaller ones
  1  Paper, Algorithm 1: private training ends the round. Here, as in section 3.2, it comes first.
  2  Paper, Eq. (4): it is open over which clients the softmax runs. Here: over those that are
     right, so that their weights sum to 1.
  3  Paper, text: epsilon weighs the distillation. Here, as in the equations: it weighs CE.
  4  Paper, line 7: logits of the last round enter the pool. Here: those that were just found right.
  5  Paper, line 15: server_logits are made inside the loop over batches. Here: after training.
  6  Paper, Eq. (5): where nobody is right the ensemble is a sum over nobody. Here: CE alone.
  7  Paper: the server asks for a client's logits while it trains. Here: step 2 makes them all, as
     clients do not change meanwhile. The losses are the same, and traffic counts what is asked for.
  8  Paper: 1/H is unbounded. Here: H below 1e-6 counts as 1e-6.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (Optimizer, distillation_metrics, is_usable, loaded, logits_ledger,
                        minibatches, on_server, parallel_map, predict, public_view, random_numbers,
                        received_logits, restored, server_metrics, share, snapshot)

# distillation_metrics
#                   accuracies of the clients, mean, least and best, on their test images
# is_usable         False if a number is nan, infinite, or 1e30 or more in magnitude
# loaded            a network, after a copy of a state_dict into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# on_server         one process computes the function for all
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict           logits in eval mode, without gradient and augmentation; it restores the mode
# public_view       the public samples of a round; with --augment each image is cropped and
#                   flipped once, for all who predict or learn it
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received_logits   [M, n, C] of {client: [n, C]}, after an attack; nothing is left out
# restored          a network and its optimizer, after a copy of a snapshot into both; learning rate
#                   and weight decay are the ones given
# snapshot          {"model": its state_dict, "optimizer": its state_dict, or None: a new one},
#                   copies


@dataclass
class Config:
    rounds: int = 10                    # T
    local_epochs: int = 5               # step 1: passes of a client over its own images
    server_epochs: int = 1              # step 3: passes of the server over the public images
    public_epochs: int = 1              # step 5: passes of a client over the public images
    batch_size: int = 64                # of a client
    server_batch_size: int = 64         # of the server
    lr: float = 1e-3                    # of a client
    server_lr: float = 1e-3             # of the server; --lr-patience lowers both between rounds
    optimizer: Optimizer = "amsgrad"    # of each client and of the server
    weight_decay: float = 1e-4          # L2 penalty of this optimizer
    epsilon: float = 0.75               # weight of CE where there is a teacher


# Table 13; epsilon: section 4.1, which has 400 rounds. Its Adam is AMSGrad, as in FedGKT's code.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=200, local_epochs=1, server_epochs=1, public_epochs=1, batch_size=256,
             server_batch_size=256, lr=1e-3, server_lr=1e-3, optimizer="amsgrad",
             weight_decay=1e-4, epsilon=0.75)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed       fed.private[i]: client i's images [m, c, h, w] and labels [m]; fed.public likewise;
              fed.client_model(i, init=i): client i's new network, with the i-th random weights;
              fed.server_model(): the server's; fed.augment: random crops and flips with --augment,
              else the images unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ids = range(len(fed.private))                                            # M clients
    labels = fed.public.labels                                               # [N]
    if state is None:
        # Networks of random weights, and an empty pool.
        pool = {"logits": torch.zeros(len(labels), fed.num_classes, device=fed.device),
                "mask": torch.zeros_like(labels, dtype=torch.bool)}          # True: is in the pool
        state = {"round": 0, "server": snapshot(fed.server_model()), "pool": pool,
                 "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids}}
        yield evaluate(fed, state), state
    server, clients, pool = state["server"], state["clients"], state["pool"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: each client trains on its own images.                           departure 1
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 2: each client predicts the n public images that are not in the pool.  departure 7
        public = public_view(fed, t)
        unpooled = torch.nonzero(~pool["mask"])[:, 0]            # [n], row numbers; n may be 0
        uploads = parallel_map(fed, ids, lambda i: predict_client(
            fed, i, trained[i], public.images[unpooled]))
        client_logits = received_logits(uploads, unpooled, attack)           # [M, n, C]

        # Step 3: the server trains on all N public images. Images that are in the pool, or on
        # which no client is right, have no ensemble; their rows stay 0.
        reliable = is_right(client_logits, labels[unpooled])                 # bool [M, n]
        weights = entropy_weights(client_logits, reliable)                   # [M, n], Eq. (3), (4)
        ensemble = torch.zeros_like(pool["logits"])                          # [N, C]
        ensemble[unpooled] = fuse(client_logits, weights)                    # [n, C]
        has_ensemble = torch.zeros_like(pool["mask"])                        # bool [N]
        has_ensemble[unpooled] = reliable.any(0)                             # bool [n]
        server, pool, cases, asked = train_server(
            fed, cfg, t, server, pool, public, ensemble, has_ensemble)

        # Step 4: the server predicts all public images.                          departure 5
        server_logits = predict_server(fed, server, public)                  # [N, C]

        # Step 5: each client trains on them, with server_logits as the teacher.
        clients = parallel_map(
            fed, ids,
            lambda i: distill_client(fed, cfg, t, i, trained[i], public, server_logits))

        state = {"round": t, "server": server, "pool": pool, "clients": clients}
        yield {**evaluate(fed, state, trained),
               **measure(fed, unpooled, client_logits, weights, cases, asked)}, state


def train_client(fed, cfg, t, i, client):
    """Step 1: the snapshot of client i after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def predict_client(fed, i, client, images):
    """Step 2: client i's logits [n, C] of images [n, c, h, w]."""
    return predict(loaded(fed.client_model(i), client["model"]), images)


def is_right(logits, labels):
    """True where the largest logit is the label's: [..., n, C], [n] -> bool [..., n].

    Logits with nan, infinity or a number of 1e30 or more are wrong. What is left can be summed
    without an overflow: the largest float32 is 3e38.
    """
    labels = torch.as_tensor(labels, device=logits.device)       # a list would be equal to nothing
    return (logits.argmax(-1) == labels) & (logits.abs() < 1e30).all(-1)


def entropy_weights(client_logits, reliable):
    """The weight of each client on each image: softmax of 1/H over the reliable ones.   Eq. (4)

    client_logits, reliable   [M, n, C], bool [M, n]: who is right
    returns                   [M, n]: 0 for other clients, whose logits may be nan; each column sums
                              to 1, or to 0 if no client is right
    At small entropies the most certain client has nearly all weight: of H = 0.01 and 0.02 the ratio
    is exp(50). H below 1e-6 counts as 1e-6, so that 1/H is finite.
    >>> client_logits = torch.tensor([[[2., 0.]], [[1., 0.]], [[0., 9.]]])
    >>> entropy_weights(client_logits, torch.tensor([[True], [True], [False]])).T
    tensor([[0.7349, 0.2651, 0.0000]])
    """
    confidence = 1 / entropy(client_logits).clamp(min=1e-6)                      # departure 8
    weights = confidence.masked_fill(~reliable, float("-inf")).softmax(0)        # departure 2
    return torch.where(reliable, weights, 0.0)        # where nobody is right, the softmax is nan


def entropy(logits):
    """H = - sum_c p_c ln p_c in nats, p = softmax(logits): [..., C] -> [...].   Eq. (3)

    A class of p = 0 adds 0: of the logits 1e4 and 0 H is 0. It is computed as
        H = ln(1 + S) - sum_c d_c e^d_c / (1 + S),
    where d_c is a logit minus the largest one, and S the sum of e^d_c without the largest: p near 1
    has too few digits in float32 for - p ln p, and 1/H of Eq. (4) would weigh the wrong client.
    >>> entropy(torch.tensor([[0., 0.], [0., 1.]]))
    tensor([0.6931, 0.5822])
    """
    top = logits.argmax(-1, keepdim=True)                                        # [..., 1]
    d = logits - logits.gather(-1, top)                                          # [..., C]
    exp_d = d.exp().scatter(-1, top, 0.0)                                # without the largest
    S = exp_d.sum(-1)
    return S.log1p() - (exp_d * d.masked_fill(exp_d == 0, 0)).sum(-1) / (1 + S)  # p = 0 adds 0


def fuse(client_logits, weights):
    """sum_j weights[j] * client_logits[j]: [M, n, C], [M, n] -> [n, C].   In Eq. (5)

    A client of weight 0 adds nothing, even if its logits are nan.
    """
    weights = weights[..., None]                                                 # [M, n, 1]
    return torch.where(weights != 0, weights * client_logits, 0.0).sum(0)


@on_server
def train_server(fed, cfg, t, server, pool, public, ensemble, has_ensemble):
    """Step 3: the server's snapshot and its pool after training; for the metrics `cases`, `asked`.

    public                    those of this round: images [N, c, h, w], labels [N]
    ensemble, has_ensemble    [N, C], bool [N]
    cases                     bool [4, N]: in which case each image was in the last epoch
    asked                     bool [N]: clients were asked for their logits of it, in any epoch
    """
    images, labels = public
    model, optimizer = restored(server, fed.server_model(), cfg.optimizer, cfg.server_lr,
                                cfg.weight_decay)
    pool = {name: tensor.clone() for name, tensor in pool.items()}
    cases = torch.zeros(4, len(labels), dtype=torch.bool, device=fed.device)
    asked = torch.zeros_like(has_ensemble)
    model.train()
    with random_numbers(fed, "server", t) as rng:
        for rows in minibatches(images, cfg.server_batch_size, rng, cfg.server_epochs):
            # Before the step, the server predicts the batch, in eval mode.
            predicted = predict(model, images[rows])                             # [B, C]
            right = is_right(predicted, labels[rows])                            # bool [B]
            in_pool = pool["mask"][rows]                                         # bool [B]
            client_right = has_ensemble[rows]                                    # bool [B]

            # The four cases: each image of the batch is in one of them.
            self_training = right                                                # Eq. (1)
            self_distillation = ~right & in_pool                                 # Eq. (2)
            ensemble_distillation = ~right & ~in_pool & client_right             # Eq. (5)
            nobody_right = ~right & ~in_pool & ~client_right                     # departure 6

            # The teacher of the second case is the pool, that of the third the ensemble.
            has_teacher = self_distillation | ensemble_distillation              # bool [B]
            teacher = torch.where(self_distillation[:, None], pool["logits"][rows], ensemble[rows])

            logits = model(images[rows])                                         # [B, C]
            loss = server_loss(logits, labels[rows], teacher, has_teacher, cfg.epsilon)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            pool["logits"][rows[right]] = predicted[right]                       # departure 4
            pool["mask"][rows[right]] = True
            cases[:, rows] = torch.stack([self_training, self_distillation,
                                          ensemble_distillation, nobody_right])
            asked[rows] |= ensemble_distillation | nobody_right
    return snapshot(model, optimizer), pool, cases, asked


def server_loss(logits, labels, teacher, has_teacher, epsilon):
    """The mean over a batch of CE, Eq. (1), or with a teacher of Eq. (2), (5): a scalar.

    logits, labels          [B, C], [B]
    teacher, has_teacher    logits [B, C], which get no gradient, bool [B]; where it is False, the
                            logits may be anything
    """
    losses = F.cross_entropy(logits, labels, reduction="none")                   # [B]
    losses[has_teacher] = distillation(logits[has_teacher], labels[has_teacher],
                                       teacher[has_teacher], epsilon)
    return losses.mean()


def distillation(logits, labels, teacher, epsilon):
    """epsilon CE + (1 - epsilon) KL(teacher || student) of each image.   Eq. (2), (5), (6)

    logits, labels, teacher    [B, C] of the student, [B], logits [B, C], which get no gradient
    returns                    [B]
    A class of p = 0, such as a teacher's logit of -inf, adds 0 whatever the student's q is.
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                       # [B]
    log_p, log_q = teacher.detach().log_softmax(-1), logits.log_softmax(-1)      # [B, C]
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)                 # p = 0 adds 0
    kl = (log_p.exp() * log_ratio).sum(-1)                                       # [B]
    return epsilon * ce + (1 - epsilon) * kl                                     # departure 3


@on_server
def predict_server(fed, server, public):
    """Step 4: the server's logits [N, C] of all public images."""
    return predict(loaded(fed.server_model(), server["model"]), public.images)


def distill_client(fed, cfg, t, i, client, public, server_logits):
    """Step 5: the snapshot of client i after training on the public images.

    public           those of this round: images [N, c, h, w], labels [N]
    server_logits    [N, C]: the teacher's
    """
    images, labels = public
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "public", t, i) as rng:
        for rows in minibatches(images, cfg.batch_size, rng, cfg.public_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = distillation(logits, labels[rows], server_logits[rows],
                                cfg.epsilon).mean()                              # Eq. (6)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


# --------------------------------------------------------------------------------------------------
# Metrics; no step uses them

# The cases of step 3, in their order there.
CASES = ("self_training", "self_distillation", "ensemble_distillation", "nobody_right")


def evaluate(fed, state, trained=None):
    """Test accuracies of the server and of the clients, and the share of images in the pool.

    trained    the clients after step 1; None: as in `state`
    """
    server = server_metrics(fed, state["server"])
    return {"accuracy": server.pop("server_accuracy"), **server,
            **distillation_metrics(fed, state["clients"], trained),
            "pool": share(state["pool"]["mask"])}


def measure(fed, unpooled, client_logits, weights, cases, asked):
    """Shares of the cases in the server's last epoch; what the server asked the clients for.

    effective_teachers    the mean of 1 / sum_j weights[j]² over the images of the third case: 1 if
                          one client has all the weight
    bad_uploads           clients of which logits that were asked for are not usable
    """
    num_public, of_asked = len(asked), asked[unpooled]                           # N, bool [n]
    fused = weights[:, of_asked & (weights > 0).any(0)]
    effective = (1 / fused.square().sum(0)).mean().item() if fused.numel() else None
    num_asked = int(asked.sum())
    return {**dict(zip(CASES, map(share, cases))),
            "effective_teachers": effective,
            "bad_uploads": sum(not is_usable(logits[of_asked]) for logits in client_logits),
            **logits_ledger(len(client_logits), fed.num_classes, up=num_asked, down=num_public,
                            indices=num_asked)}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "fedgems", run, paper=PAPER,
    scores={"accuracy": "server", "client_accuracy_distilled": "clients, after distillation",
            "client_accuracy_private": "clients, after private training"},
    columns=CASES, public="labeled", mixed_networks=True, server="images",
    plateau=("lr", "server_lr"), evaluate=evaluate)
