"""Makes a page for each algorithm: what the paper says on the left, on the right its code.

    pip install -r docs/reading/requirements.txt
    python docs/reading/generate.py --open      # writes docs/reading/pages and opens it

docs/READING.md gives the order. docs/EQUATIONS.md gives the equations with the names of their code
and their tests. An algorithm's file gives its round, line by line; marks in its code, such as
"# Alg. 1, line 7", tell which statements are a line. docs/DEPARTURES.md gives its decisions D1, D2,
... What a text names and the code lacks is an error.
"""
import argparse
import html
import keyword
import os
import posixpath
import re
import shutil
import string
import sys
import textwrap
import webbrowser
from pathlib import Path
from typing import NamedTuple

try:
    import latex2mathml.converter
    import markdown
except ImportError as error:
    sys.exit(f"no module {error.name}: pip install -r docs/reading/requirements.txt")
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor

sys.path.insert(0, str(Path(__file__).parents[2]))
from docs.reading import sources  # noqa: E402

PAINT = re.compile(r'(?P<string>[rbf]*"""(?:.|\n)*?"""|[rbf]*"(?:\\.|[^"\\\n])*")'
                   rf"|(?P<comment>#.*)|(?P<keyword>\b(?:{'|'.join(keyword.kwlist)})\b)")
ARXIV = r"arXiv:(\d{4}\.\d{5}(?:v\d)?)"
# What GitHub draws, as latex2mathml has it.
LATEX = {"{aligned}": "{split}", "...": r"\dots ", "; ": r";\, ", r"\log ": r"\log\, ",
         r"\Big\Vert": r"\Vert", r"\lvert": r"\left|", r"\rvert": r"\right|",
         r"\lVert": r"\left\|", r"\rVert": r"\right\|"}


class Site(NamedTuple):
    """Where the pages are written, and what stands before the project's files in a link."""

    folder: Path
    files: str

    def link(self, file, line=None):
        return self.files + file + (f"#L{line}" if line else "")


# -------------------------------------------------------------------------------------- Markdown

def mathml(latex, display="inline"):
    """A formula as MathML, which browsers draw without a script."""
    for github, known in LATEX.items():
        latex = latex.replace(github, known)
    latex = re.sub(r"\\(min|max)_(\{(?:[^{}]|\{[^{}]*\})*\}|\w)", r"\\underset{\2}{\\\1}", latex)
    return latex2mathml.converter.convert(latex.strip(), display=display)


class Formula(InlineProcessor):
    def handleMatch(self, found, data):
        return self.md.htmlStash.store(mathml(found[1])), *found.span()


class Arxiv(InlineProcessor):
    ANCESTOR_EXCLUDES = ("a",)

    def handleMatch(self, found, data):
        link = f'<a href="https://arxiv.org/abs/{found[1]}">{found[0]}</a>'
        return self.md.htmlStash.store(link), *found.span()


class Display(Preprocessor):
    def run(self, lines):
        def formula(found):
            drawn = f'<div class="formula">{mathml(found[1], "block")}</div>'
            return f"\n\n{self.md.htmlStash.store(drawn)}\n\n"
        return re.sub(r"```math\n(.*?)```", formula, "\n".join(lines), flags=re.S).split("\n")


class Links(Treeprocessor):
    def run(self, root):
        for node in root.iter():
            for name in {"href", "src"}.intersection(node.keys()):
                node.set(name, self.href("".join(node.itertext()), node.get(name)))


class Paper(Extension):
    """Formulas as GitHub has them, links to arXiv, and links by `href`(text, url)."""

    def __init__(self, href):
        super().__init__()
        self.links = Links()
        self.links.href = href

    def extendMarkdown(self, md):
        md.preprocessors.register(Display(md), "display", 26)          # before the other fences
        md.inlinePatterns.register(Formula(r"\$`([^`]+)`\$", md), "formula", 195)
        md.inlinePatterns.register(Arxiv(ARXIV, md), "arxiv", 100)
        md.treeprocessors.register(self.links, "links", 15)


def as_html(text, href):
    return markdown.markdown(text, extensions=["fenced_code", "sane_lists", Paper(href)])


def inline(text, href):
    """A paragraph as HTML, without its tag."""
    return as_html(text, href).removeprefix("<p>").removesuffix("</p>")


# ------------------------------------------------------------------------------------ code, headers

def code(lines, site):
    """Lines of a file with their place, without the indentation that they share."""
    def paint(found):
        parts = found[0].split("\n")
        return "\n".join(f'<span class="{found.lastgroup}">{part}</span>' for part in parts)

    painted = PAINT.sub(paint, html.escape(sources.read(lines.file), quote=False)).split("\n")
    shown = textwrap.dedent("\n".join(painted[lines.first - 1:lines.last]))
    name = f"{lines.file}, line {lines.first}"
    return (f'<figure><figcaption><a href="{site.link(lines.file, lines.first)}">{name}</a>'
            f"</figcaption><pre>{shown}</pre></figure>")


def folded_test(name, file, site):
    """A test's name, with its source behind it."""
    body = code(sources.function(file, name), site)
    return f"<details><summary>checked by <code>{name}</code></summary>{body}</details>"


def plain(text):
    """A text of a header, which is no Markdown, as HTML."""
    text = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    return re.sub(ARXIV, r'<a href="https://arxiv.org/abs/\1">\g<0></a>', text)


def header_text(paragraphs):
    """Paragraphs of a header as HTML; steps are lists."""
    shown = ""
    for paragraph in paragraphs:
        made = sources.steps(paragraph)
        left = min((step.column for step in made if step.label), default=0)
        for label, column, text in made:
            if label:
                shown += (f'<li style="--depth: {column - left}"><b>{label}</b> '
                          f"<span>{plain(text)}</span></li>\n")
            elif text.startswith("Run:"):
                command, _, note = text.removeprefix("Run:").strip().partition("   ")
                shown += f"<p><b>Run:</b> <code>{command}</code> {plain(note.strip())}</p>\n"
            else:
                labelled = re.sub(f"^{sources.LABEL.pattern}", r"<b>\g<0></b>", plain(text))
                shown += f"<p>{labelled}</p>\n"
    return re.sub("(?:<li .*\n)+", '<ul class="steps">\n\\g<0></ul>\n', shown)


# ------------------------------------------------------------------------------------------ pages

def section(left, right, name=""):
    """What stands on the left and, if there is anything, on the right."""
    right = f'<div class="code">\n{right}\n</div>\n' if right else ""
    return f"<section{name}>\n<div>\n{left}\n</div>\n{right}</section>\n"


def item(label, text):
    return f'<p class="line"><b>{label}</b> <span>{text}</span></p>'


def line_sections(file, paragraphs, site):
    """The steps of a header beside the statements that are marked as their lines."""
    made, marked = "", sources.marked(file)
    for step in (step for paragraph in paragraphs for step in sources.steps(paragraph)):
        lines = step.lines()
        found = dict.fromkeys(place for number, place in marked if number in lines)
        if found:
            made += section(item(step.label, plain(step.text)),
                            "\n".join(code(place, site) for place in found))
    return f"<h2>Line by line</h2>\n{made}" if made else ""


def equation_section(equation, site, href):
    notes = "".join(f'<p class="note">{inline(note, href)}</p>\n' for note in equation.notes)
    found = [code(sources.find(file, name), site) for name, file in equation.code]
    tests = [folded_test(name, file, site) for name, file in equation.tests]
    heading = f"<h2>{inline(equation.heading, href)}</h2>\n"
    return section(heading + as_html(equation.said, href) + notes, "\n".join(found + tests))


def decisions(file, site, href):
    """The decisions D1, D2, ... about a file, each with its tests."""
    made, stem = "", Path(file).stem
    for name, text in sources.departures(file).items():
        tests = re.findall(r"\btest_\w+", text)
        text = re.sub(r"\s*[\[`]+test_\w+[\]`]+", "", text)
        folded = "".join(folded_test(test, sources.test_file(test, stem), site) for test in tests)
        made += section(item(name, inline(text, href)), folded, f' id="{stem}-{name}"')
    return made


def algorithm_page(name, introduction, equations, site):
    """The page of algorithms/NAME.py as HTML: the title, and what stands below it."""
    file = f"algorithms/{name}.py"
    header = sources.header(file)
    others = [file for equation in equations for _, file in equation.code
              if sources.departures(file) and Path(file).stem not in sources.order()]
    files = list(dict.fromkeys([file, *others]))

    def href(text, url):
        path, _, anchor = url.partition("#")
        if re.fullmatch(r"D\d+", text):                                # a decision of a file
            stem = anchor.removesuffix("py") or Path(path).stem
            page = "" if stem in [Path(each).stem for each in files] else f"{stem}.html"
            return f"{page}#{stem}-{text}"
        if not path:                                                   # a section of EQUATIONS.md
            return f"{anchor}.html"
        return site.link(posixpath.normpath(f"docs/{path}"))

    parts = [f"<header>{header_text(header.introduction)}</header>",
             section(f"<h2>The whole round</h2>\n{header_text(header.algorithm)}",
                     code(sources.rounds(file), site)),
             line_sections(file, header.algorithm, site)]
    if equations:
        parts.append(f"<h2>Equations</h2>\n{as_html(introduction, href)}")
        parts += [equation_section(equation, site, href) for equation in equations]
    for each in files:
        parts.append(f'<h2>Departures of <a href="{site.link(each)}">{each}</a></h2>\n'
                     f"{decisions(each, site, href)}")
    return header.title, "\n".join(parts)


def navigation(name, names):
    """Links to the page before, to all, and to the page after."""
    def link(other, text):
        title = sources.header(f"algorithms/{other}.py").title        # "FedSDD: K groups of ..."
        return f'<a href="{other}.html">{text.format(re.match("[^:,]+", title)[0])}</a>'

    at = names.index(name)
    before, after = names[:at][-1:], names[at + 1:][:1]
    return "\n".join([*(link(other, "← {}") for other in before),
                      '<a href="index.html">all algorithms</a>',
                      *(link(other, "{} →") for other in after)])


def index(site):
    """docs/READING.md as HTML; its links to algorithms lead to their pages."""
    def href(text, url):
        name = re.fullmatch(r"\.\./algorithms/(\w+)\.py", url)
        if name:
            return f"{name[1]}.html"
        if url.startswith("pictures/"):
            shutil.copy(sources.ROOT / "docs" / url, site.folder)
            return Path(url).name
        return site.link(posixpath.normpath(f"docs/{url.split('#')[0]}"))

    return as_html(sources.read("docs/READING.md"), href)


def write(folder, files=None):
    """Writes all pages to the folder; returns the path of the index.

    files    what stands before a file of the project in a link; by default the way to it from here
    """
    folder.mkdir(parents=True, exist_ok=True)
    site = Site(folder, files or os.path.relpath(sources.ROOT, folder) + "/")
    template = string.Template(sources.read("docs/reading/template.html"))
    names, found = sources.order(), sources.equations()
    for name in names:
        title, body = algorithm_page(name, *found.get(name, ("", [])), site)
        page = template.substitute(
            title=html.escape(title.split(":")[0]), navigation=navigation(name, names),
            body=f"<h1>{html.escape(title, quote=False)}</h1>\n{body}")
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    page = template.substitute(title="Algorithms beside their papers", navigation="",
                               body=index(site))
    (folder / "index.html").write_text(page, encoding="utf-8")
    return folder / "index.html"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "pages",
                        help="folder of the pages (default: docs/reading/pages)")
    parser.add_argument("--files", help="address before the project's files in links, for example "
                                        "https://github.com/OWNER/NAME/blob/main/")
    parser.add_argument("--open", action="store_true", help="open the index in a browser")
    flags = parser.parse_args()
    try:
        path = write(flags.to.resolve(), flags.files)
    except ValueError as error:                    # a text names what the code lacks
        parser.error(str(error))
    print(f"wrote {len(sources.order())} algorithms: {path}")
    if flags.open:
        webbrowser.open(path.as_uri())
