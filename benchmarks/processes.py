"""Two processes of one thread each against one process of two threads: seconds of local training.

    python benchmarks/processes.py FILE.npz             (about 3 minutes on two cores)

Both commands run three times, alternately. Of each run the median of `collect_seconds` in
timing.jsonl counts, without rounds 0 and 1; under torchrun it includes the exchange of the uploads.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
REPETITIONS = 3

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("file", help="a data set as .npz, for example from cifar10_npz.py")
dataset = Path(parser.parse_args().file).resolve()

run = ["fedkd_minimal.py", "--algo", "fedavg", "--dataset", str(dataset), "--model", "resnet20",
       "--rounds", "3", "--local-epochs", "1", "--lr", "0.1"]
torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
commands = {
    "one process, two threads": [sys.executable, *run, "--threads", "2"],
    "two processes, one thread each": [sys.executable, *torchrun, *run, "--threads", "1"]}

seconds = {name: [] for name in commands}
with tempfile.TemporaryDirectory() as folder:
    for repetition in range(REPETITIONS):
        for name, command in commands.items():
            out = Path(folder) / f"{name}{repetition}"
            subprocess.run([*command, "--out", str(out)], cwd=ROOT, check=True, capture_output=True)
            lines = (out / "timing.jsonl").read_text().splitlines()
            of_rounds = [json.loads(line)["collect_seconds"] for line in lines[2:]]
            seconds[name].append(statistics.median(of_rounds))

print(f"torch {metadata.version('torch')}, {os.cpu_count()} cores, cpu; fedavg, resnet20, 8 of 20 "
      f"clients, one local epoch each; median of {REPETITIONS} runs, seed 0")
first = next(iter(seconds.values()))
for name, values in seconds.items():
    speed_up = statistics.median(a / b for a, b in zip(first, values))
    print(f"{name:<32} {statistics.median(values):6.2f} s a round   speed-up {speed_up:.2f}")
