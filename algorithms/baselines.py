"""What federated learning is measured against. Centralized: one model on the union of all clients' private data.

FedGEMS (Cheng et al., arXiv:2110.11027), Section 4: the upper bound that no client could train alone; its settings (Adam, 200
epochs) are the defaults. A round is `local_epochs` passes over the union. Nothing travels. Public data: none.
Run:   python fedkd_minimal.py --algo centralized

Where the paper is silent or we differ:
D1  Adam is AMSGrad, as in FedGKT's public code                       [test_amsgrad_is_the_papers_adam]
D2  the optimiser lives through the rounds: it is one long training   [test_centralized_is_one_long_training]
"""
import copy
from typing import Literal

import torch
import torch.nn.functional as F

from algorithms.common import OPTIMIZERS, batches, forward, seconds, seeded, stream, test_accuracy

PUBLIC = "none"
MIXED = False   # may clients have different networks?
COLUMNS = ("accuracy",)


def centralized(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256, lr: float = 1e-3,
                optimizer: Literal["sgd", "adam", "amsgrad"] = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round."""
    images = torch.cat([private.images for private in fed.private])                      # [n, c, h, w]
    labels = torch.cat([private.labels for private in fed.private])                      # [n]
    model = fed.client_model(0)
    update = OPTIMIZERS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
    if state is None:
        state = copy.deepcopy({"round": 0, "model": model.state_dict(), "optimizer": update.state_dict()})
        server_accuracy = test_accuracy(fed, model, state["model"])
        yield {"accuracy": server_accuracy, "server_accuracy": server_accuracy}, state
    model.load_state_dict(state["model"])
    update.load_state_dict(state["optimizer"])
    for t in range(state["round"] + 1, rounds + 1):
        start = seconds(fed.device)
        model.train()
        rng = stream(fed.seed, "centralized", t)
        with seeded(fed.seed, "centralized", t):
            for rows in batches(len(labels), batch_size, local_epochs, rng, fed.device):  # rows: [B]
                batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
                loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
                update.zero_grad()
                loss.backward()
                update.step()
        trained_at = seconds(fed.device)
        server_accuracy = test_accuracy(fed, model, model.state_dict())
        metrics = {"accuracy": server_accuracy, "server_accuracy": server_accuracy, "bytes_up": 0, "bytes_down": 0,
                   "local_seconds": trained_at - start}
        yield metrics, copy.deepcopy({"round": t, "model": model.state_dict(), "optimizer": update.state_dict()})
