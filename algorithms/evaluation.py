"""Test accuracies of the server's models, the clients' models and ensembles."""
import itertools
from typing import NamedTuple

from algorithms.clients import in_parallel
from algorithms.training import load_model, predict_logits
from federation import timed


class Score(NamedTuple):
    """Accuracies of one model, in [0, 1]."""

    test: float
    public_test: float | None      # on the public half of the test set; None: no such half


def accuracy(logits, labels):
    """Share of the samples whose largest logit is the label's: [N, C], [N] -> float in [0, 1]."""
    return (logits.argmax(1) == labels).float().mean().item()


def score(fed, model):
    """The `Score` of one network."""
    public = fed.public_test
    return Score(accuracy(predict_logits(fed, model, fed.test.images), fed.test.labels),
                 public and accuracy(predict_logits(fed, model, public.images), public.labels))


def disagreement(member_logits):
    """Share of (pair of members, sample) with different predicted classes; None for one member.

    member_logits    [M, N, C]. Needs `itertools`.
    """
    predicted = member_logits.argmax(-1)                                                 # [M, N]
    pairs = list(itertools.combinations(predicted, 2))
    if not pairs:
        return None
    return sum((a != b).float().mean().item() for a, b in pairs) / len(pairs)


def global_metrics(fed, global_models):
    """Test accuracy of the server's global models, one {"architecture", "model"} per architecture.

    `accuracy` is their mean; with several architectures each has its own entry too.
    """
    accuracies = {}
    for saved in global_models:
        logits = predict_logits(fed, load_model(fed, saved), fed.test.images)            # [N, C]
        accuracies[saved["architecture"]] = accuracy(logits, fed.test.labels)
    mean = sum(accuracies.values()) / len(accuracies)
    each = {f"server_accuracy_{name}": x for name, x in accuracies.items()}
    return {"accuracy": mean, "server_accuracy": mean, **(each if len(each) > 1 else {})}


def client_scores(fed, clients):
    """The `Score` of each client's own model; clients: a snapshot for each."""
    def client_score(i):
        model = fed.client_model(i)
        model.load_state_dict(clients[i]["model"])
        return score(fed, model)

    return in_parallel(fed, client_score, range(len(clients)))


def client_metrics(scores, key="client_accuracy"):
    """Mean, minimum and maximum of the clients' test accuracies; scores: a `Score` for each."""
    test, public = zip(*scores)
    metrics = {key: sum(test) / len(test), f"{key}_min": min(test), f"{key}_max": max(test)}
    if None not in public:
        metrics[f"{key}_public_test"] = sum(public) / len(public)
    return metrics


def by_client(scores, key="client_accuracy"):
    """{key_i: test accuracy of client i}; scores: a `Score` for each."""
    return {f"{key}_{i}": score.test for i, score in enumerate(scores)}


def two_phase_metrics(distilled, private):
    """The metrics of clients that are scored twice in a round: a `Score` of each client, twice.

    distilled    after the distillation from the others: client_accuracy_distilled, _min, _max
    private      after the training on their own data: client_accuracy_private, _min, _max
    """
    return {**client_metrics(distilled, "client_accuracy_distilled"),
            **client_metrics(private, "client_accuracy_private")}


def server_metrics(fed, server):
    """Test accuracy of the server's own network; server: a snapshot.

    Where the test set has a public half, as in FedGEMS, the server is scored on that half.
    """
    model = fed.server_model()
    model.load_state_dict(server["model"])
    test, public = score(fed, model)
    if public is None:
        return {"server_accuracy": test}
    return {"server_accuracy": public, "server_accuracy_private_test": test}


@timed
def evaluate(fed, state, trained=None, *, main_metric):
    """Test accuracies where a round is private training, then distillation.

    state          "clients": their snapshots after distillation; "server": its snapshot, if any
    trained        the clients after private training; None at the start, where they have had
                   neither: then both accuracies are of the untrained networks
    main_metric    `accuracy` repeats this metric
    """
    distilled = client_scores(fed, state["clients"])
    private = client_scores(fed, trained) if trained else distilled
    metrics = two_phase_metrics(distilled, private)
    if "server" in state:
        metrics |= server_metrics(fed, state["server"])
    return {"accuracy": metrics[main_metric], **metrics}
