"""FedSDD: groups, ensembles over models and rounds, who learns from whom, and what it reduces to."""
import copy
import itertools
import math

import numpy as np
import pytest
import torch
from toys import federation, last, linear, same, with_batchnorm, with_dropout, with_hidden_layer

import algorithms.fedavg as fedavg
from algorithms import feddf, fedprox, fedsdd, fedsdd_ablations, scaffold
from algorithms.common import sample_clients, stream
from algorithms.equations import average_weights
from algorithms.evaluation import accuracy, disagreement
from algorithms.training import batches, predict_logits
from communication import round_seconds, weights_bytes

QUICK = {"rounds": 3, "participation": 1.0, "local_epochs": 1, "batch_size": 2, "lr": 0.1, "distill_steps": 3, "server_batch_size": 4}
EIGHT = (5, 3, 4, 6, 4, 5, 3, 4)


def predictions(fed, states, images):
    logits = []
    for state in states:
        model = fed.client_model(0)
        model.load_state_dict(state)
        logits.append(predict_logits(fed, model, images))
    return torch.stack(logits)


def distilled(fed, t, k, model_state, teacher_logits, **settings):
    """The state_dict after distillation of the one whose state_dict is given."""
    student = {"architecture": fed.architecture[0], "model": model_state}
    return fedsdd.distil(fed, t, k, student, teacher_logits, **settings)["model"]


# ---------------------------------------------------------------------------------------------------------------- groups

@pytest.mark.parametrize("active, K", [(8, 1), (8, 3), (8, 4), (8, 8), (1, 1), (20, 7)])
def test_groups_are_disjoint_exhaustive_sorted_and_even(active, K):
    ids = [3 * i + 1 for i in range(active)]
    groups = fedsdd.group_clients(ids, K, stream(0))
    assert sorted(itertools.chain(*groups)) == ids and len(groups) == K and all(group == sorted(group) for group in groups)
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_group_clients_gives_the_first_groups_the_remainder():
    assert [len(group) for group in fedsdd.group_clients(list(range(8)), 3, stream(0))] == [3, 3, 2]


def test_groups_are_drawn_anew_and_every_client_can_reach_the_main_model():
    drawn = [fedsdd.group_clients(list(range(8)), 4, stream(0, "groups", t)) for t in range(40)]
    assert len({str(groups) for groups in drawn}) > 30
    assert {i for groups in drawn for i in groups[0]} == set(range(8))


@pytest.mark.parametrize("K", [0, -1, 9])
def test_more_models_than_active_clients_is_an_error(K):
    with pytest.raises(ValueError, match="K"):
        fedsdd.group_clients(list(range(8)), K, stream(0))


def test_grouping_changes_no_input():
    active = [4, 2, 9]
    fedsdd.group_clients(active, 2, stream(0))
    assert active == [4, 2, 9]


# ------------------------------------------------------------------------------------------------------------- ensembles

def test_eq3_is_the_softmax_of_the_mean_logits_not_the_mean_of_the_softmaxes():
    probs = fedsdd.ensemble_logits(torch.tensor([[[4., 0.]], [[0., 1.]]])).softmax(-1)
    assert probs[0, 0].item() == pytest.approx(1 / (1 + math.exp(-(4 / 2 - 1 / 2))), abs=1e-6)      # .8176, against .6255


def test_ensemble_of_one_member_is_that_member_and_order_does_not_matter():
    members = torch.randn(3, 5, 4)
    assert torch.equal(fedsdd.ensemble_logits(members[:1]), members[0])
    assert torch.allclose(fedsdd.ensemble_logits(members), fedsdd.ensemble_logits(members[[2, 0, 1]]), atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- distillation

def slow_distil(fed, weight, bias, teacher, seed, *keys, temperature, distill_steps, server_batch_size, server_lr):
    """SGD on T² KL(softmax(teacher/T) || softmax(student/T)) of a linear student, number by number; keys: t, and k if there is one."""
    weight, bias, images = [row[:] for row in weight], bias[:], fed.public.images
    passes = batches(len(images), server_batch_size, distill_steps, stream(seed, "distil", *keys))
    for rows in itertools.islice(passes, distill_steps):
        grad_weight, grad_bias = [[0.0] * 4 for _ in weight], [0.0] * len(bias)
        for n in rows.tolist():
            x = images[n].flatten().tolist()
            z = [sum(w * v for w, v in zip(weight[c], x)) + bias[c] for c in range(len(bias))]
            p = [math.exp(v / temperature) for v in teacher[n].tolist()]
            q = [math.exp(v / temperature) for v in z]
            for c in range(len(bias)):       # d/dz of T² KL is T (q - p)
                error = temperature * (q[c] / sum(q) - p[c] / sum(p)) / len(rows)
                grad_bias[c] += error
                for d in range(4):
                    grad_weight[c][d] += error * x[d]
        bias = [b - server_lr * g for b, g in zip(bias, grad_bias)]
        weight = [[w - server_lr * g for w, g in zip(ws, gs)] for ws, gs in zip(weight, grad_weight)]
    return weight, bias


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_eq4_is_temperature_squared_kl_from_the_teacher(temperature):
    fed = federation(num_public=6)
    start, teacher = fed.client_model(0).state_dict(), 3 * torch.randn(6, 3)
    settings = {"temperature": temperature, "distill_steps": 5, "server_batch_size": 4, "server_lr": 0.3}
    student = distilled(fed, 2, 1, start, teacher, **settings)
    weight, bias = slow_distil(fed, start["1.weight"].tolist(), start["1.bias"].tolist(), teacher, 0, 2, 1, **settings)
    assert np.allclose(student["1.weight"], weight, atol=1e-5) and np.allclose(student["1.bias"], bias, atol=1e-5)


def test_distil_makes_exactly_the_steps_asked_for():
    """5 steps of 4 over 6 images: passes of 4 and 2 images, the third one cut."""
    fed, seen = federation(num_public=6), []
    fed.augment = lambda images, rng: seen.append(len(images)) or images
    distilled(fed, 1, 0, fed.client_model(0).state_dict(), torch.randn(6, 3), temperature=1.0, distill_steps=5,
              server_batch_size=4, server_lr=0.1)
    assert seen == [4, 2, 4, 2, 4]


def test_distilling_a_model_towards_itself_changes_nothing():
    fed = federation()
    start = fed.client_model(0).state_dict()
    teacher = predictions(fed, [start], fed.public.images)[0]
    student = distilled(fed, 1, 0, start, teacher, temperature=4.0, distill_steps=4, server_batch_size=4, server_lr=0.5)
    for name, w in start.items():
        assert torch.allclose(student[name], w, atol=1e-6)


def test_distil_moves_the_students_running_statistics():
    fed = federation(network=with_batchnorm)
    start = fed.client_model(0).state_dict()
    student = distilled(fed, 1, 0, start, torch.randn(8, 3), temperature=4.0, distill_steps=4, server_batch_size=4, server_lr=0.1)
    assert student["0.num_batches_tracked"].item() == 4 and not torch.equal(student["0.running_mean"], start["0.running_mean"])


def test_fedsdds_student_learns_from_augmented_public_images():
    """Here from black ones: no gradient for the weights, only for the bias."""
    fed = federation(augment=lambda images, rng: images * 0)
    start = fed.client_model(0).state_dict()
    student = distilled(fed, 1, 0, start, torch.randn(8, 3), distill_steps=3, server_batch_size=4, server_lr=0.3, temperature=2.0)
    assert torch.equal(student["1.weight"], start["1.weight"]) and not torch.equal(student["1.bias"], start["1.bias"])


def test_distil_changes_neither_the_state_nor_the_teacher():
    fed = federation(network=with_batchnorm)
    start, teacher = fed.client_model(0).state_dict(), torch.randn(8, 3)
    before = copy.deepcopy((dict(start), teacher))
    distilled(fed, 1, 0, start, teacher, temperature=4.0, distill_steps=4, server_batch_size=4, server_lr=0.1)
    assert same((dict(start), teacher), before)


def test_targets_follow_the_public_rows():
    """Permuting the public images permutes the stored logits; a sample's target never changes."""
    fed, order = federation(), torch.tensor([3, 1, 0, 7, 5, 2, 6, 4])
    shuffled = federation(public=fed.public._replace(images=fed.public.images[order]))
    rings = [last(fedsdd_ablations.run(f, **QUICK, K=2, R=2, students="main", warmup_rounds=3))[1]["ring"] for f in (fed, shuffled)]
    for a, b in zip(*rings, strict=True):
        assert torch.allclose(a[order], b, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------- whole rounds

def test_two_rounds_with_R_2_against_algorithm_1():
    """Algorithm 1 and Eq. (5) written out: groups, averages, the ensemble of unstarred models, one distilled main model."""
    fed, K = federation(sizes=EIGHT), 3
    starred = [fed.client_model(0, k).state_dict() for k in range(K)]
    past = []                                                                        # w_{t,k} of every round so far
    for t in (1, 2):
        active = sample_clients(8, 1.0, stream(0, "active", t))
        groups = fedsdd.group_clients(active, K, stream(0, "groups", t))
        averaged = []
        for k in range(K):
            server = {"architecture": "linear", "model": starred[k]}
            uploads = [fedavg.train_client(fed, i, t, server, local_epochs=1, batch_size=2, lr=0.1)["model"] for i in groups[k]]
            averaged.append(average_weights(uploads, [EIGHT[i] for i in groups[k]]))
        past.append(averaged)
        everyone = [w for models in past[-2:] for w in models]                       # K min(t, R) teachers, equally weighted
        teacher = predictions(fed, everyone, fed.public.images).mean(0)
        weight, bias = slow_distil(fed, averaged[0]["1.weight"].tolist(), averaged[0]["1.bias"].tolist(), teacher, 0, t, 0,
                                   temperature=4.0, distill_steps=3, server_batch_size=4, server_lr=0.1)
        starred = [{"1.weight": torch.tensor(weight), "1.bias": torch.tensor(bias)}, *averaged[1:]]
    metrics, state = last(fedsdd.run(fed, **{**QUICK, "rounds": 2}, K=K, R=2))
    for k in range(K):
        for name in starred[k]:
            assert torch.allclose(state["global_models"][k]["model"][name], starred[k][name], atol=1e-5)
    ensemble = predictions(fed, everyone, fed.test.images)
    assert metrics["ensemble_accuracy"] == pytest.approx(accuracy(ensemble.mean(0), fed.test.labels))
    assert metrics["server_accuracy"] == pytest.approx(accuracy(predictions(fed, starred, fed.test.images)[0], fed.test.labels))
    assert metrics["disagreement"] == pytest.approx(disagreement(ensemble[-K:]))


@pytest.mark.parametrize("R", [1, 2, 3])
def test_eq5_first_rounds_use_the_rounds_there_are(R):
    lengths = [len(state["ring"]) for _, state in fedsdd.run(federation(), **{**QUICK, "rounds": 4}, K=2, R=R)]
    assert lengths == [min(t, R) for t in range(5)]


def test_ring_holds_the_models_before_distillation_and_never_the_initial_ones():
    fed = federation()
    _, state = last(fedsdd.run(fed, **{**QUICK, "rounds": 1}, K=2, R=4))
    untaught = last(fedsdd_ablations.run(fed, **{**QUICK, "rounds": 1}, K=2, R=4, students="none"))[1]["global_models"]
    members = predictions(fed, [server["model"] for server in untaught], fed.public.images)
    assert len(state["ring"]) == 1 and torch.allclose(state["ring"][0], members.mean(0), atol=1e-6)
    assert not torch.equal(state["global_models"][0]["model"]["1.weight"], untaught[0]["model"]["1.weight"])


def changed(run, **more):
    """Which of K = 3 models differ from the same round without distillation."""
    fed = federation(sizes=EIGHT)
    settings = {**QUICK, "rounds": 1, "K": 3}
    taught = last(run(fed, **settings, **more))[1]["global_models"]
    untaught = last(fedsdd_ablations.run(fed, **settings, **{**more, "students": "none"}))[1]["global_models"]
    return [not same(dict(a["model"]), dict(b["model"])) for a, b in zip(taught, untaught)]


def test_only_the_main_model_learns_from_the_ensemble():
    assert changed(fedsdd.run) == changed(fedsdd_ablations.run, students="main") == [True, False, False]


def test_basic_distillation_teaches_every_model():
    assert changed(fedsdd_ablations.run, students="all") == [True, True, True]


def test_warm_up_rounds_have_no_distillation():
    assert changed(fedsdd_ablations.run, students="main", warmup_rounds=1) == [False, False, False]
    fed = federation()
    for warmup, expected in [(2, [True, True, False]), (1, [True, False, False])]:
        runs = [list(fedsdd_ablations.run(fed, **QUICK, K=2, students=s, warmup_rounds=warmup)) for s in ("main", "none")]
        assert [same(a["global_models"][0], b["global_models"][0]) for (_, a), (_, b) in zip(*runs)][1:] == expected


def test_the_ring_is_filled_in_warm_up_rounds_too():
    _, state = last(fedsdd_ablations.run(federation(), **QUICK, K=2, R=2, students="main", warmup_rounds=3))
    assert len(state["ring"]) == 2


def test_basic_distillation_has_one_fixed_teacher_for_all_students():
    fed = federation(sizes=EIGHT)
    untaught = last(fedsdd_ablations.run(fed, **{**QUICK, "rounds": 1}, K=3, students="none"))[1]["global_models"]
    taught = last(fedsdd_ablations.run(fed, **{**QUICK, "rounds": 1}, K=3, students="all"))[1]["global_models"]
    teacher = predictions(fed, [server["model"] for server in untaught], fed.public.images).mean(0)
    for k in range(3):
        student = fedsdd.distil(fed, 1, k, untaught[k], teacher, temperature=4.0, distill_steps=3, server_batch_size=4,
                                server_lr=0.1)
        assert same(taught[k], student)


@pytest.mark.parametrize("network", [with_batchnorm, (with_batchnorm, with_hidden_layer)])
def test_the_ablations_with_fedsdds_own_choices_are_fedsdd_bit_for_bit(network):
    fed, settings = federation(sizes=EIGHT, network=network), {**QUICK, "K": 2, "R": 2}
    theirs = list(fedsdd_ablations.run(fed, **settings, ensemble="aggregated", students="main", warmup_rounds=0))
    assert same(list(fedsdd.run(fed, **settings)), theirs)


def test_initial_models_differ_and_main_is_fedavgs():
    fed = federation()
    _, state = next(fedsdd.run(fed, **QUICK, K=3))
    weights = [server["model"]["1.weight"] for server in state["global_models"]]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(weights, 2))
    assert torch.equal(weights[0], fedavg.start_server(fed, "linear")["model"]["1.weight"])


@pytest.mark.parametrize("method", [fedavg, fedprox, scaffold])
def test_every_global_model_is_trained_by_its_own_group_from_its_own_weights(method):
    """A.6: model k > 0 depends on its own past alone. Its rounds, replayed without the others, give the same bytes."""
    fed, local = federation(sizes=EIGHT), {"local_epochs": 1, "batch_size": 2, "lr": 0.1}
    local |= {"mu": 0.3} if method is fedprox else {}
    states = [state for _, state in fedsdd.run(fed, **QUICK, K=2, local=method.__name__.split(".")[-1], mu=0.3)]
    server = states[0]["global_models"][1]
    for t in (1, 2, 3):
        group = fedsdd.group_clients(list(range(8)), 2, stream(0, "groups", t))[1]
        server = method.aggregate(fed, server, {i: method.train_client(fed, i, t, server, **local) for i in group})
        assert same(states[t]["global_models"][1], server)


def test_server_accuracy_is_the_main_models_after_distillation_and_the_ensembles_is_before():
    fed = federation(sizes=(20,) * 8, public=federation(num_public=8).public)
    settings = {**QUICK, "rounds": 1, "local_epochs": 5, "K": 2, "distill_steps": 30, "server_lr": 40.0}    # a student that overshoots
    metrics, state = last(fedsdd.run(fed, **settings))
    untaught = last(fedsdd_ablations.run(fed, **settings, students="none"))[0]
    after = accuracy(predictions(fed, [state["global_models"][0]["model"]], fed.test.images)[0], fed.test.labels)
    assert metrics["accuracy"] == metrics["server_accuracy"] == after != untaught["server_accuracy"]
    assert metrics["ensemble_accuracy"] == untaught["ensemble_accuracy"]


# ------------------------------------------------------------------------------------------------- reductions and locals

@pytest.mark.parametrize("module", [fedavg, fedprox, scaffold])
@pytest.mark.parametrize("network", [linear, with_batchnorm, with_dropout])
def test_one_model_without_distillation_is_the_local_method_bit_for_bit(module, network):
    fed, name = federation(network=network), module.__name__.split(".")[-1]
    settings = {"rounds": 3, "participation": 0.5, "local_epochs": 2, "batch_size": 2, "lr": 0.1}
    extra = {"mu": 0.3} if module is fedprox else {}
    plain = list(module.run(fed, **settings, **extra))
    for run, without in ((fedsdd_ablations.run, {"students": "none"}), (fedsdd.run, {"distill_steps": 0})):
        ours = list(run(fed, **settings, K=1, R=1, local=name, mu=0.3, **without))
        for (a, state_a), (b, state_b) in zip(plain, ours, strict=True):
            assert same(state_a["server"], state_b["global_models"][0])
            assert {key: b[key] for key in a} == a


def test_the_three_local_methods_are_three_different_ones():
    fed = federation(sizes=EIGHT)
    models = [last(fedsdd.run(fed, **QUICK, K=2, local=local, mu=0.3))[1]["global_models"][1]["model"]["1.weight"]
              for local in ("fedavg", "fedprox", "scaffold")]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(models, 2))


def test_scaffold_controls_belong_to_one_global_model():
    fed = federation(sizes=EIGHT)
    _, state = last(fedsdd.run(fed, **QUICK, K=2, local="scaffold"))
    controls = [server["client_controls"] for server in state["global_models"]]
    held = [set(clients) for clients in controls]
    groups = [fedsdd.group_clients(list(range(8)), 2, stream(0, "groups", t)) for t in (1, 2, 3)]
    assert held == [{i for g in groups for i in g[k]} for k in (0, 1)]
    both = sorted(held[0] & held[1])
    assert both and not any(same(controls[0][i], controls[1][i]) for i in both)
    assert not same(state["global_models"][0]["control"], state["global_models"][1]["control"])


def test_a_group_of_a_single_client_works():
    metrics, state = last(fedsdd.run(federation(sizes=(5, 3)), **QUICK, K=2))
    assert len(state["global_models"]) == 2 and 0 <= metrics["accuracy"] <= 1


def test_group_without_a_good_upload_keeps_its_model():
    fed = federation(sizes=(5, 3))
    fed.private[1].images[:] = math.nan
    metrics, state = last(fedsdd_ablations.run(fed, **{**QUICK, "rounds": 1}, K=2, students="none"))
    groups = fedsdd.group_clients([0, 1], 2, stream(0, "groups", 1))
    k = groups.index([1])
    assert metrics["bad_uploads"] == 1 and same(state["global_models"][k], fedavg.start_server(fed, "linear", k))
    assert not same(state["global_models"][1 - k], fedavg.start_server(fed, "linear", 1 - k))


# ------------------------------------------------------------------------------------------------ ensembles of clients

@pytest.mark.parametrize("K, R", [(1, 1), (4, 1), (2, 2)])
def test_an_ensemble_of_clients_averages_the_logits_of_all_clients_of_all_groups(K, R):
    """Table 5, "Clients": each client's model, trained from its own group's global model."""
    fed, ring = federation(sizes=EIGHT), []
    states = [state for _, state in fedsdd_ablations.run(fed, **QUICK, K=K, R=R, ensemble="clients")]
    for t in (1, 2, 3):
        groups = fedsdd.group_clients(list(range(8)), K, stream(0, "groups", t))
        uploads = [fedavg.train_client(fed, i, t, states[t - 1]["global_models"][k], local_epochs=1, batch_size=2, lr=0.1)["model"]
                   for k in range(K) for i in groups[k]]
        ring.append(predictions(fed, uploads, fed.public.images).mean(0))
        for ours, expected in zip(states[t]["ring"], ring[-R:], strict=True):
            assert torch.allclose(ours, expected, atol=1e-5)
    metrics = last(fedsdd_ablations.run(fed, **QUICK, K=K, R=R, ensemble="clients"))[0]
    assert metrics["teacher_forwards"] == 8 * 8


@pytest.mark.parametrize("network", [linear, with_batchnorm])
def test_one_model_taught_by_its_clients_is_feddf_bit_for_bit(network):
    """Table 10's step from FedDF, with the paper's training, to FedSDD: nothing but the ensemble and the number of models."""
    fed = federation(network=network)
    settings = {**QUICK, "temperature": 4.0, "server_lr": 0.1}
    ours = list(fedsdd_ablations.run(fed, **settings, K=1, ensemble="clients"))
    theirs = list(feddf.run(fed, **settings, server_optimizer="sgd", cosine=False, max_grad_norm=None, patience=None, drop_worst=False))
    for (a, state_a), (b, state_b) in zip(ours, theirs, strict=True):
        assert same(dict(state_a["global_models"][0]["model"]), dict(state_b["global_models"][0]["model"]))
        shared = a.keys() & b.keys()
        assert {key: a[key] for key in shared} == {key: b[key] for key in shared}


# -------------------------------------------------------------------------------------------------------- mixed networks

MIXED = (linear, with_hidden_layer)


def test_each_network_has_K_models_trained_by_its_own_clients():
    fed = federation(sizes=EIGHT, network=MIXED)
    (_, before), (metrics, after) = fedsdd_ablations.run(fed, **{**QUICK, "rounds": 1}, K=2, students="none")
    rng = stream(0, "groups", 1)
    groups = fedsdd.group_clients([0, 2, 4, 6], 2, rng) + fedsdd.group_clients([1, 3, 5, 7], 2, rng)
    for k, group in enumerate(groups):
        server = before["global_models"][k]
        uploads = {i: fedavg.train_client(fed, i, 1, server, local_epochs=1, batch_size=2, lr=0.1) for i in group}
        assert same(after["global_models"][k], fedavg.aggregate(fed, server, uploads))
    assert metrics["bytes_up"] == 4 * (4 * 15 + 4 * 19)
    weights = [before["global_models"][k]["model"]["1.weight"] for k in range(4)]
    assert weights[0].shape == weights[1].shape != weights[2].shape == weights[3].shape
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[2], weights[3])
    for k, (i, init) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):             # each network's main model starts as FedAvg's would
        assert same(dict(before["global_models"][k]["model"]), dict(fed.client_model(i, init).state_dict()))


def test_with_mixed_networks_the_ensemble_is_over_all_and_each_network_has_one_student():
    fed = federation(sizes=EIGHT, network=MIXED)
    taught = list(fedsdd.run(fed, **{**QUICK, "rounds": 1}, K=2))[-1]
    untaught = list(fedsdd_ablations.run(fed, **{**QUICK, "rounds": 1}, K=2, students="none"))[-1][1]["global_models"]
    logits = []
    for k, server in enumerate(untaught):
        model = fed.client_model(k // 2)                                                 # client 0: linear; client 1: the other
        model.load_state_dict(server["model"])
        logits.append(predict_logits(fed, model, fed.public.images))
    metrics, state = taught
    assert torch.allclose(state["ring"][0], torch.stack(logits).mean(0), atol=1e-6) and metrics["teacher_forwards"] == 4 * 8
    changed = [not same(dict(a["model"]), dict(b["model"])) for a, b in zip(state["global_models"], untaught)]
    assert changed == [True, False, True, False]
    student = fedsdd.distil(fed, 1, 2, untaught[2], state["ring"][0], temperature=4.0, distill_steps=3,
                            server_batch_size=4, server_lr=0.1)
    assert same(state["global_models"][2], student)
    assert metrics["accuracy"] == (metrics["server_accuracy_linear"] + metrics["server_accuracy_with_hidden_layer"]) / 2


def test_K_above_the_active_clients_of_one_network_is_an_error():
    fed = federation(sizes=(3,) * 6, network=(linear, linear, with_hidden_layer))        # 4 and 2 clients
    with pytest.raises(ValueError, match="K = 3"):
        next(fedsdd.run(fed, **QUICK, K=3))
    next(fedsdd.run(fed, **QUICK, K=2))


# -------------------------------------------------------------------------------------------------- at the same time: A.6

@pytest.mark.parametrize("local", ["fedavg", "scaffold"])
def test_clients_may_train_while_the_server_distils(local):
    """A.6: the others' round t + 1 before, instead of after, the distillation of round t: the same bytes in every model."""
    method = {"fedavg": fedavg, "scaffold": scaffold}[local]
    fed, K, settings = federation(sizes=EIGHT), 3, {"local_epochs": 1, "batch_size": 2, "lr": 0.1}
    sequential = [state for _, state in fedsdd.run(fed, **QUICK, K=K, local=local)]
    servers = [method.start_server(fed, "linear", k) for k in range(K)]

    def train(t, k):
        group = fedsdd.group_clients(list(range(8)), K, stream(0, "groups", t))[k]
        uploads = {i: method.train_client(fed, i, t, servers[k], **settings) for i in group}
        servers[k] = method.aggregate(fed, servers[k], uploads)

    for k in reversed(range(K)):
        train(1, k)
    for t in (1, 2, 3):
        waiting = servers[0]                                                             # w_{t,0}, and the ensemble of round t
        teacher = predictions(fed, [server["model"] for server in servers], fed.public.images).mean(0)
        if t < 3:
            for k in reversed(range(1, K)):                                              # the others go ahead ...
                train(t + 1, k)
        servers[0] = fedsdd.distil(fed, t, 0, waiting, teacher, temperature=4.0, distill_steps=3, server_batch_size=4,
                                   server_lr=0.1)                                        # ... while the server distils,
        assert same(sequential[t]["global_models"][0], servers[0])
        if t < 3:
            assert all(same(sequential[t + 1]["global_models"][k], servers[k]) for k in range(1, K))
            train(t + 1, 0)                                                              # and the main model follows


@pytest.mark.parametrize("group_seconds, distill_seconds", [([1, 1, 1, 1], 2), ([2, 1, 3], 9), ([5, 1], 0), ([4], 3), ([1, 2, 3], 4.5)])
def test_round_seconds_is_what_a_schedule_of_many_rounds_takes(group_seconds, distill_seconds):
    """Clients one at a time, the main model's last; distillation when all of a round are done; told from the clock of 50 rounds."""
    clock, distilled, ends = 0.0, 0.0, []
    for _ in range(50):
        clock += sum(group_seconds[1:])                                                  # the others need no distillation
        clock = max(clock, distilled) + group_seconds[0]                                 # the main model waits for its own
        distilled = clock + distill_seconds
        ends.append(clock)
    one_by_one, at_once = round_seconds(group_seconds, distill_seconds)
    assert at_once == pytest.approx((ends[-1] - ends[9]) / 40) and one_by_one == sum(group_seconds) + distill_seconds


# ----------------------------------------------------------------------------------------------------------------- costs

def count_teacher_rows(run, fed, **settings):
    """Public rows that really went through an eval-mode forward pass, in all rounds."""
    rows, build = [], fed.client_model

    def counted(i, init=0):
        model = build(i, init)
        model.register_forward_hook(lambda module, args, output: rows.append(
            0 if module.training else int((args[0][:, None] == fed.public.images).flatten(2).all(2).any(1).sum())))
        return model
    fed.client_model = counted
    metrics = [metrics for metrics, _ in run(fed, **settings)]
    return sum(rows), [m.get("teacher_forwards") for m in metrics[1:]]


@pytest.mark.parametrize("sizes, R", [(EIGHT, 1), (EIGHT, 2), (EIGHT, 3), (EIGHT + EIGHT, 1)])
def test_teachers_predict_K_times_N_rows_a_round_whatever_R_and_the_clients(sizes, R):
    counted, reported = count_teacher_rows(fedsdd.run, federation(sizes=sizes), **QUICK, K=4, R=R)
    assert counted == 3 * 4 * 8 and reported == [4 * 8] * 3


def test_without_distillation_no_teacher_predicts():
    assert count_teacher_rows(fedsdd_ablations.run, federation(), **QUICK, K=2, students="none") == (0, [0] * 3)


def test_bytes_do_not_depend_on_K():
    fed = federation(sizes=EIGHT)
    ups = {last(fedsdd.run(fed, **QUICK, K=K))[0]["bytes_up"] for K in (1, 2, 4)}
    assert ups == {8 * weights_bytes(fed.client_model(0), 1)}


def test_public_labels_are_not_needed():
    assert fedsdd.PUBLIC == "unlabelled" and federation().public.labels is None
