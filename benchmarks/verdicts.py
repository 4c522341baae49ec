"""The papers' claims against the figures in docs/results: the table and the picture of RESULTS.md.

    python benchmarks/verdicts.py                  prints the table in Markdown
    python benchmarks/verdicts.py --write          puts it into docs/RESULTS.md
    python benchmarks/verdicts.py --draw           draws docs/pictures/claims.svg (needs matplotlib)

A new claim is one more `Claim` in CLAIMS. Its rows must be in a table of docs/results/FILE.txt, as
experiment/plot.py prints it.
"""
import argparse
import re
import statistics
from functools import cache
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "results" / "claims.md"
PICTURE = DOCS / "pictures" / "claims.svg"
START, END = "<!-- verdicts.py --write replaces what follows -->\n", "<!-- until here -->\n"


class Claim(NamedTuple):
    """The row's accuracy minus the base's is greater than 0, lower, level, or not lower."""
    claim: str
    regime: str
    claimed: str                     # greater, lower, level, not lower
    file: str                        # of docs/results, without .txt
    row: str
    base: str
    metric: str = "accuracy"
    base_metric: str = "accuracy"
    round: int | None = None         # the last round of the runs if None
    paper: tuple = ()                # the paper's figures: of the base, of the row
    source: str = ""                 # the paper's table
    acts: bool = True                # False: what is claimed to help hardly acts here


MODEL = "FedSDD's model is above FedAvg's"
ENSEMBLE = "FedSDD's ensemble is above FedAvg's model"
DISTILLATION = "Distillation improves FedSDD's model"
KEEPS = "One distilled model keeps the ensemble"
UNDISTILLED = "Ensemble of K = 4 above FedAvg's clients'"
SAMPLES = "FedBE's samples add nothing to clients"
SPOILS = "All K distilled is worse for the ensemble"
R_MODEL = "R = 4's model is above R = 1's"
R_ENSEMBLE = "R = 4's ensemble is above R = 1's"
GEM_SERVER = "FedGEM's server is above labels alone"
GEMS_SERVER = "FedGEMS's server is above labels alone"
SELECTION = "Selection (FedGEMS) is above the mean"
GEM_CLIENTS = "FedGEM's clients are above labels alone"
GEMS_CLIENTS = "FedGEMS's clients above labels alone"
OTHERS = "FedGEMS's clients are above those of"
PARTS = "FedGEMS's server is worse without"
HARM = "Attacks harm FedMD and DS-FL"
HARM_GEM = "PAF harms FedGEM's server"
WITHSTANDS = "FedGEMS's server withstands PAF"
REACHES = "FedGKT is not below FedAvg of the network"
LOGITS = "The server's logits help the edges"
ASYNC = "Asynchronous is level with synchronous"

SHORT = "CIFAR-10, alpha 1.0, 30 rounds"
SERVER = ("server_accuracy",) * 2
DISTILLED = ("client_accuracy_distilled",) * 2
PRIVATE = ("client_accuracy_private",) * 2
EDGE = ("edge_accuracy",) * 2
ENSEMBLES = ("ensemble_accuracy",) * 2
ENSEMBLE_MODEL = ("ensemble_accuracy", "accuracy")

CLAIMS = {                           # {page of docs/results: (title, claims)}
    "fedsdd": ("FedSDD", [
        Claim(MODEL, "CIFAR-10, alpha 1.0", "greater", "fedsdd", "R4", "fedavg",
              paper=(88.53, 89.01), source="Table 2"),
        Claim(MODEL, "CIFAR-10, alpha 0.1, round 25", "greater", "fedsdd-hetero", "R4", "fedavg",
              round=25, paper=(78.72, 82.21), source="Table 2"),
        Claim(MODEL, "CIFAR-10, alpha 0.1, round 50", "greater", "fedsdd-hetero", "R4", "fedavg",
              round=50, paper=(78.72, 82.21), source="Table 2"),
        Claim(MODEL, "CIFAR-10, alpha 0.1, round 100", "greater", "fedsdd-hetero", "R4", "fedavg",
              paper=(78.72, 82.21), source="Table 2"),
        Claim(MODEL, "MNIST, alpha 0.1", "greater", "fedgen", "R4", "fedavg",
              paper=(78.72, 82.21), source="Table 2"),
        Claim(MODEL, "digits, alpha 0.1", "greater", "quick-start", "fifth/fedsdd:R=4",
              "fifth/fedavg", paper=(78.72, 82.21), source="Table 2"),
        Claim(MODEL, "digits, alpha 0.5", "greater", "quick-start", "default/fedsdd:R=4",
              "default/fedavg"),
        Claim(ENSEMBLE, "CIFAR-10, alpha 1.0", "greater", "fedsdd", "R4", "fedavg",
              *ENSEMBLE_MODEL, paper=(88.53, 90.31), source="Table 6"),
        Claim(ENSEMBLE, "CIFAR-10, alpha 0.1, round 100", "greater", "fedsdd-hetero", "R4",
              "fedavg", *ENSEMBLE_MODEL, paper=(78.72, 83.99), source="Table 5"),
        Claim(ENSEMBLE, "MNIST, alpha 0.1", "greater", "fedgen", "R4", "fedavg",
              *ENSEMBLE_MODEL, paper=(78.72, 83.99), source="Table 5"),
        Claim(ENSEMBLE, "digits, alpha 0.1", "greater", "quick-start", "fifth/fedsdd:R=4",
              "fifth/fedavg", *ENSEMBLE_MODEL, paper=(78.72, 83.99), source="Table 5"),
        Claim(ENSEMBLE, "digits, alpha 0.5", "greater", "quick-start", "default/fedsdd:R=4",
              "default/fedavg", *ENSEMBLE_MODEL),
        Claim("FedSDD's ensemble is above its own model", "CIFAR-10, alpha 1.0", "greater",
              "fedsdd", "R4", "R4", *ENSEMBLE_MODEL, paper=(89.06, 90.31), source="Table 6"),
        Claim(DISTILLATION, "CIFAR-10, alpha 1.0", "greater", "fedsdd", "R4", "none-R4",
              paper=(86.69, 89.06), source="Table 6"),
        Claim(DISTILLATION, f"{SHORT}, R = 1", "greater", "ablations", "R1",
              "none", paper=(86.69, 89.06), source="Table 6"),
        Claim(DISTILLATION, "CIFAR-10, alpha 0.1, round 100", "greater", "fedsdd-hetero", "R4",
              "none-R4", paper=(70.74, 80.18), source="Table 6"),
        Claim(KEEPS, f"{SHORT}, R = 1", "level", "ablations", "R1", "none",
              *ENSEMBLES, paper=(90.58, 90.31), source="Table 6"),
        Claim(KEEPS, "CIFAR-10, alpha 1.0", "level", "fedsdd", "R4", "none-R4",
              *ENSEMBLES, paper=(90.58, 90.31), source="Table 6"),
        Claim(SPOILS, "CIFAR-10, public CIFAR-10, 10 passes", "lower", "ablations", "all", "R1",
              *ENSEMBLES, paper=(90.31, 89.23), source="Table 6"),
        Claim(SPOILS, "letters, public letters", "lower", "fedsdd-all", "all-26", "one-26",
              *ENSEMBLES, paper=(90.31, 89.23), source="Table 6"),
        Claim(SPOILS, "letters, public digits", "lower", "fedsdd-all", "all-26-digits",
              "one-26-digits", *ENSEMBLES, paper=(90.31, 89.23), source="Table 6"),
        Claim(SPOILS, "MNIST, public MNIST", "lower", "fedsdd-all-mnist", "all", "one",
              *ENSEMBLES, paper=(90.31, 89.23), source="Table 6"),
        Claim(SPOILS, "MNIST, public Fashion-MNIST", "lower", "fedsdd-all-mnist", "all-fashion",
              "one-fashion", *ENSEMBLES, paper=(90.31, 89.23), source="Table 6"),
        Claim("R = 4's model is level with R = 1's", SHORT, "level", "ablations", "R4", "R1",
              paper=(89.06, 89.01), source="Table 2"),
        Claim(R_MODEL, "CIFAR-10, alpha 0.1, round 100", "greater", "fedsdd-hetero", "R4", "R1",
              paper=(80.18, 82.21), source="Table 2"),
        Claim(R_MODEL, "MNIST, alpha 0.1", "greater", "fedgen", "R4", "R1",
              paper=(80.18, 82.21), source="Table 2"),
        Claim(R_MODEL, "digits, alpha 0.1", "greater", "quick-start", "fifth/fedsdd:R=4",
              "fifth/fedsdd:R=1", paper=(80.18, 82.21), source="Table 2"),
        Claim(R_MODEL, "digits, alpha 0.5", "greater", "quick-start", "default/fedsdd:R=4",
              "default/fedsdd:R=1"),
        Claim(R_ENSEMBLE, SHORT, "greater", "ablations", "R4", "R1",
              *ENSEMBLES, paper=(90.58, 90.69), source="Table 5"),
        Claim(R_ENSEMBLE, "digits, alpha 1.0, not distilled", "greater", "ensembles", "R4", "R1",
              *ENSEMBLES, paper=(90.58, 90.69), source="Table 5"),
        Claim(R_ENSEMBLE, "CIFAR-10, alpha 0.1, round 100", "greater", "fedsdd-hetero", "R4",
              "R1", *ENSEMBLES, paper=(81.76, 83.99), source="Table 5"),
        Claim(R_ENSEMBLE, "MNIST, alpha 0.1", "greater", "fedgen", "R4", "R1",
              *ENSEMBLES, paper=(81.76, 83.99), source="Table 5"),
        Claim(R_ENSEMBLE, "digits, alpha 0.1", "greater", "quick-start", "fifth/fedsdd:R=4",
              "fifth/fedsdd:R=1", *ENSEMBLES, paper=(81.76, 83.99), source="Table 5"),
        Claim(R_ENSEMBLE, "digits, alpha 0.5", "greater", "quick-start", "default/fedsdd:R=4",
              "default/fedsdd:R=1", *ENSEMBLES),
        Claim(UNDISTILLED, "digits, alpha 1.0, not distilled", "greater", "ensembles", "R4",
              "clients-K1", *ENSEMBLES, paper=(88.82, 90.69), source="Table 5"),
        Claim(UNDISTILLED, "digits, alpha 0.1, not distilled", "greater", "ensembles",
              "R4-hetero", "clients-K1-hetero", *ENSEMBLES, paper=(80.22, 83.99),
              source="Table 5"),
        Claim(SAMPLES, "Gaussian, digits, alpha 1.0", "level", "ensembles", "gaussian",
              "clients-K1", *ENSEMBLES, paper=(88.82, 88.72), source="Table 5"),
        Claim(SAMPLES, "Dirichlet, digits, alpha 1.0", "level", "ensembles", "dirichlet",
              "clients-K1", *ENSEMBLES, paper=(88.82, 88.70), source="Table 5"),
        Claim(SAMPLES, "Gaussian, digits, alpha 0.1", "level", "ensembles", "gaussian-hetero",
              "clients-K1-hetero", *ENSEMBLES, paper=(80.22, 79.60), source="Table 5"),
        Claim(SAMPLES, "Dirichlet, digits, alpha 0.1", "level", "ensembles", "dirichlet-hetero",
              "clients-K1-hetero", *ENSEMBLES, paper=(80.22, 80.25), source="Table 5"),
        Claim("SCAFFOLD is above FedAvg", SHORT, "greater", "ablations", "scaffold", "fedavg",
              paper=(88.53, 89.85), source="Table 2"),
        Claim("SCAFFOLD is above FedAvg", "MNIST, alpha 0.1", "greater", "fedgen",
              "scaffold", "fedavg", paper=(78.72, 80.08), source="Table 2"),
        Claim("FedSDD improves SCAFFOLD", f"{SHORT}, R = 1", "greater",
              "ablations", "R1-scaffold", "scaffold", paper=(89.85, 88.80), source="Table 4"),
        Claim("FedSDD improves FedProx", f"{SHORT}, R = 1", "greater",
              "ablations", "R1-fedprox", "fedprox", paper=(88.36, 88.98), source="Table 4"),
        Claim("FedSDD's SGD, temperature improve FedDF", SHORT, "greater",
              "ablations", "config", "feddf", paper=(82.53, 87.93), source="Table 10"),
        Claim("Drop-worst, early stopping help FedDF", SHORT, "greater",
              "ablations", "config", "plain", paper=(87.42, 87.93), source="Table 10", acts=False),
        Claim("FedSDD is above FedDF without them", f"{SHORT}, R = 1", "greater",
              "ablations", "R1", "plain", paper=(87.42, 88.35), source="Table 10"),
        Claim("--amp costs no accuracy (our claim)", "FedAvg, alpha 1.0, 30 rounds",
              "not lower", "ablations", "fedavg-amp", "fedavg"),
        Claim("--amp costs no accuracy (our claim)", "FedSDD, alpha 1.0, 30 rounds, R = 1",
              "not lower", "ablations", "R1-amp", "R1"),
    ]),
    "fedmd": ("FedMD", [
        Claim("FedMD's clients are above training alone", "letters A to F, iid", "greater",
              "fedmd", "fedmd-iid", "alone-iid"),
        Claim("FedMD's clients are above training alone", "letters A to F, by writer", "greater",
              "fedmd", "fedmd-writer", "alone-writer"),
        Claim("FedMD is almost level with pooled data", "18 private images, round 60", "level",
              "fedmd-pooled", "fedmd-3", "pooled-3"),
        Claim("FedMD is almost level with pooled data", "72 private images, round 24", "level",
              "fedmd-pooled", "fedmd-12", "pooled-12"),
    ]),
    "fedgems": ("FedGEMS", [
        Claim(GEM_SERVER, "iid", "greater", "fedgems", "fedgem-0.1", "control", *SERVER,
              paper=(84.03, 86.62), source="Table 2"),
        Claim(GEM_SERVER, "iid, augmented", "greater", "fedgems-augmented", "fedgem", "control",
              *SERVER, paper=(84.03, 86.62), source="Table 2"),
        Claim(GEM_SERVER, "alpha 0.1", "greater", "fedgems", "fedgem-0.1-hetero",
              "control-hetero", *SERVER, paper=(84.03, 87.11), source="Table 2"),
        Claim(GEMS_SERVER, "iid", "greater", "fedgems", "fedgems-0.1", "control", *SERVER,
              paper=(84.03, 88.08), source="Table 2"),
        Claim(GEMS_SERVER, "iid, augmented", "greater", "fedgems-augmented", "fedgems",
              "control", *SERVER, paper=(84.03, 88.08), source="Table 2"),
        Claim(GEMS_SERVER, "alpha 0.1", "greater", "fedgems", "fedgems-0.1-hetero",
              "control-hetero", *SERVER, paper=(84.03, 87.97), source="Table 2"),
        Claim(GEMS_SERVER, "alpha 0.1, augmented", "greater", "fedgems-augmented",
              "fedgems-hetero", "control-hetero", *SERVER, paper=(84.03, 87.97),
              source="Table 2"),
        Claim(SELECTION, "server, iid", "greater", "fedgems", "fedgems-0.1", "fedgem-0.1",
              *SERVER, paper=(86.62, 88.08), source="Table 2"),
        Claim(SELECTION, "server, iid, augmented", "greater", "fedgems-augmented", "fedgems",
              "fedgem", *SERVER, paper=(86.62, 88.08), source="Table 2"),
        Claim(SELECTION, "server, alpha 0.1", "greater", "fedgems", "fedgems-0.1-hetero",
              "fedgem-0.1-hetero", *SERVER, paper=(87.11, 87.97), source="Table 2"),
        Claim(GEM_CLIENTS, "distilled, iid", "greater", "fedgems", "fedgem-0.1", "control",
              *DISTILLED),
        Claim(GEM_CLIENTS, "distilled, iid, augmented", "greater", "fedgems-augmented", "fedgem",
              "control", *DISTILLED),
        Claim(GEM_CLIENTS, "distilled, alpha 0.1", "greater", "fedgems", "fedgem-0.1-hetero",
              "control-hetero", *DISTILLED),
        Claim(GEMS_CLIENTS, "distilled, iid", "greater", "fedgems", "fedgems-0.1", "control",
              *DISTILLED),
        Claim(GEMS_CLIENTS, "private training, iid", "greater", "fedgems", "fedgems-0.1",
              "control", *PRIVATE),
        Claim(GEMS_CLIENTS, "distilled, iid, augmented", "greater", "fedgems-augmented",
              "fedgems", "control", *DISTILLED),
        Claim(GEMS_CLIENTS, "private training, iid, augmented", "greater", "fedgems-augmented",
              "fedgems", "control", *PRIVATE),
        Claim(GEMS_CLIENTS, "distilled, alpha 0.1", "greater", "fedgems", "fedgems-0.1-hetero",
              "control-hetero", *DISTILLED),
        Claim(OTHERS, "FedMD, four networks, epsilon 0.75", "greater", "fedgems",
              "fedgems-0.75-networks", "fedmd-networks", *DISTILLED,
              paper=(51.11, 84.18), source="Table 2"),
        Claim(OTHERS, "Cronus, four networks, epsilon 0.75", "greater", "fedgems",
              "fedgems-0.75-networks", "cronus-networks", *DISTILLED,
              paper=(53.47, 84.18), source="Table 2"),
        Claim(OTHERS, "DS-FL, four networks, epsilon 0.75", "greater", "fedgems",
              "fedgems-0.75-networks", "dsfl-networks", *DISTILLED,
              paper=(43.83, 84.18), source="Table 2"),
        Claim(OTHERS, "FedMD, iid, epsilon 0.75", "greater", "fedgems", "fedgems-0.75", "fedmd",
              *DISTILLED, paper=(58.47, 81.86), source="Table 2"),
        Claim(OTHERS, "Cronus, iid, epsilon 0.75", "greater", "fedgems", "fedgems-0.75", "cronus",
              *DISTILLED, paper=(57.73, 81.86), source="Table 2"),
        Claim(OTHERS, "DS-FL, iid, epsilon 0.75", "greater", "fedgems", "fedgems-0.75", "dsfl",
              *DISTILLED, paper=(50.78, 81.86), source="Table 2"),
        Claim(PARTS, "self-training, iid", "lower", "fedgems", "no-self-training",
              "fedgems-0.1", *SERVER, paper=(88.08, 85.73), source="Table 5"),
        Claim(PARTS, "self-distillation, iid", "lower", "fedgems", "no-self-distillation",
              "fedgems-0.1", *SERVER, paper=(88.08, 86.12), source="Table 5"),
        Claim(PARTS, "ensemble distillation, iid", "lower", "fedgems",
              "no-ensemble-distillation", "fedgems-0.1", *SERVER, paper=(88.08, 86.55),
              source="Table 5"),
        Claim(PARTS, "self-training, augmented, alpha 0.1", "lower", "fedgems-augmented",
              "no-self-training-hetero", "fedgems-hetero", *SERVER, paper=(88.08, 85.73),
              source="Table 5"),
        Claim(PARTS, "self-distillation, augmented, alpha 0.1", "lower", "fedgems-augmented",
              "no-self-distillation-hetero", "fedgems-hetero", *SERVER, paper=(88.08, 86.12),
              source="Table 5"),
        Claim(PARTS, "ensemble distillation, augm., alpha 0.1", "lower", "fedgems-augmented",
              "no-ensemble-distillation-hetero", "fedgems-hetero", *SERVER,
              paper=(88.08, 86.55), source="Table 5"),
    ]),
    "attacks": ("Attacks (FedGEMS)", [
        Claim(HARM, "PAF, FedMD", "lower", "attacks", "fedmd-paf", "fedmd-none", *DISTILLED,
              paper=(51.11, 16.13), source="Table 3"),
        Claim(HARM, "PAF, DS-FL", "lower", "attacks", "dsfl-paf", "dsfl-none", *DISTILLED,
              paper=(43.83, 37.94), source="Table 3"),
        Claim(HARM, "OFOM, FedMD", "lower", "attacks", "fedmd-ofom", "fedmd-none", *DISTILLED,
              paper=(51.11, 22.53), source="Table 3"),
        Claim(HARM, "OFOM, DS-FL", "lower", "attacks", "dsfl-ofom", "dsfl-none", *DISTILLED,
              paper=(43.83, 23.32), source="Table 3"),
        Claim(HARM, "LIE, FedMD", "lower", "attacks", "fedmd-lie", "fedmd-none", *DISTILLED,
              paper=(51.11, 16.21), source="Table 3"),
        Claim(HARM, "LIE, DS-FL", "lower", "attacks", "dsfl-lie", "dsfl-none", *DISTILLED,
              paper=(43.83, 23.42), source="Table 3"),
        Claim(HARM_GEM, "epsilon 0.1", "lower", "attacks", "fedgem-0.1-paf", "fedgem-0.1-none",
              *SERVER, paper=(87.11, 55.94), source="Table 3"),
        Claim(HARM_GEM, "epsilon 0.75", "lower", "attacks", "fedgem-paf", "fedgem-none",
              *SERVER, paper=(87.11, 55.94), source="Table 3"),
        Claim(WITHSTANDS, "epsilon 0.1", "not lower", "attacks", "fedgems-0.1-paf",
              "fedgems-0.1-none", *SERVER, paper=(87.97, 87.46), source="Table 3"),
        Claim(WITHSTANDS, "epsilon 0.75", "not lower", "attacks", "fedgems-paf",
              "fedgems-none", *SERVER, paper=(87.97, 87.46), source="Table 3"),
    ]),
    "fedgkt": ("FedGKT", [
        Claim(REACHES, "iid", "not lower", "fedgkt", "to-edge", "fedavg",
              paper=(92.88, 92.97), source="Table 1"),
        Claim(REACHES, "iid, Algorithm 1's order", "not lower", "fedgkt", "ordered", "fedavg",
              paper=(92.88, 92.97), source="Table 1"),
        Claim(REACHES, "alpha 0.5", "not lower", "fedgkt-noniid", "to-edge-noniid",
              "fedavg-noniid", paper=(86.60, 86.59), source="Table 1"),
        Claim(REACHES, "alpha 0.5, Algorithm 1's order", "not lower", "fedgkt-noniid",
              "ordered-noniid", "fedavg-noniid", paper=(86.60, 86.59), source="Table 1"),
        Claim(REACHES, "alpha 0.5, extractors at rest", "not lower", "fedgkt-noniid",
              "still-noniid", "fedavg-noniid", paper=(86.60, 86.59), source="Table 1"),
        Claim(REACHES, "alpha 0.1", "not lower", "fedgkt-noniid", "to-edge-skewed",
              "fedavg-skewed", paper=(86.60, 86.59), source="Table 1"),
        Claim(REACHES, "alpha 0.1, extractors at rest", "not lower", "fedgkt-noniid",
              "still-skewed", "fedavg-skewed", paper=(86.60, 86.59), source="Table 1"),
        Claim(LOGITS, "edges alone, iid", "greater", "fedgkt", "to-edge", "none", *EDGE),
        Claim(LOGITS, "edges alone, alpha 0.5", "greater", "fedgkt-noniid", "to-edge-noniid",
              "none-noniid", *EDGE),
        Claim("Without distillation the server fails", "iid", "lower", "fedgkt", "none",
              "to-edge"),
        Claim(ASYNC, "equally fast clients, iid", "level", "fedgkt", "async-work", "ordered",
              paper=(92.97, 92.92), source="Table 3"),
        Claim(ASYNC, "1 to 10 times as slow, iid", "level", "fedgkt", "async-time", "ordered",
              paper=(92.97, 92.92), source="Table 3"),
    ]),
    "without-public": ("FedGen, FedNTD, FD: no public images", [
        Claim("FedGen is above FedAvg", "MNIST, alpha 0.1", "greater", "fedgen", "fedgen",
              "fedavg", paper=(90.16, 93.03), source="FedGen's Table 1"),
        Claim("FedGen is above FedAvg", "the code's weight, alpha 0.1", "greater", "fedgen",
              "fedgen-code", "fedavg", paper=(90.16, 93.03), source="FedGen's Table 1"),
        Claim("FedGen is above FedAvg", "the code's weight, alpha 0.05", "greater", "fedgen",
              "fedgen-code-0.05", "fedavg-0.05"),
        Claim("FedGen is above FedAvg", "the code's weight, alpha 1.0", "greater", "fedgen",
              "fedgen-code-1.0", "fedavg-1.0"),
        Claim("FedNTD is above FedAvg", "MNIST, alpha 0.1", "greater", "fedgen", "fedntd",
              "fedavg"),
        Claim("FedDF is above FedAvg", "MNIST, alpha 0.1", "greater", "fedgen", "feddf",
              "fedavg", paper=(90.16, 91.11), source="FedGen's Table 1"),
        Claim("FedProx is level with FedAvg", "MNIST, alpha 0.1", "level", "fedgen", "fedprox",
              "fedavg", paper=(90.16, 90.10), source="FedGen's Table 1"),
        Claim("FD is below FedAvg", "MNIST, alpha 0.1", "lower", "fedgen", "fd", "fedavg",
              paper=(90.16, 64.11), source="FedGen's Table 1"),
        Claim("FD is below FedAvg", "MNIST, iid", "lower", "fedgen", "fd-iid", "fedavg-iid",
              paper=(90.60, 75.24), source="FD's Table 1"),
    ]),
}


@cache
def read(file):
    """{(row, metric): {last round: {header: cell}}} of the final values in docs/results."""
    found, heading, header = {}, "", None
    for line in (DOCS / "results" / f"{file}.txt").read_text().splitlines():
        cells = re.split("  +", line.strip())
        if re.fullmatch(r"[\w.-]+", line):               # "fifth": the runs of the next tables
            heading = f"{line}/"
        elif "  seed " in line:
            header = cells
        elif header and len(cells) == len(header):
            named = dict(zip(header, cells))
            measure, metric = header[0].removesuffix(", %").split()
            if measure == "final":
                rounds = found.setdefault((heading + cells[0], metric), {})
                rounds.setdefault(int(named["last round"]), {}).update(named)
    return found


def row_of(claim, row, metric):
    """{header: cell} of a row, after the rounds that the claim names."""
    rounds = read(claim.file)[row, metric]
    return rounds[claim.round or max(rounds)]


def differences(claim):
    """[the row's accuracy minus the base's, in points], for each seed that both have."""
    ours, base = (
        {name: float(cell) for name, cell in row_of(claim, row, metric).items()
         if name.startswith("seed ") and cell != "-"}
        for row, metric in ((claim.row, claim.metric), (claim.base, claim.base_metric)))
    return [ours[seed] - base[seed] for seed in sorted(ours.keys() & base.keys())]


def difference_text(claim):
    """"+1.00 ± 0.50, 4 of 5", as in the file; if no table there subtracts the base, from seeds."""
    base = claim.base.rpartition("/")[2]
    text = row_of(claim, claim.row, claim.metric).get(f"minus {base} {claim.base_metric}")
    if text is None:
        points = differences(claim)
        text = (f"{statistics.mean(points):+.2f} +- {statistics.stdev(points):.2f}, "
                f"{agreeing(points)} of {len(points)}")
    return text.replace("+-", "±").removesuffix(", 5 of 5")


def agreeing(points):
    """Number of seeds whose difference has the sign of the mean."""
    return sum(point * statistics.mean(points) > 0 for point in points)


def verdict(claim, points):
    """The rule of RESULTS.md: what five seeds say about a claim."""
    mean, missing = statistics.mean(points), len(points) - agreeing(points)
    counts = missing == 0 or missing == 1 and abs(mean) > statistics.stdev(points)
    if not claim.acts:
        return "cannot be judged"
    if not counts:
        return "as claimed" if claim.claimed in ("level", "not lower") else "no difference seen"
    holds = mean > 0 if claim.claimed in ("greater", "not lower") else mean < 0
    return "holds" if holds and claim.claimed != "level" else "does not hold"


def table():
    """The claims in Markdown, a table for each page, folded away below the count of verdicts."""
    lines = []
    for page, (title, claims) in CLAIMS.items():
        verdicts = [verdict(claim, differences(claim)) for claim in claims]
        counts = ", ".join(f"{x}: {verdicts.count(x)}" for x in LOOK if x in verdicts)
        link = f'<a href="{page}.md">{title}</a>'
        lines += ["<details>", f"<summary><b>{link}</b> ({counts})</summary>", "",
                  "| claim | where | difference | verdict | the paper |", "|---|---|---|---|---|"]
        before = ""
        for claim, found in zip(claims, verdicts):
            theirs = (f"*{claim.paper[1] - claim.paper[0]:+.2f}*, {claim.source}"
                      if claim.paper else "")
            name = "" if claim.claim == before else claim.claim
            lines.append(f"| {name} | {claim.regime} | {difference_text(claim)} | "
                         f"{found} | {theirs} |")
            before = claim.claim
        lines += ["", "</details>", ""]
    return "\n".join(lines)


LOOK = {        # {verdict: (color, marker)}; the colors are Okabe and Ito's
    "holds": ("#0072B2", "o"),
    "as claimed": ("#009E73", "D"),
    "no difference seen": ("#999999", "s"),
    "does not hold": ("#D55E00", "X"),
    "cannot be judged": ("#CC79A7", "P"),
}


def draw(path):
    """Draws all claims: a row for each claim and regime; needs matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "claims", "svg.fonttype": "none"})
    heights, height = {}, 0                              # {claim: its height from above}
    for _, claims in CLAIMS.values():
        height += 2                                      # the title of the page
        for claim in claims:
            heights[claim] = height
            height += 1
    inches = 0.155 * height + 1.1
    figure = Figure(figsize=(10, inches))
    ax = figure.add_axes((0.5, 0.5 / inches, 0.49, 1 - 1.1 / inches))
    left, middle = -1.0, -0.46                           # of the texts, in widths of the axes

    for title, claims in CLAIMS.values():
        top = heights[claims[0]] - 1.2
        ax.text(left, top, title, weight="bold", va="center", transform=ax.get_yaxis_transform())
        before = ""
        for claim in claims:
            y, points = heights[claim], differences(claim)
            mean, std = statistics.mean(points), statistics.stdev(points)
            color, marker = LOOK[verdict(claim, points)]
            name = "" if claim.claim == before else claim.claim
            before = claim.claim
            for x, text in ((left, name), (middle, claim.regime)):
                ax.text(x, y, text, fontsize=8, va="center", transform=ax.get_yaxis_transform())
            ax.plot([mean - std, mean + std], [y, y], color=color, linewidth=1.5, alpha=0.6)
            ax.plot(points, [y] * len(points), "o", color=color, markersize=2.5, alpha=0.6)
            ax.plot(mean, y, marker, color=color, markersize=6)
            if claim.paper:
                ax.plot(claim.paper[1] - claim.paper[0], y, "v", color="black", fillstyle="none",
                        markersize=5)
            if name and claim is not claims[0]:
                ax.axhline(y - 0.5, color="0.9", linewidth=0.6)

    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_xscale("symlog", linthresh=1, linscale=0.8)   # as far from 0 to 1 as from 1 to 6
    ticks = [-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50]
    ax.set_xticks(ticks, [f"{x:+d}" if x else "0" for x in ticks], fontsize=8)
    ax.set_xticks([], minor=True)
    ax.grid(axis="x", color="0.9", linewidth=0.6)
    ax.tick_params(top=True, labeltop=True)
    ax.set(xlim=(-70, 70), ylim=(height + 0.2, 0), yticks=[])
    ax.set_xlabel("points of accuracy: the first that is named minus the other "
                  "(logarithmic beyond 1)", fontsize=8)
    for name, (color, marker) in LOOK.items():
        ax.plot([], [], marker, color=color, label=name)
    ax.plot([], [], "v", color="black", fillstyle="none", label="the paper")
    figure.legend(loc="upper left", ncols=6, frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None, "Description": table()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/RESULTS.md")
    parser.add_argument("--draw", action="store_true", help="draw docs/pictures/claims.svg")
    args = parser.parse_args()
    if args.write:
        before, rest = PAGE.read_text().split(START)
        PAGE.write_text(before + START + table() + END + rest.split(END)[1])
    if args.draw:
        draw(PICTURE)
    if not args.write and not args.draw:
        print(table())


if __name__ == "__main__":
    main()
