"""WORKED_ROUND.md: every block of the page is true, and its tensors are what a pencil gives."""
import doctest
import math
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "WORKED_ROUND.md"
PICTURE = re.sub("<[^>]*>", "", (PAGE.parent / "pictures/worked_round.svg").read_text())
LN3, THIRD = math.log(3), math.log(3) / 3
SURE, LESS = math.log(10) - .9 * math.log(9), math.log(4) - .75 * LN3   # H(9/10, 1/10), H(3/4, 1/4)
MORE = 1 / (1 + math.exp(1 / LESS - 1 / SURE))               # the weight of the one that is surer
TAUGHT = 1 / (1 + math.exp(-MORE * LN3 - LN3))               # class 0 by the teacher of sample 1


@pytest.fixture(scope="module")
def page():
    """{section: {name: value}} after its examples have run; what they print is checked."""
    shown, found, names = vars(torch._tensor_str.PRINT_OPTS).copy(), {}, {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M):
        title = section.splitlines()[0]
        example = doctest.DocTestParser().get_doctest(section, names, title, str(PAGE), 0)
        assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
        names = found[title] = example.globs
    torch.set_printoptions(precision=shown["precision"], sci_mode=shown["sci_mode"])
    return found


def close(tensor, expected):
    torch.testing.assert_close(tensor, torch.tensor(expected), atol=2e-6, rtol=1e-5)


def test_the_pictures_shapes_are_those_of_the_tensors(page):
    shown = set(re.findall(r"([a-z_.]+) (\[[\d, ]+\])", PICTURE))
    assert shown == {(x, str([*eval(x, page["FedGEMS"]).shape])) for x, _ in shown} != set()


def test_eq3_eq4_eq5_by_pencil(page):
    close(page["FedGEMS"]["weights"], [[1 - MORE, MORE, 0.], [0., 1 - MORE, 0.], [MORE, 0., 0.]])
    close(page["FedGEMS"]["fused_logits"], [[LN3, -MORE * LN3], [LN3, -MORE * LN3], [0., 0.]])


def test_the_servers_step_by_pencil(page):
    """Each row moves by target less output; a target is 3/4 label + 1/4 teacher, or the label."""
    moves = [1 - 3 / 4, 3 / 4 + TAUGHT / 4 - 1 / 4, 0 - 3 / 4, 3 / 4 * 0 + 1 / 4 * 1 / 10 - 3 / 4]
    before = [(LN3, 0), (0, LN3), (LN3, 0), (LN3, 0)]
    close(page["FedGEMS"]["server_logits"], [[a + x, b - x] for (a, b), x in zip(before, moves)])


def test_the_pool_after_the_round_by_pencil(page):
    """Sample 0 as the server was right on it, before its step; sample 3 as it was; no others."""
    assert page["FedGEMS"]["gems"]["pool"]["mask"].tolist() == [True, False, False, True]
    close(page["FedGEMS"]["gems"]["pool"]["logits"][[0, 3]], [[LN3, 0.], [0., 2 * LN3]])


def test_a_clients_rows_by_pencil(page):
    """Client 1: private training moved row 3; each row moves by ln 3 / 2 (target - output)."""
    before, said = [(0, LN3), (LN3, 0), (2 * LN3, 0), (-LN3, LN3)], [1 / 4, 3 / 4, 9 / 10, 1 / 10]
    server = page["FedGEMS"]["server_logits"].softmax(-1)[:, 0].tolist()
    moves = [LN3 / 2 * (3 / 4 * y + 1 / 4 * q - p) for y, q, p in zip([1, 1, 0, 0], server, said)]
    expected = [[a + x, b - x] for (a, b), x in zip(before, moves)]
    close(page["FedGEMS"]["gems"]["clients"][1]["model"]["1.weight"].T, expected)


def test_eq2_eq3_eq5_by_pencil(page):
    """A third of ln 3 is 2/3 of ln 3 / 2, and 1/3 of ln 3."""
    close(page["FedSDD"]["w0"], [[THIRD, -THIRD], [0., 0.], [-THIRD, THIRD], [-THIRD, THIRD]])
    close(page["FedSDD"]["mean_of_round_2"], [[2 * THIRD, -THIRD / 2], [LN3 / 2, -LN3 / 2],
                                   [-THIRD / 2, 2 * THIRD], [-THIRD / 2, THIRD / 2]])
    close(page["FedSDD"]["teacher_logits"], [[2.5 * THIRD, -THIRD / 4], [LN3 / 4, -LN3 / 4],
                                  [-THIRD / 4, THIRD], [-THIRD / 4, THIRD / 4 + LN3 / 2]])


def test_eq4_by_pencil(page):
    """Softened by 2, the difference of two logits is halved; then by teacher less student."""
    gaps = (2.75 * THIRD, LN3 / 2, -1.25 * THIRD, -THIRD / 2 - LN3 / 2)
    teacher, student = ([1 / (1 + math.exp(-gap / 2)) for gap in each]
                        for each in (gaps, (2 * THIRD, 0, -2 * THIRD, -2 * THIRD)))
    before = [THIRD, 0, -THIRD, -THIRD]
    expected = [[a + p - q, -a - p + q] for a, p, q in zip(before, teacher, student)]
    close(page["FedSDD"]["student"], expected)
    close(page["FedSDD"]["sdd"]["global_models"][0]["model"]["1.weight"].T, expected)


def test_the_numbers_in_the_text_are_right(page):
    """Each number with four digits in a sentence is a logit or a probability, or one of these."""
    half = 1 / (1 + math.exp(-LN3 / 4))
    taught_kl = TAUGHT * math.log(TAUGHT / .25) + (1 - TAUGHT) * math.log((1 - TAUGHT) / .75)
    pool_kl = .1 * math.log(2 / 15) + .9 * math.log(18 / 5)
    server = page["FedGEMS"]["server_logits"].softmax(-1)[0, 0].item()
    derived = [
        SURE, LESS, 1 / SURE, 1 / LESS, math.exp(1 / LESS - 1 / SURE), math.log(4 / 3),
        math.log(4), TAUGHT, 1 - TAUGHT, taught_kl, pool_kl, .75 * math.log(4) + .25 * taught_kl,
        .75 * math.log(4) + .25 * pool_kl, .75 + TAUGHT / 4, (1 - TAUGHT) / 4, .5 + TAUGHT / 4,
        LN3 / 2, LN3 / 2 * (.75 + .25 * server - .25), LN3 / 3, half, half - .5]
    tensors = [x.float() for names in page.values() for x in names.values()
               if torch.is_tensor(x) and x.ndim]
    numbers = [*derived, *torch.cat([y.flatten() for x in tensors for y in (x, x.softmax(-1))])]
    text = re.sub(r"```python.*?```", "", PAGE.read_text(), flags=re.S) + PICTURE
    said = set(re.findall(r"\d\.\d{4}", text))
    assert len(said) > 20 and said <= {f"{abs(number):.4f}" for number in numbers}
