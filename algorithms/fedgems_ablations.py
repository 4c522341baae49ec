"""FedGEMS's ablations, Table 5: without self-training, self-distillation or ensemble distillation.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027.

    python fedkd_minimal.py --algo fedgems-ablations --no-self-distillation
        runs `Config` without self-distillation; the other two flags are --no-self-training and
        --no-ensemble-distillation. As in fedgems.py 20 clients with a small CNN hold unequal shares
        of the digits (Dirichlet, alpha 0.5), 150 images of 16x16 pixels each, 3,000 images are
        public, the server has a CNN twice as wide, and it takes a minute on two cores.
    python fedkd_minimal.py --algo fedgems-ablations --no-self-distillation \\
            --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER` likewise, on what the second command of fedgems.py says: its networks and
        clients, crops and flips, and learning rates that fall.

Data, networks, words, accuracies and bad uploads are those of fedgems.py, and so is a round, but
for these two steps. With all three parts it is FedGEMS, bit for bit.
  2   Each client predicts the public images that the server may ask for: those that are not in the
      pool; without self-distillation all, without ensemble distillation none.
  3   The server trains on the public images. In each batch, before the step, it predicts every
      image. The loss of an image is
        CE                                     if the server is right,         self-training
        e CE + (1 - e) KL(pool || server)      else if it is in the pool,      self-distillation
        e CE + (1 - e) KL(ensemble || server)  else if a client is right,      ensemble distillation
        CE                                     else.
      Without a part, its line is left out. Where the server is right, its logits enter the pool,
      also without self-training.

Departure
  1  Paper: Table 5 has a row without each part, and no word on what then happens. Here: the cases
     of step 3.
"""
from dataclasses import dataclass

import torch

from algorithms import Algorithm, configured
from algorithms.fedgems import (ALGORITHM as FEDGEMS, PAPER as FEDGEMS_PAPER, distill_client,
                                entropy_weights, evaluate, fuse, is_right, measure, predict_client,
                                predict_server, server_loss, train_client)
from federation import (Optimizer, minibatches, on_server, parallel_map, predict, public_view,
                        random_numbers, received_logits, restored, snapshot)

# What these do is said in fedgems.py.


@dataclass
class Config:
    self_training: bool = True          # CE where the server is right
    self_distillation: bool = True      # the pool is a teacher
    ensemble_distillation: bool = True  # clients that are right are a teacher
    rounds: int = 10                    # T
    local_epochs: int = 5               # step 1: passes of a client over its own images
    server_epochs: int = 1              # step 3: passes of the server over the public images
    public_epochs: int = 1              # step 5: passes of a client over the public images
    batch_size: int = 64                # of a client
    server_batch_size: int = 64         # of the server
    lr: float = 1e-3                    # of a client
    server_lr: float = 1e-3             # of the server; --lr-patience lowers both
    optimizer: Optimizer = "amsgrad"    # of each client and of the server
    weight_decay: float = 1e-4          # L2 penalty of this optimizer
    epsilon: float = 0.75               # weight of CE where there is a teacher


# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(**FEDGEMS_PAPER, self_training=True, self_distillation=True,
             ensemble_distillation=True)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round."""
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
        # Step 1: each client trains on its own images.
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 2: each client predicts the n public images that the server may ask for.
        public = public_view(fed, t)
        may_ask = ~pool["mask"] if cfg.self_distillation else torch.ones_like(pool["mask"])
        askable = torch.nonzero(may_ask & cfg.ensemble_distillation)[:, 0]   # [n], row numbers
        uploads = parallel_map(fed, ids, lambda i: predict_client(
            fed, i, trained[i], public.images[askable]))
        client_logits = received_logits(uploads, askable, attack)            # [M, n, C]

        # Step 3: the server trains on all N public images. Images that were not predicted, or on
        # which no client is right, have no ensemble; their rows stay 0.
        reliable = is_right(client_logits, labels[askable])                  # bool [M, n]
        weights = entropy_weights(client_logits, reliable)                   # [M, n], Eq. (3), (4)
        ensemble = torch.zeros_like(pool["logits"])                          # [N, C]
        ensemble[askable] = fuse(client_logits, weights)                     # [n, C]
        has_ensemble = torch.zeros_like(pool["mask"])                        # bool [N]
        has_ensemble[askable] = reliable.any(0)                              # bool [n]
        server, pool, cases, asked = train_server(
            fed, cfg, t, server, pool, public, ensemble, has_ensemble)

        # Step 4: the server predicts all public images.
        server_logits = predict_server(fed, server, public)                  # [N, C]

        # Step 5: each client trains on them, with server_logits as the teacher.
        clients = parallel_map(
            fed, ids,
            lambda i: distill_client(fed, cfg, t, i, trained[i], public, server_logits))

        state = {"round": t, "server": server, "pool": pool, "clients": clients}
        yield {**evaluate(fed, state, trained),
               **measure(fed, askable, client_logits, weights, cases, asked)}, state


@on_server
def train_server(fed, cfg, t, server, pool, public, ensemble, has_ensemble):
    """Step 3: the server's snapshot and its pool after training; for the metrics `cases`, `asked`.

    public                    those of this round: images [N, c, h, w], labels [N]
    ensemble, has_ensemble    [N, C], bool [N]
    cases                     bool [4, N]: in which case each image was in the last epoch; without
                              ensemble distillation an image may be in none
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

            # The cases: an image of the batch is in the first that it fits, or in none. departure 1
            self_training = right & cfg.self_training                            # Eq. (1)
            self_distillation = ~self_training & in_pool & cfg.self_distillation     # Eq. (2)
            asks = ~self_training & ~self_distillation & cfg.ensemble_distillation
            ensemble_distillation = asks & client_right                          # Eq. (5)
            nobody_right = asks & ~client_right

            # The teacher of the second case is the pool, that of the third the ensemble.
            has_teacher = self_distillation | ensemble_distillation              # bool [B]
            teacher = torch.where(self_distillation[:, None], pool["logits"][rows], ensemble[rows])

            logits = model(images[rows])                                         # [B, C]
            loss = server_loss(logits, labels[rows], teacher, has_teacher, cfg.epsilon)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            pool["logits"][rows[right]] = predicted[right]
            pool["mask"][rows[right]] = True
            cases[:, rows] = torch.stack([self_training, self_distillation,
                                          ensemble_distillation, nobody_right])
            asked[rows] |= asks
    return snapshot(model, optimizer), pool, cases, asked


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "fedgems-ablations", run, paper=PAPER, scores=FEDGEMS.scores, columns=FEDGEMS.columns,
    public="labeled", mixed_networks=True, server="images", plateau=FEDGEMS.plateau,
    evaluate=evaluate)
