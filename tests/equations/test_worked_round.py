"""A round of FedGEMS (docs/WORKED_ROUND.md) and a round of FedSDD: what a pencil gives."""
import doctest
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from algorithms import fedsdd
from federation import Data, Federation

PAGE = Path(__file__).parents[2] / "docs" / "WORKED_ROUND.md"
PICTURE = re.sub("<[^>]*>", "", (PAGE.parent / "pictures/worked_round.svg").read_text())
LN3, THIRD = math.log(3), math.log(3) / 3
SURE, LESS = math.log(10) - .9 * math.log(9), math.log(4) - .75 * LN3   # H(9/10, 1/10), H(3/4, 1/4)
MORE = 1 / (1 + math.exp(1 / LESS - 1 / SURE))               # the weight of the one that is surer
TAUGHT = 1 / (1 + math.exp(-MORE * LN3 - LN3))               # class 0 by the teacher of sample 1


@pytest.fixture(scope="module")
def page():
    """{name: value} after the page's examples have run; what they print is checked."""
    shown = vars(torch._tensor_str.PRINT_OPTS).copy()
    example = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, PAGE.name, str(PAGE), 0)
    assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
    torch.set_printoptions(precision=shown["precision"], sci_mode=shown["sci_mode"])
    return example.globs


def close(tensor, expected):
    torch.testing.assert_close(tensor, torch.tensor(expected), atol=2e-6, rtol=1e-5)


def test_the_pictures_shapes_are_those_of_the_tensors(page):
    shown = set(re.findall(r'([a-z_]+(?:\["\w+"\])?) (\[[\d, ]+\])', PICTURE))
    assert shown == {(x, str([*eval(x, page).shape])) for x, _ in shown} != set()


def test_eq3_eq4_eq5_by_pencil(page):
    close(page["weights"], [[1 - MORE, MORE, 0.], [0., 1 - MORE, 0.], [MORE, 0., 0.]])
    close(page["ensemble"], [[LN3, -MORE * LN3], [LN3, -MORE * LN3], [0., 0.], [0., 0.]])


def test_the_servers_step_by_pencil(page):
    """Each row moves by target less output; a target is 3/4 label + 1/4 teacher, or the label."""
    moves = [1 - 3 / 4, 3 / 4 + TAUGHT / 4 - 1 / 4, 0 - 3 / 4, 3 / 4 * 0 + 1 / 4 * 1 / 10 - 3 / 4]
    before = [(LN3, 0), (0, LN3), (LN3, 0), (LN3, 0)]
    close(page["server_logits"], [[a + x, b - x] for (a, b), x in zip(before, moves)])


def test_the_pool_after_the_round_by_pencil(page):
    """Sample 0 as the server was right on it, before its step; sample 3 as it was; no others."""
    assert page["gems"]["pool"]["mask"].tolist() == [True, False, False, True]
    close(page["gems"]["pool"]["logits"][[0, 3]], [[LN3, 0.], [0., 2 * LN3]])


def test_a_clients_rows_by_pencil(page):
    """Client 1: private training moved row 3; each row moves by ln 3 / 2 (target - output)."""
    before, said = [(0, LN3), (LN3, 0), (2 * LN3, 0), (-LN3, LN3)], [1 / 4, 3 / 4, 9 / 10, 1 / 10]
    server = page["server_logits"].softmax(-1)[:, 0].tolist()
    moves = [LN3 / 2 * (3 / 4 * y + 1 / 4 * q - p) for y, q, p in zip([1, 1, 0, 0], server, said)]
    expected = [[a + x, b - x] for (a, b), x in zip(before, moves)]
    close(page["gems"]["clients"][1]["model"]["1.weight"].T, expected)


def test_the_numbers_in_the_text_are_right(page):
    """Each number with four digits in a sentence is a logit or a probability, or one of these."""
    taught_kl = TAUGHT * math.log(TAUGHT / .25) + (1 - TAUGHT) * math.log((1 - TAUGHT) / .75)
    pool_kl = .1 * math.log(2 / 15) + .9 * math.log(18 / 5)
    server = page["server_logits"].softmax(-1)[0, 0].item()
    derived = [
        SURE, LESS, 1 / SURE, 1 / LESS, math.exp(1 / LESS - 1 / SURE), math.log(4 / 3),
        math.log(4), TAUGHT, 1 - TAUGHT, taught_kl, pool_kl, .75 * math.log(4) + .25 * taught_kl,
        .75 * math.log(4) + .25 * pool_kl, .75 + TAUGHT / 4, (1 - TAUGHT) / 4, .5 + TAUGHT / 4,
        LN3 / 2, LN3 / 2 * (.75 + .25 * server - .25)]
    tensors = [x.float() for x in page.values() if torch.is_tensor(x) and x.ndim]
    numbers = [*derived, *torch.cat([y.flatten() for x in tensors for y in (x, x.softmax(-1))])]
    text = re.sub(r"```python.*?```", "", PAGE.read_text(), flags=re.S) + PICTURE
    said = set(re.findall(r"\d\.\d{4}", text))
    assert len(said) > 20 and said <= {f"{abs(number):.4f}" for number in numbers}


def test_a_round_of_fedsdd_by_pencil():
    """Eq. (1) to (5): K = 2 models, R = 2 rounds, temperature 2, three clients, four samples.

    A network is a table: row n of its one layer is its logits on sample n, the n-th unit vector. A
    step on a batch of B adds lr / B (target - prediction) to the rows of the batch.
    Clients 0 and 2 train the main model, client 1 the other: seed 2 draws these groups in round 2.
    """
    x = torch.eye(4).reshape(4, 1, 1, 4)

    def table():
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))

    private = [Data(x[rows], torch.tensor(labels))
               for rows, labels in (([0, 2], [0, 1]), ([1], [0]), ([3], [1]))]
    fed = Federation(private=private, test=Data(x, torch.tensor([0, 0, 1, 1])),
                     public=Data(x, None), num_classes=2, seed=2, device=torch.device("cpu"),
                     architecture=["table"] * 3, client_model=lambda i, init=0: table())
    models = [[0., 0.]] * 4, [[LN3, 0.], [0., 0.], [0., LN3], [0., 0.]]
    undistilled = ([[2 * LN3, 0.], [0., 0.], [0., 0.], [0., 0.]],    # their mean: (ln 3, 0), zeros,
                   [[0., 0.], [0., 0.], [0., 0.], [0., 2 * LN3]])    # zeros, (0, ln 3)

    def weights(logits):
        return {"1.weight": torch.tensor(logits).T.contiguous()}
    round_1 = {"algorithm": "fedsdd", "round": 1, "undistilled": [[*map(weights, undistilled)]],
               "global_models": [*map(weights, models)]}
    [(metrics, state)] = fedsdd.run(fed, round_1, rounds=2, K=2, R=2, participation=1.0,
                                    local_epochs=1, lr=2 * LN3, distill_steps=1, server_lr=2.,
                                    temperature=2.0)
    main, other = (w["1.weight"].T for w in state["global_models"])

    # Line 4-6, the rate 2 ln 3: a row of logits (0, 0) moves by ln 3 (1/2, -1/2) in client 0's
    # batch of two, by (ln 3, -ln 3) alone. Eq. (2): client 0 weighs 2/3, client 2 weighs 1/3.
    w0 = [THIRD, 0, -THIRD, -THIRD]                    # the class 0; class 1 has the opposite
    close(other, [[LN3, 0.], [LN3, -LN3], [0., LN3], [0., 0.]])
    # Eq. (3): the mean of the two models' logits; Eq. (5): its mean with that of round 1.
    newest = torch.stack([w["1.weight"].T for w in state["undistilled"][1]])
    close(newest.mean(0), [[2 * THIRD, -THIRD / 2], [LN3 / 2, -LN3 / 2],
                           [-THIRD / 2, 2 * THIRD], [-THIRD / 2, THIRD / 2]])
    teacher = [[2.5 * THIRD, -THIRD / 4], [LN3 / 4, -LN3 / 4], [-THIRD / 4, THIRD],
               [-THIRD / 4, THIRD / 4 + LN3 / 2]]
    # Eq. (4): 2² KL of softened predictions, mean over 4, rate 2: a row moves by teacher - student.
    moves = [1 / (1 + math.exp(-(a - b) / 2)) - 1 / (1 + math.exp(-own))
             for (a, b), own in zip(teacher, w0)]
    close(main, [[own + move, -own - move] for own, move in zip(w0, moves)])
    assert metrics["teacher_forwards"] == 2 * 2 * 4    # K R N
