"""The rounds that `python -m reference.fedsdd` (fedmd, fedgems, fedgkt) print: their numbers are
those of algorithms/, whatever stands at the top of the file."""
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import toys
from torch import nn

import reference.fedgems
import reference.fedgkt
import reference.fedmd
import reference.fedsdd
from algorithms import fedgems, fedgkt, fedmd, fedsdd
from federation import Data

ROOT = Path(__file__).parents[2]
PICTURE = (ROOT / "docs" / "pictures" / "rounds.svg").read_text()
ONCE = {"batch_size": 99, "local_epochs": 1}             # a step on all images
SGD = {"optimizer": "sgd", "weight_decay": 0.0}


def numbers(rng, *shape):
    return rng.normal(size=shape).round(2).tolist()


def other(name):
    """Numbers for the top of a file: three classes, five images, four clients, two rounds."""
    rng = np.random.default_rng(0)
    private = [[(0, 2), (3, 1)], [(1, 0)], [(4, 2), (2, 1), (0, 0)], [(2, 1)]]
    shared = {"PRIVATE": private, "ROUNDS": 2}
    return {
        "fedsdd": {**shared, "MODELS": numbers(rng, 3, 5, 3), "GROUPS": [[1, 3], [0], [2]],
                   "LR": 0.7, "SERVER_LR": 1.3, "TEMPERATURE": 4.0, "R": 2},
        "fedmd": {**shared, "CLIENTS": numbers(rng, 4, 5, 3), "SUBSET": [0, 2, 4],
                  "WEIGHTS": [1, 2, 0, 3], "LR": 0.7, "KERNEL_L2": 0.01},
        "fedgems": {**shared, "CLIENTS": numbers(rng, 4, 5, 3), "SERVER": numbers(rng, 5, 3),
                    "LABELS": [2, 0, 1, 1, 2], "POOL": {1: [1, 0, 0], 4: [0, 0, 2]},
                    "LR": 0.7, "SERVER_LR": 1.3, "EPSILON": 0.6},
        "fedgkt": {"LABELS": [[0, 2], [1, 1, 0], [2]], "SERVER": numbers(rng, 3, 4), "ROUNDS": 2,
                   "EXTRACTORS": [numbers(rng, n, 4) for n in (2, 3, 1)],
                   "CLASSIFIERS": numbers(rng, 3, 3, 4), "LR": 0.7, "SERVER_LR": 1.3,
                   "SERVER_LOGITS": [None, numbers(rng, 3, 3), None], "TEMPERATURE": 3.0},
    }[name]


@pytest.fixture
def printed(capsys, monkeypatch):
    """read(module, changes): [{step: what it prints}] of its rounds, after the changes."""
    def read(module, changes):
        for key, value in changes.items():
            monkeypatch.setattr(module, key, value)
        module.by_hand()
        rounds = []
        for step, text in re.findall(r"^(\S.{12}) (.*(?:\n .*)*)", capsys.readouterr().out, re.M):
            if step.startswith("Round"):
                step, rounds = "Round", [*rounds, {}]
            if rounds:                                   # not yet: the head
                rounds[-1][step.strip()] = rounds[-1].get(step.strip(), "") + f"\n{text}"
        return rounds
    return read


both = pytest.mark.parametrize("top", [lambda name: {}, other], ids=["own", "others"])


def row(text, name):
    """The numbers in the line of this name."""
    [line] = re.findall(rf"^ +{re.escape(name)}  +(\S.*)", text, re.M)
    return [float(x) for x in re.findall(r"-?\d+\.\d{4}", line)]


def last_numbers(text, name):
    """The last number of each line with these words."""
    return [float(line.split()[-1]) for line in text.splitlines() if name in line]


def close(found, expected):
    """Four digits are printed."""
    expected = torch.as_tensor(expected, dtype=torch.float64).flatten().tolist()
    assert found == pytest.approx(expected, abs=1e-4) and found


def table(size, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(size, num_classes, bias=False))


def weights(rows):
    return {"1.weight": torch.tensor(rows).float().T.contiguous()}


def snapshot(rows):
    return {"model": weights(rows), "optimizer": None}


def rows_of(saved):
    return saved.get("model", saved)["1.weight"].T


def federation(private, size, num_classes, labels=None):
    """Image n is the n-th unit vector, public and, by number, a client's."""
    x = torch.eye(size).reshape(size, 1, 1, size)
    own = [Data(x[[n for n, _ in pairs]], torch.tensor([y for _, y in pairs])) for pairs in private]
    data = Data(x, torch.zeros(size).long() if labels is None else torch.tensor(labels))
    return toys.federation([1] * len(own), num_classes=num_classes, private=own, test=data,
                           public=data, client_model=lambda i, init=0: table(size, num_classes),
                           server_model=lambda init=0: table(size, num_classes))


@both
def test_the_printed_round_of_fedsdd_is_that_of_the_algorithm(top, printed, monkeypatch):
    text, top = printed(reference.fedsdd, top("fedsdd")), reference.fedsdd
    monkeypatch.setattr(fedsdd, "divide", lambda active, K, rng: top.GROUPS)
    fed = federation(top.PRIVATE, len(top.MODELS[0]), len(top.MODELS[0][0]))
    state = {"algorithm": "fedsdd", "round": 0, "recent_w": [],
             "global_models": [*map(weights, top.MODELS)]}
    cfg = fedsdd.Config(rounds=top.ROUNDS, K=len(top.MODELS), R=top.R, **ONCE, participation=1.0,
                        lr=top.LR, distill_steps=1, server_batch_size=99, server_lr=top.SERVER_LR,
                        temperature=top.TEMPERATURE)
    rounds = fedsdd.run(fed, cfg, state)
    for t, (shown, (_, after)) in enumerate(zip(text, rounds, strict=True), start=1):
        for k, group in enumerate(top.GROUPS):
            start = state["global_models"][k]
            close(row(shown["Round"], f"model {k}"), rows_of(start))
            for i in group:
                trained = fedsdd.train_client(fed, cfg, t, i, start)
                close(row(shown["Eq. (1)"], f"client {i}, model {k}, B = {len(top.PRIVATE[i])}"),
                      rows_of(trained))
            w_k = after["recent_w"][-1][k]
            close(row(shown["Eq. (2)"], f"w_{k} of round {t}"), rows_of(w_k))
            close(row(shown["Step"], f"model {k} after the round"),
                  rows_of(after["global_models"][k]))
        ensemble = [rows_of(w) for of_round in after["recent_w"] for w in of_round]
        teacher, student = torch.stack(ensemble).mean(0), rows_of(after["recent_w"][-1][0])
        assert f"1/{len(ensemble)} (" in shown["Eq. (3), (5)"]
        assert f", temperature T = {top.TEMPERATURE:g}\n" in shown["Eq. (4)"]
        close(row(shown["Eq. (3), (5)"], "teacher's logits"), teacher)
        close(row(shown["Eq. (4)"], "p"), (teacher / top.TEMPERATURE).softmax(-1))
        close(row(shown["Eq. (4)"], "q"), (student / top.TEMPERATURE).softmax(-1))
        close(last_numbers(shown["Eq. (4)"], "  image "), [
            fedsdd.distillation_loss(q[None], p[None], top.TEMPERATURE)
            for p, q in zip(teacher, student)])
        state = after


@both
def test_the_printed_round_of_fedmd_is_that_of_the_algorithm(top, printed, monkeypatch):
    text, top = printed(reference.fedmd, top("fedmd")), reference.fedmd
    monkeypatch.setattr(fedmd, "public_subset", lambda data, size, rng: torch.tensor(top.SUBSET))
    fed = federation(top.PRIVATE, len(top.CLIENTS[0]), len(top.CLIENTS[0][0]))
    cfg = fedmd.Config(rounds=top.ROUNDS, **ONCE, **SGD, public_batch_size=99, lr=top.LR,
                       kernel_l2=top.KERNEL_L2, consensus_weights=tuple(top.WEIGHTS),
                       early_stopping=False)
    none = {"digest_optimizer": None, "revisit_optimizer": None}
    clients = {i: {"model": weights(rows), **none} for i, rows in enumerate(top.CLIENTS)}
    state = {"algorithm": "fedmd", "round": 0, "clients": clients}
    rounds = fedmd.run(fed, cfg, state)
    for t, (shown, (_, after)) in enumerate(zip(text, rounds, strict=True), start=1):
        sent = torch.stack([rows_of(client)[top.SUBSET] for client in clients.values()])
        f = fedmd.consensus(sent, top.WEIGHTS)
        close(row(shown["Step 3"], "f~"), f)
        digested = {i: fedmd.digest_client(fed, cfg, t, i, client, fed.public.images[top.SUBSET], f)
                    for i, client in clients.items()}
        for i, client in clients.items():
            close(row(shown["Round"], f"client {i}"), rows_of(client))
            close(row(shown["Step 1, 2"], f"f_{i}"), sent[i])
            close(row(shown["Step 4"], f"client {i} after the digest"), rows_of(digested[i]))
            close(row(shown["Step 5"], f"client {i} after the revisit"),
                  rows_of(after["clients"][i]))
            said = rows_of(digested[i])[[n for n, _ in top.PRIVATE[i]]]
            close(last_numbers(shown["Step 4"], f"client {i}   ")[:1],
                  fedmd.digest_loss(sent[i], f))
            close(last_numbers(shown["Step 5"], f"client {i}   ")[:1],
                  F.cross_entropy(said, fed.private[i].labels))
        clients = after["clients"]


@pytest.mark.parametrize("top", [lambda name: {}, lambda name: {"ROUNDS": 2}, other],
                         ids=["own", "two rounds", "others"])
def test_the_printed_round_of_fedgems_is_that_of_the_algorithm(top, printed):
    text, top = printed(reference.fedgems, top("fedgems")), reference.fedgems
    size, num_classes = len(top.LABELS), len(top.SERVER[0])
    fed = federation(top.PRIVATE, size, num_classes, top.LABELS)
    labels = fed.public.labels
    pool = {"logits": torch.zeros(size, num_classes), "mask": torch.zeros(size, dtype=torch.bool)}
    for n, z in top.POOL.items():
        pool["logits"][n], pool["mask"][n] = torch.tensor(z), True
    state = {"algorithm": "fedgems", "round": 0, "pool": pool, "server": snapshot(top.SERVER),
             "clients": {i: snapshot(rows) for i, rows in enumerate(top.CLIENTS)}}
    cfg = fedgems.Config(rounds=top.ROUNDS, **ONCE, **SGD, server_batch_size=99, lr=top.LR,
                         server_lr=top.SERVER_LR, epsilon=top.EPSILON)
    rounds = fedgems.run(fed, cfg, state)
    for t, (shown, (metrics, after)) in enumerate(zip(text, rounds, strict=True), start=1):
        trained = [rows_of(fedgems.train_client(fed, cfg, t, i, client))
                   for i, client in state["clients"].items()]
        for i, client in state["clients"].items():
            close(row(shown["Round"], f"client {i}"), rows_of(client))
            close(row(shown["Line 25-27"], f"client {i} trained"), trained[i])
            close(row(shown["Eq. (6)"], f"client {i} after the round"),
                  rows_of(after["clients"][i]))
        server = rows_of(state["server"])
        close(row(shown["Round"], "server"), server)
        close(row(shown["Line 14, 15"], "server after the round"), rows_of(after["server"]))
        logits, teacher = torch.stack(trained), state["pool"]["logits"].clone()
        right = fedgems.is_right(logits, labels)                             # [M, N]
        shares, H = fedgems.entropy_weights(logits, right), fedgems.entropy(logits)
        in_pool, server_right = state["pool"]["mask"], fedgems.is_right(server, labels)
        asked = ~server_right & ~in_pool
        for n in torch.nonzero(asked & right.any(0))[:, 0]:
            teacher[n] = fedgems.fuse(logits, shares)[n]
            close(row(shown["Eq. (5)"], f"teacher of image {n}"), teacher[n])
            for equation, values in (("Eq. (3)", H), ("Eq. (4)", shares)):
                close(last_numbers(shown[equation], f"image {n}, "), values[right[:, n], n])
        losses = [fedgems.server_loss(server[[n]], labels[[n]], teacher[[n]], (
            ~server_right & (in_pool | right.any(0)))[[n]], top.EPSILON) for n in range(size)]
        close([float(of_image.split()[-1]) for of_image
               in shown["Line 5-12"].split("  image ")[1:]], losses)
        assert "client" in shown["Eq. (3)"] and "teacher of" in shown["Eq. (5)"]
        told = {"self_training": "Eq. (1)", "self_distillation": "Eq. (2)",
                "ensemble_distillation": "Eq. (5)", "nobody_right": "so are all clients"}
        for case, words in told.items():
            assert metrics[case] == pytest.approx(shown["Line 5-12"].count(words) / size)
        assert str(torch.nonzero(after["pool"]["mask"])[:, 0].tolist()) in shown["Eq. (6)"]
        state = after


class Edge(nn.Module):
    """The first layer is a table of features, the second the classifier."""

    def __init__(self, size, features, num_classes):
        super().__init__()
        self.first, self.last = table(size, features), nn.Linear(features, num_classes, bias=False)
        self.extract, self.classify = self.first.forward, self.last.forward

    def forward(self, images):
        return self.last(self.first(images))


@both
def test_the_printed_round_of_fedgkt_is_that_of_the_algorithm(top, printed):
    text, top = printed(reference.fedgkt, top("fedgkt")), reference.fedgkt
    T, sizes, (C, width) = top.TEMPERATURE, [*map(len, top.LABELS)], np.shape(top.SERVER)
    N = max(sizes)
    fed = federation([[*enumerate(own)] for own in top.LABELS], N, C)
    fed.__dict__.update(client_model=lambda i, init=0: Edge(N, width, C),
                        server_model=lambda init=0: nn.Linear(width, C, bias=False))
    clients = {}
    for i, (H, W) in enumerate(zip(top.EXTRACTORS, top.CLASSIFIERS)):
        H = H + [[0] * width] * (N - len(H))             # images that the client does not have
        model = {f"first.{name}": value for name, value in weights(H).items()}
        sent = top.SERVER_LOGITS[i]
        clients[i] = {"model": {**model, "last.weight": torch.tensor(W).float()}, "trainings": 0,
                      "optimizer": None,
                      "server_logits": None if sent is None else torch.tensor(sent).float()}
    state = {"algorithm": "fedgkt", "round": 0, "clients": clients,
             "server": {"model": {"weight": torch.tensor(top.SERVER).float()}, "optimizer": None}}
    cfg = fedgkt.Config(rounds=top.ROUNDS, **ONCE, **SGD, server_optimizer="sgd", lr=top.LR,
                        server_batch_size=99, server_epochs=1, server_lr=top.SERVER_LR,
                        temperature=T)

    def check_losses(shown, of, logits, labels, teacher):
        """CE, KD and the derivative of each image, by autograd."""
        for n in range(len(labels)):
            z = logits[[n]].detach().requires_grad_()
            loss = fedgkt.transfer_loss(z, labels[[n]],
                                        None if teacher is None else teacher[[n]], T)
            loss.backward()
            part = shown.split(f"  {of}, image {n} of")[1].split("image")[0]
            close([sum(last_numbers(part, "CE =") + last_numbers(part, "KD ="))], loss.detach())
            close([float(x) for x in re.search(r"\((\S+(?:, \S+)+)\)$", part, re.M)[1].split(", ")],
                  z.grad)

    rounds = fedgkt.run(fed, cfg, state)
    for t, (shown, (_, after)) in enumerate(zip(text, rounds, strict=True), start=1):
        server = state["server"]
        for i, labels in enumerate(map(torch.tensor, top.LABELS)):
            start, end = (s["clients"][i]["model"] for s in (state, after))
            for part, name, client in (("Round", "", start), ("Line 19-22", " trained", end)):
                close(row(shown[part], f"client {i}{name}: H"),
                      client["first.1.weight"].T[:sizes[i]])
                close(row(shown[part], f"client {i}{name}: W"), client["last.weight"])
            check_losses(shown["Eq. (7)"], f"client {i}",
                         (start["first.1.weight"].T @ start["last.weight"].T)[:sizes[i]], labels,
                         state["clients"][i]["server_logits"])
            features = end["first.1.weight"].T[:sizes[i]]
            client_logits = features @ end["last.weight"].T
            close(row(shown["Eq. (9)"], f"client {i}: Z_c"), client_logits)
            close(row(shown["Eq. (11)"], f"client {i}: Z_s"), after["clients"][i]["server_logits"])
            check_losses(shown["Eq. (6)"], f"server, client {i}",
                         features @ server["model"]["weight"].T, labels, client_logits)
            upload = fedgkt.Upload(features, client_logits, labels)
            server = fedgkt.train_server(fed, cfg, t, server, {i: upload})
            close(row(shown["Eq. (6)"], f"server after client {i}: W"), server["model"]["weight"])
        torch.testing.assert_close(server["model"], after["server"]["model"])
        state = after


@pytest.mark.parametrize("name", ["fedsdd", "fedmd", "fedgems", "fedgkt"])
def test_a_round_is_printed_by_module_and_by_file_the_same_in_every_folder(name, tmp_path):
    by_module, by_file = (subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, text=True)
        for command, folder in ((["-m", f"reference.{name}"], ROOT),
                                ([f"{ROOT}/reference/{name}.py"], tmp_path)))
    (text, _), (again, _) = by_module.communicate(), by_file.communicate()
    assert by_module.returncode == by_file.returncode == 0 and text == again
    assert "\nRound 1 " in text and max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", ["FedSDD", "FedMD", "FedGEMS", "FedGKT"])
def test_the_picture_of_a_round_has_the_equations_and_steps_that_are_printed(name):
    [panel] = re.findall(rf">{name}</text>(.*?)</g>", PICTURE, re.S)
    program = (ROOT / "reference" / f"{name.lower()}.py").read_text().split("# A round by hand")[1]
    drawn, printed = ({(word, n) for word, numbers in re.findall(
        r"(Eq\.|Step)((?:,? \(?\d+\)?)+)", text) for n in re.findall(r"\d+", numbers)}
        for text in (panel, program))
    assert drawn == printed != set()


@pytest.mark.parametrize("name, change, line", [
    ("fedsdd", {"MODELS": [[[0, 0]], [[0]]]},
     "MODELS[1] needs 1 rows of 2 numbers each; its rows have [1]"),
    ("fedsdd", {"GROUPS": [[0, 1, 2]]},
     "GROUPS needs a group of the clients 0 to 3 for each of 3 models"),
    ("fedsdd", {"R": 0}, "R needs 1 or more, TEMPERATURE a number above 0"),
    ("fedmd", {"PRIVATE": [[(1, 0)], [(4, 3)], [(0, 0)], [(0, 0)]]},
     "PRIVATE[1] needs pairs (an image, 0 to 4; a label, 0 to 2)"),
    ("fedmd", {"SUBSET": [5]}, "SUBSET needs images, 0 to 4"),
    ("fedmd", {"WEIGHTS": [1, 1]},
     "PRIVATE and WEIGHTS need an entry for each of 4 clients, and WEIGHTS one above 0"),
    ("fedgems", {"POOL": {3: [0]}}, "POOL needs an image, 0 to 4, and 3 logits for each entry"),
    ("fedgems", {"LABELS": [2, 0, 1, 1, 3]}, "LABELS needs a class, 0 to 2, for each of 5 images"),
    ("fedgems", {"PRIVATE": []}, "PRIVATE needs images for each of 4 clients"),
    ("fedgkt", {"LABELS": [[0, 3], [1, 1, 0], [2]]}, "LABELS are classes, 0 to 2"),
    ("fedgkt", {"SERVER_LOGITS": [None]},
     "EXTRACTORS, CLASSIFIERS and SERVER_LOGITS need an entry for each of 3 clients")])
def test_numbers_that_do_not_fit_are_an_error_of_one_line(name, change, line, printed, capsys):
    with pytest.raises(SystemExit, match="2"):
        printed(getattr(reference, name), other(name) | change)
    assert capsys.readouterr().err == line + "\n"
