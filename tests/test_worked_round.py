"""WORKED_ROUND.md: every block of the page is true, and its tensors are what a pencil gives."""
import doctest
import math
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parent.parent / "WORKED_ROUND.md"
LN3 = math.log(3)


@pytest.fixture(scope="module")
def page():
    """{name: value} at the end of each section, after its examples have run: {"FedGEMS": ..., "FedSDD": ...}. What is printed is checked."""
    printed, found, names = vars(torch._tensor_str.PRINT_OPTS).copy(), {}, {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M):
        example = doctest.DocTestParser().get_doctest(section, names, section.splitlines()[0], str(PAGE), 0)
        assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
        names = found[section.splitlines()[0]] = example.globs
    torch.set_printoptions(precision=printed["precision"], sci_mode=printed["sci_mode"])
    return found


def close(tensor, expected):
    torch.testing.assert_close(tensor, torch.tensor(expected), atol=2e-6, rtol=1e-5)


def test_the_page_has_both_rounds_and_each_tensor_of_them(page):
    assert set(page) >= {"FedGEMS", "FedSDD"}
    assert {"client_logits", "reliable", "weights", "fused_logits", "pool", "server_logits", "distilled"} <= set(page["FedGEMS"])
    assert {"w0", "w1", "member_logits", "mean_of_round_2", "teacher_logits", "student"} <= set(page["FedSDD"])


def test_eq3_eq4_eq5_by_pencil(page):
    sure, less = math.log(10) - .9 * math.log(9), math.log(4) - .75 * LN3            # H(9/10, 1/10), H(3/4, 1/4)
    more = 1 / (1 + math.exp(1 / less - 1 / sure))                                   # the weight of the one that is surer
    close(page["FedGEMS"]["weights"], [[1 - more, more, 0.], [0., 1 - more, 0.], [more, 0., 0.]])
    close(page["FedGEMS"]["fused_logits"], [[LN3, -more * LN3], [LN3, -more * LN3], [0., 0.]])


def test_the_servers_step_by_pencil(page):
    """Each row moves by what it should say less what it says; what it should say is 3/4 label + 1/4 teacher, or the label."""
    taught = 1 / (1 + math.exp(page["FedGEMS"]["fused_logits"][1].diff().item()))    # class 0 by the teacher of sample 1
    moves = [1 - 3 / 4, 3 / 4 + taught / 4 - 1 / 4, 0 - 3 / 4, 3 / 4 * 0 + 1 / 4 * 1 / 10 - 3 / 4]
    before = [(LN3, 0), (0, LN3), (LN3, 0), (LN3, 0)]
    close(page["FedGEMS"]["server_logits"], [[a + move, b - move] for (a, b), move in zip(before, moves)])


def test_the_pool_after_the_round_by_pencil(page):
    """Sample 0 as the server was right on it, before its step; sample 3 as it was; no others."""
    assert page["FedGEMS"]["gems"]["pool"]["mask"].tolist() == [True, False, False, True]
    close(page["FedGEMS"]["gems"]["pool"]["logits"][[0, 3]], [[LN3, 0.], [0., 2 * LN3]])


def test_a_clients_rows_by_pencil(page):
    """Client 1: private training moved row 3 to (-ln 3, ln 3); distillation moves every row by ln 3 / 2 times what is missing."""
    before = [(0, LN3), (LN3, 0), (2 * LN3, 0), (-LN3, LN3)]
    said = [1 / 4, 3 / 4, 9 / 10, 1 / 10]
    server = page["FedGEMS"]["server_logits"].softmax(-1)[:, 0].tolist()
    moves = [LN3 / 2 * (3 / 4 * label + 1 / 4 * own - p) for label, own, p in zip([1, 1, 0, 0], server, said)]
    expected = [[a + move, b - move] for (a, b), move in zip(before, moves)]
    close(page["FedGEMS"]["gems"]["clients"][1]["model"]["1.weight"].T, expected)


def test_eq2_eq3_eq5_by_pencil(page):
    third = LN3 / 3                                                                  # 2/3 of ln 3 / 2, and 1/3 of ln 3
    close(page["FedSDD"]["w0"], [[third, -third], [0., 0.], [-third, third], [-third, third]])
    close(page["FedSDD"]["mean_of_round_2"], [[2 * third, -third / 2], [LN3 / 2, -LN3 / 2], [-third / 2, 2 * third], [-third / 2, third / 2]])
    close(page["FedSDD"]["teacher_logits"], [[2.5 * third, -third / 4], [LN3 / 4, -LN3 / 4], [-third / 4, third],
                                             [-third / 4, third / 4 + LN3 / 2]])


def test_eq4_by_pencil(page):
    """The main model moves by teacher less student, softened by 2: the difference of two logits is halved before the softmax."""
    third = LN3 / 3
    teacher = [1 / (1 + math.exp(-gap / 2)) for gap in (2.75 * third, LN3 / 2, -1.25 * third, -third / 2 - LN3 / 2)]
    student = [1 / (1 + math.exp(-gap / 2)) for gap in (2 * third, 0, -2 * third, -2 * third)]
    close(page["FedSDD"]["student"], [[a + p - q, -a - p + q] for a, p, q in zip([third, 0, -third, -third], teacher, student)])
    close(page["FedSDD"]["sdd"]["global_models"][0]["model"]["1.weight"].T, page["FedSDD"]["student"].tolist())


def test_the_numbers_in_the_text_are_right(page):
    """Each number with four digits in a sentence is in one of the tensors, as a logit or a probability, or is one of these."""
    sure, less = math.log(10) - .9 * math.log(9), math.log(4) - .75 * LN3
    taught = 1 / (1 + math.exp(page["FedGEMS"]["fused_logits"][1].diff().item()))
    taught_kl = taught * math.log(taught / .25) + (1 - taught) * math.log((1 - taught) / .75)
    pool_kl = .1 * math.log(2 / 15) + .9 * math.log(18 / 5)
    derived = [sure, less, 1 / sure, 1 / less, math.exp(1 / less - 1 / sure), math.log(4 / 3), math.log(4), taught, 1 - taught,
               taught_kl, pool_kl, .75 * math.log(4) + .25 * taught_kl, .75 * math.log(4) + .25 * pool_kl, .75 + taught / 4, (1 - taught) / 4,
               .75 + taught / 4 - .25, LN3 / 2, LN3 / 2 * (.75 + .25 * page["FedGEMS"]["server_logits"].softmax(-1)[0, 0].item() - .25),
               LN3 / 3, 1 / (1 + math.exp(-LN3 / 4)), 1 / (1 + math.exp(-LN3 / 4)) - .5]
    tensors = [tensor.float() for names in page.values() for tensor in names.values() if torch.is_tensor(tensor) and tensor.ndim]
    shown = {f"{abs(value):.4f}" for tensor in tensors for value in [*tensor.flatten().tolist(), *tensor.softmax(-1).flatten().tolist()]}
    said = set(re.findall(r"\d\.\d{4}", re.sub(r"```python.*?```", "", PAGE.read_text(), flags=re.S)))
    assert len(said) > 20 and said <= shown | {f"{number:.4f}" for number in derived}, said - shown
