"""FedGKT's feature maps: extraction, size, and accuracies of edge and server networks.

He, Annavaram and Avestimehr, arXiv:2007.14513. Used by fedgkt, fedgkt_async and split_learning.
An edge network has `extract`: images -> feature map, and `classify`: feature map -> logits.

Paper              here                         shape         note
W_e^(k), W_c^(k)   model.extract, .classify     networks      edge k
H^(k), Z_c^(k)     Upload: features, logits     [n, 16, h, w], [n, C], of client k's n samples

Where the paper is silent or we differ:
D1  features and logits are computed in eval mode, after training
    [test_extraction_is_in_eval_mode_of_the_next_view]
"""
from typing import NamedTuple

import torch

from algorithms.clients import by_architecture, count_active, in_parallel
from algorithms.evaluation import accuracy, own_accuracy
from algorithms.training import autocast, predict_logits

CHUNK = 64      # samples of a forward pass without training: limits the memory it takes


class Upload(NamedTuple):
    """What a client sends of its n private samples, besides their labels."""

    features: torch.Tensor    # [n, 16, h, w], of the type that --features names
    logits: torch.Tensor      # float32 [n, C]


@torch.no_grad()
def extract(fed, model, images, dtype=torch.float32):
    """The `Upload` of images [n, c, h, w], in eval mode.   Eq. (3), (9)"""
    was_training = model.training
    model.eval()
    features, logits = [], []
    for batch in images.split(CHUNK):
        with autocast(fed):
            h = model.extract(batch)                                         # Alg. 1, line 26
            logits.append(model.classify(h).float())                         # Alg. 1, line 27
        features.append(h.to(dtype))
    model.train(was_training)
    return Upload(torch.cat(features), torch.cat(logits))


class ClientScore(NamedTuple):
    """Accuracies of one client, in [0, 1]."""

    stacked: float     # of its extractor with the server's network behind it
    edge: float        # of its own network
    edge_own: float | None     # the same, by `own_accuracy`


def stacked_scores(fed, clients, server, data):
    """The `ClientScore` of each client on `data`; clients, server: snapshots."""
    server_model = fed.server_model()
    server_model.load_state_dict(server["model"])

    def client_score(i):
        model = fed.client_model(i)
        model.load_state_dict(clients[i]["model"])
        server_logits, edge_logits = [], []
        for images in data.images.split(CHUNK):                      # not all feature maps at once
            features, logits = extract(fed, model, images)
            server_logits.append(predict_logits(fed, server_model, features))
            edge_logits.append(logits)
        return ClientScore(accuracy(torch.cat(server_logits), data.labels),
                           accuracy(torch.cat(edge_logits), data.labels),
                           own_accuracy(torch.cat(edge_logits), data.labels,
                                        fed.private[i].labels))

    return in_parallel(fed, client_score, range(len(clients)))


@torch.no_grad()
def feature_map(fed):
    """The feature map [1, channels, h, w] of a private image; all clients have this shape.

    raises    ValueError: a client's network has none, or one that the server cannot read
    """
    for name, ids in by_architecture(fed).items():
        edge = fed.client_model(ids[0]).eval()
        if not hasattr(edge, "extract"):
            raise ValueError(f"{name} has no feature map to send: a client needs a network with "
                             "`extract` and `classify`, such as gkt_edge")
        features = edge.extract(fed.private[0].images[:1])
        try:
            fed.server_model().eval()(features)
        except (RuntimeError, ValueError):
            raise ValueError(f"the server's network cannot read the {list(features.shape[1:])} "
                             f"feature maps of {name}: gkt_server55 and gkt_server109 go with "
                             "gkt_edge..., gkt_server_small with gkt_edge_small") from None
    return features


def announcement(fed, settings):
    """The line printed before training: the feature maps of a round in MB, 2**20 bytes each."""
    num_clients = len(fed.private)
    active = count_active(num_clients, settings.get("participation", 1.0))
    num_samples = sum(len(private.labels) for private in fed.private) * active / num_clients
    map_bytes = feature_map(fed).numel() * getattr(torch, settings["features"]).itemsize
    return f"a round sends about {num_samples * map_bytes / 2**20:.1f} MB of feature maps"
