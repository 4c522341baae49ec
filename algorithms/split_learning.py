"""Split learning: one network cut in two. Every batch's feature map goes up to the server, its gradient comes back down.

Gupta and Raskar, "Distributed Learning of Deep Neural Network over Multiple Agents", 2018; Vepakomma et al., arXiv:1812.00564; here
as the yardstick of FedGKT's communication (He et al., arXiv:2007.14513, Eq. (12)). The edge's half is an edge network's extractor,
handed from client to client; the server's half is the server's network. Together they train as one network would.
What travels: feature maps up, gradients down, in every batch; and the edge's half between clients. Public data: none.
Run:   python fedkd_minimal.py --algo split-learning

Paper                  here              shape            note
the split layer        sent              [B, 16, h, w]    the feature map, cut off from the graph on its way
its gradient           sent.grad         [B, 16, h, w]    what the edge's half is trained with
edge, server           edge, server      networks         W_e and W_s of FedGKT

Where the papers are silent or we differ:
D1  a round is local_epochs passes over each client's data, client after client in the order of their numbers
                                                         [test_split_learning_is_training_the_stacked_network]
D2  both halves keep their optimisers, which travel along with the edge's half
                                                         [test_split_learning_is_training_the_stacked_network]
D3  the edge network's own classifier is not used and stays as it was         [test_the_edges_classifier_is_left_alone]
"""
import copy

import torch
import torch.nn.functional as F
from torch import nn

from algorithms.common import (Optimizer, accuracy, asleep, batches, feature_map_of, forward, new_learner, predict_logits,
                               seconds, seeded, stream, wake)
from communication import FLOAT_BYTES

PUBLIC = "none"
MIXED = False   # may clients have different networks?
COLUMNS = ("accuracy",)


class Stacked(nn.Module):
    """The edge's extractor with the server's network behind it: what split learning trains, in two places."""

    def __init__(self, edge, server):
        super().__init__()
        self.edge, self.server = edge, server

    def forward(self, images):
        return self.server(self.edge.extract(images))


def metrics_of(fed, stacked):
    """Test accuracy of the two halves, one behind the other."""
    mean = accuracy(predict_logits(fed, stacked, fed.test.images), fed.test.labels)
    return {"accuracy": mean, "server_accuracy": mean}


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256, lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round."""
    feature_map_of(fed)                                  # raises ValueError
    stacked = Stacked(fed.client_model(0), fed.server_model())
    edge, server = stacked.edge, stacked.server
    if state is None:
        state = {"round": 0, "edge": new_learner(edge), "server": new_learner(server)}
        yield metrics_of(fed, stacked), state
    edge_update = wake(state["edge"], edge, optimizer, lr, weight_decay)
    server_update = wake(state["server"], server, optimizer, lr, weight_decay)
    for t in range(state["round"] + 1, rounds + 1):
        start, sent_bytes = seconds(fed.device), 0
        stacked.train()
        for i, (images, labels) in enumerate(fed.private):                               # the edge's half goes from one to the next
            rng = stream(fed.seed, "local", t, i)
            with seeded(fed.seed, "local", t, i):
                for rows in batches(len(labels), batch_size, local_epochs, rng, fed.device):             # rows: [B]
                    batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
                    with torch.autocast(fed.device.type, torch.bfloat16, enabled=fed.amp):
                        features = edge.extract(batch)                                   # [B, 16, h, w], on the edge
                    sent = features.detach().requires_grad_()                            # goes up
                    loss = F.cross_entropy(forward(fed, server, sent), labels[rows])     # on the server
                    server_update.zero_grad()
                    loss.backward()
                    server_update.step()
                    edge_update.zero_grad()
                    features.backward(sent.grad)                                         # comes down, and on through the edge
                    edge_update.step()
                    sent_bytes += FLOAT_BYTES * sent.numel()
        metrics = {**metrics_of(fed, stacked), "bytes_up": sent_bytes, "bytes_down": sent_bytes,                   # FedGKT Eq. (12)
                   "local_seconds": seconds(fed.device) - start}
        yield metrics, copy.deepcopy({"round": t, "edge": asleep(edge, edge_update), "server": asleep(server, server_update)})
