"""Test accuracies of the server's models, the clients' models and ensembles.

All are on the whole test set, unless --public half also makes half of the test set public (the
default where an algorithm needs labeled public images). Then a server with a network of its own,
which learns from the public images, is scored on the public half, and everything else on the other
one; `*_public_test` and `*_private_test` are on the half where a model is not scored by default.
With --joint FedMD's `*_public_test` is on the test images of the public data set.
"""
import itertools
from fractions import Fraction
from statistics import fmean
from typing import NamedTuple

import torch

from federation.networks import loaded
from federation.parallel import parallel_map
from federation.training import predict, predict_by_all


class Score(NamedTuple):
    """Accuracies of one model, in [0, 1]."""

    test: float                    # on fed.test
    public_test: float | None      # on fed.public_test; None: there is none
    own: float | None = None       # `own_accuracy` of a client's own model; None: there is none
    as_public: float | None = None     # share of fed.test that is answered with a public class;
    #                                None: the output layer is not joint


def predicted_classes(logits):
    """The class of the largest logit: [..., C] -> int64 [...]; -1 where a logit is not finite.

    `argmax` alone would answer class 0 to a network whose logits are all nan.
    """
    return logits.argmax(-1).where(logits.isfinite().all(-1), -1)


def accuracy(logits, labels):
    """Share of the samples whose largest logit is the label's: [N, C], [N] -> float in [0, 1].

    A sample with a logit that is not finite is wrong.
    """
    return share(predicted_classes(logits) == labels)


def share(chosen):
    """The share of True among N: bool [N] -> count / N as a Python float, so 9 of 10 are 0.9."""
    return int(chosen.sum()) / len(chosen)


def mean_accuracy(accuracies):
    """The mean of shares of at most a million samples each, exact until it becomes a float.

    So the mean of 0.6 and 0.8 is 0.7. Each share is a float, but the only one of its fraction.
    """
    fractions = [Fraction(x).limit_denominator(10**6) for x in accuracies]
    return float(sum(fractions) / len(fractions))


def own_accuracy(logits, labels, own_labels):
    """Test accuracy of a client's model, weighed as if the classes had the client's own shares.

    logits, labels    [N, C], int64 [N]: of the test images
    own_labels        int64 [n]: of the client's own images
    returns           float in [0, 1]; None: no class of the client is in the test set
    A sample with a logit that is not finite is wrong.
    >>> logits = torch.tensor([[1., 0.], [0., 1.], [0., 1.]])        # right, right, wrong
    >>> own_accuracy(logits, torch.tensor([0, 1, 0]), own_labels=torch.tensor([0, 1, 1, 1]))
    0.875
    """
    right = labels[predicted_classes(logits) == labels]
    # Numbers of images of each class: the client's own, test images, those that are right.
    counts = [x.bincount(minlength=logits.shape[1]).tolist() for x in (own_labels, labels, right)]
    tested = [(n, Fraction(r, N)) for n, N, r in zip(*counts) if N > 0]
    total = sum(n for n, _ in tested)
    return float(sum(n * accuracy for n, accuracy in tested) / total) if total > 0 else None


def score(fed, model, own_labels=None, by_all=False):
    """The `Score` of one network.

    own_labels    of the client's images, if it is a client's own
    by_all        True: all processes score this network together, and no other one meanwhile
    """
    def logits_of(images):
        return predict_by_all(fed, model, images) if by_all else predict(model, images)

    logits = logits_of(fed.test.images)                                                  # [N, C]
    public_test, own, as_public = None, None, None
    if fed.public_test is not None:
        public_logits = logits_of(fed.public_test.images)
        public_test = accuracy(public_logits, fed.public_test.labels)
        if fed.num_public_classes > 0:
            answers = predicted_classes(logits)                  # -1: none, as a logit is nan
            as_public = share((0 <= answers) & (answers < fed.num_public_classes))
    if own_labels is not None:
        own = own_accuracy(logits, fed.test.labels, own_labels)
    return Score(accuracy(logits, fed.test.labels), public_test, own, as_public)


def disagreement(member_logits):
    """Share of (pair of members, sample) with different predicted classes; None for one member.

    member_logits    [M, N, C]
    A member whose logits of a sample are not all finite predicts no class of it: it differs there
    from every other member, also from one that predicts none either.
    """
    predicted = predicted_classes(member_logits)                                         # [M, N]
    pairs = list(itertools.combinations(predicted, 2))
    if not pairs:
        return None
    differ = torch.stack([(a != b) | (a < 0) for a, b in pairs])                        # [pairs, N]
    return int(differ.sum()) / differ.numel()


def client_scores(fed, clients):
    """The `Score` of each client's own model; clients: {i: snapshot}, of all clients."""
    def client_score(i):
        model = loaded(fed.client_model(i), clients[i]["model"])
        return score(fed, model, fed.private[i].labels)

    return [*parallel_map(fed, range(len(clients)), client_score).values()]


def client_metrics(scores, key="client_accuracy"):
    """Mean, minimum and maximum of the clients' test accuracies, and the mean on their own classes.

    scores    a `Score` for each client
    """
    test, public, own, as_public = zip(*scores)
    metrics = {key: mean_accuracy(test), f"{key}_min": min(test), f"{key}_max": max(test)}
    if None not in public:
        metrics[f"{key}_public_test"] = mean_accuracy(public)
    if None not in as_public:
        metrics[f"{key}_as_public"] = mean_accuracy(as_public)
    if mean_own(own) is not None:
        metrics[f"{key}_own"] = mean_own(own)
    return metrics


def mean_own(own):
    """Mean over the clients of `own_accuracy`, without those that have None; None without any."""
    measured = [x for x in own if x is not None]
    return fmean(measured) if measured else None


def by_client(scores, key="client_accuracy"):
    """{key_i: test accuracy of client i}; scores: a `Score` for each."""
    return {f"{key}_{i}": score.test for i, score in enumerate(scores)}


def distillation_metrics(fed, clients, trained=None):
    """`client_metrics` where a round is private training of the clients, then distillation.

    clients    {i: snapshot} after distillation
    trained    the same after private training; None: as `clients`. So it is at the start, where
               both accuracies are of the untrained networks
    """
    distilled = client_scores(fed, clients)
    private = client_scores(fed, trained) if trained else distilled
    return {**client_metrics(distilled, "client_accuracy_distilled"),
            **client_metrics(private, "client_accuracy_private")}


def server_metrics(fed, server):
    """Test accuracy of the server's own network; server: a snapshot.

    Where the test set has a public half, as in FedGEMS, the server is scored on that half.
    """
    test, public, *_ = score(fed, loaded(fed.server_model(), server["model"]), by_all=True)
    if public is None:
        return {"server_accuracy": test}
    return {"server_accuracy": public, "server_accuracy_private_test": test}
