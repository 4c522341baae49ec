"""The plan of a command: all that decides its numbers, from flags, presets and defaults."""
from dataclasses import dataclass
from pathlib import Path

import torch

import attacks
import models
from algorithms import ALGORITHMS
from data.load import DATASETS, TORCHVISION
from experiment import flags, keep, processes
from experiment.build import has_foreign_public
from experiment.presets import EMBEDDED, HELD_OUT, PAPER, PUBLIC_SETS, QUICK_START
from federation.parallel import count_active

NETWORKS = ("model", "server_model")         # these flags may differ between the algorithms
DEFAULTS = {flag.name: flag.default for flag in flags.FEDERATION_FLAGS}
# Networks for a minute on a CPU, so small that more than one thread does not make them faster.
SMALL = {"cnn", "cnn_large", "cnn_6_16", "mlp", "gkt_edge_small", "gkt_server_small",
         "gkt_full_small", "mini0", "mini9", *models.MINI}


@dataclass
class Plan:
    """What a command runs."""

    argv: list              # its words, with absolute paths and without --out and --resume
    given: dict             # {flag: value} of all flags that were given
    folder: Path | None     # where it is kept; None: nowhere
    is_new: bool            # False: with --resume
    algorithms: dict        # {label: Algorithm}; the label is the word of --algo
    seeds: list
    flags: dict             # of the federation: {name: value}, all but the networks'
    networks: dict          # {label: {"model": [...], "server_model": ...}}
    settings: dict          # {label: {name: value}}: the hyperparameters, the keywords of `run`
    environment: dict       # what the machine decides, once for a run: device, threads, amp; torch

    @property
    def most_clients(self):
        """The largest number of clients in a round of one of the algorithms."""
        return max(count_active(self.flags["clients"], settings.get("participation", 1.0))
                   for settings in self.settings.values())

    def scores(self, label):
        """{accuracy metric: whose accuracy it is}; the first is the algorithm's headline.

        Where half of the test set is public, a server that reads images is scored on that half, and
        everything else on the other.
        """
        algorithm = self.algorithms[label]
        if self.flags["public"] != "half":
            return algorithm.scores
        on_public = {"server_accuracy"} if algorithm.server == "images" else set()
        return {name: f"{whose}, {'public' if name in on_public else 'private'} half"
                for name, whose in algorithm.scores.items()}


def plan_of(argv, about=""):
    """The `Plan` of a command line; with --resume, of the command that is kept and these words.

    Raises ValueError, or ends the program, for bad input.
    """
    labels, folder, others = flags.who(argv)
    is_new = folder is None
    if not is_new:
        started, *whole = keep.command(folder)
        labels, _, others = flags.who([*started, *argv])
    given, algorithms, words = flags.given(labels, others, about)
    seeds = given.get("seeds", [0])
    if not is_new and whole != [labels, seeds]:
        raise ValueError(f"{folder} does not hold all runs of this command: --resume takes the "
                         "folder of a command, with all of its algorithms and seeds")
    if not is_new and "out" in given:
        raise ValueError("--resume DIR goes on in DIR, and takes no --out")
    folder = folder or given.pop("out", None)
    raised = not is_new and any(word.split("=")[0] == "--rounds" for word in argv)
    settings, networks = {}, {}
    for label, algorithm in algorithms.items():
        if raised:                               # also those that a word of --algo has
            words[label].pop("rounds", None)
        found = merged(given, algorithm, words[label])
        settings[label] = {name: found[name] for name in algorithm.hyperparameters}
        networks[label] = {name: found[name] for name in NETWORKS}
    of_federation = federation_flags(given, algorithms, settings)
    check(given, algorithms, of_federation, networks)
    if {of_federation["dataset"], of_federation["public"]} & TORCHVISION.keys():
        root = str(Path(of_federation["data_root"]).absolute())
        of_federation["data_root"] = given["data_root"] = root   # --resume may be called elsewhere
    return Plan(flags.words(given), given, folder, is_new, algorithms,
                seeds, of_federation, networks, settings,
                environment(given, of_federation, networks))


# ---------------------------------------------------------------------------------------- the merge

def merged(given, algorithm, words):
    """{name: value} of an algorithm: defaults, the preset, flags, words; a later one wins.

    given    the flags
    words    its hyperparameters in --algo
    """
    preset, found = preset_of(given), dict(DEFAULTS)
    found |= {name: parameter.default for name, parameter in algorithm.hyperparameters.items()}
    for table in (preset["data"], preset.get(entry(preset, algorithm), {}), given, words):
        if "local_epochs" in table:          # it wins over the local_steps of the tables before
            found["local_steps"] = None
        found |= table
    return found


def preset_of(given):
    """The preset of --paper, or QUICK_START without --paper."""
    return PAPER[given["paper"]] if "paper" in given else QUICK_START


def entry(preset, algorithm):
    """The preset's key for an algorithm: its name, or the name of the one that it is like."""
    return algorithm.name if algorithm.name in preset else algorithm.like


def federation_flags(given, algorithms, settings):
    """The federation's flags; those whose default depends on others are filled in here."""
    found = DEFAULTS | preset_of(given)["data"] | given
    found = {name: found[name] for name in DEFAULTS if name not in NETWORKS}
    public_uses = {algorithm.public for algorithm in algorithms.values()} - {"none"}
    if found["public"] is None and public_uses:
        found["public"] = default_public(found, public_uses)
    if found["joint"] is None:
        found["joint"] = has_foreign_public(found) and "joint" in public_uses
    needs = [algorithm.needs_validation(settings[label]) for label, algorithm in algorithms.items()]
    if found["validation"] is None and (any(needs) or found["lr_patience"] is not None):
        found["validation"] = 0.1
    if found["attack"] is not None and found["attackers"] is None:
        found["attackers"] = 2 if found["attack"] == "ofom" else 1
    if found["attack"] is not None and found["attack_scale"] is None:
        found["attack_scale"] = 10.0
    return found


def default_public(found, public_uses):
    """The public images without --public; None if the paper's set is not known for this task."""
    if "labeled" in public_uses:
        return "half"
    foreign_sets = PUBLIC_SETS.get(found["paper"], {})
    if found["paper"] or "joint" in public_uses:         # the letters, or digits for the letters
        foreign_sets = EMBEDDED | foreign_sets
    held_out = None if found["paper"] else "fifth"       # --paper holds out what the paper does
    return foreign_sets.get(found["dataset"], held_out)


def environment(given, found, networks):
    """What this machine decides for a new run, where no flag does."""
    device = given.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    names = {name for own in networks.values() for name in own["model"]}
    threads = given.get("threads", 1 if names <= SMALL else processes.num_cores())
    amp = found["amp"]
    if amp and device == "cpu" and not processes.cpu_has_bfloat16():
        processes.say("--amp: this CPU has no bfloat16 arithmetic, so a new run uses float32")
        amp = False
    return {"torch": torch.__version__, "device": device, "threads": threads, "amp": amp}


# ----------------------------------------------------------------------------------------- checks

def check(given, algorithms, found, networks):
    """Raises ValueError, with a message of one line, for flags that do not go together."""
    preset = preset_of(given)
    for label, algorithm in algorithms.items():
        if algorithm.like not in ("", *ALGORITHMS):
            raise ValueError(f"{algorithm.name} is like {algorithm.like!r}, which is no algorithm")
        if "paper" in given and entry(preset, algorithm) not in preset:
            available = ", ".join(name for name in preset if name in ALGORITHMS)
            raise ValueError(f"--paper {given['paper']} has no {label}; it has {available}")
    if "seeds" in given and len(set(given["seeds"])) < len(given["seeds"]):
        raise ValueError("--seeds names a seed twice")
    if "save_model" in given and len(algorithms) * len(given.get("seeds", [0])) > 1:
        raise ValueError("--save-model is for one algorithm and one seed")
    for own in networks.values():
        for name in [*own["model"], own["server_model"]]:
            if name not in models.NETWORKS:
                raise ValueError(f"unknown network {name!r}{flags.similar(name, models.NETWORKS)}; "
                                 f"there are {', '.join(models.NETWORKS)}")
    check_public_flags(given, algorithms, found)
    keep_rates = [label for label, algorithm in algorithms.items() if not algorithm.plateau]
    if keep_rates and found["lr_patience"] not in (None, preset["data"].get("lr_patience")):
        falling = ", ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.plateau)
        raise ValueError(f"--lr-patience: {keep_rates[0]} keeps its learning rates; they may fall "
                         f"in {falling}")
    check_attack_flags(given, algorithms, found)


def check_public_flags(given, algorithms, found):
    """Raises ValueError if the public images are unknown, or do not have the labels needed."""
    uses_public = [label for label, algorithm in algorithms.items() if algorithm.public != "none"]
    known = found["public"] in (*HELD_OUT, *DATASETS)
    if uses_public and not known and "public" not in given:
        note = f" (--paper {given['paper']} has {found['public']})" if found["public"] else ""
        raise ValueError(f"{uses_public[0]} needs public images for {found['dataset']}: "
                         f"--public NAME or PATH{note}")
    is_foreign = has_foreign_public(found)
    if found["joint"] and not is_foreign:
        raise ValueError("--joint needs a foreign public set: --public NAME or PATH")
    # In a joint output layer, labels of another task are labels for FedMD alone.
    served = ("none", "unlabeled", "joint") if found["joint"] else ("none", "unlabeled")
    unserved = [label for label, algorithm in algorithms.items() if algorithm.public not in served]
    if is_foreign and unserved:
        raise ValueError(f"{', '.join(unserved)}: the public images need labels of the task: "
                         f"--public half or fifth, not {found['public']}")


def check_attack_flags(given, algorithms, found):
    """Raises ValueError for flags of an attack without one, and where nothing can be attacked."""
    used_by = {"attackers": attacks.ATTACKS, "attack_scale": ("paf", "ofom"), "attack_z": ("lie",)}
    for name, kinds in used_by.items():
        if name in given and found["attack"] not in kinds:
            raise ValueError(f"{flags.flag_name(name)} has no effect without --attack "
                             f"{' or '.join(kinds)}")
    if found["attack"] is None:
        return
    attacks.check(found["attack"], found["clients"], found["attackers"])
    for label, algorithm in algorithms.items():
        if not algorithm.can_be_attacked:
            attackable = [name for name, algorithm in ALGORITHMS.items()
                          if algorithm.can_be_attacked]
            raise ValueError(f"--attack: {label} has no uploads to poison; "
                             f"these algorithms have: {', '.join(attackable)}")
