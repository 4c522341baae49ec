"""Exercises: write an equation of a paper yourself; the tests of the project grade it.

    python tests/exercise.py                              # the exercises, from easy to hard
    python tests/exercise.py fedgems.entropy_weights      # writes exercise.py; again: grades it

--solution shows what is left out. The exit status is 1 if a claim is not held.
"""
import argparse
import re
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
from break_it import MUTANTS, ROOT, Claims, copy_project, enter, mutated, verdict
from program.test_equations_page import LINK, rows

# Exercises on steps of a function: the part that is left out, "" for the whole body.
STEPS = {"fedgems.who_teaches": "", "fedsdd.run": r"global_models = \[distill.*(?:\n.+)*"}
FUNCTION = r"^(?:@.*\n)*def %s\((?s:.*?)(?=\n\n\n|\s*\Z)"       # up to two empty lines
NOISE = re.compile(r"^(?:- Here|- Tests|```).*\n|^\n|\[`?(.*?)`?\]\(.*?\)|\$`|`\$|\\,|\\(?:left|"
                   r"right|Big)(?![a-z]) ?|\\(?:boldsymbol|mathcal|mathrm|text)\{(\S*?)\}", re.M)


def exercises():
    """{name: exercise}, from easy to hard; `left_out`, in STEPS or the body, is to be written."""
    found, index, inputs = {}, rows(), (ROOT / "tests" / "functions.py").read_text()
    for name in [*re.findall(r'^    "(\w+\.\w+)": lambda', inputs, re.M), *STEPS]:
        stem, function = name.split(".")
        file = f"{stem}.py" if (ROOT / f"{stem}.py").exists() else f"algorithms/{stem}.py"
        source = re.search(FUNCTION % function, text := (ROOT / file).read_text(), re.M)[0]
        left_out = re.search(STEPS[name], source)[0] if STEPS.get(name) else source.split('"""')[2]
        places = [row for row in index for shown, path, _ in LINK.findall(row[2]) if path == file
                  and (shown == function or " " in shown and shown in left_out)]
        mistakes = [m for m in MUTANTS if m.file == file and m.old in left_out]
        tests = [f"{path}::{test}" for row in places for test, path, _ in LINK.findall(row[3])
                 if re.search(rf"\b{stem}\b", (ROOT / path).read_text())]   # not of a helper's file
        tests += [*(f"tests/{m.test}" for m in mistakes), "tests/program/test_functions.py"]
        found[name] = SimpleNamespace(
            name=name, function=function, file=file, text=text, source=source, left_out=left_out,
            places=places, mistakes=mistakes, tests=tests)
    names = sorted(found, key=lambda name: (name in STEPS, len(found[name].left_out)))
    return {name: found[name] for name in names if found[name].places}


def template(x):
    """exercise.py before the student has changed it."""
    above = compile(x.text.partition(x.source)[0], "", "exec").co_names
    words = [*dict.fromkeys(re.findall(r"(?<![.\w\"])\w+", "".join(x.source.split('"""')[::2])))]
    imports = [line for line in re.findall("^import .*", x.text, re.M) if line.split()[-1] in words]
    names = [word for word in words if word in above and f" {word}" not in " ".join(imports)]
    if names:
        imports.append(f"from {x.file[:-3].replace('/', '.')} import {', '.join(names)}")
    code = x.text + "".join(path.read_text() for path in (ROOT / "algorithms").glob("*.py"))
    helpers = [re.findall(rf'^def ({name}\((?s:.*?)\)):\n    """(.*?)(?:"""|$)', code, re.M)[:1]
               for name in names if name in x.left_out]        # the file's own comes first
    imports += [re.sub("^", "# ", f"{call}\n    {about}", flags=re.M)
                for found in helpers for call, about in found]
    about = "".join(f"{paper} {number}:\n{shown}" for paper, *_, number, shown in x.places)
    letters = "".join(re.findall(r"^Paper(?s:.*?)\n(?=\n)", x.text, re.M)[:1])    # the file's table
    comment = f"{x.name}\n" + NOISE.sub(r"\1\2", about) + letters
    if STEPS.get(x.name):
        comment += "The lines that are left out set: " + ", ".join(
            re.findall(r"^ *(\w+) =", x.left_out, re.M))
        comment += "\nThe random stream: " + ", ".join(re.findall(r"keys=\(.*?\)", x.left_out))
    if "promote_types" in x.left_out:
        comment += ("Compute in torch.promote_types(the input's type, torch.float32), and return "
                    "the input's type:\nfloat16 would not do, and float64 has to stay float64.")
    code = re.sub(r'\n+ *>>> (?s:.*?)"""', '\n    """', x.source.replace(
        x.left_out, "...    # write this" if STEPS.get(x.name) else ""))
    return "\n".join([re.sub("^", "# ", comment, flags=re.M), *imports, "", "", code, ""])


def same_mistakes(x):
    """Lines about mistakes that give on INPUTS what the student's function gives."""
    import functions       # the copy's, which has the student's function
    from torch.testing import assert_close
    students = functions.own(x.name)
    if x.name in STEPS:
        return ""
    try:
        found = functions.results(students, x.name)
    except Exception:                            # each claim then tells it
        return ""

    def difference(text):                   # to what the function in this text gives
        namespace = dict(vars(functions.module_of(x.name)))
        exec(re.search(FUNCTION % x.function, text, re.M)[0], namespace)
        theirs = functions.results(namespace[x.function], x.name)
        try:
            assert_close(found, theirs, rtol=1e-4, atol=1e-6, equal_nan=True)
        except (AssertionError, TypeError) as error:
            return str(error).partition("\n")[0]

    wrong = difference(x.text)
    same = [m for m in x.mistakes if wrong and not difference(mutated(x.text, m))]
    told = "".join(f"\nIt is as if: {m.what}" + (f" (as in {m.whose})" if m.whose else "")
                   for m in same)
    if wrong and not re.match("Tensor|Scalar|Boolean", wrong):    # another shape or type
        raise TypeError(f"your results and the project's: {wrong}{told}")
    return told


def reason(error):
    """A line on what was raised; of an assertion the two sides, and its first line."""
    text, trace = " ".join(str(error).split()), traceback.extract_tb(error.__traceback__)
    if isinstance(error, AssertionError):
        said = text.partition("assert ")[0]
        text = re.sub(r"(\.\d{9})\d+| ± 1.0e-\d+|, dtype=torch.float64|\\n", r"\1", text)
        pair = r"got (.*?), not ([^+;]*)|close[^(]*\((tensor\(.*?\)), ([^+]*)\)"
        sides = [side[:200] for found in re.findall(pair, text)[:1] for side in found if side]
        return said + ("got {}, not {}".format(*sides) if sides else "") + f"   ({trace[-1].line})"
    lines = [f" (exercise.py, line {x.lineno})" for x in trace if x.filename == "exercise.py"]
    return f"{type(error).__name__}: {text[:120]}" + "".join(lines[-1:])


def grade(x, folder, tests, answer):
    """Sends what the tests say of this copy of the project: a text."""
    enter(folder)
    try:
        mistakes = same_mistakes(x)
    except Exception as error:                                       # the student's
        return answer.send(reason(error))
    raises = pytest.raises                       # in words of the student's own
    pytest.raises = lambda error, match=None: raises(error)
    own, claims, told = f"not test_functions.py or [{x.name}] or [{x.name}-", Claims(), {}
    pytest.main(["--tb=no", "-p", "no:cacheprovider", "-k", own, *tests], plugins=[claims])
    why = {test: reason(error) for test, _, error in claims.seen}
    for test in claims.tests:
        words = re.sub(r"\beq(\d+)", r"Eq. (\1)", re.split(r"::test_|\[", test)[1].replace("_", " ")
                       ).replace("by hand", "as computed by hand")
        told[words] = told.get(words) or why.get(test)
    lines = [f"not held  {words}: {line}" if line else f"held      {words}"
             for words, line in told.items()]
    if len({*told.values()}) == 1 and not lines[0].startswith("held"):
        lines = [*told.values()][:1]             # the same exception everywhere
    answer.send("\n".join(lines) + mistakes)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--solution", action="store_true")
    args, found, path = parser.parse_args(argv), exercises(), Path("exercise.py")
    x, text = found.get(args.name), path.read_text() if path.exists() else ""
    if not args.name:
        for x in found.values():
            print(f"{x.name:35} {'; '.join(f'{row[0]} {row[4]}' for row in x.places)}")
    elif not x:
        parser.error(f"there is no exercise {args.name}; without a name all are listed")
    elif args.solution:
        print(x.left_out)
    elif text in ["", *map(template, found.values())]:
        path.write_text(template(x))
        print("exercise.py has no body yet: write it, then give the same command again")
    elif not text.startswith(f"# {x.name}\n"):
        parser.error(f"exercise.py was changed, and is not of {x.name}: move it away first")
    else:
        student = f"exec(compile({text!r}, 'exercise.py', 'exec'))"
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_project(f"{folder}/copy")
            Path(copy, x.file).write_text(x.text.replace(x.source, student))
            told = verdict(copy, x.tests, lambda *given: grade(x, *given), limit=60)
            is_right = told.startswith("held") and "not held" not in told
            print(told + "\nall held" if is_right else told)
            return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
