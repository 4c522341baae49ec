"""The picture of README's first command: clients alone, DS-FL's clients and its server.

    python fedkd_minimal.py --algo local,dsfl --model cnn,mlp --rounds 10 --out runs/quick-start
    python benchmarks/quick_start.py runs/quick-start    (needs matplotlib)
"""
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from experiment.picture import draw  # noqa: E402
from experiment.runs import read_runs  # noqa: E402

if len(sys.argv) != 2:
    raise SystemExit(__doc__)
runs = read_runs([Path(sys.argv[1])])
draw([("clients alone (local)", runs["local"], "client_accuracy"),
      ("DS-FL's clients, after they learned the mean prediction", runs["dsfl"], "accuracy"),
      ("DS-FL's server", runs["dsfl"], "server_accuracy")],
     ROOT / "docs" / "pictures" / "quick-start.svg", ylabel="test accuracy")
