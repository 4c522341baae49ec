"""FedGEMS: a large server model learns from labels, from itself, and from clients that are right.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027.

    python fedkd_minimal.py --algo fedgems
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold 150 images each
        (Dirichlet, alpha 0.5), 3,000 are public, the server's CNN is wider. 40 seconds, two cores.
    python fedkd_minimal.py --algo fedgems --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`: 16 clients with a ResNet-11, iid; 25,000 public images; the server's ResNet-56

Clients hold labeled images of their own; the server and all clients hold N labeled public images.
Each keeps a network of any architecture and its optimizer; the server also keeps a pool of logits.

A round; in [] are lines of Algorithm 1 (HTML). CE is cross-entropy, e epsilon; KL's temperature 1.
  1   Each client trains on its own images by CE.                                            [25-27]
  2   Each client predicts the public images that are not in the pool, and sends the logits. [31-33]
  3   The server trains on the public images. Before each of its steps it predicts the batch; where
      it is right, these logits enter the pool. The loss of an image is
        CE                                     if the server is right,              Eq. (1)    [5-7]
        e CE + (1 - e) KL(pool || server)      else if the image is in the pool,    Eq. (2)    [8-9]
        e CE + (1 - e) KL(ensemble || server)  else if a client is right,           Eq. (5)  [10-12]
        CE                                     else.
      ensemble = the sum of weight x logits over the clients that are right, with the weights
      softmax(1 / H); H is the entropy of a client's prediction, in nats.      Eq. (3), (4)
  4   The server predicts all public images, and sends these server_logits to the clients.   [15-17]
  5   Each client trains on them by e CE + (1 - e) KL(server_logits || client).   Eq. (6)    [19-23]

  step   who predicts   images               mode   gradient  augmented     loss, how often
  1      all clients    their own            train  yes       in each pass  CE, local_epochs
  2      all clients    public, not in pool  eval   no        once a round  none, once
  3      the server     public               eval   no        as in step 2  none, before each step
  3      the server     public               train  yes       as in step 2  step 3's, server_epochs
  4      the server     public               eval   no        as in step 2  none, once
  5      all clients    public               train  yes       as in step 2  Eq. (6), public_epochs
  -      the server     test, one half       eval   no        no            `accuracy`, after 3
  -      all clients    test, other half     eval   no        no            means, after 1 and 5

A client is wrong on an image for which it sends nan, infinity, or 1e30 or more in magnitude.

Departures; 5 and more are in docs/DEPARTURES.md
  1  Paper, Algorithm 1: private training ends the round. Here, as in section 3.2: it comes first.
  2  Paper: leaves open which clients Eq. (4) is over. Here: those that are right; if none is, CE.
  3  Paper, text: epsilon weighs the distillation. Here, as in the equations: it weighs CE.
  4  Paper, line 7: logits of the last round enter the pool. Here: those that were just found right.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from federation import (HUGE, Algorithm, Count, Fraction, Natural, NonNegative, Optimizer, Positive,
                        Settings, count_logit_bytes, is_usable, minibatches, on_server,
                        parallel_map, predict, predict_models, resume, score_clients, score_server,
                        snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 10                # T
    local_epochs: Count = 5             # step 1: passes of a client over its own images
    server_epochs: Count = 1            # step 3: passes of the server over the public images
    public_epochs: Natural = 1          # step 5: passes of a client over the public images
    batch_size: Count = 64              # of a client
    server_batch_size: Count = 64       # of the server
    lr: Positive = 1e-3                 # of a client
    server_lr: Positive = 1e-3          # of the server
    optimizer: Optimizer = "amsgrad"    # of each client and of the server
    weight_decay: NonNegative = 1e-4    # L2 penalty of this optimizer
    epsilon: Fraction = 0.75            # weight of CE where there is a teacher


# Table 13, where it differs from Config; section 4.1 has 400 rounds. Its Adam is AMSGrad, as in
# FedGKT's code. Clients, partition, networks: experiment/presets.py.
PAPER = dict(rounds=200, local_epochs=1, batch_size=256, server_batch_size=256)

# Who teaches the server an image, in the order of step 3: nobody, the pool, the clients, nobody.
CASES = ("self_training", "self_distillation", "ensemble_distillation", "nobody_right")


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed       a `Federation`, with labeled public images and a network of the server
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    ids, labels = range(len(fed.private)), fed.public.labels                 # M clients, [N]
    if state is None:
        # The server and each client start from random weights of their own; the pool is empty.
        pool = {"logits": torch.zeros(len(labels), fed.num_classes, device=fed.device),
                "mask": torch.zeros_like(labels, dtype=torch.bool)}          # True: is in the pool
        state = {"algorithm": "fedgems", "round": 0,
                 "server": snapshot(fed.server_model()), "pool": pool,
                 "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids}}
        yield evaluate(fed, state), state
    server, clients, pool = state["server"], state["clients"], state["pool"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: each client trains on its own images.                           departure 1
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 2: each client predicts the n public images that are not in the pool. The paper's
        # server asks for these logits while it trains: the losses are the same.
        images = fed.augment_public(t)                                       # [N, c, h, w]
        unpooled = torch.nonzero(~pool["mask"])[:, 0]            # [n], row numbers; n may be 0
        uploads = parallel_map(fed, ids, lambda i: predict_client(
            fed, i, trained[i], images[unpooled]))
        if attack:
            uploads = attack.poison_rows(uploads, unpooled)
        client_logits = torch.stack([*uploads.values()])                     # [M, n, C]

        # Step 3: the clients that are right make the ensemble, and the server trains.
        reliable = is_right(client_logits, labels[unpooled])                 # bool [M, n]
        weights = entropy_weights(client_logits, reliable)                   # [M, n], Eq. (3), (4)
        client_right = torch.zeros_like(pool["mask"])                        # bool [N]
        client_right[unpooled] = reliable.any(0)
        ensemble = torch.zeros_like(pool["logits"])                          # [N, C]
        ensemble[unpooled] = fuse(client_logits, weights)                    # in Eq. (5)
        server, pool, times = train_server(
            fed, cfg, t, server, pool, images, client_right, ensemble)

        # Step 4: the server predicts all public images, once it has trained.
        server_logits = predict_models(
            fed, [server["model"]], images, fed.server_model)[0]             # [N, C]

        # Step 5: each client trains on them, with server_logits as the teacher.
        clients = parallel_map(fed, ids, lambda i: distill_client(
            fed, cfg, t, i, trained[i], images, server_logits))

        state = {**state, "round": t, "server": server, "pool": pool, "clients": clients}
        yield measure(fed, state, trained, unpooled, client_logits, weights, times), state


def train_client(fed, cfg, t, i, client):
    """Step 1: the snapshot of client i after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def predict_client(fed, i, client, images):
    """Step 2: client i's logits [n, C] of images [n, c, h, w]."""
    model = fed.client_model(i)
    model.load_state_dict(client["model"])
    return predict(model, images)


def is_right(logits, labels):
    """True where the largest logit is the label's: [..., n, C], [n] -> bool [..., n].

    Logits with nan, infinity, or 1e30 or more in magnitude are wrong: differences and sums of the
    rest do not overflow in float32. Labels [n, 1] are taken as [n].
    """
    return (logits.argmax(-1) == labels.reshape(logits.shape[-2])) & (logits.abs() < HUGE).all(-1)


def entropy_weights(client_logits, reliable):
    """The weight of each client on each image: softmax of 1/H over the clients that are right.

    client_logits    [M, n, C], float32 or wider
    reliable         bool [M, n]: the paper's word for clients that are right
    returns          [M, n]: 0 for other clients, whose logits may be nan; each column sums to 1, or
                     to 0 if no client is right
    source           Eq. (4); 1/H is unbounded there, and H below 1e-6 counts as 1e-6 here
    At small entropies the most certain client has nearly all weight: of H = 0.01 and 0.02 the ratio
    is exp(50).
    >>> client_logits = torch.tensor([[[2., 0.]], [[1., 0.]], [[0., 9.]]])
    >>> entropy_weights(client_logits, torch.tensor([[True], [True], [False]])).T
    tensor([[0.7349, 0.2651, 0.0000]])
    """
    confidence = 1 / entropy(client_logits).clamp(min=1e-6)
    weights = confidence.masked_fill(~reliable, float("-inf")).softmax(0)        # departure 2
    return torch.where(reliable, weights, 0.0)        # where nobody is right, the softmax is nan


def entropy(logits):
    """H = - sum_c p_c ln p_c in nats, p = softmax of finite logits: [..., C] -> [...].   Eq. (3)

    It is computed as
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
    return S.log1p() - (exp_d * d).sum(-1) / (1 + S)


def fuse(client_logits, weights):
    """sum_j weights[j] * client_logits[j]: [M, n, C], [M, n] -> [n, C].   In Eq. (5)

    A client of weight 0 adds nothing, even if its logits are nan.
    """
    weights = weights[..., None]                                                 # [M, n, 1]
    return torch.where(weights != 0, weights * client_logits, 0.0).sum(0)


@on_server
def train_server(fed, cfg, t, server, pool, images, client_right, ensemble):
    """Step 3: the server's snapshot and its pool after training, and for the metrics `times`.

    images                    the public ones of this round [N, c, h, w]
    client_right, ensemble    bool [N], logits [N, C]: 0 where no client is right, or was asked
    times                     int64 [4, N]: how often each image was in each of CASES
    """
    labels = fed.public.labels
    model, optimizer = resume(server, fed.server_model(), cfg.optimizer, cfg.server_lr,
                              cfg.weight_decay)
    pool = {name: tensor.clone() for name, tensor in pool.items()}
    times = torch.zeros(len(CASES), len(labels), dtype=torch.int64, device=fed.device)
    model.train()
    with fed.random_numbers("server", t) as rng:
        for rows in minibatches(images, cfg.server_batch_size, rng, cfg.server_epochs):
            # Before the step, the server predicts the batch, in eval mode.        departure 5
            predicted = predict(model, images[rows])                             # [B, C]
            right = is_right(predicted, labels[rows])                            # bool [B]
            teacher, has_teacher, case = choose_teacher(
                right, pool["mask"][rows], client_right[rows], pool["logits"][rows], ensemble[rows])

            logits = model(images[rows])                                         # [B, C]
            loss = server_loss(logits, labels[rows], teacher, has_teacher, cfg.epsilon)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            pool["logits"][rows[right]] = predicted[right]                       # departure 4
            pool["mask"][rows[right]] = True
            times[case, rows] += 1
    return snapshot(model, optimizer), pool, times


def choose_teacher(right, in_pool, client_right, pool_logits, ensemble):
    """The server's teacher of each image: nobody, the pool, or the clients.   Lines 5-12

    right, in_pool, client_right    bool [B]; `right`: the server is right
    pool_logits, ensemble           [B, C]
    returns    teacher [B, C]; has_teacher, bool [B]: where it is False, `teacher` means nothing;
               case, int64 [B], by CASES: 0 self_training, 1 self_distillation,
               2 ensemble_distillation, 3 nobody_right
    >>> right, in_pool, client_right = torch.tensor(
    ...     [[True, False, False, False], [True, True, False, False], [True, True, True, False]])
    >>> pool_logits, ensemble = torch.full((4, 1), 5.), torch.full((4, 1), 7.)
    >>> teacher, has_teacher, case = choose_teacher(
    ...     right, in_pool, client_right, pool_logits, ensemble)
    >>> teacher[has_teacher].tolist(), has_teacher.tolist(), case.tolist()
    ([[5.0], [7.0]], [False, True, True, False], [0, 1, 2, 3])
    """
    case = torch.where(right, 0, torch.where(in_pool, 1, torch.where(client_right, 2, 3)))
    teacher = torch.where((case == 1)[:, None], pool_logits, ensemble)
    return teacher, (case == 1) | (case == 2), case


def server_loss(logits, labels, teacher, has_teacher, epsilon):
    """The mean over a batch of CE, Eq. (1), or with a teacher of Eq. (2), (5): a scalar.

    logits, labels          [B, C], [B]
    teacher, has_teacher    logits [B, C], which get no gradient; bool [B]: where it is False, the
                            logits may be anything
    """
    teacher = torch.where(has_teacher[:, None], teacher, 0.0)
    losses = torch.where(has_teacher, distillation(logits, labels, teacher, epsilon),
                         F.cross_entropy(logits, labels, reduction="none"))      # [B]
    return losses.mean()


def distillation(logits, labels, teacher, epsilon):
    """epsilon CE + (1 - epsilon) KL(teacher || student) of each image.   Eq. (2), (5), (6)

    logits, labels, teacher    [B, C] of the student, [B], finite logits [B, C], which get no
                               gradient
    returns                    [B]
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                       # [B]
    log_p, log_q = teacher.detach().log_softmax(-1), logits.log_softmax(-1)      # [B, C]
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)                                       # [B]
    return epsilon * ce + (1 - epsilon) * kl                                     # departure 3


def distill_client(fed, cfg, t, i, client, images, server_logits):
    """Step 5: the snapshot of client i after training on the public images.

    images           the public ones of this round [N, c, h, w]
    server_logits    [N, C]: the teacher's
    """
    labels = fed.public.labels
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("public", t, i) as rng:
        for rows in minibatches(images, cfg.batch_size, rng, cfg.public_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = distillation(logits, labels[rows], server_logits[rows],
                                cfg.epsilon).mean()                              # Eq. (6)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, trained, unpooled, client_logits, weights, times):
    """The metrics of a round; the arguments are those of `run`.

    self_training, ...    share of the predictions before a step that were in each case
    effective_teachers    the mean of 1 / sum_j weights[j]² over the images that were ever in the
                          third case: 1 if one client has all the weight; None: there was no image
    bytes, bad_uploads    of the logits that the paper's server would ask for in step 3: those of
                          images that were ever in the third or fourth case
    """
    num_clients, N = len(client_logits), times.shape[1]
    shares = times.sum(1).double() / times.sum()                                 # [4]
    asked = times[2:, unpooled].any(0)                                           # bool [n]
    num_asked = int(asked.sum())
    taught = weights[:, times[2, unpooled] > 0]                                  # [M, third case]
    effective = (1 / taught.square().sum(0)).mean().item() if taught.numel() else None
    bad = [not is_usable(of_client) for of_client in client_logits[:, asked]]
    return {**evaluate(fed, state, trained), **dict(zip(CASES, shares.tolist())),
            "effective_teachers": effective, "bad_uploads": sum(bad),
            **count_logit_bytes(num_clients, fed.num_classes, up=num_asked, down=N,
                                indices=num_asked)}


def evaluate(fed, state, trained=None):
    """Test accuracies, and the share of images in the pool. The server's is `accuracy`; means over
    all clients are client_accuracy_private, after step 1, and client_accuracy_distilled, after 5.

    trained    the clients after step 1; None: as in `state`
    """
    server = score_server(fed, state["server"])
    return {"accuracy": server.pop("server_accuracy"), **server,
            **score_clients(fed, state["clients"], "client_accuracy_distilled"),
            **score_clients(fed, trained or state["clients"], "client_accuracy_private"),
            "pool": state["pool"]["mask"].double().mean().item()}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "fedgems", run, Config, public="labeled", mixed_networks=True, server="images", program=dict(
        paper=PAPER,
        scores={"accuracy": ("server", "public half"),
                "client_accuracy_distilled": ("clients, after distillation", "test"),
                "client_accuracy_private": ("clients, after private training", "test")},
        more_scores={"server_accuracy_private_test": ("server", "test")},
        clients_score="client_accuracy_distilled", shares=(*CASES, "pool"),
        columns=CASES, plateau=("lr", "server_lr"), evaluate=evaluate))
