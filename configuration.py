"""The config of a run: a given flag comes first, then the preset's value, then the default."""
import inspect
from pathlib import Path

import attacks
import data
import federation
import models
from algorithms import ALGORITHMS
from command_line import (fail, flag_name, keywords, module_constant, own_settings, parse,
                          run_of)
from presets import DEFAULTS, EMBEDDED, PAPER, PUBLIC_SETS, QUICK_START


def configure(given):
    """The config of a run: all flags and hyperparameters, which decide its numbers."""
    config = complete(given)
    for problem in problems(given, preset_of(given), config["flags"]):
        fail(problem)
    return config


def complete(given):
    """The config that `configure` returns, without the checks."""
    algos, preset = given["algo"], preset_of(given)
    flags = complete_flags(given, preset)
    settings = {}
    for algo in algos:
        found = preset_settings(preset, algo) | given | own_settings(algo)
        settings[algo] = {name: found.get(name, parameter.default)
                          for name, parameter in keywords(algo).items()}
    needs_validation = [*map(uses_validation, algos, settings.values()),
                        flags["lr_patience"] is not None]
    if flags["validation"] is None and any(needs_validation):
        flags["validation"] = 0.1
    return {"algo": algos, "seeds": given.get("seeds", [0]), "flags": flags, "settings": settings}


def preset_of(given):
    """The preset of --paper, or QUICK_START without --paper."""
    return PAPER[given["paper"]] if "paper" in given else QUICK_START


def entry(preset, algo):
    """The preset's key for an algorithm: its name, or the name that LIKE in its file gives."""
    name = algo.partition(":")[0]
    return name if name in preset else module_constant(algo, "LIKE")


def preset_settings(preset, algo):
    """The preset's settings of an algorithm; {} if it has none."""
    return preset.get(entry(preset, algo), {})


def complete_flags(given, preset):
    """The federation's flags; those whose default depends on others are filled in here."""
    algos, flags = given["algo"], dict(DEFAULTS)
    for table in [preset, *(preset_settings(preset, algo) for algo in algos)]:
        flags |= table.get("data", {})
    flags |= {name: value for name, value in given.items() if name in DEFAULTS}
    public_uses = {module_constant(algo, "PUBLIC") for algo in algos} - {"none"}
    if flags["public"] is None and public_uses:
        foreign_sets = EMBEDDED | PUBLIC_SETS.get(flags["paper"], {})
        held_out = None if flags["paper"] else "fifth"     # --paper holds out what the paper does
        is_labelled = "labelled" in public_uses
        flags["public"] = "half" if is_labelled else foreign_sets.get(flags["dataset"], held_out)
    if flags["joint"] is None:
        flags["joint"] = federation.has_foreign_public(flags) and "joint" in public_uses
    if flags["attack"] is not None and flags["attackers"] is None:
        flags["attackers"] = 2 if flags["attack"] == "ofom" else 1
    if flags["attack"] is not None and flags["attack_scale"] is None:
        flags["attack_scale"] = 10.0
    # Absolute paths, so that --resume finds the data from any working directory.
    names = {*data.DATASETS, *federation.HELD_OUT, None}
    for name in ("dataset", "public"):
        if flags[name] not in names and Path(flags[name]).exists():
            flags[name] = str(Path(flags[name]).absolute())
    if {flags["dataset"], flags["public"]} & data.TORCHVISION.keys():
        flags["data_root"] = str(Path(flags["data_root"]).absolute())
    return flags


def expected(config):
    """{algorithm: {name: value}}: the flags and hyperparameters that --paper sets for the data set.

    Without --paper it has only hyperparameters: the defaults of the algorithms' signatures.
    """
    flags, algos = config["flags"], config["algo"]
    if flags["paper"] is None:
        return {algo: {name: parameter.default for name, parameter in keywords(algo).items()}
                for algo in algos}
    names = {algo: algo.partition(":")[0] for algo in algos}
    paper = complete({"algo": list(dict.fromkeys(names.values())), "paper": flags["paper"],
                      "dataset": flags["dataset"]})
    return {algo: paper["flags"] | paper["settings"][name] for algo, name in names.items()}


def uses_validation(algo, settings):
    """True if one of the keywords in the file's VALIDATION is on."""
    names = module_constant(algo, "VALIDATION", ())
    return any(settings[name] not in (False, None) for name in names)


def problems(given, preset, flags):
    """Yields a one-line message for each check that the flags fail, in the order of the checks."""
    algos, foreign = given["algo"], federation.has_foreign_public(flags)
    for algo in algos:
        if "paper" in given and entry(preset, algo) not in preset:
            available = ", ".join(name for name in preset if name in ALGORITHMS)
            yield f"--paper {given['paper']} has no {algo}; it has {available}"
    apart = [algo for algo in algos if "data" in preset_settings(preset, algo)]
    if "paper" in given and apart not in ([], algos) and "model" not in given:
        yield (f"--paper {given['paper']}: {apart[0]} has other networks than the other "
               "algorithms: run it in a separate command, which has the same private data")
    uses_public = [algo for algo in algos if module_constant(algo, "PUBLIC") != "none"]
    known = flags["public"] in (*federation.HELD_OUT, *data.DATASETS)
    if uses_public and not known and "public" not in given:
        note = f" (--paper {given['paper']} has {flags['public']})" if flags["public"] else ""
        yield (f"{uses_public[0]} needs public images for {flags['dataset']}: "
               f"--public NAME or PATH{note}")

    if flags["joint"] and not foreign:
        yield "--joint needs a foreign public set: --public NAME or PATH"
    labelled = [algo for algo in algos if module_constant(algo, "PUBLIC") in ("labelled", "joint")]
    if labelled and foreign and not flags["joint"]:
        yield (f"{', '.join(labelled)}: the public images need labels of the task: "
               f"--public half or fifth, not {flags['public']}")

    for name in [*flags["model"], flags["server_model"]]:
        if name not in models.NETWORKS:
            yield f"unknown network {name!r}; there are {', '.join(models.NETWORKS)}"
    one_network = [algo for algo in algos if not module_constant(algo, "MIXED")]
    if one_network and len(set(flags["model"])) > 1:
        yield (f"{', '.join(one_network)}: every client needs the same network, "
               f"not {', '.join(flags['model'])}")

    kept = [algo for algo in algos if not module_constant(algo, "PLATEAU")]
    if kept and flags["lr_patience"] not in (None, preset.get("data", {}).get("lr_patience")):
        falling = ", ".join(algo for algo in ALGORITHMS if module_constant(algo, "PLATEAU"))
        yield f"--lr-patience: {kept[0]} keeps its learning rates; they may fall in {falling}"

    for name in ("attackers", "attack_scale", "attack_z"):
        if name in given and flags["attack"] is None:
            yield f"{flag_name(name)} has no effect without --attack"
    if flags["attack"] is not None:
        attacks.check(flags["attack"], flags["clients"], flags["attackers"])   # raises ValueError
        attackable = [name for name, run in ALGORITHMS.items()
                      if "attack" in inspect.signature(run).parameters]
        for algo in algos:
            if "attack" not in inspect.signature(run_of(algo)).parameters:
                yield (f"--attack: {algo} has no uploads to poison; "
                       f"these algorithms have: {', '.join(attackable)}")

    if "seeds" in given and len(set(given["seeds"])) < len(given["seeds"]):
        yield "--seeds names a seed twice"


def validated_config(config, folder):
    """The config read from `folder` if the command line would produce it too, else ValueError."""
    path = folder / "config.json"
    if config["data"] is None:
        raise ValueError(f"{path} has no fingerprint of the data: an older version of this program "
                         "wrote it, and that version can resume the run")
    try:
        flags, environment = config["flags"], config["environment"]
        for algo in config["algo"]:
            settings = config["settings"][algo]
            may_be_none = {"lr_patience": flags["lr_patience"], **settings}
            words = {**flags, **{name: "none" if value is None else value
                                 for name, value in may_be_none.items()},
                     "seeds": config["seeds"], "device": environment["device"],
                     "threads": environment["threads"]}
            argv = ["--algo", algo]
            for name, value in words.items():
                if isinstance(value, bool):
                    argv.append(flag_name(name if value else "no_" + name))
                elif value is not None:
                    text = ",".join(map(str, value)) if isinstance(value, list) else value
                    argv.append(f"{flag_name(name)}={text}")
            given = parse(argv)
            produced = configure(given)
            # --resume may have raised it since, above the number in a name such as fedavg:rounds=2.
            produced["settings"][algo]["rounds"] = given["rounds"]
            found = produced["flags"], produced["settings"][algo], produced["seeds"]
            if found != (flags, settings, config["seeds"]):
                raise KeyError(algo)
        if not config["algo"] or not isinstance(environment["torch"], str):
            raise KeyError("torch")
        if config["data"].keys() != {"dataset", "public"}:
            raise KeyError("data")
        return config
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is damaged, or not from this program") from None
