"""Flags: the fields of dataclasses as words of a command line, and as the text of --help.

The field `local_epochs: Count = 5` is the flag --local-epochs. Its type says how the word behind
the flag is read, and which values it may have: see `checked` in federation.py.
"""
import argparse
import difflib
import inspect
import typing
from dataclasses import fields
from functools import partial

from experiment.common import BadInput, refuses
from federation import checked


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise BadInput(message)


def typed(argv, tables):
    """({name: value} of the flags that were typed, [the words that belong to none of them]).

    tables    the dataclasses of the flags. Fields of one name have one type
    """
    parser = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    kinds = {name: kind for table in tables for name, kind in typing.get_type_hints(table).items()}
    for name, kind in kinds.items():
        words = ["--help", "-h"] if name == "help" else [flag_of(name)]
        if kind is bool or bool in typing.get_args(kind):
            parser.add_argument(*words, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(*words, type=partial(value_of, kind))
    found, unknown = parser.parse_known_args(argv)
    return vars(found), unknown


def value_of(kind, text):
    """The value that a text means for a field of this type: str, Literal, int, float,
    tuple[X, ...] or X | None. Raises ArgumentTypeError if it means none."""
    inside = typing.get_args(kind)
    if type(None) in inside:
        return None if text == "none" else value_of(inside[0], text)
    if typing.get_origin(kind) is tuple:
        return tuple(value_of(inside[0], word) for word in text.split(","))
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty word: write several as a,b without a blank")
    if kind not in (int, float):
        return text.strip()
    try:
        return kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {noun}") from None


def filled(table, values):
    """An instance of a dataclass, from those of the `values` {name: value} that are its fields.

    Other values are for other dataclasses. A test knows every name in presets.py and `PAPER`.

    Raises BadInput for a value that its field's type does not allow.
    """
    own = {name: values[name] for name in values.keys() & field_names(table)}
    kinds = typing.get_type_hints(table, include_extras=True)
    with refuses(ValueError):
        for name, value in own.items():
            checked(flag_of(name), value, kinds[name])
        return table(**own)


def field_names(*tables):
    return {field.name for table in tables for field in fields(table)}


def flag_of(name):
    return "--" + name.replace("_", "-")


def help_of(tables):
    """The source of these dataclasses, and how to read it as a list of flags."""
    return "\n\n".join([
        "Each field below is a flag: `local_epochs: Count = 5` is --local-epochs, by default 5;"
        "\n`amp: bool` is --amp and --no-amp; several values are written a,b without a blank.",
        *(inspect.getsource(table).rstrip() for table in tables)])


def suggestion(word, words):
    """What a message says of a word that is none of the words, but close to one of them."""
    close = difflib.get_close_matches(word, words, 1)
    return f", perhaps {close[0]}" if close else ""
