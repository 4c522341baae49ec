"""Two runs that are the same, bit for bit: with this setting one algorithm is another; a federation
with a bad upload is the one without its client."""
import dataclasses
import math

import pytest
from commands import OF_PAPERS
from test_contracts import Net, models_in, run, toy
from toys import same

from algorithms import ALGORITHMS

MOMENTUM = {"optimizer": "momentum", "weight_decay": 0.0}
SAME = {    # an algorithm: its settings, what it then is, settings of both
    "fedprox": ({"mu": 0.0}, "fedavg", MOMENTUM),
    "fedntd": ({"beta": 0.0}, "fedavg", MOMENTUM),
    "fedntd, all classes": ({"beta": 0.0, "keep_true": True}, "fedavg", MOMENTUM),
    "fedgen": ({"generated": 0}, "fedavg", {}),
    "fd": ({"gamma": 0.0}, "dsfl", {"public_epochs": 0}),         # every client alone
    "fedproto": ({"prototype_weight": 0.0}, "local", {"participation": 1.0}),
    "fedsdd-ablations": ({"ensemble": "aggregated", "students": "main"}, "fedsdd", {}),
    **{f"fedsdd-ablations, {local}": (
        {"students": "none", "local": local}, local, {"K": 1, "R": 1, "mu": 0.3})
       for local in ("fedavg", "fedprox", "scaffold")},
    "fedgems-ablations": ({"self_training": True, "self_distillation": True,
                           "ensemble_distillation": True}, "fedgems", {}),
    "fedgkt-async": ({"latencies": (2.5,) * 6}, "fedgkt",
                     {"participation": 1.0, "server_order": "mixed"})}


def unnamed(value):
    """A state's entry without the networks' names that FedSDD's variant keeps with its members."""
    if isinstance(value, tuple) and isinstance(value[0], str):
        return value[1]
    return [*map(unnamed, value)] if isinstance(value, list) else value


@pytest.mark.parametrize("algo", SAME)
def test_with_this_setting_it_is_that_algorithm(algo):
    """All networks, all that both keep, and all metrics that both have; FD sends what DS-FL does
    not, and FedProto what nobody sends in local training."""
    changes, other, of_both = SAME[algo]
    algo = algo.split(",")[0]
    mixed = {} if ALGORITHMS[other].mixed_networks else {"network": Net}
    feds = [toy(each, augment=lambda images, rng: images + rng.normal(), **mixed)
            for each in (algo, other)]
    fed = max(feds, key=lambda fed: fed.public is not None)
    both = zip(run(algo, fed, **changes, **of_both), run(other, fed, **of_both), strict=True)
    for (metrics, state), (others, theirs) in both:
        shared = {key for key in metrics.keys() & others.keys()
                  if algo not in ("fd", "fedproto") or "bytes" not in key}
        assert "accuracy" in shared and all(metrics[key] == others[key] for key in shared)
        alike = state.keys() & theirs.keys() - {"algorithm", "global_models"}
        assert all(same(unnamed(state[key]), unnamed(theirs[key])) for key in alike)
        assert all(map(same, models_in(state), models_in(theirs)))


# ------------------------------------------------------------------------------------- bad uploads

EVERYBODY = {"participation": 1.0, "malicious_fraction": 0.0, "latencies": (1.0,) * 6}
WITHOUT = ["fedmd-pooled", "split-learning", "local", "standalone", "public-private",
           "centralized", "centralized-all"]
WITH_UPLOADS = [algo for algo in OF_PAPERS if algo not in WITHOUT]
# What trains on the server without uploads: on labels, or from global models that stay.
LEARN = ["fedsdd", "fedgem", "fedgems", "fedgems-ablations"]


@pytest.mark.parametrize("algo", WITH_UPLOADS)
def test_a_bad_upload_leaves_all_as_if_its_client_were_not_there(algo):
    """One pixel spoils what the last of six clients trains."""
    def kept(state):
        """Without the last client's own, and SCAFFOLD's control, which counts all clients."""
        of_clients = ("clients", "client_controls", "targets", "server_logits", "latencies")
        state = {key: [x[i] for i in range(5)] if key in of_clients else x
                 for key, x in state.items()}
        return {key: {name: y for name, y in x.items() if name != "control"}
                if key == "server" else x for key, x in state.items()}

    changes = EVERYBODY | {"K": 1, "rounds": 1 if algo == "scaffold" else 2}
    fed = toy(algo)
    five = dataclasses.replace(fed, private=fed.private[:5], architecture=fed.architecture[:5])
    expected = run(algo, five, **changes | {"latencies": (1.0,) * 5})
    fed.private[5].images[0, 0, 0, 0] = math.inf
    for (metrics, state), (_, theirs) in zip(run(algo, fed, **changes), expected, strict=True):
        assert metrics.get("bad_uploads", 0) == (state["round"] > 0)
        assert same(kept(state), kept(theirs))


@pytest.mark.parametrize("algo", [algo for algo in WITH_UPLOADS if algo not in LEARN])
def test_if_all_uploads_are_bad_the_servers_models_stay(algo):
    fed = toy(algo)
    for private in fed.private:
        private.images[0, 0, 0, 0] = math.nan
    (_, start), *rounds = run(algo, fed, **EVERYBODY, students="none", distill=False)
    for metrics, state in rounds:
        assert metrics["bad_uploads"] == 6
        for key in {"server", "global_models"} & state.keys():
            assert same(state[key], start[key])
