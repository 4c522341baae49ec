"""FedSDD: K global models, each of a group of clients; the first is distilled from all of them.

Kwan and Song, "FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in
Federated Learning", arXiv:2312.17029v1.

    python fedkd_minimal.py --algo fedsdd --R 2
        runs `Config`, with R = 2, on the embedded digits (`glyphs`, 16x16 pixels): 20 clients with
        a small CNN hold 240 images each, in unequal shares of the classes (Dirichlet, alpha 0.5);
        8 are active in a round, two in a group. 1,200 other images are public, 1,500 are for the
        test. Nothing is augmented. It takes half a minute on two cores.
    python fedkd_minimal.py --algo fedsdd --paper fedsdd --dataset cifar10
        runs `PAPER` with a ResNet-20: 20 clients, alpha 0.1, 2,500 images each; CIFAR-100's 50,000
        training images are public. Images of clients and server are cropped and flipped.

Clients hold labeled images of their own; between rounds they keep nothing. The server holds N
public images without labels, and keeps the K global models and the w_k of the last R rounds. All
models have one architecture. An active client is sent one model, and sends back its weights and its
number of images.

Training: train mode, images cropped and flipped with --augment, the mean loss of a batch.
Prediction: eval mode, no gradient, images as they are, but for public ones: with --augment each is
cropped and flipped once in a round, and teacher and student see the same.

Algorithm 1. The paper does not number its lines; the numbers are ours.
  1   start with K global models of different random weights; the first is the main model
  2   for each round t:
  3       draw the active clients, a share of all, and divide them at random into K groups
  4       for each active client, in parallel:
  5           copy the global model of its group                                        Eq. (1)
  6           train it on the client's own images, by cross-entropy
  7       w_0, ..., w_K-1 = the means of the trained models of each group,
                            weighted by numbers of images                               Eq. (2)
  8       teacher = the mean of the logits, on the public images, of w_0, ..., w_K-1 of this
                    round and of the R - 1 rounds before it (at first fewer)      Eq. (3), (5)
  9       main model = w_0, trained on the public images by                             Eq. (4)
              temperature² KL(softmax(teacher / temperature) || softmax(logits / temperature)),
              which also moves its BatchNorm statistics to the public images
 10       the other global models are w_1, ..., w_K-1: they never learn from the teacher,
          so that the ensemble stays diverse

The ensemble has w_0 as step 7 makes it, not the distilled main model, which starts the next round.

Accuracy is the main model's on the test images, after step 9; `ensemble_accuracy` the teacher's.

Bad uploads: a client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out
of its group's mean. A group with nobody left keeps the model that it started from as its w_k; for
the main model that is the distilled one of the round before, which then is in the ensemble. A nan
that arises on the server is not caught: then the main model stays nan, and its clients count as bad
uploads.

Departures
  1  Paper: Eq. (4) is KL(student || teacher) and has no temperature, though section 4.1 sets one.
     Here: temperature² KL(teacher || student), as in Hinton et al. (2015), whom the paper cites.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (accuracy, active_in, average_weights, count_active, disagreement, loaded,
                        minibatches, on_server, parallel_map, predict_models, public_view,
                        random_numbers, received, stream, weights_ledger)

# accuracy          the share of images whose largest logit is the label's
# active_in         the clients of a round, drawn at random without replacement
# average_weights   the weighted mean of every entry of models, BatchNorm's statistics too
# disagreement      the share of images of which two models predict different classes, the mean
#                   over all pairs
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# on_server         one process computes the function, and sends the result to all
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict_models    logits [models, images, C], in eval mode, without gradient and augmentation, by
#                   several processes
# public_view       the public samples of a round; with --augment each image is cropped and
#                   flipped once, for all who predict or learn it
# random_numbers    a numpy generator for what is named; it also seeds torch, for dropout
# received          {client: weights}: after an attack, and without the bad uploads
# stream            a numpy generator for what is named
# weights_ledger    the bytes of a model to, and back from, so many clients


@dataclass
class Config:
    rounds: int = 20                     # T
    participation: float = 0.4           # share of the clients that are active in a round
    K: int = 4                           # global models, and groups of clients; at most the
    #                                      active clients
    R: int = 1                           # rounds whose w_k form the ensemble
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.1                      # of a client, constant; SGD without momentum
    distill_steps: int = 100             # steps of the server in a round
    server_batch_size: int = 128
    server_lr: float = 0.0125            # constant; SGD without momentum
    temperature: float = 4.0             # tau, of teacher and student


# Section 4.1; Table 2 also has R = 2 and R = 4.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=100, participation=0.4, K=4, R=1, local_epochs=40, batch_size=64, lr=0.8,
             distill_steps=5000, server_batch_size=256, server_lr=0.1, temperature=4.0)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
              fed.public.images [N, c, h, w]; fed.global_model(init=k): a new network with the k-th
              random weights; fed.augment: random crops and flips with --augment, else the images
              unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    if state is None:
        # Step 1: K global models of different random weights.
        models = [fed.global_model(init=k).state_dict() for k in range(cfg.K)]
        state = {"round": 0, "global_models": models, "undistilled": []}
        yield evaluate(fed, state), state
    models, undistilled = state["global_models"], state["undistilled"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3: the active clients are divided into K groups.
        active = active_in(fed, cfg.participation, t)
        groups = divide(active, cfg.K, stream(fed.seed, "groups", t))
        model_of = {i: models[k] for k in range(cfg.K) for i in groups[k]}

        # Step 4-6: each client trains its group's model on its own images.
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, model_of[i]))
        uploads = {}                                                         # {client: weights}
        for group in groups:                         # attackers know the uploads of their group
            uploads |= received(fed, {i: trained[i] for i in group}, attack)

        # Step 7: each group's mean, by numbers of images.                              Eq. (2)
        w = [average(fed, groups[k], uploads, models[k]) for k in range(cfg.K)]

        # Step 8: the mean of the logits of all w of the last R rounds.            Eq. (3), (5)
        undistilled = [*undistilled, w][-cfg.R:]
        ensemble = [w_k for of_round in undistilled for w_k in of_round]     # up to K R models
        public = public_view(fed, t)
        teacher = predict_models(fed, ensemble, public.images).mean(0)       # [N, C]

        # Step 9-10: the main model is distilled, the others stay as they are.
        models = [distill(fed, cfg, t, w[0], public.images, teacher), *w[1:]]

        state = {"round": t, "global_models": models, "undistilled": undistilled}
        yield {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
               **weights_ledger([(fed.global_model(), len(active))])}, state


def divide(active, K, rng):
    """The active clients in K random groups: K sorted lists of ids.   Section 3.1.1, A.2

    active    ids of clients, K or more of them
    rng       numpy.random.Generator
    Sizes differ by at most 1, and the larger groups come first: the main model's is one of them.
    """
    shuffled = rng.permutation(active).tolist()
    return [sorted(shuffled[k::K]) for k in range(K)]


def train_client(fed, cfg, t, i, weights):
    """Client i starts from its group's weights; returns them after training on its own images."""
    images, labels = fed.private[i]
    model = loaded(fed.client_model(i), weights)                                        # Eq. (1)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def average(fed, group, uploads, before):
    """w_k: the mean of a group's uploads {client: weights}, by numbers of images.   Eq. (2)

    before    the weights that the group started from; they stay if none of its uploads is left
    """
    members = [i for i in group if i in uploads]
    if not members:
        return before
    sizes = [len(fed.private[i].labels) for i in members]
    return average_weights([uploads[i] for i in members], sizes)


@on_server
def distill(fed, cfg, t, weights, images, teacher):
    """The weights of the main model after SGD on the public images, which starts from `weights`.

    weights    w_0
    images     the public ones of this round [N, c, h, w]
    teacher    its logits of them [N, C]
    """
    model = loaded(fed.global_model(), weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.server_lr)
    model.train()
    with random_numbers(fed, "distil", t, 0) as rng:        # 0: the number of the main model
        for rows in minibatches(images, cfg.server_batch_size, rng, steps=cfg.distill_steps):
            student = model(images[rows])                                        # [B, C]
            loss = distillation_loss(teacher[rows], student, cfg.temperature)           # Eq. (4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def distillation_loss(teacher, student, temperature):
    """temperature² KL(teacher || student), the mean over the batch: a scalar.   Eq. (4)

    teacher, student    logits [B, C]
    A class of p = 0, such as a teacher's logit of -inf, adds 0 whatever the student's q is. Logits
    of 1e4 have a finite loss.
    >>> teacher, student = torch.tensor([[.8, .2]]).log(), torch.tensor([[.5, .5]]).log()
    >>> distillation_loss(teacher, student, temperature=1.0)     # .8 ln(.8 / .5) + .2 ln(.2 / .5)
    tensor(0.1927)
    """
    log_p = (teacher / temperature).log_softmax(-1)                      # departure 1
    log_q = (student / temperature).log_softmax(-1)
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)             # p = 0 adds 0
    return temperature**2 * (log_p.exp() * log_ratio).sum(-1).mean()


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracies of the main model and, from round 1 on, of the ensemble."""
    images, labels = fed.test
    models, undistilled = state["global_models"], state["undistilled"]
    metrics = {"accuracy": accuracy(predict_models(fed, models[:1], images)[0], labels)}
    if not undistilled:
        return metrics
    ensemble = [w_k for of_round in undistilled for w_k in of_round]
    logits = predict_models(fed, ensemble, images)                       # [K R, test images, C]
    return {
        **metrics, "ensemble_accuracy": accuracy(logits.mean(0), labels),
        "disagreement": disagreement(logits[-len(models):]),         # of this round's w_k
        "teacher_forwards": len(ensemble) * len(fed.public.images)}  # images, each by each model


# --------------------------------------------------------------------------------------------------
# For the command line

def check(fed, cfg, attack):
    """Raises ValueError if a group would have no client. K and R are at least 1: ranges.py."""
    active = count_active(len(fed.private), cfg.participation)
    if cfg.K > active:
        raise ValueError(f"fedsdd: K = {cfg.K} global models need as many active clients, but "
                         f"participation {cfg.participation:g} of {len(fed.private)} clients is "
                         f"{active}: K is at most {active}")


ALGORITHM = Algorithm(
    "fedsdd", run, scores={"accuracy": "server", "ensemble_accuracy": "ensemble"}, paper=PAPER,
    public="unlabeled", check_settings=check, columns=("disagreement", "teacher_forwards"))
