"""FedGEMS's ablations, Table 5: without self-training, self-distillation or ensemble distillation.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027. fedgems.py explains the four cases, Algorithm 1 and the other symbols.

Run:   python fedkd_minimal.py --algo fedgems-ablations --no-self-distillation
What travels: as in fedgems.py.
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

The loop is that of fedgems.py: `who_teaches` replaces the function of that name, also where it says
which samples the clients predict.

Modes, what is kept, scores, bad uploads: as in fedgems.py.
Departures (docs/DEPARTURES.md has more):
D1  the paper does not define the three rows; the table above is our reading
"""
from functools import partial

from algorithms import Algorithm, checked, fedgems
from federation.training import Optimizer


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


@checked
def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
        server_epochs: int = 1, batch_size: int = 256, server_batch_size: int = 256,
        lr: float = 1e-3, server_lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, epsilon: float = 0.75, self_training: bool = True,
        self_distillation: bool = True, ensemble_distillation: bool = True, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    optimizer    optimizer of clients and server, kept over the rounds
    hyperparameters.py explains the other keywords.
    """
    rule = partial(who_teaches, with_self_training=self_training,
                   with_self_distillation=self_distillation,
                   with_ensemble_distillation=ensemble_distillation)
    yield from fedgems.run(
        fed, state, rounds=rounds, local_epochs=local_epochs, public_epochs=public_epochs,
        server_epochs=server_epochs, batch_size=batch_size, server_batch_size=server_batch_size,
        lr=lr, server_lr=server_lr, optimizer=optimizer, weight_decay=weight_decay,
        epsilon=epsilon, attack=attack, rule=rule)


ALGORITHM = Algorithm(
    "fedgems-ablations", run, scores=fedgems.ALGORITHM.scores, keeps=fedgems.ALGORITHM.keeps,
    public="labeled", mixed_networks=True, server="images", plateau=("lr", "server_lr"),
    evaluate=fedgems.evaluate, columns=fedgems.ALGORITHM.columns)
