"""FedGEMS's ablations, Table 5: without self-training, self-distillation or ensemble distillation.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027.

    python fedkd_minimal.py --algo fedgems-ablations --no-self-distillation
        runs `Config` without self-distillation, on the data and networks of fedgems.py's first
        command; the others are --no-self-training, --no-ensemble-distillation. A minute on two
        cores.
    python fedkd_minimal.py --algo fedgems-ablations --no-self-distillation \\
            --paper fedgems-homogeneous --dataset cifar10
        runs fedgems.py's `PAPER` likewise, on those of its second command.

All is as in fedgems.py, with its words and its table of predictions, but for two steps. With all
three parts the numbers are FedGEMS's.
  2   Each client predicts the public images that the server may ask for: those that are not in the
      pool; without self-distillation all, without ensemble distillation none.
  3   In the loss of the server, the line of a part that is off is left out:
        CE                                     if the server is right,         self-training
        e CE + (1 - e) KL(pool || server)      else if it is in the pool,      self-distillation
        e CE + (1 - e) KL(ensemble || server)  else if a client is right,      ensemble distillation
        CE                                     else.
      Where the server is right, its logits enter the pool, also without self-training.
The metrics self_training, ..., nobody_right are the shares of images in these four lines: without
self-training, images on which the server is right are in one of the other three.

Departure
  1  Paper: Table 5 has a row without each part, and no word on what then happens. Here: as above.
"""
from dataclasses import dataclass

import torch

from algorithms.fedgems import (ALGORITHM as FEDGEMS, CASES, choose_teacher, distill_client,
                                entropy_weights, evaluate, fuse, is_right, measure, predict_client,
                                server_loss, train_client)
from federation import (Algorithm, Count, Fraction, Natural, NonNegative, Optimizer, Positive,
                        Settings, minibatches, on_server, parallel_map, predict, predict_models,
                        resume, snapshot)


@dataclass
class Config(Settings):
    self_training: bool = True          # CE where the server is right
    self_distillation: bool = True      # the pool is a teacher
    ensemble_distillation: bool = True  # clients that are right are a teacher
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


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round; its
    arguments are those of FedGEMS's."""
    ALGORITHM.check(fed, cfg, state, attack)
    ids, labels = range(len(fed.private)), fed.public.labels                 # M clients, [N]
    if state is None:
        # Networks of random weights, of each client other ones, and an empty pool.
        pool = {"logits": torch.zeros(len(labels), fed.num_classes, device=fed.device),
                "mask": torch.zeros_like(labels, dtype=torch.bool)}          # True: is in the pool
        state = {"algorithm": "fedgems-ablations", "round": 0,
                 "server": snapshot(fed.server_model()), "pool": pool,
                 "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids}}
        yield evaluate(fed, state), state
    server, clients, pool = state["server"], state["clients"], state["pool"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: each client trains on its own images.
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 2: each client predicts the n public images that the server may ask for.
        images = fed.augment_public(t)                                       # [N, c, h, w]
        may_ask = ~pool["mask"] if cfg.self_distillation else torch.ones_like(pool["mask"])
        askable = torch.nonzero(may_ask & cfg.ensemble_distillation)[:, 0]   # [n], row numbers
        uploads = parallel_map(fed, ids, lambda i: predict_client(
            fed, i, trained[i], images[askable]))
        if attack:
            uploads = attack.poison_rows(uploads, askable)
        client_logits = torch.stack([*uploads.values()])                     # [M, n, C]

        # Step 3: the weight of each client on each image, the ensemble, the server's training.
        reliable = is_right(client_logits, labels[askable])                  # bool [M, n]
        weights = entropy_weights(client_logits, reliable)                   # [M, n], Eq. (3), (4)
        client_right = torch.zeros_like(pool["mask"])                        # bool [N]
        client_right[askable] = reliable.any(0)
        ensemble = torch.zeros_like(pool["logits"])                          # [N, C]
        ensemble[askable] = fuse(client_logits, weights)                     # in Eq. (5)
        server, pool, times = train_server(
            fed, cfg, t, server, pool, images, client_right, ensemble)

        # Step 4: the server predicts all public images.
        server_logits = predict_models(
            fed, [server["model"]], images, fed.server_model)[0]             # [N, C]

        # Step 5: each client trains on them, with server_logits as the teacher.
        clients = parallel_map(fed, ids, lambda i: distill_client(
            fed, cfg, t, i, trained[i], images, server_logits))

        state = {**state, "round": t, "server": server, "pool": pool, "clients": clients}
        yield measure(fed, state, trained, askable, client_logits, weights, times), state


@on_server
def train_server(fed, cfg, t, server, pool, images, client_right, ensemble):
    """Step 3: FedGEMS's `train_server`; a part that is off teaches no image. Without ensemble
    distillation nobody was asked, so that client_right is False for all."""
    labels = fed.public.labels
    model, optimizer = resume(server, fed.server_model(), cfg.optimizer, cfg.server_lr,
                              cfg.weight_decay)
    pool = {name: tensor.clone() for name, tensor in pool.items()}
    times = torch.zeros(len(CASES), len(labels), dtype=torch.int64, device=fed.device)
    model.train()
    with fed.random_numbers("server", t) as rng:
        for rows in minibatches(images, cfg.server_batch_size, rng, cfg.server_epochs):
            # Before the step, the server predicts the batch, in eval mode.
            predicted = predict(model, images[rows])                             # [B, C]
            right = is_right(predicted, labels[rows])                            # bool [B]
            teacher, has_teacher, case = choose_teacher(                         # departure 1
                right & cfg.self_training, pool["mask"][rows] & cfg.self_distillation,
                client_right[rows], pool["logits"][rows], ensemble[rows])

            logits = model(images[rows])                                         # [B, C]
            loss = server_loss(logits, labels[rows], teacher, has_teacher, cfg.epsilon)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            pool["logits"][rows[right]] = predicted[right]
            pool["mask"][rows[right]] = True
            times[case, rows] += 1
    return snapshot(model, optimizer), pool, times


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "fedgems-ablations", run, Config, public="labeled", mixed_networks=True, server="images",
    program=FEDGEMS.program)
