"""An algorithm is its file and federation.py: in a folder with these two alone it runs a round."""
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALONE = [path.stem for path in sorted((ROOT / "algorithms").glob("*.py"))
         if path.stem != "__init__" and "from algorithms" not in path.read_text()
         and "ALGORITHM =" in path.read_text()]
A_ROUND = """
import importlib, sys, torch
from torch import nn

class Network(nn.Module):
    def __init__(self, channels=1):
        super().__init__()
        self.conv, self.classifier = nn.Conv2d(channels, 2, 3, padding=1), nn.Linear(32, 3)
    def extract(self, images): return self.conv(images).relu()
    def classify(self, maps): return self.classifier(maps.flatten(1))
    def forward(self, images): return self.classify(self.extract(images))

torch.set_num_threads(1)                                     # so small that a second one waits
data = torch.randn(12, 1, 4, 4), torch.arange(12) % 3
for name in sys.argv[1:]:
    sys.path[0] = name                                       # the folder of these two files
    sys.modules.pop("federation", None)
    from federation import from_tensors
    module = importlib.import_module(name)
    reads = 2 if module.ALGORITHM.server == "features" else 1
    fed = from_tensors([data] * 4, data, [Network], public=data, validation=data,
                       server_network=lambda: Network(reads))
    share = {"participation": 1.0} if hasattr(module.Config, "participation") else {}
    *_, (metrics, state) = module.run(fed, module.Config(rounds=1, **share))
    assert 0 <= metrics["accuracy"] <= 1 and state["round"] == 1, name
    print(name)
"""


def test_an_algorithm_runs_in_a_folder_of_its_own(tmp_path):
    assert {"fedsdd", "fedgems", "fedmd", "fedgkt"} < {*ALONE} and len(ALONE) > 15
    for name in ALONE:
        (tmp_path / name).mkdir()
        for file in (f"algorithms/{name}.py", "federation.py"):
            shutil.copy(ROOT / file, tmp_path / name)
    (tmp_path / "a_round.py").write_text(A_ROUND)
    done = subprocess.run([sys.executable, "a_round.py", *ALONE], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.stdout.split() == ALONE, done.stderr
