"""What every algorithm of the registry promises, on a small federation. The last part shows that a
new algorithm is held to all of it, and that each promise can be broken."""
import copy
import dataclasses
import functools
import inspect
import json
import math
import re

import numpy as np
import pytest
import torch
from toys import (federation, labelled, linear, main, same, samples, through_a_file,
                  without_seconds)
from torch import nn

import runs
from algorithms import ALGORITHMS, common, evaluation, fedavg
from algorithms.common import active_clients, sample_clients, stream
from command_line import module_constant

SETTINGS = {    # of the hyperparameters with these names; all others keep their defaults
    "rounds": 2, "participation": 0.7, "local_epochs": 1, "server_epochs": 1, "batch_size": 4,
    "server_batch_size": 4, "public_batch_size": 4, "lr": 0.05, "server_lr": 0.05, "K": 2, "R": 2,
    "distill": True, "distill_steps": 2, "check_every": 1, "samples": 2, "subset_size": 7,
    "transfer_public_epochs": 1, "transfer_local_epochs": 1, "kernel_l2": 0.01}
every_algorithm = pytest.mark.parametrize("algo", ALGORITHMS)


class Net(nn.Module):
    """A network for every algorithm, with BatchNorm and dropout: its feature map is as large as an
    image. `seen` is told (in train mode?, the largest pixel), `types` what they compute in."""

    seen, types = [], []

    def __init__(self, num_classes, hidden=4):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, hidden), nn.ReLU(),
                                    nn.Linear(hidden, num_classes))

    def extract(self, images):
        self.seen.append((self.training, images.max().item()))
        return self.norm(images)

    def classify(self, features):
        logits = self.layers(features)
        self.types.append((self.training, logits.dtype))
        return logits

    def forward(self, images):
        return self.classify(self.extract(images))


def Wide(num_classes):
    """Another architecture."""
    return Net(num_classes, hidden=6)


class Server(Net):
    """Reads a feature map or an image."""

    def forward(self, features):
        return self.classify(self.norm(features))


def toy(algo, **changes):
    """Six clients, one with a single sample; of two architectures where the algorithm allows it."""
    network = (Net, Wide) if module_constant(algo, "MIXED") else Net
    changes = {"sizes": (5, 1, 4, 3, 4, 2), "network": network, "server": Server,
               "validation": samples(20, seed=3), "num_public": 10, **changes}
    public = module_constant(algo, "PUBLIC")
    fed = (labelled if public in ("labelled", "joint") else federation)(**changes)
    return dataclasses.replace(fed, public=None) if public == "none" else fed


def takes(algo, name):
    """True if the algorithm has a keyword of this name."""
    return name in inspect.signature(ALGORITHMS[algo]).parameters


def run(algo, fed=None, state=None, **changes):
    """[(metrics, state)] of a run, or of what is left of it after `state`."""
    settings = {name: x for name, x in {**SETTINGS, **changes}.items() if takes(algo, name)}
    rounds = ALGORITHMS[algo](toy(algo) if fed is None else fed, state, **settings)
    return [(metrics and without_seconds(metrics), state) for metrics, state in rounds]


@functools.cache
def kept(function, algo):
    return [(metrics, state, copy.deepcopy(state)) for metrics, state in run(algo)]


def whole(algo):
    """[(metrics, state, the state as it was then)] of a run, made once for many tests."""
    return kept(ALGORITHMS[algo], algo)


def measured(rounds):
    """Without the checkpoints of a phase before round 0, which have no metrics."""
    return [(metrics, state) for metrics, state, *_ in rounds if metrics is not None]


def models_in(state):
    """The state_dict of every network in a state, in order."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        if key == "model":
            yield value
        elif isinstance(value, dict | list):
            yield from models_in(value)


def sound(models):
    return all(torch.isfinite(w).all() for model in models for w in model.values())


# ---------------------------------------------------------------------------------- the same bytes

@every_algorithm
def test_the_order_of_the_clients_does_not_matter(algo, monkeypatch):
    """Nor what was drawn before: the same seed gives the same metrics and states, bit for bit."""
    def backwards(fn, ids, device="cpu"):
        return [fn(i) for i in ids[::-1]][::-1]
    expected = [(metrics, state) for metrics, state, _ in whole(algo)]
    for module in (common, evaluation):
        monkeypatch.setattr(module, "in_parallel", backwards)
    torch.rand(3)
    assert same(run(algo), expected)


@every_algorithm
def test_another_seed_trains_otherwise(algo):
    """Also from the same start: in one round every network that changes, changes otherwise."""
    start = measured(whole(algo))[0][1]
    sizes = (5, 6, 7, 8, 9, 5)
    ends = [run(algo, toy(algo, sizes=sizes, seed=seed), start, rounds=1, participation=1.0)[-1][1]
            for seed in (0, 1)]
    before, *after = ([m for m in models_in(state)] for state in (start, *ends))
    trained = [(a, b) for old, a, b in zip(before, *after, strict=True) if not same(old, a)]
    assert trained and not any(same(a, b) for a, b in trained)


@every_algorithm
def test_a_state_is_all_that_later_rounds_need(algo):
    """From every round and every checkpoint before round 0, through a file; and no later round
    changes it, also where it did not come from a file."""
    rounds = whole(algo)
    for n, (_, state, then) in enumerate(rounds):
        assert same(state, then)
        later = [(metrics, state) for metrics, state, _ in rounds[n + 1:]]
        assert same(run(algo, state=state if n % 2 else through_a_file(state)), later)
        assert same(state, then)


@every_algorithm
def test_the_federation_and_the_global_generators_are_left_alone(algo):
    fed, untouched = toy(algo), toy(algo)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    run(algo, fed)
    for name in ("private", "public", "test", "public_test", "validation", "architecture"):
        assert same(getattr(fed, name), getattr(untouched, name)), name
    assert same(torch.get_rng_state(), before[0]) and (np.random.get_state()[1] == before[1]).all()


# ----------------------------------------------------------------------------------------- metrics

@every_algorithm
def test_metrics_are_numbers_with_a_headline(algo):
    assert [state["round"] for _, state in measured(whole(algo))] == [0, 1, 2]
    columns = module_constant(algo, "COLUMNS")
    for metrics, state in measured(whole(algo)):
        assert all(type(x) in (int, float, type(None)) for x in metrics.values())
        assert runs.dumps(metrics) and "accuracy" in metrics and "round" not in metrics
        assert all(0 <= x <= 1 for name, x in metrics.items() if "accuracy" in name)
        assert state["round"] == 0 or set(columns) <= metrics.keys()
        sent = [x for name, x in metrics.items() if name.startswith("bytes")]
        assert all(type(x) is int and x >= 0 for x in sent)


@every_algorithm
def test_it_learns(algo):
    """Three classes; every network of a client sees the same kind of samples."""
    fed = toy(algo, sizes=(20,) * 4, num_public=20, test=samples(90, seed=1))
    *_, (metrics, _) = run(algo, fed, rounds=4, participation=1.0, local_epochs=5, batch_size=10,
                           server_epochs=4, transfer_public_epochs=3, lr=0.1, distill_steps=20,
                           server_lr=0.01)
    assert metrics["accuracy"] > 0.5, metrics["accuracy"]


@every_algorithm
def test_a_lone_client_works(algo):
    *_, (metrics, state) = run(algo, toy(algo, sizes=(6,)), K=1)
    assert runs.dumps(metrics) and sound(models_in(state)) and not metrics.get("bad_uploads")


# ------------------------------------------------------------------------------ uploads gone wrong

def without_client(state, i):
    """The state without what client i keeps of its own."""
    return {key: value[:i] + value[i + 1:] if key in ("clients", "parties") else value
            for key, value in state.items()}


@every_algorithm
def test_a_client_whose_numbers_are_not_finite_is_left_out(algo):
    fed = toy(algo)
    fed.private[2].images[0, 0, 0, 0] = math.inf
    for metrics, state in measured(run(algo, fed, participation=1.0, latencies=(1.0,) * 6)):
        assert runs.dumps(metrics)
        if "bad_uploads" in module_constant(algo, "COLUMNS") + tuple(metrics) and state["round"]:
            assert metrics["bad_uploads"] == 1 and sound(models_in(without_client(state, 2)))


@every_algorithm
def test_when_every_client_is_spoilt_the_run_goes_on(algo):
    fed = toy(algo)
    for private in fed.private:
        private.images[0, 0, 0, 0] = math.nan
    _, *rounds = measured(run(algo, fed, participation=1.0, latencies=(1.0,) * 6))
    assert len(rounds) == 2 and all(runs.dumps(metrics) for metrics, _ in rounds)
    if "bad_uploads" in rounds[0][0]:
        assert [metrics["bad_uploads"] for metrics, _ in rounds] == [6, 6]
        assert all(sound(models_in({"server": state.get("server", {})})) for _, state in rounds)


# ------------------------------------------------------------------------- what reaches the clients

@every_algorithm
def test_augmentation_is_for_what_is_trained_on_alone(algo):
    """FedGKT's edges also predict on it: their feature maps are what its server is trained on."""
    Net.seen.clear()
    run(algo, toy(algo, augment=lambda images, rng: images + 100))
    given = {(training, largest > 50) for training, largest in Net.seen}
    extracted = {(False, True)} if algo in ("fedgkt", "fedgkt-async") else set()
    assert given == {(True, True), (False, False)} | extracted


@every_algorithm
def test_amp_reaches_training_and_prediction(algo):
    for amp, dtype in [(True, torch.bfloat16), (False, torch.float32)]:
        Net.types.clear()
        run(algo, toy(algo, amp=amp), rounds=1)
        assert {(True, dtype), (False, dtype)} <= set(Net.types)
        assert {own for training, own in Net.types if training} == {dtype}


@every_algorithm
def test_only_the_clients_of_a_round_are_trained(algo, monkeypatch):
    """0.7 of the clients of each architecture, two of three; of all, in FedGKT."""
    trained, in_parallel = [], common.in_parallel
    monkeypatch.setattr(common, "in_parallel", lambda fn, ids, device="cpu":
                        trained.extend(ids) or in_parallel(fn, ids, device))
    fed, share = toy(algo), 0.7 if takes(algo, "participation") else 1.0
    for t, state in [(1, measured(whole(algo))[0][1]), (2, measured(whole(algo))[1][1])]:
        trained.clear()
        run(algo, fed, state, rounds=t)
        drawn = [sum(active_clients(fed, share, t).values(), []),
                 sample_clients(6, share, stream(fed.seed, "active", t))]
        assert share == 1.0 or sorted(trained) in map(sorted, drawn)


class Scaled(Net):
    """Without biases that BatchNorm hides: three numbers of its feature map are the logits."""

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.norm, self.layers = nn.Linear(2, 2), nn.Flatten()

    def classify(self, features):
        return self.layers(features)[:, :3]


ONE_STEP = {   # with one step in each training, but for Adam's second one
    "rounds": 1, "participation": 1.0, "batch_size": 8, "server_batch_size": 8, "distill_steps": 1,
    "lr": 1e-6, "server_lr": 1e-6, "weight_decay": 1e6, "transfer_public_epochs": 0, "K": 1,
    "transfer_local_epochs": 0, "early_stopping": False, "subset_size": None, "kernel_l2": 0.0,
    "drop_worst": False, "patience": None, "latencies": (1.0, 1.0, 1.0)}


@every_algorithm
def test_optimizer_and_decay_reach_all_networks(algo):
    """A penalty of 1 / lr. By SGD nothing is left of w: w - lr (g + w / lr) = -lr g. By Adam, which
    divides the gradient by its size, w moves by about lr in a step, and 1e-4 is a hundred lr."""
    if not takes(algo, "weight_decay"):
        return
    fed = toy(algo, sizes=(5, 3, 4), network=Scaled, server=linear, num_public=8)
    for name in ("sgd", "amsgrad"):
        rounds = measured(run(algo, fed, **ONE_STEP, optimizer=name, server_optimizer=name))
        start, end = (list(models_in(state)) for _, state in (rounds[0], rounds[-1]))
        for before, after in zip(start, end, strict=True):
            for key, w in before.items():
                expected = torch.zeros_like(w) if name == "sgd" else w
                assert torch.allclose(after[key], expected, rtol=0, atol=1e-4)
        assert start


# ----------------------------------------------------------------------------------- under attack

def attacked(algo, attack, **changes):
    """The rounds of a run in which all clients have one network, and what the attack was handed:
    [(t, clients, rows, values)]."""
    handed = []

    def recorder(uploads, client_ids, rows, t):
        handed.append((t, list(client_ids), rows, uploads))
        return attack(uploads)
    # FedGKT's uploads, each client's own samples, come as a list: once for maps, once for logits.
    recorder.samples = lambda uploads, client_ids, t: recorder(uploads, client_ids, None, t)
    fed = toy(algo, network=Net)
    return measured(run(algo, fed, participation=1.0, attack=recorder, **changes)), handed


@every_algorithm
def test_an_attack_sees_every_round_and_what_it_returns_arrives(algo):
    """An idle one changes nothing. Zeros instead of all uploads change the next state; nan is
    counted, and left out."""
    if not takes(algo, "attack"):
        return
    clean = measured(run(algo, toy(algo, network=Net), participation=1.0))
    rounds, handed = attacked(algo, lambda uploads: uploads)
    assert same(rounds, clean) and {t for t, *_ in handed} == {1, 2}
    assert sorted(sum((ids for t, ids, *_ in handed if t == 1), [])) in (
        list(range(6)), sorted(2 * list(range(6))))
    assert all(rows is None or len(set(rows.tolist())) == uploads.shape[1]
               for *_, rows, uploads in handed)             # each place of an upload has its number
    for value, bad in [(0.0, 0), (math.nan, 6)]:
        rounds, _ = attacked(algo, lambda uploads: [x * 0 + value for x in uploads] if isinstance(
            uploads, (list, tuple)) else uploads * 0 + value)
        assert [metrics["bad_uploads"] for metrics, _ in rounds[1:]] == [bad, bad]
        assert not same(rounds[1][1], clean[1][1]) and sound(models_in(rounds[1][1]))


# ----------------------------------------------------------- a new algorithm, and how it may fail

HIDDEN = {"one seed": {"seed": 0}, "augmentation": {"augment": None}, "amp": {"amp": False}}
FIXED = {"trains everybody": {"participation": 1.0}, "optimizer": {"optimizer": "sgd"},
         "weight decay": {"weight_decay": 0.0}}


def new(fault=None, monkeypatch=None):
    """An algorithm that the tests above do not know: FedAvg, or FedAvg with one fault."""
    @functools.wraps(fedavg.run)
    def run(fed, state=None, *, attack=None, **settings):
        def seen(uploads, clients, rows, t):
            idle = fault == "attacked once" and t > 1
            result = uploads if idle else attack(uploads, clients, rows, t)
            return uploads if fault == "attacked in vain" else result
        given, before = dataclasses.replace(fed, **HIDDEN.get(fault, {})), {}
        if fault == "changes the data":
            fed.private[0].images.add_(1)
        if fault == "takes nan":
            monkeypatch.setattr(common, "is_finite", lambda upload: True)
        rounds = fedavg.run(given, state, **settings | FIXED.get(fault, {}), attack=attack and seen)
        for number, (metrics, state) in enumerate(rounds):
            model = state["server"]["model"]
            for name, w in model.items():
                if fault == "in place" and before:
                    before[name].copy_(w)
                if fault == "global generator":
                    w += torch.randint(9, w.shape)
                if fault == "memory outside the state":
                    w += number
            if fault == "learns nothing":
                metrics["accuracy"] = 1 / 3
            if fault == "per cent":
                metrics["accuracy"] *= 100
            before = model
            yield metrics, state
    return run


FAULTS = {    # each is noticed by the contract that speaks of it
    "global generator": test_the_order_of_the_clients_does_not_matter,
    "one seed": test_another_seed_trains_otherwise,
    "memory outside the state": test_a_state_is_all_that_later_rounds_need,
    "in place": test_a_state_is_all_that_later_rounds_need,
    "changes the data": test_the_federation_and_the_global_generators_are_left_alone,
    "per cent": test_metrics_are_numbers_with_a_headline,
    "learns nothing": test_it_learns,
    "takes nan": test_a_client_whose_numbers_are_not_finite_is_left_out,
    "augmentation": test_augmentation_is_for_what_is_trained_on_alone,
    "amp": test_amp_reaches_training_and_prediction,
    "trains everybody": test_only_the_clients_of_a_round_are_trained,
    "optimizer": test_optimizer_and_decay_reach_all_networks,
    "weight decay": test_optimizer_and_decay_reach_all_networks,
    "attacked once": test_an_attack_sees_every_round_and_what_it_returns_arrives,
    "attacked in vain": test_an_attack_sees_every_round_and_what_it_returns_arrives}
CONTRACTS = [function for name, function in list(globals().items()) if name.startswith("test_")
             and any(mark.args == ("algo", ALGORITHMS) for mark in function.pytestmark)]


def hold(contract, algo):
    """Calls a contract for one algorithm."""
    with pytest.MonkeyPatch.context() as patch:
        contract(*[algo, patch][:len(inspect.signature(contract).parameters)])


def test_a_new_algorithm_is_held_to_every_contract_by_being_in_the_registry(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "new", new())
    for contract in CONTRACTS:
        hold(contract, "new")
    assert len(CONTRACTS) >= 13 and set(FAULTS.values()) <= set(CONTRACTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_contract_notices_its_fault(fault, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "new", new(fault, monkeypatch))
    with pytest.raises(AssertionError):
        hold(FAULTS[fault], "new")


def test_the_page_of_metrics_has_every_key_and_no_other(npz, tmp_path, pytestconfig):
    main(f"--algo fedmd,fedgems --dataset {npz} --clients 4 --partition iid --public half "
         f"--validation 0.2 --rounds 1 --lr-patience 2 --out {tmp_path}".split())
    rows = [json.loads(line) for file in tmp_path.rglob("*.jsonl") for line in open(file)]
    rows += [row for algo in ALGORITHMS for row, _ in measured(whole(algo))]
    found = {re.sub(r"\d$", "I", re.sub("Net|Wide", "NETWORK", key)) for row in rows for key in row}
    for code in (path.read_text() for path in pytestconfig.rootpath.glob("algorithms/*.py")):
        found |= {f"{name}_seconds" for name in re.findall(r"^@timed\ndef (\w+)", code, re.M)}
    cells = re.findall("^[|] (`.*?) [|]", (pytestconfig.rootpath / "METRICS.md").read_text(), re.M)
    assert {*re.findall(r"`(\w+)`", " ".join(cells))} == found
