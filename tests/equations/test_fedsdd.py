"""FedSDD: groups, ensembles over models and rounds, who learns from whom, what it reduces to."""
import functools
import itertools
import math
from functools import partial

import pytest
import torch
from slow import close, drawn, numbers, pixels, slow_accuracy, slow_logits
from toys import (SHAPE, constant, federation, last, linear, rounds, same, with_hidden_layer)

import attacks
from algorithms import fedavg, fedsdd, fedsdd_ablations
from benchmarks.costs import round_seconds
from federation import Data, accuracy, disagreement, is_usable, make_rng, predict_models
from reference import fedsdd as oracle

LOCAL = {"local_epochs": 1, "batch_size": 2, "lr": 0.1}
DISTILL = {"distill_steps": 5, "server_batch_size": 4, "server_lr": 1.0, "temperature": 4.0}
QUICK = {"rounds": 3, "participation": 1.0, **LOCAL, **DISTILL}
ONCE = {**QUICK, "rounds": 1}
EIGHT = (5, 3, 4, 6, 4, 5, 3, 4)


def groups_of(t, K, count=8):
    """All clients in K groups as in round t."""
    return fedsdd.divide(list(range(count)), K, make_rng(0, "groups", t))


def trained(fed, weights, group, t):
    """{client: weights} of a group whose clients all train from `weights`."""
    return {i: fedsdd.train_client(fed, fedsdd.Config(**LOCAL), t, i, weights) for i in group}


@pytest.mark.parametrize("count, K, sizes", [
    (8, 1, [8]), (8, 3, [3, 3, 2]), (8, 8, [1] * 8), (20, 7, [3] * 6 + [2])])
def test_divide_gives_the_first_groups_the_remainder(count, K, sizes):
    ids = [3 * i + 1 for i in range(count)]
    groups = fedsdd.divide(ids, K, make_rng(0))
    assert [len(group) for group in groups] == sizes and sorted(itertools.chain(*groups)) == ids
    assert all(group == sorted(group) for group in groups)


def test_groups_change_and_all_meet_the_main_model():
    drawn = [groups_of(t, 4) for t in range(40)]
    assert len(set(map(str, drawn))) > 30 and len({i for g in drawn for i in g[0]}) == 8


@pytest.mark.parametrize("module", [fedsdd, fedsdd_ablations])
def test_an_attacker_mimics_the_models_of_its_group(module):
    """Nobody moves its model, so LIE's mean in a group is the group's model. Over all groups it is
    a blend of models of different random weights."""
    fed = federation(EIGHT)
    attack = attacks.build("lie", fed.rng, num_clients=8, attackers=1, z=0)
    still = {**ONCE, "lr": 1e-12, "server_lr": 1e-12, "K": 4}
    start, end = (models_of(state) for _, state in rounds(module, fed, attack=attack, **still))
    assert all(torch.allclose(before[name], after[name], atol=1e-6)
               for before, after in zip(start, end) for name in before)


@pytest.mark.parametrize("K", [0, 3])
def test_more_models_than_active_clients_is_an_error(K):
    half = {**QUICK, "participation": 0.5}
    with pytest.raises(ValueError, match=f"K (=|is) {K}"):
        next(rounds(fedsdd, federation((3,) * 4), **half, K=K))              # 2 clients
    fed = federation((3,) * 10, (linear,) * 3 + (with_hidden_layer,) * 2)    # 3 and 2 clients
    with pytest.raises(ValueError, match=f"K (=|is) {K}"):
        next(rounds(fedsdd_ablations, fed, **half, K=K))


@pytest.mark.parametrize("module", [fedsdd, fedsdd_ablations])
def test_a_state_of_another_K_is_refused(module):
    _, state = next(rounds(module, federation(EIGHT), **QUICK, K=2))
    with pytest.raises(ValueError, match="the state has K = 2, not 3"):
        next(rounds(module, federation(EIGHT), state, **QUICK, K=3))


def test_eq3_is_the_softmax_of_the_mean_logits(monkeypatch):
    """Of two models that give all images (4, 0) and (0, 1), and that clients do not move."""
    teachers = []
    monkeypatch.setattr(fedsdd, "distill", lambda fed, cfg, t, weights, images, teacher:
                        teachers.append(teacher) or weights)
    fed = federation((2, 2), num_classes=2)
    before = {"algorithm": "fedsdd", "round": 1, "recent_w": [],
              "global_models": [constant(4., 0.), constant(0., 1.)]}
    last(rounds(fedsdd, fed, before, **{**QUICK, "rounds": 2, "lr": 1e-12}, K=2))
    [teacher] = teachers
    expected = 1 / (1 + math.exp((0 + 1) / 2 - (4 + 0) / 2))     # .8176; of the softmaxes: .6255
    assert teacher.shape == (8, 2)
    assert teacher.softmax(-1)[:, 0].tolist() == pytest.approx([expected] * 8, abs=1e-6)


def test_eq4_is_temperature_squared_kl_from_the_teacher():
    """One step of SGD on T² sum p ln (p / q), with the slope T (q - p). The public images are
    black, so that the student's logits are its biases z."""
    T, lr, p, z = 4.0, 0.5, [.5, .3, .2], [1., 0., -2.]
    q = [math.exp(v / T) / sum(math.exp(u / T) for u in z) for v in z]
    fed = federation(public=Data(torch.zeros(2, *SHAPE), None))
    cfg = fedsdd.Config(distill_steps=1, server_batch_size=1, server_lr=lr, temperature=T)
    student = fedsdd.distill(fed, cfg, 1, constant(*z), fed.public.images,
                             T * torch.tensor([p, p]).log())
    expected = [z_c - lr * T * (q_c - p_c) for z_c, q_c, p_c in zip(z, q, p)]
    assert student["1.bias"].tolist() == pytest.approx(expected, abs=1e-5)


def slow_rounds(fed, starts, controls, K, R, local):
    """reference/fedsdd.py with the batches of a run; other local methods train as they do."""
    cfg = fedsdd_ablations.Config(**LOCAL, local=local or "fedavg", mu=0.3)

    def groups(t):
        return groups_of(t, K)

    def own_group(t, k, w, clients):
        weights = dict(zip(("1.weight", "1.bias"), map(torch.tensor, w)))
        group = fedsdd_ablations.Group(clients, "linear", weights, controls[k])
        results = {i: fedsdd_ablations.train_client(fed, cfg, t, i, group) for i in clients}
        uploads = {i: results[i].upload for i in clients}
        w_k, controls[k] = fedsdd_ablations.aggregate(fed, cfg, group, results, uploads)
        return numbers(w_k.values())

    def local_batches(t, i):
        return drawn(fed, len(private[i]), LOCAL["batch_size"], 1, "local", t, i)

    def distill_batches(t):
        return drawn(fed, 8, DISTILL["server_batch_size"], 5, "distil", t, 0)[:5]

    private = [[*zip(pixels(images), labels.tolist())] for images, labels in fed.private]
    fedavgs = partial(oracle.fedavg_group, private=private, batches=local_batches, lr=LOCAL["lr"])
    return oracle.run(
        [numbers(w.values()) for w in starts], pixels(fed.public.images), rounds=3, R=R,
        groups=groups, train_group=own_group if local in ("fedprox", "scaffold") else fedavgs,
        batches=distill_batches, **{key: DISTILL[key] for key in ("server_lr", "temperature")})


@functools.cache
def three_rounds(local):
    """(the federation, [(metrics, state, what slow_rounds yields)]) of rounds with K = 3, R = 2.

    local    of fedsdd_ablations.py; "" is fedsdd.py itself
    """
    fed = federation(EIGHT)
    if local:
        run = rounds(fedsdd_ablations, fed, **QUICK, K=3, R=2, local=local, mu=0.3)
    else:
        run = rounds(fedsdd, fed, **QUICK, K=3, R=2)
    (_, start), *ours = run
    slow = slow_rounds(fed, models_of(start), [*start.get("controls", [])], 3, 2, local)
    return fed, [(*of_round, theirs) for of_round, theirs in zip(ours, slow, strict=True)]


def models_of(state):
    """The global models of a state, also of fedsdd_ablations.py, by their numbers."""
    models = state["global_models"]
    return models if isinstance(models, list) else list(itertools.chain(*models.values()))


@pytest.mark.parametrize("local", ["", "fedavg", "fedprox", "scaffold"])
def test_rounds_with_R_2_against_algorithm_1(local):
    """Each model is trained by its own group (A.6); the main one learns from the ensemble."""
    fed, three = three_rounds(local)
    for t, (metrics, state, (starred, _, _)) in enumerate(three, start=1):
        assert metrics["accuracy"] == slow_accuracy(starred[0], fed.test)
        for k, (ours, expected) in enumerate(zip(models_of(state), starred, strict=True)):
            assert close(ours, expected), f"global model {k} after round {t}"


def test_ensemble_accuracy_is_of_K_models_of_each_of_the_last_R_rounds():
    (fed, three), past = three_rounds(""), []
    for metrics, _, (_, averaged, _) in three:
        past = [*past, averaged][-2:]
        logits = torch.tensor([slow_logits(w, fed.test.images) for w in itertools.chain(*past)])
        assert metrics["ensemble_accuracy"] == accuracy(logits.mean(0), fed.test.labels)
        assert metrics["disagreement"] == pytest.approx(disagreement(logits[-3:]))


@pytest.mark.parametrize("students", ["main", "none"])
def test_averaged_accuracy_is_of_the_mean_of_the_main_models_weights_in_the_last_K_R_rounds(
        students):
    fed, past, found = federation(), [], []
    longer = {**QUICK, "rounds": 6}                          # than K R = 4
    for metrics, state in rounds(fedsdd_ablations, fed, **longer, K=2, R=2, students=students):
        assert ("averaged_accuracy" in metrics) == (state["round"] > 0)
        if state["round"]:
            past = [*past, models_of(state)[0]][-4:]
            mean = {name: sum(w[name] for w in past) / len(past) for name in past[0]}
            logits = torch.tensor(slow_logits([*mean.values()], fed.test.images))
            assert metrics["averaged_accuracy"] == accuracy(logits, fed.test.labels)
            found.append(metrics["averaged_accuracy"] != metrics["accuracy"])
    assert any(found)                                        # it is not the model of the round


def test_warm_up_rounds_have_no_distillation():
    """Nor a teacher; but their models are in the ensembles of later rounds."""
    def run(**changes):
        return rounds(fedsdd_ablations, federation(), **QUICK, K=2, R=2, **changes)
    for warmup in (1, 2, 3):
        pairs = list(zip(run(warmup_rounds=warmup, students="all"), run(students="none")))
        assert [same(a["global_models"], b["global_models"]) for (_, a), (_, b) in pairs] == [
            t <= warmup for t in range(4)]
        assert [a["teacher_forwards"] for (a, _), _ in pairs[1:]] == [
            0 if t <= warmup else 2 * min(t, 2) * 8 for t in (1, 2, 3)]
        assert not any(b["teacher_forwards"] for _, (b, _) in pairs[1:])
        assert len(pairs[-1][0][1]["recent_members"]) == 2


def test_basic_distillation_has_one_fixed_teacher_for_all_students():
    fed, cfg = federation(EIGHT), fedsdd_ablations.Config(**DISTILL)
    before, after = (models_of(last(rounds(fedsdd_ablations, fed, **ONCE, K=3,
                                           students=students))[1])
                     for students in ("none", "all"))
    images = fed.public.images
    teacher = predict_models(fed, before, images).mean(0)
    assert same(after, [fedsdd_ablations.distill(fed, cfg, 1, k, "linear", w, images, teacher)
                        for k, w in enumerate(before)])


def test_initial_models_differ_and_main_is_fedavgs():
    fed = federation()
    first, *others = next(rounds(fedsdd, fed, **QUICK, K=3))[1]["global_models"]
    assert same(first, next(rounds(fedavg, fed))[1]["server"]["model"])
    assert not same(first, others[0]) and not same(first, others[1]) and not same(*others)


def test_an_ensemble_of_clients_has_every_client():
    """Table 5, "Clients": each client's model, trained from its own group's global model."""
    fed = federation(EIGHT)
    run = rounds(fedsdd_ablations, fed, **QUICK, K=2, R=2, ensemble="clients")
    for t, ((_, before), (metrics, state)) in enumerate(itertools.pairwise(run), start=1):
        clients = {i: weights for k, group in enumerate(groups_of(t, 2))
                   for i, weights in trained(fed, models_of(before)[k], group, t).items()}
        assert same(state["recent_members"][-1], [("linear", clients[i]) for i in range(8)])
        assert metrics["teacher_forwards"] == min(t, 2) * 8 * 8         # clients x public images


def test_each_network_has_K_models_trained_by_its_own_clients():
    """All four are in the ensemble, and each network's first one learns from it."""
    fed = federation(EIGHT, (linear, with_hidden_layer))
    names = ["linear", "linear", "with_hidden_layer", "with_hidden_layer"]
    (_, before), (metrics, after) = rounds(fedsdd_ablations, fed, **ONCE, K=2)
    rng, averaged = make_rng(0, "groups", 1), []
    groups = [group for ids in ([0, 2, 4, 6], [1, 3, 5, 7])
              for group in fedsdd.divide(ids, 2, rng)]
    for k, (weights, group) in enumerate(zip(models_of(before), groups, strict=True)):
        assert same(dict(weights), dict(fed.client_model(k // 2, k % 2).state_dict()))
        averaged.append(fedsdd.average(fed, group, trained(fed, weights, group, 1), weights))

    def logits(k, weights, images):
        return predict_models(fed, [weights], images, lambda: fed.client_model(k // 2))[0]
    teacher = torch.stack([logits(k, w, fed.public.images) for k, w in enumerate(averaged)]).mean(0)
    assert same(after["recent_members"], [[*zip(names, averaged)]])
    assert [*after["global_models"]] == ["linear", "with_hidden_layer"]
    cfg = fedsdd_ablations.Config(**DISTILL)
    assert same(models_of(after), [
        w if k % 2 else fedsdd_ablations.distill(fed, cfg, 1, k, names[k], w, fed.public.images,
                                                 teacher)
        for k, w in enumerate(averaged)])
    assert metrics["teacher_forwards"] == 4 * 8
    assert metrics["bytes_up"] == 4 * (4 * (3 * 5) + 4 * (2 * 5 + 3 * 3))
    each = [accuracy(logits(k, models_of(after)[k], fed.test.images), fed.test.labels)
            for k in (0, 2)]
    assert each == [metrics[f"server_accuracy_{name}"] for name in ("linear", "with_hidden_layer")]
    assert metrics["accuracy"] == sum(each) / 2


def test_a_round_takes_the_longer_of_two_chains():
    """A.6: all clients one at a time; or the distillation, then the main model's clients."""
    assert round_seconds([2, 1, 3], 9) == (2 + 1 + 3 + 9, 9 + 2)
    assert round_seconds([1, 2, 3], 4.5) == (1 + 2 + 3 + 4.5, 1 + 2 + 3)
    assert round_seconds([4], 3) == (4 + 3, 3 + 4)


@pytest.mark.parametrize("sizes, R", [(EIGHT, 1), (EIGHT, 3), (EIGHT + EIGHT, 1)])
def test_teachers_predict_K_R_times_N_rows_whatever_the_clients(sizes, R):
    fed, predicted, rows = federation(sizes), [], [min(t, R) * 4 * 8 for t in (1, 2, 3)]
    build, public = fed.client_model, fed.public.images.tolist()

    def counted(i, init=0):
        model = build(i, init)
        model.register_forward_hook(lambda module, images, logits: predicted.append(
            0 if module.training else sum(x in public for x in images[0].tolist())))
        return model
    fed.client_model = counted
    _, *run = rounds(fedsdd, fed, **QUICK, K=4, R=R)
    assert [metrics["teacher_forwards"] for metrics, _ in run] == rows
    assert sum(predicted) == sum(rows)


@pytest.mark.parametrize("module, more", [
    (fedsdd, {}), (fedsdd_ablations, {}), (fedsdd_ablations, {"students": "all"})])
def test_a_student_that_diverges_is_its_w(module, more):
    """Clients start from w, and the teacher of later rounds is finite."""
    fed = federation(EIGHT)
    run = rounds(module, fed, **{**QUICK, "server_lr": 1e38}, K=2, R=2, **more)
    for metrics, state in [*run][1:]:
        recent = state["recent_w"] if module is fedsdd else [
            [w for _, w in of_round] for of_round in state["recent_members"]]
        assert same(models_of(state), recent[-1])
        teacher = predict_models(fed, [*itertools.chain(*recent)], fed.public.images).mean(0)
        assert teacher.isfinite().all() and metrics["bad_uploads"] == 0
        cfg = module.Config(**{**QUICK, "server_lr": 1e38})
        network = [] if module is fedsdd else [0, "linear"]
        diverged = module.distill(fed, cfg, state["round"], *network, recent[-1][0],
                                  fed.public.images, teacher)
        assert not is_usable(diverged)
    assert metrics["ensemble_accuracy"] > 1 / 3


@pytest.mark.parametrize("module", [fedsdd, fedsdd_ablations])
def test_a_group_without_usable_uploads_keeps_its_model(module):
    """All of group 1 are bad in round 1: its w is the model that it started from."""
    fed = federation(EIGHT)
    groups = groups_of(1, 2)
    for i in groups[1]:
        fed.private[i].images[:] = math.nan
    (_, before), (metrics, after) = rounds(module, fed, **ONCE, K=2)
    assert metrics["bad_uploads"] == len(groups[1])
    assert same(dict(models_of(after)[1]), dict(models_of(before)[1]))
    assert not same(models_of(after)[0], models_of(before)[0])
