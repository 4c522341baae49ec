"""FedSDD: groups, ensembles over models and rounds, who learns from whom, what it reduces to."""
import functools
import itertools
import math
from functools import partial

import pytest
import torch
from slow import close, drawn, numbers, pixels, slow_logits
from toys import SHAPE, constant, federation, last, linear, same, with_batchnorm, with_hidden_layer

from algorithms import fedavg, fedsdd, fedsdd_ablations
from algorithms.equations import ensemble_logits
from benchmarks.costs import round_seconds
from federation import Data, stream
from federation.evaluation import accuracy, disagreement
from federation.training import predict_members
from reference import fedsdd as oracle

LOCAL = {"local_epochs": 1, "local_steps": None, "batch_size": 2, "lr": 0.1}
DISTILL = {"distill_steps": 5, "server_batch_size": 4, "server_lr": 1.0, "temperature": 4.0}
QUICK = {"rounds": 3, "participation": 1.0, **LOCAL, **DISTILL}
ONCE = {**QUICK, "rounds": 1}
EIGHT = (5, 3, 4, 6, 4, 5, 3, 4)


def groups_of(t, K, count=8):
    """All clients dealt to K groups as in round t."""
    return fedsdd.group_clients(list(range(count)), K, stream(0, "groups", t))


def trained(fed, server, group, t, local="fedavg"):
    """{client: upload} of a group whose clients all train from `server`."""
    return {i: fedsdd_ablations.train_locally(fed, i, t, server, local, **LOCAL, mu=0.3)
            for i in group}


@pytest.mark.parametrize("count, K, sizes", [
    (8, 1, [8]), (8, 3, [3, 3, 2]), (8, 8, [1] * 8), (20, 7, [3] * 6 + [2])])
def test_group_clients_gives_the_first_groups_the_remainder(count, K, sizes):
    ids = [3 * i + 1 for i in range(count)]
    groups = fedsdd.group_clients(ids, K, stream(0))
    assert [len(group) for group in groups] == sizes and sorted(itertools.chain(*groups)) == ids
    assert all(group == sorted(group) for group in groups)


def test_groups_change_and_all_meet_the_main_model():
    drawn = [groups_of(t, 4) for t in range(40)]
    assert len(set(map(str, drawn))) > 30 and len({i for g in drawn for i in g[0]}) == 8


@pytest.mark.parametrize("K", [0, 3])
def test_more_models_than_active_clients_is_an_error(K):
    with pytest.raises(ValueError, match=f"fedsdd: K = {K}"):
        groups_of(1, K, count=2)
    fed = federation((3,) * 10, (linear,) * 3 + (with_hidden_layer,) * 2)    # half: 3 and 2 clients
    with pytest.raises(ValueError, match=f"fedsdd: K (=|is) {K}"):
        next(fedsdd.run(fed, **{**QUICK, "participation": 0.5}, K=K))


def test_eq3_is_the_softmax_of_the_mean_logits():
    probs = ensemble_logits(torch.tensor([[[4., 0.]], [[0., 1.]]])).softmax(-1)
    expected = 1 / (1 + math.exp((0 + 1) / 2 - (4 + 0) / 2))     # .8176; of the softmaxes: .6255
    assert probs[0, 0].item() == pytest.approx(expected, abs=1e-6)


def test_eq4_is_temperature_squared_kl_from_the_teacher():
    """One step of SGD on T² sum p ln (p / q), with the slope T (q - p). The public images are
    black, so that the student's logits are its biases z."""
    T, lr, p, z = 4.0, 0.5, [.5, .3, .2], [1., 0., -2.]
    q = [math.exp(v / T) / sum(math.exp(u / T) for u in z) for v in z]
    fed = federation(public=Data(torch.zeros(2, *SHAPE), None))
    start = {"architecture": "linear", "model": constant(*z)}
    student = fedsdd.distill(fed, 1, 0, start, T * torch.tensor([p, p]).log(), distill_steps=1,
                             server_batch_size=1, server_lr=lr, temperature=T)
    expected = [z_c - lr * T * (q_c - p_c) for z_c, q_c, p_c in zip(z, q, p)]
    assert student["model"]["1.bias"].tolist() == pytest.approx(expected, abs=1e-5)


def test_distill_moves_the_students_running_statistics():
    fed = federation(network=with_batchnorm)
    start = fedsdd.start_model(fed, "with_batchnorm", 0)
    student = fedsdd.distill(fed, 2, 1, start, torch.randn(8, 3), **DISTILL)
    start, student = start["model"], student["model"]
    assert student["0.num_batches_tracked"].item() == 5
    assert not torch.equal(student["0.running_mean"], start["0.running_mean"])


def slow_rounds(fed, starts, K, R, local):
    """reference/fedsdd.py with the batches of a run; other local methods train as they do."""
    def groups(t):
        return groups_of(t, K)

    def own_group(t, k, w, group):
        servers[k] |= {"model": dict(zip(("1.weight", "1.bias"), map(torch.tensor, w)))}
        uploads = trained(fed, servers[k], group, t, local)
        servers[k] = fedsdd_ablations.aggregate(fed, servers[k], uploads, local, False)
        return numbers(servers[k]["model"].values())

    def local_batches(t, i):
        return drawn(fed, len(private[i]), LOCAL["batch_size"], 1, "local", t, i)

    def distill_batches(t):
        return drawn(fed, 8, DISTILL["server_batch_size"], 5, "distil", t, 0)[:5]

    servers = list(starts)
    private = [[*zip(pixels(images), labels.tolist())] for images, labels in fed.private]
    fedavgs = partial(oracle.fedavg_group, private=private, batches=local_batches, lr=LOCAL["lr"])
    return oracle.run(
        [numbers(w["model"].values()) for w in starts], pixels(fed.public.images), rounds=3, R=R,
        groups=groups, train_group=own_group if local in ("fedprox", "scaffold") else fedavgs,
        batches=distill_batches, **{key: DISTILL[key] for key in ("server_lr", "temperature")})


@functools.cache
def three_rounds(local):
    """(the federation, [(metrics, state, what slow_rounds yields)]) of rounds with K = 3, R = 2.

    local    of fedsdd_ablations.py; "" is fedsdd.py itself
    """
    fed = federation(EIGHT)
    if local:
        run = fedsdd_ablations.run(fed, **QUICK, K=3, R=2, local=local, mu=0.3)
    else:
        run = fedsdd.run(fed, **QUICK, K=3, R=2)
    (_, start), *rounds = run
    slow = slow_rounds(fed, start["global_models"], 3, 2, local)
    return fed, [(*ours, theirs) for ours, theirs in zip(rounds, slow, strict=True)]


@pytest.mark.parametrize("local", ["", "fedavg", "fedprox", "scaffold"])
def test_rounds_with_R_2_against_algorithm_1(local):
    """Each model is trained by its own group from its own weights (A.6); the main one is taught."""
    for t, (_, state, (starred, _, _)) in enumerate(three_rounds(local)[1], start=1):
        for k, (ours, expected) in enumerate(zip(state["global_models"], starred, strict=True)):
            assert close(ours["model"], expected), f"global model {k} after round {t}"


def test_eq5_the_undistilled_models_of_the_last_R_rounds_are_kept():
    _, rounds = three_rounds("")
    averaged_models = [averaged for _, _, (_, averaged, _) in rounds]
    for t, (_, state, _) in enumerate(rounds, start=1):
        for ours, averaged in zip(state["undistilled"], averaged_models[:t][-2:], strict=True):
            assert all(close(model["model"], w)
                       for model, w in zip(ours, averaged, strict=True)), f"round {t}"


def test_accuracy_is_the_taught_main_models():
    fed, rounds = three_rounds("")
    for metrics, _, (starred, averaged, _) in rounds:
        taught, untaught = (accuracy(torch.tensor(slow_logits(w, fed.test.images)), fed.test.labels)
                            for w in (starred[0], averaged[0]))
        assert metrics["accuracy"] == metrics["server_accuracy"] == taught != untaught


def test_ensemble_accuracy_is_of_K_models_of_each_of_the_last_R_rounds():
    fed, rounds = three_rounds("")
    past = []
    for metrics, _, (_, averaged, _) in rounds:
        past = [*past, averaged][-2:]
        logits = torch.tensor([slow_logits(w, fed.test.images) for w in itertools.chain(*past)])
        assert metrics["ensemble_accuracy"] == accuracy(logits.mean(0), fed.test.labels)
        assert metrics["disagreement"] == pytest.approx(disagreement(logits[-3:]))


def test_warm_up_rounds_have_no_distillation():
    """But their models are in the ensembles of later rounds."""
    def states(**changes):
        run = fedsdd_ablations.run(federation(), **QUICK, K=2, R=2, **changes)
        return [state for _, state in run]
    for warmup in (1, 2, 3):
        pairs = list(zip(states(warmup_rounds=warmup, students="all"), states(students="none")))
        assert [same(a["global_models"], b["global_models"]) for a, b in pairs] == [
            t <= warmup for t in range(4)]
        assert len(pairs[-1][0]["undistilled"]) == 2


def test_basic_distillation_has_one_fixed_teacher_for_all_students():
    fed = federation(EIGHT)
    untaught, taught = (last(fedsdd_ablations.run(fed, **ONCE, K=3, students=students))[1]
                        ["global_models"] for students in ("none", "all"))
    teacher = predict_members(fed, untaught, fed.public.images).mean(0)
    assert same(taught, [fedsdd.distill(fed, 1, k, w, teacher, **DISTILL)
                         for k, w in enumerate(untaught)])


def test_initial_models_differ_and_main_is_fedavgs():
    fed = federation()
    first, *others = next(fedsdd.run(fed, **QUICK, K=3))[1]["global_models"]
    assert same(first, fedavg.start_server(fed, "linear"))
    assert not same(first, others[0]) and not same(first, others[1]) and not same(*others)


def test_an_ensemble_of_clients_has_every_client():
    """Table 5, "Clients": each client's model, trained from its own group's global model."""
    fed = federation(EIGHT)
    rounds = fedsdd_ablations.run(fed, **QUICK, K=2, R=2, ensemble="clients")
    for t, ((_, before), (metrics, state)) in enumerate(itertools.pairwise(rounds), start=1):
        clients = {i: upload["model"] for k, group in enumerate(groups_of(t, 2))
                   for i, upload in trained(fed, before["global_models"][k], group, t).items()}
        members = [model["model"] for model in state["undistilled"][-1]]
        assert same(members, [clients[i] for i in range(8)])
        assert metrics["teacher_forwards"] == min(t, 2) * 8 * 8         # clients x public images


def test_each_network_has_K_models_trained_by_its_own_clients():
    """All four are in the ensemble, and each network's first one learns from it."""
    fed = federation(EIGHT, (linear, with_hidden_layer))
    (_, before), (metrics, after) = fedsdd.run(fed, **ONCE, K=2)
    rng, averaged = stream(0, "groups", 1), []
    groups = [group for ids in ([0, 2, 4, 6], [1, 3, 5, 7])
              for group in fedsdd.group_clients(ids, 2, rng)]
    for k, (server, group) in enumerate(zip(before["global_models"], groups, strict=True)):
        assert same(dict(server["model"]), dict(fed.client_model(k // 2, k % 2).state_dict()))
        averaged.append(fedsdd.aggregate(fed, server, trained(fed, server, group, 1)))
    teacher = predict_members(fed, averaged, fed.public.images).mean(0)
    assert same(after["undistilled"], [averaged])
    assert same(after["global_models"], [
        w if k % 2 else fedsdd.distill(fed, 1, k, w, teacher, **DISTILL)
        for k, w in enumerate(averaged)])
    assert metrics["teacher_forwards"] == 4 * 8
    assert metrics["bytes_up"] == 4 * (4 * (3 * 5) + 4 * (2 * 5 + 3 * 3))
    taught = predict_members(fed, after["global_models"][::2], fed.test.images)
    each = [accuracy(logits, fed.test.labels) for logits in taught]
    assert each == [metrics[f"server_accuracy_{name}"] for name in ("linear", "with_hidden_layer")]
    assert metrics["accuracy"] == sum(each) / 2


def test_a_round_takes_the_longer_of_two_chains():
    """A.6: all clients one at a time; or the distillation, then the main model's clients."""
    assert round_seconds([2, 1, 3], 9) == (2 + 1 + 3 + 9, 9 + 2)
    assert round_seconds([1, 2, 3], 4.5) == (1 + 2 + 3 + 4.5, 1 + 2 + 3)
    assert round_seconds([4], 3) == (4 + 3, 3 + 4)


@pytest.mark.parametrize("run, sizes, more, rows", [
    *((fedsdd.run, sizes, {"K": 4, "R": R}, [min(t, R) * 4 * 8 for t in (1, 2, 3)])
      for sizes, R in [(EIGHT, 1), (EIGHT, 3), (EIGHT + EIGHT, 1)]),
    (fedsdd_ablations.run, EIGHT, {"K": 2, "students": "none"}, [0] * 3)])
def test_teachers_predict_K_R_times_N_rows_whatever_the_clients(run, sizes, more, rows):
    fed, predicted = federation(sizes), []
    build, public = fed.client_model, fed.public.images.tolist()

    def counted(i, init=0):
        model = build(i, init)
        model.register_forward_hook(lambda module, images, logits: predicted.append(
            0 if module.training else sum(x in public for x in images[0].tolist())))
        return model
    fed.client_model = counted
    metrics = [metrics for metrics, _ in run(fed, **QUICK, **more)]
    assert [row["teacher_forwards"] for row in metrics[1:]] == rows
    assert sum(predicted) == sum(rows)
