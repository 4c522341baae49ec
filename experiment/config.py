"""The config of a run: a given flag comes first, then the preset's value, then the default."""
from pathlib import Path

import torch

import attacks
import models
from algorithms import ALGORITHMS
from federation.parallel import count_active
from data.load import DATASETS, TORCHVISION
from experiment import process
from experiment.build import HELD_OUT, has_foreign_public
from experiment.flags import FEDERATION_FLAGS, Choice, flag_name
from experiment.presets import EMBEDDED, PAPER, PUBLIC_SETS, QUICK_START

NETWORKS = ("model", "server_model")         # these flags may differ between the algorithms
DEFAULTS = {flag.name: flag.default for flag in FEDERATION_FLAGS}


def configure(given):
    """The config of a new run: all that decides its numbers. Raises ValueError for bad flags.

    given      see `flags.parse`
    returns    (config, the `Choice` of each algorithm). The config is a dict: "algo" (the labels),
               "seeds", "flags" (of the federation), and by label "networks" and "settings" (the
               hyperparameters); "environment"
    """
    config = complete(given)
    check(given, config)
    device = given.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    if config["flags"]["amp"] and device == "cpu" and not process.cpu_has_bfloat16():
        process.say("--amp: this CPU has no bfloat16 arithmetic, so the run uses float32")
        config["flags"]["amp"] = False
    threads = given.get("threads", default_threads(config))
    environment = {"torch": torch.__version__, "device": device, "threads": threads}
    return config | {"environment": environment}, given["algo"]


def most_clients(config):
    """The largest number of clients in a round of one of the algorithms."""
    num_clients = config["flags"]["clients"]
    return max(count_active(num_clients, settings.get("participation", 1.0))
               for settings in config["settings"].values())


def default_threads(config):
    """The threads while the server trains: one for small networks, otherwise the cores."""
    names = {name for networks in config["networks"].values() for name in networks["model"]}
    return 1 if names <= models.SMALL else process.num_cores()


def complete(given):
    """The config without the environment, and without the checks."""
    choices = given["algo"]
    flags = complete_flags(given)
    settings = {choice.label: complete_settings(choice, given) for choice in choices}
    networks = {choice.label: networks_of(choice, given) for choice in choices}
    if flags["validation"] is None:
        needs = [choice.algorithm.needs_validation(settings[choice.label]) for choice in choices]
        if any(needs) or flags["lr_patience"] is not None:
            flags["validation"] = 0.1
    return {"algo": [choice.label for choice in choices], "seeds": given.get("seeds", [0]),
            "flags": flags, "networks": networks, "settings": settings}


def preset_of(given):
    """The preset of --paper, or QUICK_START without --paper."""
    return PAPER[given["paper"]] if "paper" in given else QUICK_START


def entry(preset, algorithm):
    """The preset's key for an algorithm: its name, or the name of the one that it is like."""
    return algorithm.name if algorithm.name in preset else algorithm.like


def preset_settings(preset, algorithm):
    """The preset's settings of an algorithm; {} if it has none."""
    return preset.get(entry(preset, algorithm), {})


def complete_settings(choice, given):
    """The hyperparameters of an algorithm: {name: value} for each keyword of its `run`."""
    hyperparameters, found = choice.algorithm.hyperparameters, {}
    # A later table wins: the preset, the flags, the word of --algo.
    for table in (preset_settings(preset_of(given), choice.algorithm), given, choice.own):
        if "local_epochs" in table:          # it wins over the local_steps of the tables before
            found["local_steps"] = None
        found |= table
    return {name: found.get(name, parameter.default)
            for name, parameter in hyperparameters.items()}


def networks_of(choice, given):
    """{"model": [...], "server_model": ...}: the networks of an algorithm's clients and server."""
    preset = preset_of(given)
    found = dict(DEFAULTS)
    for table in (preset["data"], preset_settings(preset, choice.algorithm).get("data", {}), given):
        found |= table
    return {name: found[name] for name in NETWORKS}


def complete_flags(given):
    """The federation's flags; those whose default depends on others are filled in here."""
    algorithms, preset = [choice.algorithm for choice in given["algo"]], preset_of(given)
    found = dict(DEFAULTS)
    for table in (preset, *(preset_settings(preset, algorithm) for algorithm in algorithms)):
        found |= table.get("data", {})
    found |= given
    flags = {name: found[name] for name in DEFAULTS if name not in NETWORKS}
    public_uses = {algorithm.public for algorithm in algorithms} - {"none"}
    if flags["public"] is None and public_uses:
        flags["public"] = default_public(flags, public_uses)
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


def default_public(flags, public_uses):
    """The public images without --public; None if the paper's set is not known for this task."""
    if "labeled" in public_uses:
        return "half"
    foreign_sets = PUBLIC_SETS.get(flags["paper"], {})
    if flags["paper"] or "joint" in public_uses:         # the letters, or digits for the letters
        foreign_sets = EMBEDDED | foreign_sets
    held_out = None if flags["paper"] else "fifth"       # --paper holds out what the paper does
    return foreign_sets.get(flags["dataset"], held_out)


def reference_settings(config, choices):
    """{label: {name: value}}: the flags and hyperparameters that --paper sets for the data set.

    Without --paper it has only hyperparameters: the defaults of the algorithms' signatures.
    """
    flags = config["flags"]
    if flags["paper"] is None:
        return {choice.label: {name: parameter.default for name, parameter
                               in choice.algorithm.hyperparameters.items()} for choice in choices}
    plain = [Choice(choice.label, choice.algorithm, own={}) for choice in choices]
    paper = complete({"algo": plain, "paper": flags["paper"], "dataset": flags["dataset"]})
    return {choice.label: paper["flags"] | paper["networks"][choice.label]
            | paper["settings"][choice.label] for choice in choices}


def check(given, config):
    """Raises ValueError, with a message of one line, for flags that do not go together."""
    choices, preset, flags = given["algo"], preset_of(given), config["flags"]
    for choice in choices:
        if choice.algorithm.like not in ("", *ALGORITHMS):
            raise ValueError(f"{choice.algorithm.name} is like {choice.algorithm.like!r}, which is "
                             "no algorithm")
        if "paper" in given and entry(preset, choice.algorithm) not in preset:
            available = ", ".join(name for name in preset if name in ALGORITHMS)
            raise ValueError(f"--paper {given['paper']} has no {choice.label}; it has {available}")
    if "seeds" in given and len(set(given["seeds"])) < len(given["seeds"]):
        raise ValueError("--seeds names a seed twice")
    for networks in config["networks"].values():
        for name in [*networks["model"], networks["server_model"]]:
            if name not in models.NETWORKS:
                raise ValueError(f"unknown network {name!r}; there are "
                                 f"{', '.join(models.NETWORKS)}")
    check_public_flags(given, choices, flags)
    keep_rates = [choice.label for choice in choices if not choice.algorithm.plateau]
    if keep_rates and flags["lr_patience"] not in (None, preset["data"].get("lr_patience")):
        falling = ", ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.plateau)
        raise ValueError(f"--lr-patience: {keep_rates[0]} keeps its learning rates; they may fall "
                         f"in {falling}")
    check_attack_flags(given, choices, flags)


def check_public_flags(given, choices, flags):
    """Raises ValueError if the public images are unknown, or do not have the labels needed."""
    uses_public = [choice.label for choice in choices if choice.algorithm.public != "none"]
    known = flags["public"] in (*HELD_OUT, *DATASETS)
    if uses_public and not known and "public" not in given:
        note = f" (--paper {given['paper']} has {flags['public']})" if flags["public"] else ""
        raise ValueError(f"{uses_public[0]} needs public images for {flags['dataset']}: "
                         f"--public NAME or PATH{note}")
    is_foreign = has_foreign_public(flags)
    if flags["joint"] and not is_foreign:
        raise ValueError("--joint needs a foreign public set: --public NAME or PATH")
    # In a joint output layer, labels of another task are labels for FedMD alone.
    served = ("none", "unlabeled", "joint") if flags["joint"] else ("none", "unlabeled")
    unserved = [choice.label for choice in choices if choice.algorithm.public not in served]
    if is_foreign and unserved:
        raise ValueError(f"{', '.join(unserved)}: the public images need labels of the task: "
                         f"--public half or fifth, not {flags['public']}")


def check_attack_flags(given, choices, flags):
    """Raises ValueError for flags of an attack without one, and where nothing can be attacked."""
    if flags["attack"] is None:
        for name in ("attackers", "attack_scale", "attack_z"):
            if name in given:
                raise ValueError(f"{flag_name(name)} has no effect without --attack")
        return
    attacks.check(flags["attack"], flags["clients"], flags["attackers"])
    for choice in choices:
        if not choice.algorithm.can_be_attacked:
            attackable = [name for name, algorithm in ALGORITHMS.items()
                          if algorithm.can_be_attacked]
            raise ValueError(f"--attack: {choice.label} has no uploads to poison; "
                             f"these algorithms have: {', '.join(attackable)}")
