"""FedGEMS's ablations, Table 5: without self-training, self-distillation or ensemble distillation.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027. fedgems.py explains the four cases, Algorithm 1 and the other symbols.

Run:   python fedkd_minimal.py --algo fedgems-ablations --no-self-distillation
       (small settings of experiment/presets.py; with --paper fedgems-homogeneous: `run`'s defaults)
What travels: as in fedgems.py. In each round the server sends the indices of the public samples
that it requests; each client sends its logits of them; the server sends its logits of all public
samples.
Public data: labeled, on the server and on every client. All networks may differ.

Paper                  here                    shape       note
- Self-Training        self_training           bool        False: where the server is right, the
                                                           pool teaches if it has the sample, or
                                                           the clients; the pool is still filled
- Self-Distillation    self_distillation       bool        False: the clients teach what the pool
                                                           would have taught
- Ensemble             ensemble_distillation   bool        False: CE alone where the clients would
                                                           have taught; such a sample is in none
                                                           of the four cases
S_Correct              correct                 bool [B]    of a batch, as in fedgems.py

`run` is that of fedgems.py but for the lines marked with Table 5: other samples are predicted ahead
by the clients, and `who_teaches` replaces the function of that name.

Kept between rounds: as in fedgems.py. Server: network, optimizer and pool. Client: network and
optimizer.
Scores: as in fedgems.py. With --public half, the default, the test set is halved: the server
(server_accuracy, `accuracy`) is scored on the public half, the clients on the private half.
Bad upload: as in fedgems.py. A client is taken for wrong on a sample of which its logits hold nan,
infinity or a magnitude of 1e30 or more; bad_uploads counts such clients.

Departures (more: docs/DEPARTURES.md):
D1  the paper does not define the three rows; the table above is our reading
"""
from functools import partial

import torch

from algorithms import Algorithm
from algorithms.fedgems import (
    CASES,
    Pool,
    distill_client,
    empty_pool,
    entropy_weights,
    fuse_logits,
    reliable_clients,
    server_result_metrics,
    train_client,
    train_server,
)
from federation import evaluation
from federation.parallel import in_parallel, run_server
from federation.training import OPTIMIZERS, Optimizer, snapshot
from federation.uploads import collect_rows

evaluate = partial(evaluation.evaluate, main_metric="server_accuracy")


def who_teaches(correct, in_pool, *, with_self_training, with_self_distillation,
                with_ensemble_distillation):
    """(self_training, self_distillation, requests), bool [B], as in fedgems.py.   Table 5

    correct, in_pool    bool [B]: the server is right now; it was in an earlier check
    with_...            bool: False switches this case off
    """
    self_training = correct & with_self_training                            # D1
    self_distillation = ~self_training & in_pool & with_self_distillation
    requests = ~self_training & ~self_distillation & with_ensemble_distillation
    return self_training, self_distillation, requests


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
        server_epochs: int = 1, batch_size: int = 256, server_batch_size: int = 256,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, epsilon: float = 0.75, self_training: bool = True,
        self_distillation: bool = True, ensemble_distillation: bool = True, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    optimizer                optimizer of clients and server, kept over the rounds
    self_training            samples that the server predicts correctly have no teacher
    self_distillation        the pool teaches samples that the server once predicted correctly
    ensemble_distillation    the clients that are right teach the other samples
    The other keywords, and attack, are explained in hyperparameters.py.
    """
    make = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    client_training = dict(batch_size=batch_size, new_optimizer=partial(make, lr=lr))
    rule = partial(who_teaches, with_self_training=self_training,            # Table 5
                   with_self_distillation=self_distillation,
                   with_ensemble_distillation=ensemble_distillation)
    server_training = dict(batch_size=server_batch_size, new_optimizer=partial(make, lr=server_lr),
                           rule=rule)
    ids = range(len(fed.private))
    if state is None:
        ALGORITHM.check(fed)
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "server": snapshot(fed.server_model()), "pool": empty_pool(fed)._asdict()}
        yield {**evaluate(fed, state), "pool": 0.0}, state
    clients, server, pool = state["clients"], state["server"], Pool(**state["pool"])
    labels = fed.public.labels
    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # Clients train on their own data, and predict the samples that the server may request.
        rows = torch.nonzero(~pool.mask)[:, 0]                                           # [n]
        if not self_distillation:                                            # Table 5
            rows = torch.arange(len(labels), device=fed.device)
        if not ensemble_distillation:                                        # Table 5
            rows = rows[:0]
        client_logits, trained = collect_rows(fed, rows, lambda i: train_client(
            fed, i, t, clients[i], rows, local_epochs=local_epochs,
            **client_training), attack)                              # Alg. 1, line 25-27, 31-33

        # On each sample only clients that are right teach, and the more certain ones more.
        reliable = reliable_clients(client_logits, labels[rows])                         # [M, n]
        weights = entropy_weights(client_logits, reliable)                   # Eq. (4), [M, n]
        fused_logits = fuse_logits(client_logits, weights)                   # Eq. (5), [n, C]

        # The server learns alone, from its pool or from the clients: Alg. 1, line 3-15.
        result = run_server(
            fed, train_server, t, server, pool, rows, fused_logits, reliable.any(0),
            server_epochs=server_epochs, epsilon=epsilon, **server_training)
        server, pool = result.server, result.pool

        # All clients learn from the server's logits of all public samples.
        clients = in_parallel(fed, lambda i: distill_client(                 # Alg. 1, line 17, 19
            fed, i, t, trained[i], result.server_logits, public_epochs=public_epochs,
            epsilon=epsilon, **client_training), ids)

        state = {"round": t, "clients": clients, "server": server, "pool": pool._asdict()}
        metrics = {**evaluate(fed, state, trained),
                   **server_result_metrics(fed, rows, client_logits, weights, result)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgems-ablations", run,
    scores={"server_accuracy": "server",
            "client_accuracy_distilled": "clients, after distillation",
            "client_accuracy_private": "clients, after private training"},
    public="labeled", mixed_networks=True,
    server="images",         # the server has a network of its own, which reads images
    plateau=("lr", "server_lr"), evaluate=evaluate,         # for --lr-patience alone
    columns=("server_accuracy", "client_accuracy_distilled", *CASES))
