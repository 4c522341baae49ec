"""Each function that carries an equation works outside this project, with the functions and
constants of the project that it calls."""
import ast
import builtins
import contextlib
import importlib
import inspect
import io
import re
import symtable
import sys
import types

import numpy as np
import pytest
import torch
from functions import EQUATIONS, ROOT, identical, own, results

IMPORTS = {"torch": torch, "np": np, "F": torch.nn.functional}     # what a reader's own file has
every_function = pytest.mark.parametrize("name", EQUATIONS)


def source(module, name):
    """The text of a module's function, or of the assignment of its constant."""
    if inspect.isfunction(getattr(module, name)):
        return inspect.getsource(getattr(module, name))
    text = inspect.getsource(module)
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and name in [target.id for target in node.targets]:
            return ast.get_source_segment(text, node)
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return source(importlib.import_module(node.module), name)


def needs(module, name):
    """The global names in the source of a function or constant, in every branch, also where no
    input leads, without Python's own and those of IMPORTS."""
    def names(table):
        here = {symbol.get_name() for symbol in table.get_symbols()
                if symbol.is_referenced() and symbol.is_global()}
        return here.union(*map(names, table.get_children()))

    found = names(symtable.symtable(source(module, name), name, "exec"))
    return sorted(found - {*dir(builtins), *IMPORTS, name})


def of_the_library(thing):
    """True for a module of Python's standard library, and for what is imported from one."""
    home = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(
        thing, "__module__", "")
    return home.split(".")[0] in sys.stdlib_module_names


def carried(module, name):
    """(the function or constant, made from its source alone, what comes along with it beside
    IMPORTS: names, and lines of imports). What it needs is made likewise, in a place of its own."""
    namespace, along = {**IMPORTS}, []
    for helper in needs(module, name):
        thing = namespace[helper] = getattr(module, helper)
        if of_the_library(thing):
            along += [f"import {helper}" if inspect.ismodule(thing) else
                      f"from {thing.__module__} import {helper}"]
        else:
            home = sys.modules[thing.__module__] if inspect.isfunction(thing) else module
            namespace[helper], more = carried(home, helper)
            along += [helper, *more]
    exec(compile(source(module, name), f"<{name}>", "exec"), namespace)
    return namespace[name], dict.fromkeys(along)


@every_function
def test_a_function_carried_away_gives_what_it_gives_here(name):
    function, _ = carried(sys.modules[own(name).__module__], own(name).__name__)
    assert function.__globals__ is not own(name).__globals__
    assert identical(results(function, name), results(own(name), name))


# -------------------------------------------------------------------------------------- the pages

def test_the_page_says_what_comes_along_with_each_function():
    table = "| function | what comes along |\n|---|---|\n"
    for name in EQUATIONS:
        _, found = carried(sys.modules[own(name).__module__], own(name).__name__)
        if found and not name.startswith("partition"):
            table += f"| `{name}` | {', '.join(f'`{x}`' for x in found)} |\n"
    print(table)
    assert table in (ROOT / "docs" / "YOUR_OWN.md").read_text()


def test_the_examples_of_a_page_print_what_they_say():
    """What to copy is in the line above each example."""
    text = (ROOT / "docs" / "YOUR_OWN.md").read_text()
    examples = re.findall(r"^Copy ([^\n]+)\.\n+```python\n(.*?)^```$", text, re.M | re.S)
    assert len(examples) >= 2
    for line, code in examples:
        pieces = re.findall(r"((?:`\w+`(?:, | and )?)+) from \[([\w/.]+)\]\(([\w/.]+)\)", line)
        assert pieces and all(linked == f"../{shown}" for _, shown, linked in pieces), line
        named = [(file, name) for names, file, _ in pieces
                 for name in re.findall(r"`(\w+)`", names)]
        assert len(named) == line.count("`") // 2, line
        sources = [source(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)
                   for file, name in named]
        expected = re.findall(r"^ *print\(.*# -> (.*?) *$", code, re.M)
        assert expected and len(expected) == len(re.findall(r"\bprint\(", code))
        printed = io.StringIO()
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(printed):
            exec("\n\n".join([*sources, code]), {})
        assert printed.getvalue().splitlines() == expected
