"""FedGEMS's ablations, Table 5: without self-training, self-distillation or ensemble distillation.

Cheng et al., arXiv:2110.11027. `train_server` and `run` are those of fedgems.py except for
the lines marked with Table 5. fedgems.py explains the four cases and the notation.
What travels: logits, as in FedGEMS. Public data: labeled, on the server and on every client.
Run:   python fedkd_minimal.py --algo fedgems-ablations --no-self-distillation

Paper                       here                    shape       note
-Self-Training              self_training           bool        False: a sample that the server
                                                                predicts correctly learns from the
                                                                pool if it is there, else from the
                                                                clients; the pool is still filled
-Self-Distillation          self_distillation       bool        False: the clients teach what the
                                                                pool would have taught
-Ensemble                   ensemble_distillation   bool        False: cross-entropy alone in place
                                                                of ensemble distillation; such a
                                                                sample is in none of the four cases
S_Correct                   correct, alone          bool [B]    alone: no teacher
                            from_pool, requests     bool [B]    the pool teaches; clients are asked

Where the paper is silent or we differ:
D1  the paper does not define the three rows; this is our reading
    [test_ablations_move_samples_between_cases]
"""
from functools import partial

import torch

from algorithms import evaluation
from algorithms.common import collect_logits, needs_public, run_clients, seeded, stream, timed
from algorithms.fedgems import (CASES, Fusion, Pool, distil_client, entropy_weights, fuse_logits,
                                fusion_metrics, reliable_clients, server_loss, train_client)
from algorithms.training import (OPTIMIZERS, Optimizer, batches, forward, predict_logits, restore,
                                 snapshot)

PUBLIC = "labelled"
MIXED = True    # may clients have different networks?
PLATEAU = ("lr", "server_lr")    # what --lr-patience reduces
COLUMNS = ("server_accuracy", "client_accuracy", *CASES)
evaluate = partial(evaluation.evaluate, headline="server_accuracy")


@timed
def train_server(fed, t, server, pool, client_rows, fused_logits, has_reliable, *, server_epochs,
                 batch_size, new_optimizer, epsilon, self_training, self_distillation,
                 ensemble_distillation):
    """Selective knowledge fusion in round t: the `Fusion` after Alg. 1, line 3-15.

    client_rows, fused_logits, has_reliable    [n], [n, C], bool [n]: what the clients can teach
    """
    model = fed.server_model()
    optimizer = restore(server, model, new_optimizer)
    images, labels = fed.public
    pool = Pool(pool.logits.clone(), pool.mask.clone())
    fused_logits = torch.zeros_like(pool.logits).index_copy(0, client_rows, fused_logits)   # [N, C]
    has_reliable = torch.zeros_like(pool.mask).index_copy(0, client_rows, has_reliable)     # [N]
    cases, requested = pool.mask.new_zeros(4, len(labels)), torch.zeros_like(pool.mask)
    rng = stream(fed.seed, "server", t)
    with seeded(fed.seed, "server", t):                                      # for dropout
        for rows in batches(len(labels), batch_size, server_epochs,          # Alg. 1, line 4
                            rng, fed.device):
            checked_logits = predict_logits(fed, model, images[rows])                    # [B, C]
            correct = checked_logits.argmax(1) == labels[rows]               # Alg. 1, line 5
            alone = correct & self_training                                  # Table 5
            from_pool = ~alone & pool.mask[rows] & self_distillation         # Table 5
            requests = ~alone & ~from_pool & ensemble_distillation           # Table 5
            from_clients = requests & has_reliable[rows]                                 # bool [B]
            has_teacher = from_pool | from_clients                                       # bool [B]
            teacher_logits = torch.where(from_pool[:, None], pool.logits[rows], fused_logits[rows])
            pool.logits[rows[correct]] = checked_logits[correct]             # Alg. 1, line 7
            pool.mask[rows[correct]] = True
            requested[rows[requests]] = True
            nobody_right = requests & ~from_clients                                      # bool [B]
            cases[:, rows] = torch.stack([alone, from_pool, from_clients, nobody_right])
            model.train()
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = server_loss(forward(fed, model, batch), labels[rows],     # Alg. 1, line 6, 9, 12
                               teacher_logits, has_teacher, epsilon)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()                                                 # Alg. 1, line 14
    server_logits = predict_logits(fed, model, images)                       # Alg. 1, line 15
    return Fusion(snapshot(model, optimizer), server_logits, pool, cases, requested)


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
        server_epochs: int = 1, batch_size: int = 256, server_batch_size: int = 256,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, epsilon: float = 0.75, self_training: bool = True,
        self_distillation: bool = True, ensemble_distillation: bool = True, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    rounds               number of communication rounds
    local_epochs         passes of a client over its own data in a round
    public_epochs        passes of a client over the public data in a round
    server_epochs        passes of the server over the public data in a round
    batch_size           batch size of a client
    server_batch_size    batch size of the server
    lr                   learning rate of a client
    server_lr            learning rate of the server
    optimizer            optimizer of clients and server, kept over the rounds
    weight_decay         L2 penalty of these optimizers
    epsilon              weight of the cross-entropy; 1 - epsilon is that of the distillation
    self_training        samples that the server predicts correctly have no teacher
    self_distillation    the pool teaches samples that the server once predicted correctly
    ensemble_distillation    the clients that are right teach the other samples
    attack               (uploads [M, n, C], client ids, rows [n], t) -> uploads: replaces those of
                         the malicious clients
    """
    needs_public(fed, labels=True)
    make = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    at_client = dict(batch_size=batch_size, new_optimizer=partial(make, lr=lr))
    at_server = dict(batch_size=server_batch_size, new_optimizer=partial(make, lr=server_lr))
    switches = dict(self_training=self_training, self_distillation=self_distillation,
                    ensemble_distillation=ensemble_distillation)
    ids, labels = range(len(fed.private)), fed.public.labels
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model()),
                 "pool": {"logits": torch.zeros(len(labels), fed.num_classes, device=fed.device),
                          "mask": torch.zeros_like(labels, dtype=torch.bool)}}
        yield {**evaluate(fed, state), "pool": 0.0}, state
    clients, server, pool = state["clients"], state["server"], Pool(**state["pool"])
    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # Clients train on their own data, and predict the samples that the server may request.
        rows = torch.nonzero(~pool.mask)[:, 0]                                           # [n]
        if not self_distillation:                                            # Table 5
            rows = torch.arange(len(labels), device=fed.device)
        if not ensemble_distillation:                                        # Table 5
            rows = rows[:0]
        client_logits, trained = collect_logits(                             # Alg. 1, line 19
            fed, t, rows, lambda i: train_client(fed, i, t, clients[i], rows,
                                                 local_epochs=local_epochs, **at_client), attack)

        # On each sample only clients that are right count; more certain clients count more.
        reliable = reliable_clients(client_logits, labels[rows])                         # [M, n]
        weights = entropy_weights(client_logits, reliable)                   # Eq. (4), [M, n]
        fused_logits = fuse_logits(client_logits, weights)                   # Eq. (5), [n, C]

        # The server learns alone, from its pool or from the clients: Alg. 1, line 3-15.
        fusion = train_server(fed, t, server, pool, rows, fused_logits, reliable.any(0),
                              server_epochs=server_epochs, epsilon=epsilon, **at_server,
                              **switches)
        server, pool = fusion.server, fusion.pool

        # All clients learn from the server's logits of all public samples.
        clients = run_clients(lambda i: distil_client(                       # Alg. 1, line 17
            fed, i, t, trained[i], fusion.server_logits, public_epochs=public_epochs,
            epsilon=epsilon, **at_client), ids, fed.device)

        state = {"round": t, "clients": clients, "server": server, "pool": pool._asdict()}
        metrics = {**evaluate(fed, state, trained),
                   **fusion_metrics(fed, rows, client_logits, weights, fusion)}
        yield metrics, state
