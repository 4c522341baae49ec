"""Writes docs/reading/NAME.html: on the left what a paper does, on the right the code it became.

    python docs/reading/generate.py   # after a change of algorithms/, NAME.txt or template.html

NAME.txt has a title, an introduction, and the rows of the page:
    == the lines and equations of the paper
    a paragraph in one line, with $formulas$ and [links](file)
    $ a formula on a line of its own: x_i, x^{2}, \\frac{a}{b}; words are upright, ~ is a space
    @ FILE: TEXT            the statement of algorithms/FILE.py with TEXT, which occurs there once;
                            of a loop its head, of a docstring its first line
    @ FILE: TEXT .. TEXT    all from the one statement to the other
"""
import ast
import html
import keyword
import re
import string
import textwrap
from pathlib import Path

FOLDER = Path(__file__).parent
SYMBOLS = {"~": 'mspace width="0.4em"', "∑": 'mo class="sum" largeop="false"'}
SYMBOLS |= dict.fromkeys("|‖", 'mo stretchy="false" lspace="0.15em" rspace="0.15em"')
PAINT = re.compile(r'(?P<string>"""[^"\n]*(?:""")?|\bf?"[^"\n]*"|"[^"\n]*")|(?P<gap> +)(?=  #)|'
                   rf"(?P<comment>#.*)|(?P<keyword>\b(?:{'|'.join(keyword.kwlist)})\b)")


def atom(tokens):
    """The MathML of the next symbol, fraction or {group}; its tokens are taken away."""
    token, row = tokens.pop(0), ""
    if token == "\\frac":
        return f"<mfrac>{atom(tokens)}{atom(tokens)}</mfrac>"
    if token != "{":
        tag = "mi" if token.isalpha() else "mn" if token[0].isdigit() else SYMBOLS.get(token, "mo")
        return f"<{tag}>{html.escape(token.strip('~'))}</{tag.split()[0]}>"
    while tokens[0] != "}":
        base, scripts = atom(tokens), {}
        while tokens[0] in "_^":
            mark = tokens.pop(0)
            scripts[mark] = atom(tokens)
        tag, low, high = "munderover" if "∑" in base else "msubsup", *map(scripts.get, "_^")
        row += f"<{tag}>{base}{low or '<mrow/>'}{high or '<mrow/>'}</{tag}>" if scripts else base
    tokens.pop(0)
    return f"<mrow>{row}</mrow>"


def formula(text, display="inline"):
    tokens = re.findall(r"\\frac|[^\W\d_]+|[\d.]+|\S", "{" + text.replace("-", "−") + "}")
    return f'<math display="{display}">{atom(tokens)}</math>'


def prose(text):
    if text[:2] == "$ ":
        return formula(text[2:], "block")
    text = re.sub(r"\[(.+?)\]\((.+?)\)", r'<a href="\2">\1</a>', html.escape(text, quote=False))
    return f"<p>{re.sub(r'[$](.+?)[$]', lambda f: formula(html.unescape(f[1])), text)}</p>"


def statement(code, text):
    """The numbers of the lines of the innermost statement in which the text stands."""
    body = ast.parse(code).body                                # body[0] is the file's docstring
    found = [n for n, line in enumerate(code.splitlines(), 1) if n > body[0].end_lineno
             and re.search(re.escape(text) + r"(?![\d-])", line)]
    assert len(found) == 1, f"{text!r} is in the lines {found}, not in one"
    node, *outside = sorted((node for top in body for node in ast.walk(top) if isinstance(
        node, ast.stmt) and node.lineno <= found[0] <= node.end_lineno), key=lambda n: -n.lineno)
    node = outside[0] if ast.unparse(node)[0] in "\"'" else node     # a docstring's: its function
    if isinstance(node, ast.FunctionDef):
        first, rest = node.body[0].lineno, node.body[0].end_lineno
        return [*range(node.lineno, first + 1), *range(rest + 1, node.end_lineno + 1)]
    return [*range(node.lineno, getattr(node, "iter", node).end_lineno + 1)]


def snippet(name, file, texts):
    """The HTML of "TEXT" or "TEXT .. TEXT" in a file, with its name if it is another one."""
    code = (FOLDER.parents[1] / "algorithms" / f"{file}.py").read_text()
    first, *last = [statement(code, text) for text in texts.split(" .. ")]
    numbers = range(first[0], last[0][-1] + 1) if last else first
    shown = textwrap.dedent("\n".join(code.splitlines()[n - 1] for n in numbers))
    painted = PAINT.sub(lambda found: f'<span class="{found.lastgroup}">{found[0]}</span>',
                        html.escape(shown, quote=False))
    path = f"algorithms/{file}.py"
    label = "" if file == name else f'<a href="../../{path}">{path}</a>\n'
    return f"{label}<pre>{painted}</pre>"


def page(name):
    texts, body = (FOLDER / f"{name}.txt").read_text().split("\n== "), ""
    (title, introduction), *rows = (filter(None, text.split("\n")) for text in texts)
    for heading, *lines in rows:
        left = [prose(line) for line in lines if line[:2] != "@ "]
        right = [snippet(name, *line[2:].split(": ", 1)) for line in lines if line[:2] == "@ "]
        body += "\n".join(["<section>\n<div>", f"<h2>{heading}</h2>", *left,
                           '</div>\n<div class="code">', *right, "</div>\n</section>\n"])
    return string.Template((FOLDER / "template.html").read_text()).substitute(
        name=name, title=title, introduction=prose(introduction), rows=body)


if __name__ == "__main__":
    for text in FOLDER.glob("*.txt"):
        text.with_suffix(".html").write_text(page(text.stem))
