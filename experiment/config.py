"""The config of a run: a given flag comes first, then the preset's value, then the default."""
import inspect
from pathlib import Path

import torch

import attacks
import models
from algorithms import ALGORITHMS
from data.load import DATASETS, TORCHVISION
from experiment import process
from experiment.build import HELD_OUT, has_foreign_public
from experiment.flags import flag_name, keywords, name_of, own_settings
from experiment.presets import DEFAULTS, EMBEDDED, PAPER, PUBLIC_SETS, QUICK_START


def configure(given):
    """The config of a new run: all that decides its numbers. Raises ValueError for bad flags.

    given      see `flags.parse`
    returns    a dict: "algo", "seeds", "flags" (of the federation), "settings" (the
               hyperparameters of each algorithm), "environment"
    """
    config = complete(given)
    check(given, preset_of(given), config["flags"])
    device = given.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    if config["flags"]["amp"] and device == "cpu" and not process.cpu_has_bfloat16():
        process.say("--amp: this CPU has no bfloat16 arithmetic, so the run uses float32")
        config["flags"]["amp"] = False
    return config | {"environment": {
        "torch": torch.__version__, "processes": process.count(), "device": device,
        "threads": given.get("threads", 1)}}


def complete(given):
    """The config without the environment, and without the checks."""
    algos, preset = given["algo"], preset_of(given)
    flags = complete_flags(given, preset)
    settings = {}
    for algo in algos:
        found = {}
        for table in (preset_settings(preset, algo), given, own_settings(algo)):
            if "local_epochs" in table:      # it wins over the local_steps of the tables before
                found["local_steps"] = None
            found |= table
        settings[algo] = {name: found.get(name, parameter.default)
                          for name, parameter in keywords(algo).items()}
    uses_validation = [flags["lr_patience"] is not None]
    uses_validation += [settings[algo][name] not in (False, None)
                        for algo in algos for name in ALGORITHMS[name_of(algo)].validation_for]
    if flags["validation"] is None and any(uses_validation):
        flags["validation"] = 0.1
    return {"algo": algos, "seeds": given.get("seeds", [0]), "flags": flags, "settings": settings}


def preset_of(given):
    """The preset of --paper, or QUICK_START without --paper."""
    return PAPER[given["paper"]] if "paper" in given else QUICK_START


def entry(preset, algo):
    """The preset's key for an algorithm: its name, or the name that LIKE in its file gives."""
    name = name_of(algo)
    return name if name in preset else ALGORITHMS[name].like


def preset_settings(preset, algo):
    """The preset's settings of an algorithm; {} if it has none."""
    return preset.get(entry(preset, algo), {})


def complete_flags(given, preset):
    """The federation's flags; those whose default depends on others are filled in here."""
    algos, flags = given["algo"], dict(DEFAULTS)
    for table in [preset, *(preset_settings(preset, algo) for algo in algos)]:
        flags |= table.get("data", {})
    flags |= {name: value for name, value in given.items() if name in DEFAULTS}
    public_uses = {ALGORITHMS[name_of(algo)].public for algo in algos} - {"none"}
    if flags["public"] is None and public_uses:
        has_letters = flags["paper"] or "joint" in public_uses     # or digits, for the letters
        foreign_sets = (EMBEDDED if has_letters else {}) | PUBLIC_SETS.get(flags["paper"], {})
        held_out = None if flags["paper"] else "fifth"     # --paper holds out what the paper does
        needs_labels = "labeled" in public_uses
        flags["public"] = "half" if needs_labels else foreign_sets.get(flags["dataset"], held_out)
    if flags["joint"] is None:
        flags["joint"] = has_foreign_public(flags) and "joint" in public_uses
    if flags["attack"] is not None and flags["attackers"] is None:
        flags["attackers"] = 2 if flags["attack"] == "ofom" else 1
    if flags["attack"] is not None and flags["attack_scale"] is None:
        flags["attack_scale"] = 10.0
    # Absolute paths, so that --resume finds the data from any working directory.
    names = {*DATASETS, *HELD_OUT, None}
    for name in ("dataset", "public"):
        if flags[name] not in names and Path(flags[name]).exists():
            flags[name] = str(Path(flags[name]).absolute())
    if {flags["dataset"], flags["public"]} & TORCHVISION.keys():
        flags["data_root"] = str(Path(flags["data_root"]).absolute())
    return flags


def reference_settings(config):
    """{algorithm: {name: value}}: the flags and hyperparameters that --paper sets for the data set.

    Without --paper it has only hyperparameters: the defaults of the algorithms' signatures.
    """
    flags, algos = config["flags"], config["algo"]
    if flags["paper"] is None:
        return {algo: {name: parameter.default for name, parameter in keywords(algo).items()}
                for algo in algos}
    paper = complete({"algo": list(dict.fromkeys(map(name_of, algos))), "paper": flags["paper"],
                      "dataset": flags["dataset"]})
    return {algo: paper["flags"] | paper["settings"][name_of(algo)] for algo in algos}


def check(given, preset, flags):
    """Raises ValueError, with a message of one line, for flags that do not go together."""
    algos, foreign = given["algo"], has_foreign_public(flags)
    of = {algo: ALGORITHMS[name_of(algo)] for algo in algos}
    for algo in algos:
        if "paper" in given and entry(preset, algo) not in preset:
            available = ", ".join(name for name in preset if name in ALGORITHMS)
            raise ValueError(f"--paper {given['paper']} has no {algo}; it has {available}")
    apart = [algo for algo in algos if "data" in preset_settings(preset, algo)]
    if "paper" in given and apart not in ([], algos) and "model" not in given:
        raise ValueError(f"--paper {given['paper']}: {apart[0]} has other networks than the other "
                         "algorithms: run it in a separate command, which has the same private "
                         "data")
    uses_public = [algo for algo in algos if of[algo].public != "none"]
    known = flags["public"] in (*HELD_OUT, *DATASETS)
    if uses_public and not known and "public" not in given:
        note = f" (--paper {given['paper']} has {flags['public']})" if flags["public"] else ""
        raise ValueError(f"{uses_public[0]} needs public images for {flags['dataset']}: "
                         f"--public NAME or PATH{note}")

    if flags["joint"] and not foreign:
        raise ValueError("--joint needs a foreign public set: --public NAME or PATH")
    needs_labels = [algo for algo in algos if of[algo].public in ("labeled", "joint")]
    if needs_labels and foreign and not flags["joint"]:
        raise ValueError(f"{', '.join(needs_labels)}: the public images need labels of the task: "
                         f"--public half or fifth, not {flags['public']}")

    for name in [*flags["model"], flags["server_model"]]:
        if name not in models.NETWORKS:
            raise ValueError(f"unknown network {name!r}; there are {', '.join(models.NETWORKS)}")
    one_network = [algo for algo in algos if not of[algo].mixed]
    if one_network and len(set(flags["model"])) > 1:
        raise ValueError(f"{', '.join(one_network)}: every client needs the same network, "
                         f"not {', '.join(flags['model'])}")

    kept = [algo for algo in algos if not of[algo].plateau]
    if kept and flags["lr_patience"] not in (None, preset.get("data", {}).get("lr_patience")):
        falling = ", ".join(name for name in ALGORITHMS if ALGORITHMS[name].plateau)
        raise ValueError(f"--lr-patience: {kept[0]} keeps its learning rates; they may fall in "
                         f"{falling}")

    for name in ("attackers", "attack_scale", "attack_z"):
        if name in given and flags["attack"] is None:
            raise ValueError(f"{flag_name(name)} has no effect without --attack")
    if flags["attack"] is not None:
        attacks.check(flags["attack"], flags["clients"], flags["attackers"])
        attackable = [name for name, algorithm in ALGORITHMS.items()
                      if "attack" in inspect.signature(algorithm.run).parameters]
        for algo in algos:
            if name_of(algo) not in attackable:
                raise ValueError(f"--attack: {algo} has no uploads to poison; "
                                 f"these algorithms have: {', '.join(attackable)}")

    if "seeds" in given and len(set(given["seeds"])) < len(given["seeds"]):
        raise ValueError("--seeds names a seed twice")
