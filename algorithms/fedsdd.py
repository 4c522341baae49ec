"""FedSDD: K global models, each of a group of clients; the first is distilled from all of them.

Kwan and Song, "FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in
Federated Learning", arXiv:2312.17029v1.

    python fedkd_minimal.py --algo fedsdd --R 2
        runs `Config`, with R = 2, on digits of 16x16 pixels: 20 clients with a small CNN hold
        unequal shares of the classes (Dirichlet, alpha 0.5), 240 images each; 1,200 others are
        public. Half a minute on two cores.
    python fedkd_minimal.py --algo fedsdd --paper fedsdd --dataset cifar10
        runs `PAPER` with a ResNet-20: alpha is 0.1, CIFAR-100's 50,000 training images are public,
        and all images are augmented, that is, cropped and flipped at random.

Clients hold labeled images of their own, and keep nothing between rounds. The server holds N public
images without labels, the K global models, and the w_k of the last R rounds. An active client is
sent one model, and sends back its weights and its number of images.

Algorithm 1. The paper does not number its lines; the numbers are ours.
  1   start with K global models of different random weights; the first is the main model
  2   for each round t:
  3       draw the active clients, a share of all, and divide them at random into K groups
  4       for each active client, in parallel:
  5           copy the global model of its group                                        Eq. (1)
  6           train it on the client's own images, by cross-entropy
  7       w_0, ..., w_K-1 = the mean of each group's models, by numbers of images       Eq. (2)
  8       teacher = the mean of the logits, on the public images, of the w_k of this
                    round and of the R - 1 rounds before it (at first fewer)       Eq. (3), (5)
  9       main model = w_0, trained on the public images by                             Eq. (4)
              temperature² KL(softmax(teacher / temperature) || softmax(logits / temperature))
 10       the other models are w_1, ..., w_K-1: they never learn from it, so that they stay diverse

  step   who predicts            images    mode    gradient   augmented       loss, how often
  6      an active client        its own   train   yes        in each pass    CE, local_epochs
  8      w_k of R rounds         public    eval    no         once a round    none, once
  9      the main model          public    train   yes        as in step 8    Eq. (4), distill_steps
  -      the main model after 9  test      eval    no         no              `accuracy`
  -      w_k of R rounds         test      eval    no         no              `ensemble_accuracy`

A client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out of its group's
mean. A group with nobody left keeps the model that it started from as its w_k. If step 9 diverges,
so that a weight is such a number, the main model is w_0.

Departures
  1  Paper: Eq. (4) is KL(student || teacher) and has no temperature, though section 4.1 sets one.
     Here: temperature² KL(teacher || student), as in Hinton et al. (2015), whom the paper cites.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from federation import (Algorithm, Count, Natural, Positive, Settings, Share, accuracy,
                        average_weights, count_weight_bytes, disagreement, drop_bad_uploads,
                        is_usable, minibatches, on_server, parallel_map, predict_models)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # T
    participation: Share = 0.4           # share of the clients that are active in a round
    K: Count = 4                         # global models, and groups of clients; at most the
    #                                      active clients
    R: Count = 1                         # rounds whose w_k form the ensemble
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.1                   # of a client, constant; SGD without momentum
    distill_steps: Count = 100           # steps of the server in a round
    server_batch_size: Count = 128
    server_lr: Positive = 0.0125         # constant; SGD without momentum
    temperature: Positive = 4.0          # tau, of teacher and student


# Section 4.1, where it differs from Config; Table 2 also has R = 2 and R = 4.
PAPER = dict(rounds=100, local_epochs=40, batch_size=64, lr=0.8, distill_steps=5000,
             server_batch_size=256, server_lr=0.1)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       a `Federation`, with public images; all clients have one architecture
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    if state is None:
        # Step 1: K global models of different random weights.
        global_models = [fed.global_model(init=k).state_dict() for k in range(cfg.K)]
        state = {"algorithm": "fedsdd", "round": 0, "global_models": global_models, "recent_w": []}
        yield evaluate(fed, state), state
    global_models, recent_w = state["global_models"], state["recent_w"]      # state_dicts

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3: the active clients are divided into K groups.
        active = fed.sample_clients(cfg.participation, t)
        groups = divide(active, cfg.K, fed.rng("groups", t))
        model_of = {i: global_models[k] for k in range(cfg.K) for i in groups[k]}

        # Step 4-6: each client trains its group's model on its own images.
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, model_of[i]))
        uploads = {}                                                         # {client: weights}
        for group in groups:                         # attackers know the uploads of their group
            sent = {i: trained[i] for i in group}
            uploads |= attack.poison_weights(sent) if attack else sent
        uploads = drop_bad_uploads(uploads)

        # Step 7: each group's mean, by numbers of images.                              Eq. (2)
        w = [average(fed, groups[k], uploads, global_models[k]) for k in range(cfg.K)]

        # Step 8: the mean of the logits of all w of the last R rounds.            Eq. (3), (5)
        recent_w = [*recent_w, w][-cfg.R:]
        ensemble = [w_k for of_round in recent_w for w_k in of_round]        # up to K R models
        images = fed.augment_public(t)                                       # [N, c, h, w]
        teacher = predict_models(fed, ensemble, images).mean(0)              # [N, C]

        # Step 9-10: the main model is distilled, the others stay as they are.
        main = distill(fed, cfg, t, w[0], images, teacher)
        global_models = [main if is_usable(main) else w[0], *w[1:]]

        state = {**state, "round": t, "global_models": global_models, "recent_w": recent_w}
        yield measure(fed, state, active, uploads), state


def divide(active, K, rng):
    """The active clients in K random groups: K sorted lists of ids.   Section 3.1.1, A.2

    active    ids of clients, K or more of them
    rng       numpy.random.Generator
    Sizes differ by at most 1, and the larger groups come first: the main model's is one of them.
    """
    shuffled = rng.permutation(active).tolist()
    return [sorted(shuffled[k::K]) for k in range(K)]


def train_client(fed, cfg, t, i, weights):
    """Client i starts from its group's weights; returns new ones, trained on its own images."""
    images, labels = fed.private[i]
    model = fed.client_model(i)
    model.load_state_dict(weights)                                        # Eq. (1)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    model.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
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
def distill(fed, cfg, t, w_0, images, teacher):
    """New weights of the main model: w_0 after SGD on the public images.

    images     the public ones of this round [N, c, h, w]
    teacher    its logits of them [N, C]
    """
    model = fed.global_model()
    model.load_state_dict(w_0)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.server_lr)
    model.train()
    with fed.random_numbers("distil", t, 0) as rng:        # 0: the number of the main model
        for rows in minibatches(images, cfg.server_batch_size, rng, steps=cfg.distill_steps):
            student = model(images[rows])                                        # [B, C]
            loss = distillation_loss(student, teacher[rows], cfg.temperature)           # Eq. (4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def distillation_loss(student, teacher, temperature):
    """temperature² KL(teacher || student), the mean over the batch: a scalar.   Eq. (4)

    student, teacher    finite logits [B, C]; the teacher's get no gradient
    >>> student, teacher = torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]).log()
    >>> distillation_loss(student, teacher, temperature=1.0)     # .8 ln(.8 / .5) + .2 ln(.2 / .5)
    tensor(0.1927)
    """
    log_p = (teacher.detach() / temperature).log_softmax(-1)             # departure 1
    log_q = (student / temperature).log_softmax(-1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean()


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, active, uploads):
    """The metrics of a round."""
    return {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
            **count_weight_bytes([(fed.global_model(), len(active))])}


def evaluate(fed, state):
    """Test accuracy of the main model; from round 1 on the ensemble's, too, and what it costs."""
    images, labels = fed.test
    global_models, recent_w = state["global_models"], state["recent_w"]
    metrics = {"accuracy": accuracy(predict_models(fed, global_models[:1], images)[0], labels)}
    if not recent_w:
        return metrics
    ensemble = [w_k for of_round in recent_w for w_k in of_round]
    logits = predict_models(fed, ensemble, images)              # [up to K R, test images, C]
    return {
        **metrics, "ensemble_accuracy": accuracy(logits.mean(0), labels),
        "disagreement": disagreement(logits[-len(global_models):]),      # of this round's w_k
        "teacher_forwards": len(ensemble) * len(fed.public.images)}      # images, each by each w_k


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError if a group would have no client, or a state has another K."""
    active = len(fed.sample_clients(cfg.participation, t=1))             # as many in every round
    if cfg.K > active:
        raise ValueError(f"fedsdd: K = {cfg.K} global models need as many active clients, but "
                         f"participation {cfg.participation:g} of {len(fed.private)} clients is "
                         f"{active}: K is at most {active}")
    if state is not None and len(state["global_models"]) != cfg.K:
        raise ValueError(f"fedsdd: the state has K = {len(state['global_models'])}, not {cfg.K}")


def models(state, client_network, server_network):
    """{name: [(network, weights), ...]} of the trained models; the main model is "server"."""
    found = {f"server {k}" if k else "server": [(server_network, weights)]
             for k, weights in enumerate(state["global_models"])}
    ensemble = [(server_network, w_k) for of_round in state["recent_w"] for w_k in of_round]
    return {**found, "ensemble": ensemble} if ensemble else found


ALGORITHM = Algorithm(
    "fedsdd", run, Config, public="unlabeled", check_more=check, program=dict(
        paper=PAPER, models=models,
        scores={"accuracy": ("server", "test"), "ensemble_accuracy": ("ensemble", "test")},
        columns=("disagreement", "teacher_forwards"), shares=("disagreement",)))
