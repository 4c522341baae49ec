"""FedGEMS's ablations, Table 5: without self-training, self-distillation or ensemble distillation.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, whose settings are the defaults.

Run:    python fedkd_minimal.py --algo fedgems-ablations --no-self-distillation
        small settings, about a minute; --paper as in fedgems.py
Data:   as in fedgems.py
Sent:   as in fedgems.py; without ensemble distillation the clients send nothing

With all three parts it is FedGEMS, bit for bit; `diff algorithms/fedgems.py
algorithms/fedgems_ablations.py` shows what a part decides. Without it (D1):
 --no-self-training          where the server is right, the pool teaches if it has the sample,
                             otherwise the clients; the pool is still filled
 --no-self-distillation      the clients teach what the pool would have taught
 --no-ensemble-distillation  CE alone where the clients would have taught; such a sample is in none
                             of the four cases

Scores: as in fedgems.py
D1  the paper does not define the three rows of Table 5; the list above is our reading
"""
import torch

from algorithms import Algorithm, checked
from algorithms.fedgems import (
    ALGORITHM as FEDGEMS,
    CASES,
    Pool,
    ServerResult,
    distill_client,
    entropy_weights,
    evaluate,
    fuse_logits,
    reliable_clients,
    server_loss,
    server_result_metrics,
    train_client,
)
from federation import timed
from federation.evaluation import predicted_classes
from federation.parallel import in_parallel, on_server
from federation.training import (OPTIMIZERS, Optimizer, forward, predict_logits, restore, shuffled,
                                 snapshot)
from federation.uploads import collect_rows


@timed
@on_server
def train_server(fed, t, server, pool, public_rows, fused_logits, has_reliable, server_epochs,
                 batch_size, lr, epsilon, with_self_training, with_self_distillation,
                 with_ensemble_distillation, optimizer_name, weight_decay):
    """Selective knowledge fusion in round t, as in fedgems.py, without the parts that are False."""
    images, labels = fed.public                                              # [N, c, h, w], [N]
    model = fed.server_model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(server, model, optimizer)                    # both go on from the server's last step
    pool = Pool(pool.logits.clone(), pool.mask.clone())      # the caller's state does not change
    clients_logits = torch.zeros_like(pool.logits)                                       # [N, C]
    clients_logits[public_rows] = fused_logits
    any_client_right = torch.zeros_like(pool.mask)                                       # bool [N]
    any_client_right[public_rows] = has_reliable
    cases = torch.zeros(len(CASES), len(labels), dtype=torch.bool, device=fed.device)    # [4, N]
    requested = torch.zeros_like(pool.mask)                                              # bool [N]
    model.train()                        # `shuffled` augments the images with --augment
    for rows, batch in shuffled(fed, images, ("server", t), epochs=server_epochs,
                                batch_size=batch_size):                      # Alg. 1, line 4
        # Before the step: on which samples is the server right? Clean images, in eval mode, without
        # gradient; then the model is in train mode again. Logits that are not finite are wrong.
        checked_logits = predict_logits(fed, model, images[rows])                        # [B, C]
        correct = predicted_classes(checked_logits) == labels[rows]          # bool [B]: S_Correct
        in_pool = pool.mask[rows]                                            # bool [B]
        client_right = any_client_right[rows]                                # bool [B]

        # The four cases, each with its teacher; D1. A sample may be in none of them.
        self_training = correct & with_self_training                            # no teacher
        self_distillation = ~self_training & in_pool & with_self_distillation   # the pool
        asks = ~self_training & ~self_distillation & with_ensemble_distillation
        ensemble_distillation = asks & client_right                             # the clients
        nobody_right = asks & ~client_right                                     # no teacher

        has_teacher = self_distillation | ensemble_distillation              # bool [B]
        teacher_logits = torch.where(self_distillation[:, None], pool.logits[rows],
                                     clients_logits[rows])                   # [B, C]
        pool.logits[rows[correct]] = checked_logits[correct]                 # Alg. 1, line 7
        pool.mask[rows[correct]] = True
        logits = forward(fed, model, batch)                                  # [B, C], train mode
        loss = server_loss(logits, labels[rows], teacher_logits, has_teacher,
                           epsilon)                                      # Alg. 1, line 6, 9, 12
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 14
        # For the metrics.
        cases[:, rows] = torch.stack([self_training, self_distillation, ensemble_distillation,
                                      nobody_right])
        requested[rows] |= asks
    # Eval mode, clean images.
    server_logits = predict_logits(fed, model, images)                       # Alg. 1, line 15
    return ServerResult(snapshot(model, optimizer), server_logits, pool, cases, requested)


@checked
def run(fed, state=None, *,
        rounds: int = 200,                   # T; all clients take part in each
        local_epochs: int = 1,               # passes of a client over its own images in a round,
        public_epochs: int = 1,              #   and over the public images
        server_epochs: int = 1,              # passes of the server over the public images
        batch_size: int = 256,               # of a client
        server_batch_size: int = 256,
        lr: float = 1e-3,                    # of a client
        server_lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad",    # of each client and of the server, for all training
        weight_decay: float = 1e-4,          #   and its L2 penalty
        epsilon: float = 0.75,               # weight of CE; 1 - epsilon is that of KL
        self_training: bool = True,          # the three parts of Table 5
        self_distillation: bool = True,
        ensemble_distillation: bool = True,
        attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    ids = range(len(fed.private))                                            # M clients
    labels = fed.public.labels                                               # [N]
    if state is None:
        pool = Pool(torch.zeros(len(labels), fed.num_classes, device=fed.device),
                    torch.zeros_like(labels, dtype=torch.bool))
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model()), "pool": pool._asdict()}
        yield {**evaluate(fed, state), "pool": 0.0}, state
    clients, server, pool = state["clients"], state["server"], Pool(**state["pool"])

    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # a: clients train on their own images, and predict the n samples that may be requested:
        # without self-distillation also those in the pool, without ensemble distillation none.
        may_request = ~pool.mask if self_distillation else torch.ones_like(pool.mask)
        public_rows = torch.nonzero(may_request & ensemble_distillation)[:, 0]       # [n]

        def train(i):
            return train_client(fed, i, t, clients[i], public_rows, local_epochs, batch_size, lr,
                                optimizer, weight_decay)

        # In parallel: logits [M, n, C], those of attackers replaced; the clients after training.
        client_logits, trained = collect_rows(fed, public_rows, train, attack)  # line 25-27, 31-33

        # On each sample only clients that are right teach, and the more certain ones more.
        reliable = reliable_clients(client_logits, labels[public_rows])      # bool [M, n]
        weights = entropy_weights(client_logits, reliable)                   # Eq. (4), [M, n]
        fused_logits = fuse_logits(client_logits, weights)                   # Eq. (5), [n, C]

        # b, c: the server trains, by the labels, its pool and the clients.
        result = train_server(fed, t, server, pool, public_rows, fused_logits, reliable.any(0),
                              server_epochs, server_batch_size, server_lr, epsilon, self_training,
                              self_distillation, ensemble_distillation, optimizer,
                              weight_decay)                                  # Alg. 1, line 3-15
        server, pool = result.server, result.pool

        # d: all clients learn from the server's logits of all public images.
        def distill(i):
            return distill_client(fed, i, t, trained[i], result.server_logits, public_epochs,
                                  batch_size, lr, epsilon, optimizer, weight_decay)

        clients = in_parallel(fed, distill, ids)                             # Alg. 1, line 19-23

        # All that the next round needs: networks with their optimizers, and the pool.
        state = {"round": t, "clients": clients, "server": server, "pool": pool._asdict()}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state, trained),
                   **server_result_metrics(fed, public_rows, client_logits, weights, result)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgems-ablations", run, scores=FEDGEMS.scores, keeps=FEDGEMS.keeps, public="labeled",
    mixed_networks=True, server="images", plateau=FEDGEMS.plateau, evaluate=evaluate,
    columns=FEDGEMS.columns)
