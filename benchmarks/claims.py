"""The papers' claims, judged by the curves in docs/results.

    python benchmarks/claims.py                       writes docs/results/claims.csv
    python benchmarks/claims.py --show fedsdd-014     prints a row: its seeds, arithmetic, commands
    python benchmarks/claims.py --draw                draws the pictures, too (needs matplotlib)

A row of benchmarks/claims.csv: its id, which never changes; what is claimed of a - b (greater,
lower, level, not lower, by `margin` points instead of 1); a and b as FILE/LABEL of
docs/results/FILE.csv, FILE+FILE/LABEL for the runs of both; the paper's two figures and the number
of their table (of two tables: a's, b's), with the paper's name if it is not the method's; first:
the row's words in docs/pictures/claims.svg, if it is there; fixed: the commit that wrote the row
down before the runs of a or of b.

In docs/results/claims.csv `window` last rounds are averaged, `last_` is of the last round, `p`
of the distance to the claim's bound; `holm`: decided after Holm's correction; `not_the_papers`:
settings that the paper lacks, apart from scale.

A reference is an id and, behind each @, another measure of its row: fedsdd-006@25 after 25 rounds,
@last in the last round alone, @best in each run's best round, @10-14 of these seeds, @a and @b of
one side alone, @self_training of this metric, @until-40 the MB until the row's accuracy is 40%.
The pages of docs/ cite figures so.
"""
import argparse
import csv
import re
import sys
from functools import cache
from math import atan, cos, inf, pi, sin, sqrt
from pathlib import Path
from statistics import mean, stdev

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiment import measures, picture
from experiment.runs import read_runs
from experiment.measures import half_width

REPOSITORY = Path(__file__).parents[1]
CURVES, PICTURES = REPOSITORY / "docs" / "results", REPOSITORY / "docs" / "pictures"
SCRIPTS = REPOSITORY / "benchmarks" / "claims"
PAGES = {"fedsdd": "FedSDD", "fedmd": "FedMD", "fedgems": "FedGEM and FedGEMS", "fedgkt": "FedGKT",
         "without-public": "Without public images"}    # docs/results/*.md: the rows of each
CLAIMS = list(csv.DictReader(Path(__file__).with_suffix(".csv").open()))
BY_ID = {claim["id"]: claim for claim in CLAIMS}
COLORS = {"holds": "#0072B2", "open": "#999999", "does not hold": "#D55E00"}   # Okabe and Ito's
SIGNS = "greater", "lower"
NAMES = {"cronus": "Cronus", "dsfl": "DS-FL", "fd": "FD", "fedavg": "FedAvg", "fedbe": "FedBE",
         "feddf": "FedDF", "fedgem": "FedGEM", "fedgems": "FedGEMS", "fedgems-ablations": "FedGEMS",
         "fedgen": "FedGen", "fedgkt": "FedGKT", "fedgkt-async": "FedGKT, asynchronous",
         "fedkd": "FedKD", "fedmd": "FedMD", "fedmd-pooled": "pooled data", "fedntd": "FedNTD",
         "fedproto": "FedProto", "fedprox": "FedProx", "fedsdd": "FedSDD", "fml": "FML",
         "local": "training alone", "public-private": "labels alone", "scaffold": "SCAFFOLD",
         "standalone": "training alone"}
ALPHA_01 = "fedsdd-hetero+fedsdd-hetero-again"
PLOTS = {    # docs/pictures/*.svg: (options of picture.draw, [(words, FILE/LABEL, metric)])
    "fedsdd": ({"last": 5, "bottom": 0.35}, [
        ("FedAvg", f"{ALPHA_01}/last16-half", "accuracy"),
        ("FedSDD's model, R = 4", f"{ALPHA_01}/R4-half", "accuracy"),
        ("FedAvg's last 16 averaged", f"{ALPHA_01}/last16-half", "averaged_accuracy"),
        ("FedSDD's ensemble of 16", f"{ALPHA_01}/R4-half", "ensemble_accuracy")]),
    "fedmd": ({}, [
        ("FedMD", "fedmd-iid/fedmd", "accuracy"),
        ("alone: no digest", "fedmd-iid/alone", "accuracy")]),
    "fedgems-cases": ({"ylabel": "share of the public images"}, [
        ("the server is right: it learns the label", "fedgems/fedgems-0.75", "self_training"),
        ("it was right: it learns its own logits", "fedgems/fedgems-0.75", "self_distillation"),
        ("clients are right: they teach it", "fedgems/fedgems-0.75", "ensemble_distillation"),
        ("nobody is right: it learns the label", "fedgems/fedgems-0.75", "nobody_right")]),
    "fedgkt": ({}, [
        ("FedAvg", "fedgkt-20/fedavg", "accuracy"),
        ("FedGKT, edges with the server", "fedgkt-20/fedgkt", "accuracy"),
        ("FedGKT without the server's logits", "fedgkt-20/none", "accuracy"),
        ("FedGKT, edges alone", "fedgkt-20/fedgkt", "edge_accuracy")]),
    "mnist": ({"bottom": 0.75}, [
        ("FedAvg", "without-public/fedavg", "accuracy"),
        ("SCAFFOLD", "without-public/scaffold", "accuracy"),
        ("FedGen, its code's weight", "without-public/fedgen-code", "accuracy"),
        ("FedDF", "without-public/feddf", "accuracy")])}


# --------------------------------------------------------------------------------------------------
# A row's accuracies and differences

@cache
def curves(file):
    return read_runs([CURVES / f"{file}.csv"])


def runs_behind(side):
    """The runs of "FILE/LABEL"; of "FILE+FILE/LABEL" those of both files."""
    files, label = side.split("/")
    return [run for file in files.split("+") for run in curves(file)[label]]


def window_of(rounds):
    """How many last rounds an accuracy is the mean of."""
    return max(5, rounds // 10)


def accuracies(run, metric, last=None, rounds=None, best=False, until=None):
    """{seed: accuracy in percent}, the mean of the last tenth of the rounds, at least five.

    last      the mean of so many rounds
    rounds    the rounds after these are left out
    best      the highest of a round instead of a mean
    until     megabytes up and down until the accuracy is so many percent, instead
    """
    runs, numbers = runs_behind(run), {}
    rounds = rounds or runs[0].last_round
    for one in (one.up_to(rounds) for one in runs):
        if until:
            numbers[one.seed] = measures.megabytes_until(one, metric, until / 100)
        elif best:
            numbers[one.seed] = measures.best(one, metric)
        else:
            numbers[one.seed] = measures.mean_of_last(one, metric, last or window_of(rounds))
    scale = 100 if runs[0].is_share(metric) and not until else 1
    return {seed: scale * x for seed, x in numbers.items() if x is not None}


def pairs(claim, last=None, seeds=range(100), **measure):
    """{seed: (a's accuracy, b's)} of those of the `seeds` that both have, in percent."""
    a = accuracies(claim["row"], claim["metric"], last, **measure)
    b = accuracies(claim["base"], claim["base_metric"], last, **measure)
    return {seed: (a[seed], b[seed]) for seed in a if seed in b and seed in seeds}


def differences(claim, *args, **kwargs):
    """[a minus b, in points] of each seed of `pairs`."""
    return [a - b for a, b in pairs(claim, *args, **kwargs).values()]


def measured(reference):
    """A reference's row, "a" or "b" if it is of this side alone, and its arguments of `pairs`."""
    name, *options = reference.split("@")
    claim, side, measure = BY_ID[name], None, {}
    for option in options:
        if option in ("a", "b"):
            side = option
        elif option == "last":
            measure["last"] = 1
        elif option == "best":
            measure["best"] = True
        elif re.fullmatch(r"\d+-\d+", option):
            first, last = map(int, option.split("-"))
            measure["seeds"] = range(first, last + 1)
        elif option.isdigit():
            measure["rounds"] = int(option)
        else:
            if option.startswith("until-"):
                measure["until"] = int(option.removeprefix("until-"))
            else:
                claim = claim | {"metric": option, "base_metric": option}
            if side == "a":                                  # the other may not have it
                claim = claim | {"base": claim["row"], "base_metric": claim["metric"]}
            if side == "b":
                claim = claim | {"row": claim["base"], "metric": claim["base_metric"]}
    return claim, side, measure


def values(reference):
    """What is averaged over the seeds for a reference: differences, or the accuracies of a side."""
    claim, side, measure = measured(reference)
    found = pairs(claim, **measure).values()
    return [{"a": a, "b": b, None: a - b}[side] for a, b in found]


# --------------------------------------------------------------------------------------------------
# Verdicts

def bounds(claim):
    """Where the range of a claim begins and ends, in points."""
    margin = float(claim["margin"] or 1)
    return {"greater": (0, inf), "lower": (-inf, 0), "not lower": (-margin, inf),
            "level": (-margin, margin)}[claim["claimed"]]


def verdict(claim, points):
    """Where the 95% interval of the differences' mean lies: in the range of the claim, or not."""
    width = half_width(points)
    low, high = mean(points) - width, mean(points) + width
    start, end = bounds(claim)
    if start < low and high < end:
        return "holds"
    return "does not hold" if high < start or low > end else "open"


def diverged(claim):
    """Whether a run of either side ends below half of its own best accuracy."""
    for run, metric in (claim["row"], claim["metric"]), (claim["base"], claim["base_metric"]):
        end, top = accuracies(run, metric), accuracies(run, metric, best=True)
        if any(end[seed] < top[seed] / 2 for seed in end):
            return True
    return False


def judged(claim, last=None):
    """The row's verdict; `last`: by the mean of so many rounds."""
    return "diverged" if diverged(claim) else verdict(claim, differences(claim, last))


def t_probability(t, n):
    """Of |T| < t for Student's t of n degrees of freedom.

    A sum of powers of cos(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle, odd = atan(t / sqrt(n)), n % 2
    terms = [cos(angle) if odd else 1.0]
    for j in range(2 + odd, n, 2):
        terms.append(terms[-1] * cos(angle)**2 * (j - 1) / j)
    found = sin(angle) * sum(terms) * (n > 1)
    return 2 / pi * (angle + found) if odd else found


def p_value(claim, points):
    """The share of the intervals of 1 - p that would just reach an end of the claim's range.

    It is below 0.05 if the claim is not open: Student's t of the mean's distance to the end.
    """
    distance = min(abs(mean(points) - end) for end in bounds(claim))
    t = distance / (stdev(points) / sqrt(len(points)))
    return 1 - t_probability(t, len(points) - 1)


def survivors(p_values):
    """The indices of those that Holm's correction leaves below 0.05.

    The smallest of n must be below 0.05 / n, the next below 0.05 / (n - 1), until one is not.
    """
    order, n = sorted(range(len(p_values)), key=p_values.__getitem__), len(p_values)
    failed = [i for i in range(n) if p_values[order[i]] >= 0.05 / (n - i)]
    return {*order[:min(failed, default=n)]}


@cache
def holm():
    """The ids of the rows whose verdict Holm's correction for all rows leaves."""
    kept = survivors([p_value(claim, differences(claim)) for claim in CLAIMS])
    return {CLAIMS[i]["id"] for i in kept if not diverged(CLAIMS[i])}


# --------------------------------------------------------------------------------------------------
# What else a row says

def papers_difference(claim):
    return float(claim["paper_row"]) - float(claim["paper_base"]) if claim["paper_row"] else None


def page_of(claim):
    """The page, and the script, of a row: those of the part that made it."""
    part = claim["row"].split("/")[0]
    part = {"attacks": "fedgems", "own-models": "without-public"}.get(part, part)
    return next(page for page in PAGES if part.startswith(page))


def networks(run, metric):
    """How many networks answer together, by the mean of their logits."""
    first = runs_behind(run)[0]
    settings, active = first.head["settings"], 0
    if metric != "ensemble_accuracy":
        return 1
    active = round(settings["participation"] * settings["clients"])
    if first.head["algo"] == "fedbe":
        return settings["samples"] + active + 1              # the clients' models and their average
    return active if settings.get("ensemble") == "clients" else settings["K"] * settings["R"]


def in_words(side, metric):
    """What "FILE/LABEL" is: method, whose accuracy, settings; labels are names of old folders."""
    run = runs_behind(side)[0]
    algo, settings = run.head["algo"], run.head["settings"]
    method = [NAMES.get(algo)]
    if algo == "fedsdd-ablations":
        local = NAMES[settings["local"]]
        if settings["K"] == 1 and settings["students"] == "none":
            method = [local]
        else:
            method = ["FedSDD", *{"none": ["no distillation"], "all": ["all models distilled"]}.get(
                settings["students"], []), *[f"{local}'s local training"] * (local != "FedAvg")]
    if algo == "fedgem" and settings["epsilon"] == 1:
        method = ["labels alone"]
    if algo == "fedmd" and not settings["joint"] and settings["transfer_public_epochs"]:
        method.append("with the public labels")
    if algo == "public-private":
        method.append(f"{settings['public_epochs']} passes a round")
    if algo == "fedmd" and settings["public_epochs"] == 0:
        method.append("without digest")
    method += [f"without {part.replace('_', ' ')}" for part in (
        "self_training", "self_distillation", "ensemble_distillation")
        if algo == "fedgems-ablations" and settings.get(part) is False]
    if algo.startswith("fedgkt"):
        method += ["no logits of the server"] * (settings.get("client_distill") is False)
        method += ["logits both ways"] * bool(settings.get("server_distill"))
    if algo == "fedgen" and settings.get("generated_weight_decay", 1) != 1:
        method.append("its code's weight")
    if side.split("/")[0].endswith("-all"):
        method.append("clients hold the public images, too")

    scores = run.head["scores"]
    whose, images = scores.get(metric.removesuffix("_own")) or next(iter(scores.values()))
    whose += ", own classes" * ("own classes" in images)
    if metric == "averaged_accuracy":
        whose = f"weights averaged over {settings['K'] * settings['R']} rounds"
    elif metric == "ensemble_accuracy":
        whose = f"{networks(side, metric)} networks together"
        if settings.get("ensemble") == "clients":
            whose = whose.replace("networks", "clients of a round")
    elif metric == "client_accuracy_own":
        whose = "clients"
    whose += ", own classes" * (metric.endswith("_own") and "own classes" not in whose)

    told = ["iid" if settings["partition"] == "iid" else f"α {settings['alpha']}"
            if settings["partition"].startswith("dirichlet") else settings["partition"]]
    told += [f"R = {settings.get('R')}"] * (method[0] == "FedSDD")
    told += [f"ε {settings.get('epsilon')}"] * (method[0] in ("FedGEM", "FedGEMS"))
    told += [f"rate {settings['lr']}", f"{len(run.rows) - 1} rounds"]
    told += [str(settings.get("attack")).upper()] * bool(settings.get("attack"))
    told += ["augmented"] * bool(settings.get("augment"))
    told += ["mixed order"] * (settings.get("server_order") == "mixed")
    return "; ".join(", ".join(part) for part in (method, [whose], told))


def our_settings(claim):
    """What of a row's setting the paper does not have, apart from its scale; "" if nothing."""
    found, page = [], page_of(claim)
    for side in ("row", "base"):
        run = runs_behind(claim[side])[0]
        settings = run.head["settings"]
        if "glyphs" in settings["dataset"] or "writers" in claim[side]:
            found.append("data")
        elif page in ("fedsdd", "fedgems") and not settings.get("augment"):
            found.append("not augmented")
        if page == "fedsdd" and "data" not in found and claim["paper_table"]:
            found.append("public images of CIFAR-10")
        if page == "fedsdd" and settings.get("lr") in (0.05, 0.025):
            found.append(f"learning rate {settings['lr']}")
        if page == "fedgems" and settings.get("epsilon") == 0.1 and (
                run.head["algo"] != "fedgems" or settings["partition"] != "iid"):
            found.append("epsilon 0.1")
        if page == "fedgems" and len({*settings["model"]}) > 1:
            found.append("four networks, the paper has eight")
        if page == "fedgems" and settings.get("attack"):
            found.append("size of the attack")
        if page == "fedgkt" and len(run.rows) - 1 == 8:
            found.append("passes")
        if settings.get("server_order") == "mixed":
            found.append("mixed order")
    return ", ".join(dict.fromkeys(found))


def cpu_recorded(claim):
    known = [side for side, run in (("a", "row"), ("b", "base"))
             if all(one.head["environment"].get("cpu") for one in runs_behind(claim[run]))]
    return "both" if len(known) == 2 else "".join(known) or "none"


def as_row(claim):
    """A row of docs/results/claims.csv."""
    by_seed, paper = pairs(claim), papers_difference(claim)
    points, at_the_end = differences(claim), differences(claim, last=1)
    rounds = len(runs_behind(claim["row"])[0].rows) - 1
    return {
        "id": claim["id"], "claim": claim["claim"], "setting": claim["setting"],
        "mean": f"{mean(points):+.2f}",
        "half_width": f"{half_width(points):.2f}",
        "verdict": judged(claim),
        "a_mean": f"{mean(a for a, _ in by_seed.values()):.2f}",
        "b_mean": f"{mean(b for _, b in by_seed.values()):.2f}",
        "last_mean": f"{mean(at_the_end):+.2f}",
        "last_half_width": f"{half_width(at_the_end):.2f}",
        "last_verdict": judged(claim, last=1),
        "seeds": " ".join(map(str, by_seed)),
        "a_minus_b": " ".join(f"{x:+.2f}" for x in points),
        "a_is": in_words(claim["row"], claim["metric"]),
        "b_is": in_words(claim["base"], claim["base_metric"]),
        "a": claim["row"], "a_metric": claim["metric"], "a_networks": networks(
            claim["row"], claim["metric"]),
        "b": claim["base"], "b_metric": claim["base_metric"], "b_networks": networks(
            claim["base"], claim["base_metric"]),
        "rounds": rounds, "window": window_of(rounds), "claimed": claim["claimed"],
        "margin": "" if claim["claimed"] in SIGNS else claim["margin"] or "1",
        "p": f"{p_value(claim, points):.2g}", "holm": "yes" if claim["id"] in holm() else "no",
        "paper": "" if paper is None else f"{paper:+.2f}", "paper_table": claim["paper_table"],
        "not_the_papers": our_settings(claim), "written_down": claim["fixed"],
        "cpu_recorded": cpu_recorded(claim)}


def write(path):
    with path.open("w", newline="") as file:
        rows = [*map(as_row, CLAIMS)]
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


# --------------------------------------------------------------------------------------------------
# Counts that the pages tell

def counts():
    """{what: how many rows}."""
    found = [(claim, judged(claim), judged(claim, last=1)) for claim in CLAIMS]
    directed = [claim for claim in CLAIMS if claim["claimed"] in SIGNS]
    fives = [[verdict(claim, differences(claim, seeds=range(*ends)))
              for ends in [(10, 15), (15, 20)]]
             for claim in CLAIMS if len(differences(claim, seeds=range(15, 20))) == 5]
    first = [(one, other) for one, other in fives if one != "open"]
    return {"rows": len(CLAIMS), **{name: sum(x == name for _, x, _ in found) for name in (
                "holds", "open", "does not hold", "diverged")},
            "changed by the last round": sum(x != y for _, x, y in found),
            "directed": len(directed), "by chance": round(len(directed) / 20),
            "holm": sum(claim["id"] in holm() for claim in directed),
            "decided by the first five": len(first),
            "by the second five alike": sum(x == y for x, y in first),
            "by the second five otherwise": sum("open" != y != x for x, y in first)}


# --------------------------------------------------------------------------------------------------
# What the command prints and draws

def interval(points, sign="+"):
    """Mean and half of its 95% interval, as the pages write it; sign "": of an accuracy."""
    found = f"{mean(points):{sign}.2f} ± {half_width(points):.2f}"
    return found[1:] if found.startswith(("+0.00", "-0.00")) else found


def figure(reference):
    """What the pages write for a reference."""
    options = reference.split("@")[1:]
    return interval(values(reference), "" if {"a", "b"} & {*options} else "+")


def commands(claim):
    """The commands that make the runs of a row, a part of a script each."""
    of_part = {}
    for side in ("row", "base"):
        files, label = claim[side].split("/")
        for part in files.split("+"):
            of_part.setdefault(part, []).append(label)
    script, seeds = SCRIPTS / f"{page_of(claim)}.sh", pairs(claim)
    file = "" if script.stem == "fedmd" else " FILE.npz"
    lines = []
    for part, labels in of_part.items():
        of_side = [seed for seed in seeds if any(
            run.seed == seed for label in labels for run in curves(part)[label])]
        lines.append(f'SEEDS="{" ".join(map(str, of_side))}" '
                     f'METHODS="{" ".join(dict.fromkeys(labels))}" '
                     f"benchmarks/claims/{script.name}{file} {part}")
    return lines


def in_what(measure, rounds):
    """What the numbers of a reference are, by its arguments of `pairs`."""
    if measure.get("until"):
        return f"Megabytes until an accuracy of {measure['until']}%"
    if measure.get("best"):
        return "Best round of each run, in percent"
    rounds = measure.get("rounds", rounds)
    first = rounds + 1 - measure.get("last", window_of(rounds))
    return f"Mean of rounds {first} to {rounds}, in percent" if first < rounds else (
        f"Round {rounds}, in percent")


def show(reference):
    """Prints a row, or a reference to it: its sides, pairs, arithmetic, and the row's commands."""
    claim, side, measure = measured(reference)
    row, by_seed, points = as_row(BY_ID[claim["id"]]), pairs(claim, **measure), values(reference)
    print(f"{reference}: {claim['claim']}; {claim['setting']}\n")
    for x, run, metric in ("a", "row", "metric"), ("b", "base", "base_metric"):
        if side in (x, None):
            print(f"{x} = {row[f'{x}_is']}\n    ({claim[run]}, {claim[metric]})")
    print(f"\n{in_what(measure, row['rounds'])}.")
    if side:
        print(f"seed       {side}", *(f"{seed:4} {x:7.2f}" for seed, x in zip(by_seed, points)),
              sep="\n")
    else:
        print("seed       a       b   a - b")
        for seed, (a, b) in by_seed.items():
            print(f"{seed:4} {a:7.2f} {b:7.2f} {a - b:+7.2f}")
    n, deviation = len(points), stdev(points)
    t = half_width(points) / deviation * sqrt(n)
    print(f"mean {figure(reference)}, where {half_width(points):.2f} = "
          f"{t:.3f} x {deviation:.3f} / sqrt({n})")
    if not side:
        low, high = bounds(claim)
        print(f"Claimed: a - b between {low:g} and {high:g}: {verdict(claim, points)}, "
              f"p = {p_value(claim, points):.2g}")
    print(f"\nThe row: {row['mean']} ± {row['half_width']}: {row['verdict']}"
          f"\nLast round alone: {row['last_mean']} ± {row['last_half_width']}: "
          f"{row['last_verdict']}"
          f"\nLeft by Holm's correction for {len(CLAIMS)} rows: {row['holm']}")
    if row["paper"]:
        print(f"The paper: {row['paper']} (table {row['paper_table']})")
    if row["not_the_papers"]:
        print(f"Not the paper's, apart from scale: {row['not_the_papers']}")
    if row["written_down"]:
        print(f"Written down before the runs of a or b: commit {row['written_down']}")
    print("\nIts runs:", *commands(BY_ID[claim["id"]]), sep="\n")


def draw(path):
    """Draws the rows that have `first`, in groups by paper: their words, and beside them marks."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    lines, groups = [], {name: [] for name in PAGES.values()}
    for claim in [claim for claim in CLAIMS if claim["first"]]:
        groups["FedMD" if claim["first"].startswith("FedMD") else PAGES[page_of(claim)]].append(
            claim)
    for name, found in groups.items():                   # a method's name alone, then its rows
        lines += [{"name": name}, *found] if found else []
    figure = Figure(figsize=(9, 0.24 * len(lines) + 1), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.2)            # a reader's font may be wider
    ax = figure.subplots()
    texts = []
    for y, claim in enumerate(lines):
        if "name" in claim:
            texts.append(claim["name"])
            continue
        points = differences(claim)
        texts.append(f"{claim['first']} (n = {len(points)})")
        color, middle, width = COLORS[judged(claim)], mean(points), half_width(points)
        ax.plot([middle - width, middle + width], [y, y], color=color, linewidth=2, alpha=0.6)
        ax.plot(points, [y] * len(points), "o", color=color, markersize=2.5, alpha=0.6)
        ax.plot(middle, y, "o", color=color, markersize=6)
        if claim["paper_row"]:
            ax.plot(papers_difference(claim), y, "v", color="black", fillstyle="none")
        for bound in bounds(claim):                      # 0 is drawn for all, infinity is none
            if bound and abs(bound) < inf:
                ax.plot([bound, bound], [y - 0.3, y + 0.3], color="black", linewidth=1)
    ax.axvline(0, color="black", linewidth=0.8, zorder=0)
    ax.set_xscale("symlog", linthresh=1, linscale=0.8)   # as far from 0 to 1 as from 1 to 6
    ticks = [-50, -10, -3, -1, 0, 1, 3, 10, 50]
    ax.set_xticks(ticks, [f"{x:+d}" if x else "0" for x in ticks])
    ax.set_xticks([], minor=True)
    ax.set_yticks(range(len(lines)), texts, fontsize=9)
    for label, line in zip(ax.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if "name" in line else None)
    ax.grid(axis="x", color="0.9", linewidth=0.6)
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(-70, 70), ylim=(len(lines) - 0.4, -0.6))
    ax.set_xlabel("points, logarithmic beyond 1")
    for name, color in COLORS.items():
        ax.plot([], [], "o", color=color, label=name)
    ax.plot([], [], "v", color="black", fillstyle="none", label="the paper")
    ax.plot([], [], "|", color="black", label="bound, if not 0")
    figure.legend(loc="outside upper center", ncols=5, frameon=False)
    with rc_context({"svg.hashsalt": "claims", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None, "Description": drawn()})


def drawn():
    """The rows of the picture, as text, so that a test sees whether it is of today's curves."""
    return "\n".join(f"{claim['id']} {claim['first']}: {interval(differences(claim))}, "
                     f"{judged(claim)}" for claim in CLAIMS if claim["first"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", metavar="ID", help="print this row alone, for example fedsdd-014")
    parser.add_argument("--draw", action="store_true", help="draw the pictures, too")
    args = parser.parse_args()
    if args.show:
        if args.show.split("@")[0] not in BY_ID:
            parser.error(f"--show: there is no row {args.show}; benchmarks/claims.csv has them")
        show(args.show)
        sys.exit()
    write(CURVES / "claims.csv")
    if args.draw:
        draw(PICTURES / "claims.svg")
        for name, (options, lines) in PLOTS.items():
            named = [(f"{words} (n = {len(runs_behind(side))})", runs_behind(side), metric)
                     for words, side, metric in lines]
            picture.draw(named, PICTURES / f"{name}.svg", **options)
