"""Two processes of one thread each against one process of two: seconds of local training in one round.

    python benchmarks/processes.py FILE.npz             (about 3 minutes on two cores)

Whole commands take turns; the figure is the median of `local_seconds` in timing.jsonl, without the first round.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLAGS = ["fedkd_minimal.py", "--algo", "fedavg", "--dataset", sys.argv[1], *"--model resnet20 --rounds 3 --local-epochs 1 --lr 0.1".split()]
WAYS = {"one process, two threads": [sys.executable, *FLAGS, "--threads", "2"],
        "two processes, one thread each": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                                           *FLAGS, "--threads", "1"]}
seconds = {way: [] for way in WAYS}
with tempfile.TemporaryDirectory() as folder:
    for turn in range(3):
        for way, command in WAYS.items():
            out = Path(folder) / f"{way}{turn}"
            subprocess.run([*command, "--out", str(out)], cwd=ROOT, check=True, capture_output=True)
            timings = [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]
            seconds[way].append(statistics.median(timing["local_seconds"] for timing in timings[2:]))
first = list(seconds.values())[0]
print(f"torch {metadata.version('torch')}, {os.cpu_count()} cores, cpu; fedavg, resnet20, 8 of 20 clients, one local pass each; median of 3 turns, seed 0")
for way, values in seconds.items():
    ratio = statistics.median(a / b for a, b in zip(first, values))
    print(f"{way:<32} {statistics.median(values):6.2f} s a round   speed-up {ratio:.2f}")
