"""Split learning: two halves that train as one network would, and what goes over the wire."""
import pytest
import torch
from slow import batches
from test_fedgkt import NUMBERS, SIZES, Edge, EdgeWithBatchNorm, linear_server, toy
from torch import nn
from toys import last, rounds

from algorithms import split_learning
from federation import OPTIMIZERS, make_rng

QUICK = {"rounds": 2, "local_epochs": 2, "batch_size": 2, "lr": 0.1, "optimizer": "sgd",
         "weight_decay": 0.01}


def deep_server(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(NUMBERS, 4), nn.Tanh(), nn.Linear(4, num_classes))


def finished(fed, **changes):
    return last(rounds(split_learning, fed, **{**QUICK, **changes}))


def centrally(fed, *, rounds, local_epochs, batch_size, lr, optimizer, weight_decay):
    """One network of both halves, one optimizer, no cut, the same batches: (edge, server, it)."""
    edge, server = fed.client_model(0), fed.server_model()
    update = OPTIMIZERS[optimizer]([*edge.parameters(), *server.parameters()], lr=lr,
                                   weight_decay=weight_decay)
    for t in range(1, rounds + 1):
        for i, (images, labels) in enumerate(fed.private):
            rng = make_rng(fed.seed, "local", t, i)
            for rows in batches(len(labels), batch_size, local_epochs, rng):
                logits = server(edge.extract(images[rows]))
                right = logits[torch.arange(len(rows)), labels[rows]]
                update.zero_grad()
                (logits.exp().sum(1).log() - right).mean().backward()
                update.step()
    return edge, server, update


def close(a, b):
    return a.keys() == b.keys() and all(
        torch.allclose(a[name], b[name], rtol=1e-4, atol=1e-5) for name in a
        if isinstance(a[name], torch.Tensor))


@pytest.mark.parametrize("optimizer, sizes, network, server, batch_size", [
    ("amsgrad", SIZES, Edge, deep_server, 2), ("sgd", (6, 4), EdgeWithBatchNorm, deep_server, 2),
    ("nesterov", (6, 3), EdgeWithBatchNorm, linear_server, 3)])
def test_split_learning_is_training_the_stacked_network(optimizer, sizes, network, server,
                                                        batch_size):
    """Weights, running statistics and the optimizers' memories, after two rounds of two epochs."""
    fed, settings = toy(sizes, network, server), {**QUICK, "optimizer": optimizer, "lr": 0.02,
                                                  "batch_size": batch_size}
    edge, whole_server, update = centrally(fed, **settings)
    metrics, state = finished(fed, **settings)
    assert close(state["clients"][0]["model"], edge.state_dict())
    assert close(state["server"]["model"], whole_server.state_dict())
    first = len(list(edge.parameters()))              # of the server's in the one optimizer
    halves = [(state["clients"][0], 0), (state["server"], first)]
    ours = {place + shift: memory for half, shift in halves
            for place, memory in half["optimizer"]["state"].items()}
    expected = update.state_dict()["state"]
    assert ours.keys() == expected.keys()
    assert all(close(ours[place], expected[place]) for place in ours)
    logits = whole_server.eval()(edge.eval().extract(fed.test.images))
    hits = (logits.argmax(1) == fed.test.labels).double().mean().item()
    assert metrics["accuracy"] == pytest.approx(hits)


def test_the_edges_classifier_is_left_alone():
    """Weight decay does not shrink it either; all else moves."""
    fed = toy(sizes=(4, 6), network=EdgeWithBatchNorm)
    start, (_, state) = fed.client_model(0).state_dict(), finished(fed, weight_decay=0.5)
    end = state["clients"][0]["model"]
    assert [name for name in start if torch.equal(start[name], end[name])] == [
        "classifier.weight", "classifier.bias"]


@pytest.mark.parametrize("amp", [False, True])
def test_eq12_is_what_the_metrics_of_a_round_add_up_to(amp):
    """A map up and its gradient down, for each sample in each of three epochs, in float32."""
    _, *found = rounds(split_learning, toy(amp=amp), **{**QUICK, "local_epochs": 3})
    for metrics, _ in found:
        assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * NUMBERS * (5 + 3 + 4) * 3
