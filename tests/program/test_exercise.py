"""exercise.py: an exercise can be solved; a wrong function is told what is wrong."""
import ast
import re
import subprocess
import sys

from break_it import MUTANTS, ROOT, place_of
from exercise import STEPS, exercises, template

CASES = [       # (exercise, a part of the project's body, what stands there instead, what is told)
    ("fedgems.entropy_weights", "return", "return", r"(held  .*\n){10}all held\n"),
    ("fedgems.entropy_weights", 'float("-inf")', "0.0", r"not held  Eq. \(4\) as computed by hand: "
     r"got \[.*\], not .*\n(.*\n)+It is as if: masked with 0: .*\n"),
    ("fedgems.entropy_weights", "(0)", "(9)", r"IndexError: .* \(exercise.py, line \d+\)\n"),
    ("equations.ensemble_logits", "return", "_ =", r"TypeError: .*: None is not tensor.*\n"),
    ("fedsdd.run", "is_main(k, K)", "True", r"not held  rounds with R 2 .*: "
     r"global model 1 after round 1 .*\n(.*\n)+")]


def start_background(npz, folder):
    script = f"""import os, pathlib, exercise, torch._dynamo
os.chdir({str(folder)!r})
for name, old, new, _ in {CASES!r}:
    (path := pathlib.Path("exercise.py")).unlink(missing_ok=True)
    exercise.main([name])
    start, gap, end = path.read_text().rpartition("...    # write this")
    body = exercise.exercises()[name].left_out.replace(old, new)
    path.write_text(start + body + end if gap else end.rstrip() + body + "\\n")
    held = not exercise.main([name])
    try:
        exercise.main(["fedmd.consensus"])
    except SystemExit as stop:
        print(stop.code, held, body in path.read_text())"""
    return subprocess.Popen([sys.executable, "-c", script], cwd=ROOT / "tests", text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_the_projects_body_is_held_others_are_not_and_a_changed_file_stays(background):
    out, _ = background["background"][1].communicate(timeout=300)
    assert re.fullmatch("".join(
        rf"exercise.py has no body yet: .*\n{told}(?:usage.*\n(?: .*\n)*)?.*error: exercise.py was "
        rf"changed, .*\n2 {told.startswith('(held')} True\n" for *_, told in CASES), out), out


def test_an_exercise_has_the_tests_of_its_mistakes_but_no_body_and_no_worked_value():
    for x in exercises().values():        # test_break_it.py shows that they notice the mistakes
        exec(text := template(x), {})
        assert x.places[0][0] in text and ">>>" not in text and x.left_out not in text
        assert x.name in STEPS or len(ast.parse(text).body[-1].body) == 1
        inside = [m for m in MUTANTS if m.file == x.file and place_of(m)[1] == x.function]
        assert x.name in STEPS or {f"tests/{m.test}" for m in inside} <= {*x.tests}
