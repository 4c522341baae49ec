"""Seconds of a round with one process and with one for each core, and the memory they take.

    python benchmarks/processes.py                 embedded data: about 6 minutes on two cores
    python benchmarks/processes.py FILE.npz        ResNet-20 on CIFAR-10: about 10 minutes
    python benchmarks/processes.py --torchrun      torchrun's processes, too

Each algorithm runs with one process and with the default, in turn, --repetitions times; nothing
else may run. Seconds of a round are means over the rounds after round 1, medians over the
repetitions. Memory: of all processes together, the largest sum of their proportional set sizes.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
EMBEDDED = {
    "fedavg": "--algo fedavg --rounds 5",
    "fedsdd": "--algo fedsdd --K 4 --R 2 --rounds 5",
    "fedmd": "--algo fedmd --rounds 3 --transfer-public-epochs 1 --transfer-local-epochs 1",
    "fedgems": "--algo fedgems --rounds 3",
    "fedgkt": "--algo fedgkt --clients 16 --partition dirichlet_balanced --rounds 3",
}
CIFAR = "--model resnet20 --clients 8 --participation 1 --partition iid --rounds 3 --lr 0.1"
RESNET20 = {
    "fedavg": f"--algo fedavg --local-epochs 1 {CIFAR}",
    "fedsdd": f"--algo fedsdd --K 4 --local-epochs 1 --distill-steps 40 --public fifth {CIFAR}",
}


def memory(pid):
    """The proportional set sizes of a process and its children, in MiB."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    total = 0
    for number in (pid, *children):
        for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) / 1024
    return total


def measure(command, folder):
    """(seconds of a round, MiB of all processes)."""
    largest = 0
    with subprocess.Popen([sys.executable, *command, "--out", folder], cwd=ROOT,
                          stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                largest = max(largest, memory(process.pid))
            except (FileNotFoundError, ProcessLookupError):       # it has just ended
                pass
            time.sleep(1)
    assert process.returncode == 0, command
    [timings] = Path(folder).glob("*/timing.jsonl")
    rows = [json.loads(line) for line in timings.read_text().splitlines()]
    return statistics.mean(row["round_seconds"] for row in rows[2:]), largest


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("file", nargs="?", help="CIFAR-10 as .npz, made by cifar10_npz.py")
parser.add_argument("--repetitions", type=int, default=3)
parser.add_argument("--torchrun", action="store_true", help="measure torchrun's processes, too")
arguments = parser.parse_args()
commands, data = EMBEDDED, []
if arguments.file:
    commands, data = RESNET20, ["--dataset", str(Path(arguments.file).resolve())]
cores = len(os.sched_getaffinity(0))
torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cores)]
print(f"torch {metadata.version('torch')}, {cores} cores, cpu; seed 0; medians of "
      f"{arguments.repetitions} runs")
print(f"{'':8} {'processes':>10} {'round, s':>9} {'memory, MiB':>12} {'times as fast':>14}")
for algo, flags in commands.items():
    program = ["fedkd_minimal.py", *flags.split(), *data]
    ways = {"1": [*program, "--processes", "1"], f"{cores}": program}
    if arguments.torchrun:
        ways["torchrun"] = [*torchrun, *program]
    found = {way: [] for way in ways}
    for _ in range(arguments.repetitions):
        for way, command in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                found[way].append(measure(command, f"{folder}/run"))
    for way, results in found.items():
        seconds, mib = (statistics.median(values) for values in zip(*results))
        faster = statistics.median(one[0] / own[0] for one, own in zip(found["1"], results))
        print(f"{algo:8} {way:>10} {seconds:9.2f} {mib:12.0f} {faster:14.2f}", flush=True)
