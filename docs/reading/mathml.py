"""LaTeX formulas as MathML, which browsers draw without a script.

`mathml` knows the commands that docs/EQUATIONS.md uses. Anything else is a ValueError: add it to a
table below. GitHub draws the same formulas with MathJax, so a command must be known there too.
"""
import html
import re

TOKEN = re.compile(r"\\(?:text|mathrm)\{[^{}]*\}"      # words: one token, spaces included
                   r"|\\(?:begin|end)\{\w+\}|\\[A-Za-z]+|\\.|\.\.\.|[\d.]+|\S")
GREEK = dict(zip(r"\alpha \beta \gamma \epsilon \eta \theta \mu \sigma \tau \phi \ell".split(),
                 "αβγϵηθμστϕℓ"))
SIGNS = dict(zip(r"\cdot \times \leftarrow \in \neq \sim \lt \mid \Vert \Delta \nabla".split(),
                 "·×←∈≠∼<|‖Δ∇"))
SIGNS |= {sign: sign for sign in "=+,;:/!"} | {"-": "−", "*": "∗", "...": "…"}
FENCES = dict(zip(r"( ) [ ] \{ \} \lvert \rvert \lVert \rVert \lfloor \rfloor".split(),
                  "()[]{}||‖‖⌊⌋"))
LIMITS = {r"\sum": "∑", r"\min": "min", r"\max": "max"}     # what is below stands under the sign
FUNCTIONS = {r"\log": "log", r"\exp": "exp"}
SPACES = {r"\,": "0.17em", r"\quad": "1em"}
ACCENTS = {r"\tilde": "~", r"\hat": "^", r"\bar": "¯"}
SCRIPT = {"D": "𝒟", "L": "ℒ"}                               # the letters of \mathcal


def mathml(latex, display=False):
    """The <math> element of a formula; in a line of text, or as a block if it is a display.

    >>> mathml(r"w^*_{t-1}")
    '<math><msubsup><mi>w</mi><mrow><mi>t</mi><mo>−</mo><mn>1</mn></mrow><mo>∗</mo></msubsup></math>'
    """
    tokens = TOKEN.findall(latex)
    content = row(tokens)
    if tokens:
        raise ValueError(f"{tokens[0]} without a beginning, in the formula {latex}")
    block = ' display="block"' if display else ""
    return f"<math{block}>{content}</math>"


def row(tokens, *ends):
    """The elements up to one of the tokens `ends`; all tokens up to there are taken away."""
    found = ""
    while tokens and tokens[0] not in (*ends, "}", r"\right", "&", r"\\"):
        found += scripted(tokens)
    if ends and not tokens:
        raise ValueError(f"a formula ends before {ends[0]}")
    return found


def scripted(tokens):
    """The next element with its indices, exponents and primes."""
    sign, low, high = tokens[0], "", ""
    base = element(tokens)
    while tokens and tokens[0] in ("_", "^", "'"):
        mark = tokens.pop(0)
        if mark == "_":
            low += element(tokens)
        else:
            high += "<mo>′</mo>" if mark == "'" else element(tokens)
    under = sign in LIMITS or sign == r"\underbrace"
    if low and high:
        tag = "munderover" if under else "msubsup"
    elif low:
        tag = "munder" if under else "msub"
    elif high:
        tag = "mover" if under else "msup"
    else:
        return base
    return f"<{tag}>{base}{low}{high}</{tag}>"


def element(tokens):
    """The next element: a letter, a number, a sign, or a command with its arguments."""
    if not tokens:
        raise ValueError("a formula ends before the last argument of a command")
    token = tokens.pop(0)
    if token == "{":
        inside = row(tokens, "}")
        tokens.pop(0)
        return f"<mrow>{inside}</mrow>"
    if token.isalpha() and token.isascii():
        return f"<mi>{token}</mi>"
    if re.fullmatch(r"\d+(\.\d+)?", token):
        return f"<mn>{token}</mn>"
    if token in GREEK:
        return f"<mi>{GREEK[token]}</mi>"
    if token in SIGNS:
        return f"<mo>{html.escape(SIGNS[token])}</mo>"
    if token in FENCES:
        return f'<mo stretchy="false">{FENCES[token]}</mo>'
    if token in LIMITS:
        return f'<mo movablelimits="true">{LIMITS[token]}</mo>'
    if token in FUNCTIONS:
        after = "0" if tokens[:1] in (["("], [r"\left"]) else "0.17em"
        return f'<mo lspace="0.17em" rspace="{after}">{FUNCTIONS[token]}</mo>'
    if token in SPACES:
        return f'<mspace width="{SPACES[token]}"/>'
    if token in ACCENTS:
        return f'<mover accent="true">{element(tokens)}<mo>{ACCENTS[token]}</mo></mover>'
    if token.startswith(r"\mathrm{"):
        return f"<mi>{token[8:-1]}</mi>"
    if token.startswith(r"\text{"):
        return f"<mtext>{token[6:-1].replace(' ', '&#160;')}</mtext>"
    if token == r"\mathcal" and tokens[1] in SCRIPT:
        return f"<mi>{SCRIPT[letter(tokens)]}</mi>"
    if token == r"\boldsymbol":
        return f"<mi>{bold(letter(tokens))}</mi>"
    if token == r"\frac":
        return f"<mfrac>{element(tokens)}{element(tokens)}</mfrac>"
    if token == r"\underbrace":
        return f"<munder>{element(tokens)}<mo>⏟</mo></munder>"
    if token in (r"\underset", r"\stackrel"):
        script, base = element(tokens), element(tokens)
        tag = "munder" if token == r"\underset" else "mover"
        return f"<{tag}>{base}{script}</{tag}>"
    if token == r"\Big":
        sign = tokens.pop(0)
        return f'<mo minsize="1.8em" maxsize="1.8em">{(FENCES | SIGNS)[sign]}</mo>'
    if token == r"\left":
        return fenced(tokens)
    if token in (r"\begin{cases}", r"\begin{aligned}"):
        return table(tokens, token[7:-1])
    raise ValueError(f"docs/reading/mathml.py does not know {token} before {' '.join(tokens[:9])}")


def letter(tokens):
    """The one letter, or Greek letter, of an argument {W}."""
    opening, name, closing = (tokens.pop(0) for _ in range(3))
    if (opening, closing) != ("{", "}"):
        raise ValueError(f"one letter in braces is expected, not {opening}{name}{closing}")
    return name


def bold(name):
    """The bold italic letter of mathematics: a character of its own."""
    if name == r"\alpha":
        return "𝜶"
    first = ("𝑨", "A") if name.isupper() else ("𝒂", "a")
    return chr(ord(first[0]) + ord(name) - ord(first[1]))


def fenced(tokens):
    """What stands between \\left( and \\right): the signs are as high as it."""
    opening = FENCES[tokens.pop(0)]
    inside = row(tokens, r"\right")
    tokens.pop(0)
    closing = FENCES[tokens.pop(0)]
    return f"<mrow><mo>{opening}</mo>{inside}<mo>{closing}</mo></mrow>"


def table(tokens, kind):
    """Lines of cells: the cases behind one brace, or lines that are aligned at an &."""
    end, rows = f"\\end{{{kind}}}", [[]]
    while True:
        rows[-1].append(row(tokens, end))
        mark = tokens.pop(0)
        if mark == r"\\":
            rows.append([])
        elif mark == end:
            break
        elif mark != "&":
            raise ValueError(f"{mark} in {kind}")
    lines = "".join("<mtr>" + "".join(f"<mtd>{cell}</mtd>" for cell in cells) + "</mtr>"
                    for cells in rows)
    brace = "<mo>{</mo>" if kind == "cases" else ""
    style = ' displaystyle="true"' if kind == "aligned" else ""
    return f'<mrow>{brace}<mtable class="{kind}"{style}>{lines}</mtable></mrow>'
