"""What every algorithm of the registry promises, on a small federation. test_your_own.py holds an
algorithm that is not in the registry to all of it; mistakes.py breaks each promise."""
import copy
import dataclasses
import functools
import inspect
import json
import math
import re
import sys
import typing
from typing import NamedTuple

import numpy as np
import pytest
import torch
from commands import OF_PAPERS, main
from torch import nn
from toys import (federation, labeled, same, sample_clients, samples, through_a_file,
                  without_seconds)

from algorithms import ALGORITHMS
from attacks import Attack
from experiment import keep
from experiment.flags import field_names
from experiment.settings import TABLES
from experiment.trained import load_model
from federation import OPTIMIZERS, Federation, Settings, make_rng, seed_torch

SETTINGS = {    # of the hyperparameters with these names; all others keep their defaults
    "rounds": 2, "participation": 0.7, "local_epochs": 1, "server_epochs": 1, "batch_size": 4,
    "server_batch_size": 4, "public_batch_size": 4, "lr": 0.05, "server_lr": 0.05, "K": 2, "R": 2,
    "distill": True, "distill_steps": 2, "check_every": 1, "samples": 2, "subset_size": 7,
    "generator_steps": 5,
    "transfer_public_epochs": 1, "transfer_local_epochs": 1, "kernel_l2": 0.01, "local_steps": None}
every_algorithm = pytest.mark.parametrize("algo", ALGORITHMS)


class Net(nn.Module):
    """A network for every algorithm, with BatchNorm and dropout: its feature map is as large as an
    image. `seen` is told (in train mode?, the largest pixel), `types` what they compute in."""

    seen, types = [], []

    def __init__(self, num_classes, hidden=4):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, hidden), nn.ReLU())
        self.classifier = nn.Linear(hidden, num_classes)

    def extract(self, images):
        self.seen.append((self.training, images.max().item()))
        return self.norm(images)

    def classify(self, features):
        logits = self.classifier(self.layers(features))
        self.types.append((self.training, logits.dtype))
        return logits

    def forward(self, images):
        return self.classify(self.extract(images))


class Wide(Net):
    """Another architecture; its last layer has an input of the same size."""

    def __init__(self, num_classes):
        super().__init__(num_classes, hidden=6)
        self.layers.append(nn.Linear(6, 4))
        self.classifier = nn.Linear(4, num_classes)


class Server(Net):
    """Reads a feature map or an image."""

    def forward(self, features):
        return self.classify(self.norm(features))


def toy(algo, **changes):
    """Six clients, one with a single sample; of two architectures where the algorithm allows it."""
    network = (Net, Wide) if ALGORITHMS[algo].mixed_networks else Net
    changes = {"sizes": (5, 1, 4, 3, 4, 2), "network": network, "server": Server,
               "validation": samples(20, seed=3), "num_public": 10, **changes}
    public = ALGORITHMS[algo].public
    fed = (labeled if public in ("labeled", "joint") else federation)(**changes)
    return dataclasses.replace(fed, public=None) if public == "none" else fed


def fields_of(algo):
    """{name: the field} of the settings of an algorithm."""
    return {field.name: field for field in dataclasses.fields(ALGORITHMS[algo].Config)}


def config(algo, **changes):
    """Its Config, small; of the changes it takes what it has."""
    return ALGORITHMS[algo].Config(**{
        name: x for name, x in {**SETTINGS, **changes}.items() if name in fields_of(algo)})


def run(algo, fed=None, state=None, attack=None, **changes):
    """[(metrics, state)] of a run, or of what is left of it after `state`."""
    more = {} if attack is None else {"attack": attack}
    rounds = ALGORITHMS[algo].run(fed or toy(algo), config(algo, **changes), state, **more)
    return [(without_seconds(metrics), state) for metrics, state in rounds]


def generators():
    """The states of the global generators."""
    return torch.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(int))


class Record(NamedTuple):
    """A run, made once for many tests."""

    rounds: list               # [(metrics, state, the state as it was then)]
    fed: Federation            # after the run
    seeds: list                # the names of the random numbers of each training
    same_generators: bool      # the global generators were not moved


@functools.cache
def kept(function, algo):
    fed, before, seeds = toy(algo), generators(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "random_numbers", lambda fed, *name: (
            seeds.append(name) or seed_torch(fed.seed, *name)))
        rounds = [(metrics, state, copy.deepcopy(state)) for metrics, state in run(algo, fed)]
    return Record(rounds, fed, seeds, same(generators(), before))


def recorded(algo):
    """The `Record` of an algorithm."""
    return kept(ALGORITHMS[algo].run, algo)


def start(algo):
    """The state at the start of the same run."""
    return recorded(algo).rounds[0][1]


def untrained(algo):
    """The same, but None for FedMD, whose clients train before it."""
    return None if algo == "fedmd" else start(algo)


def whole(algo):
    """[(metrics, state)] of the same run."""
    return [(metrics, state) for metrics, state, _ in recorded(algo).rounds]


def models_in(state):
    """The state_dict of every network in a state, in order."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        if key == "model":
            yield value
        elif key == "global_models":                 # a list; or {network: it, or one}
            for models in value.values() if isinstance(value, dict) else [value]:
                for saved in models if isinstance(models, list) else [models]:
                    yield saved.get("model", saved)
        elif isinstance(value, dict | list):
            yield from models_in(value)


def sound(models):
    return all(torch.isfinite(w).all() for model in models for w in model.values())


# ---------------------------------------------------------------------------------- the same bytes

@pytest.mark.parametrize("algo", [a for a in ALGORITHMS if "local_steps" in fields_of(a)])
def test_local_steps_are_counted_over_passes(algo):
    """Two batches a pass: three passes are six steps."""
    passes, steps = (run(algo, toy(algo, sizes=[4] * 6), rounds=1, batch_size=2, **length)
                     for length in ({"local_epochs": 3}, {"local_steps": 6}))
    assert same(passes, steps)


@every_algorithm
def test_the_order_of_the_clients_does_not_matter(algo, monkeypatch):
    """Nor what was drawn before: the same seed gives the same metrics and states, bit for bit. The
    rounds go on from the state at the start, through a file."""
    def backwards(fed, ids, fn, threads=None, to_server=False):
        ids = list(ids)
        found = {i: fn(i) for i in ids[::-1]}
        return {i: found[i] for i in ids}

    first, *rounds = whole(algo)
    for module in [module for name, module in sys.modules.items()
                   if name.startswith(("algorithms", "federation")) or name == algo]:
        if hasattr(module, "parallel_map"):
            monkeypatch.setattr(module, "parallel_map", backwards)
    torch.rand(3)
    assert same(run(algo, rounds=0), [first])
    assert same(run(algo, state=through_a_file(first[1])), rounds)


@every_algorithm
def test_another_seed_trains_otherwise(algo):
    """Also from the same start: in one round every network that changes, changes otherwise."""
    sizes = (5, 6, 7, 8, 9, 5)
    ends = [run(algo, toy(algo, sizes=sizes, seed=seed), start(algo), rounds=1,
                participation=1.0)[-1][1] for seed in (0, 1)]
    before, *after = (
        [*models_in({key: x for key, x in state.items() if not key.startswith("recent")})]
        for state in (start(algo), *ends))
    trained = [(a, b) for old, a, b in zip(before, *after, strict=True) if not same(old, a)]
    assert trained and not any(same(a, b) for a, b in trained)


@every_algorithm
def test_a_state_is_all_that_later_rounds_need(algo):
    """No later round changes it, also where it did not come from a file. (From the start, through
    a file, is the claim above.) A run leaves the federation and the global generators alone."""
    record, untouched = recorded(algo), toy(algo)
    for n, (_, state, then) in enumerate(record.rounds):
        later = [(metrics, state) for metrics, state, _ in record.rounds[n + 1:]]
        assert n == 0 or same(run(algo, state=state), later)
        assert same(state, then)
    for name in ("private", "public", "test", "public_test", "validation", "architecture"):
        assert same(getattr(record.fed, name), getattr(untouched, name)), name
    assert record.same_generators


# ----------------------------------------------------------------------------------------- metrics

@every_algorithm
def test_metrics_are_numbers_with_a_headline(algo):
    assert [state["round"] for _, state in whole(algo)] == [0, 1, 2]
    columns = {*ALGORITHMS[algo].scores, *ALGORITHMS[algo].columns}
    for metrics, state in whole(algo):
        assert all(type(x) in (int, float, type(None)) for x in metrics.values())
        assert keep.dumps(metrics) and "accuracy" in metrics and "round" not in metrics
        assert all(0 <= x <= 1 for name, x in metrics.items() if "accuracy" in name)
        assert state["round"] == 0 or columns <= metrics.keys()
        sent = [x for name, x in metrics.items() if name.startswith("bytes")]
        assert all(type(x) is int and x >= 0 for x in sent)


@every_algorithm
def test_it_learns(algo):
    """Three classes; every network of a client sees the same kind of samples."""
    fed = toy(algo, sizes=(20,) * 4, num_public=20, test=samples(90, seed=1))
    lr = 0.1 if algo in ("split-learning", "centralized-all", "fd", "local", "fedproto",
                         "fedkd", "fedmd-pooled") else 0.2
    *_, (metrics, _) = run(algo, fed, rounds=3, participation=1.0, local_epochs=5, batch_size=10,
                           server_epochs=5, transfer_public_epochs=3, lr=lr, distill_steps=10,
                           server_lr=0.05, public_epochs=2, public_batch_size=10,
                           server_batch_size=10)
    assert metrics["accuracy"] > 0.5, metrics["accuracy"]


@every_algorithm
def test_a_lone_client_works(algo):
    *_, (metrics, state) = run(algo, toy(algo, sizes=(6,)), K=1)
    assert keep.dumps(metrics) and sound(models_in(state)) and not metrics.get("bad_uploads")


@every_algorithm
def test_a_config_checks_its_values_and_shares_names_only_with_its_like(algo):
    """In one command a flag is parsed once, for all: hyperparameters of one name have one type."""
    assert issubclass(ALGORITHMS[algo].Config, Settings)
    ALGORITHMS[algo].Config(**ALGORITHMS[algo].paper)
    assert not fields_of(algo).keys() & field_names(*TABLES)
    own, *others = (typing.get_type_hints(other.Config, include_extras=True)
                    for other in (ALGORITHMS[algo], *ALGORITHMS.values()))
    for theirs in others:
        assert all(own[name] == theirs[name] for name in own.keys() & theirs.keys())


@every_algorithm
def test_check_takes_all_settings_and_tells_what_needs_validation_images(algo):
    """As the program calls it. Without these images an algorithm that declares no need runs. A
    state of another algorithm is refused."""
    algorithm, cfg, without = ALGORITHMS[algo], config(algo), toy(algo, validation=None)
    algorithm.check(toy(algo), cfg)
    if "validation" in algorithm.needs(cfg):
        with pytest.raises(ValueError, match=f"^{algo} needs validation images"):
            run(algo, without)
    unused = {"feddf": {"drop_worst": False, "patience": None}, "fedmd": {"early_stopping": False},
              "fedmd-pooled": {"early_stopping": False}}.get(algo, {})
    assert len(run(algo, without, **unused | {"rounds": 1})) == 2
    with pytest.raises(ValueError, match=f"^{algo}: the state is of something$"):
        run(algo, state={"algorithm": "something", "round": 1})


# ------------------------------------------------------------------------------ uploads gone wrong

@every_algorithm
def test_clients_whose_numbers_are_not_finite_are_left_out(algo):
    """One of them, or all: the run goes on."""
    for bad, value in (({2}, math.inf), ({*range(6)}, math.nan)):
        fed = toy(algo)
        for i in bad:
            fed.private[i].images[0, 0, 0, 0] = value
        for metrics, state in run(algo, fed, participation=1.0, latencies=(1.0,) * 6):
            assert keep.dumps(metrics)
            if "bad_uploads" in metrics and state["round"]:
                assert metrics["bad_uploads"] == len(bad)
                own = {i: x for i, x in state.get("clients", {}).items() if i not in bad}
                assert sound(models_in(state | {"clients": own}))
    assert state["round"] == 2


# ------------------------------------------------------------------------- what reaches the clients

PUBLIC_LOGITS = ["feddf", "fedbe", "fedsdd", "fedsdd-ablations", "fedmd", "dsfl", "cronus",
                 "fedgem", "fedgems", "fedgems-ablations"]


@every_algorithm
def test_augmentation_is_for_what_is_trained_on_alone(algo):
    """And for what teaches: FedGKT's edges extract the features that its server is trained on, and
    FedNTD's teacher, as all that predict public images, sees what its student sees."""
    fed, state = toy(algo, augment=lambda images, rng: images + 100), untrained(algo)
    Net.seen.clear()
    run(algo, fed, state, rounds=1)
    given = {(training, largest > 50) for training, largest in Net.seen}
    teaches = algo in ("fedgkt", "fedgkt-async", "fedntd", *PUBLIC_LOGITS)
    assert given == {(True, True), (False, False)} | ({(False, True)} if teaches else set())


@pytest.mark.parametrize("algo", PUBLIC_LOGITS)
def test_teachers_predict_the_crops_that_students_learn(algo, monkeypatch):
    """Each public image is augmented once in a round, for all. Public images are the brightest; the
    augmentation changes each by a number of its own."""
    seen, extract = {True: set(), False: set()}, Net.extract

    def watched(net, images):
        seen[net.training] |= {x for x in images[:, 0, 0, 0].tolist() if x > 5000}
        return extract(net, images)

    def brighter(images, rng):
        return images + torch.from_numpy(rng.uniform(1, 100, (len(images), 1, 1, 1))).float()
    fed, state = toy(algo, augment=brighter), whole(algo)[0][1]
    monkeypatch.setattr(Net, "extract", watched)
    fed.public = fed.public._replace(images=fed.public.images + 10_000)
    run(algo, fed, state, rounds=1)
    assert seen[True] and seen[True] <= seen[False]
    assert len(seen[False]) <= len(fed.public.images)


@every_algorithm
def test_amp_reaches_training_and_prediction(algo):
    state = start(algo)
    Net.types.clear()
    run(algo, toy(algo, amp=True), state, rounds=1)
    assert {dtype for training, dtype in Net.types if training} == {torch.bfloat16}
    assert (False, torch.bfloat16) in Net.types


@pytest.mark.parametrize("algo", [a for a in ALGORITHMS if "participation" in fields_of(a)])
def test_only_the_clients_of_a_round_are_trained(algo, monkeypatch):
    """0.7 of the clients of each architecture, two of three; of all, in FedGKT."""
    names, fed = [], toy(algo)           # of the random numbers of each training
    monkeypatch.setattr(Federation, "random_numbers", lambda fed, *name: (
        names.append(name) or seed_torch(fed.seed, *name)))
    for t in (1, 2):
        names.clear()
        run(algo, fed, whole(algo)[t - 1][1], rounds=t)
        drawn = [sum(fed.sample_by_architecture(0.7, t).values(), []),
                 sample_clients(6, 0.7, make_rng(fed.seed, "active", t))]
        assert sorted(name[2] for name in names if name[0] == "local") in map(sorted, drawn)


@every_algorithm
def test_optimizer_and_decay_reach_all_networks(algo, monkeypatch):
    """FedDF's distillation has no decay."""
    made = set()
    for name, optimizer in OPTIMIZERS.items():
        monkeypatch.setitem(OPTIMIZERS, name, lambda *weights, name=name, make=optimizer, **rates: (
            made.add((name, rates.get("weight_decay"))) or make(*weights, **rates)))
    if "weight_decay" in fields_of(algo):
        run(algo, rounds=1, optimizer="nesterov", server_optimizer="nesterov", weight_decay=0.25)
        without = {("nesterov", None)} if algo == "feddf" else set()
        assert made == {("nesterov", 0.25)} | without


# ----------------------------------------------------------------------------------- under attack

@every_algorithm
def test_an_attack_sees_every_round_and_what_it_returns_arrives(algo):
    """An idle one changes nothing. Zeros instead of the uploads change the next state; nan is
    counted, and left out. FedGKT's uploads have two parts: feature maps and logits. FedSDD has
    one group: without a benign client in it nobody is attacked."""
    if "attack" not in inspect.signature(ALGORITHMS[algo].run).parameters:
        return
    handed = []

    def attacked(factor, rounds=2):
        """The rounds, if all clients but the last are malicious, and multiply their uploads."""
        def forge(i, upload, benign, rows, num_benign=None, part=()):
            handed.append(i)
            assert len({*rows.tolist()}) == len(upload) and len(benign) > 0    # a row has a number
            return upload * factor
        return run(algo, fed, first, Attack([0, 1, 2, 3, 4], forge), rounds=rounds, **changes)

    fed, changes = toy(algo, network=Net), {"participation": 1.0, "K": 1}
    (_, first), *clean = run(algo, fed, **changes)
    assert same(attacked(1.0), clean)
    assert handed[::2 if algo == "fedgkt" else 1] == [0, 1, 2, 3, 4] * 2
    for factor, bad in [(0.0, 0), (math.nan, 5)]:
        [(metrics, state)] = attacked(factor, rounds=1)
        assert metrics["bad_uploads"] == bad
        assert not same(state, clean[0][1]) and sound(models_in(state))


# ---------------------------------------------------------------------------------- new algorithms

CONTRACTS = [function for name, function in list(globals().items()) if name.startswith("test_")
             and any(mark.args == ("algo", ALGORITHMS)
                     for mark in getattr(function, "pytestmark", []))]


def hold(contract, algo):
    """Calls a contract for one algorithm."""
    with pytest.MonkeyPatch.context() as patch:
        contract(*[algo, patch][:len(inspect.signature(contract).parameters)])


def test_beside_fedmd_an_algorithm_has_the_run_that_it_has_alone(npz, tmp_path):
    """The joint output layer is FedMD's: others' networks do not get the public classes."""
    for name, more in (("alone", ""), ("beside", ",fedmd --transfer-public-epochs 1")):
        main(f"--algo dsfl{more} --dataset {npz} --clients 4 --rounds 1 --model mlp "
             "--server-model mlp --public glyphs --public-size 50 --validation 0.2 --threads 1 "
             f"--out {tmp_path}/{name}".split())
    alone, beside = (tmp_path / name / "dsfl-seed0" for name in ("alone", "beside"))
    assert (alone / "metrics.jsonl").read_text() == (beside / "metrics.jsonl").read_text()
    assert load_model(alone)[2] == load_model(beside)[2]


def test_the_page_of_metrics_has_every_key_and_no_other(npz, tmp_path, pytestconfig):
    """And a run has what `--key clients` and `--key server` mean in it."""
    main(f"--algo fedmd,fedgems,standalone --dataset {npz} --clients 4 --partition iid --rounds 1 "
         f"--public half --validation 0.2 --lr-patience 2 --out {tmp_path}/half".split())
    main(f"--algo fedmd,fedmd-pooled --dataset {npz} --clients 4 --partition iid --rounds 1 "
         "--public glyphs --public-size 50 --transfer-public-epochs 1 --transfer-local-epochs 1 "
         f"--validation 0.2 --out {tmp_path}/joint".split())
    main(f"--algo fedsdd-ablations --dataset {npz} --rounds 1 --public fifth --students none "
         f"--out {tmp_path}/none".split())
    rows = [json.loads(line) for file in tmp_path.rglob("*.jsonl") for line in open(file)]
    for path in tmp_path.rglob("config.json"):
        *_, last = map(json.loads, open(path.with_name("metrics.jsonl")))
        assert {*json.loads(path.read_text())["keys"].values()} <= last.keys(), path
    rows += [row for algo in OF_PAPERS for row, _ in whole(algo)]
    found = {re.sub(r"\d$", "I", re.sub("Net|Wide", "NETWORK", key)) for row in rows for key in row}
    page = (pytestconfig.rootpath / "docs" / "METRICS.md").read_text()
    cells = " ".join(re.findall("^[|] (`.*?) [|]", page, re.M))

    def parts(keys):                         # what a metric is called without its suffix; suffixes
        suffix = "(_(?:min|max|own|public_test|as_public))$"
        return {part for key in keys for part in re.split(suffix, key)}

    assert parts(re.findall(r"`(\w+)`", cells)) == parts(found)
