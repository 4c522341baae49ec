"""Makes a page for each algorithm: what the paper says on the left, on the right its code.

    python docs/reading/generate.py --open      # writes docs/reading/pages and opens it

docs/READING.md gives the order. docs/EQUATIONS.md gives the equations and lines, with the names of
their code and their tests. An algorithm's file gives its notation and its rounds, and
docs/DEPARTURES.md its decisions D1, D2, ... What a text names and the code lacks is an error.
"""
import argparse
import html
import os
import posixpath
import re
import shutil
import string
import sys
import webbrowser
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from docs.reading import sources  # noqa: E402
from docs.reading.mathml import mathml  # noqa: E402

INLINE = re.compile(
    r"\$`(?P<math>[^`]+)`\$|`(?P<code>[^`]+)`|(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^]`])+)\]"
    r"\((?P<url>[^)]+)\)|(?P<arxiv>arXiv:\d{4}\.\d{5}(?:v\d)?)")
HEADING = re.compile("Run:|What travels:|Public data:|Kept between rounds:|Scores:|Bad upload:")


class Site(NamedTuple):
    """Where the pages are written, and what stands before the project's files in a link."""

    folder: Path
    files: str

    def link(self, file, line=None):
        return self.files + file + (f"#L{line}" if line else "")


def inline(text, href):
    """A line of Markdown as HTML. href(text, url): where a link leads."""
    def element(found):
        if found["math"]:
            return mathml(html.unescape(found["math"]))
        if found["code"]:
            return f"<code>{found['code']}</code>"
        if found["arxiv"]:
            return f'<a href="https://arxiv.org/abs/{found["arxiv"][6:]}">{found["arxiv"]}</a>'
        if found["image"]:
            return f'<img src="{href(found["text"], found["url"])}" alt="{found["text"]}"/>'
        label = INLINE.sub(element, found["text"])
        return f'<a href="{href(found["text"], found["url"])}">{label}</a>'

    return INLINE.sub(element, html.escape(text, quote=False))


def markdown(text, href):
    """Paragraphs, headings, lists, formulas and commands as HTML."""
    made = []
    for block in re.split(r"\n\s*\n", text.strip()):
        heading = re.match("(#+) (.*)", block)
        items = re.split(r"^(?:- |\d+\. )", block, flags=re.M)[1:]
        if block.startswith("```math"):
            formula = mathml(block.removeprefix("```math").removesuffix("```"), display=True)
            made.append(f'<div class="formula">{formula}</div>')
        elif block.startswith("```"):
            made.append(f"<pre>{html.escape(block.strip('`').strip())}</pre>")
        elif heading:
            level = len(heading[1])
            made.append(f"<h{level}>{inline(heading[2], href)}</h{level}>")
        elif items:
            first = re.match(r"\d+", block)
            tag, start = ("ol", f' start="{first[0]}"') if first else ("ul", "")
            body = "".join(f"<li>{inline(item, href)}</li>" for item in items)
            made.append(f"<{tag}{start}>{body}</{tag}>")
        elif block and not block.startswith("<!--"):
            made.append(f"<p>{inline(block, href)}</p>")
    return "\n".join(made)


def header_text(paragraph, href):
    """A paragraph of a file's header as HTML; its numbered or indented lines become a list."""
    made = []                                                          # [label, column, text]
    for line in paragraph.split("\n"):
        item = re.match(r" ?(\d[\d, -]*\d|\d)  +(?=\S)| {4}(\S+)  +(?=\S)", line)
        if item:
            label = (item[1] or item[2]).replace("- ", "-")
            made.append([label, item.end(), line[item.end():]])
        elif not made or HEADING.match(line) or made[-1][2].startswith("Run:"):
            made.append([None, 0, line.strip()])
        elif line.startswith("  ") or not made[-1][0]:
            made[-1][2] += f" {line.strip()}"
        else:
            made.append([None, 0, line.strip()])
    left = min((column for label, column, _ in made if label), default=0)
    shown = ""
    for label, column, text in made:
        text = inline(text, href)
        if label:
            shown += (f'<p class="line" style="--depth: {column - left}"><b>{label}</b> '
                      f"<span>{text}</span></p>\n")
        elif text.startswith("Run:"):
            shown += f"<p><code>{text.removeprefix('Run:').strip()}</code></p>\n"
        else:
            shown += "<p>" + HEADING.sub(r"<b>\g<0></b>", text, count=1) + "</p>\n"
    return shown


def notation(rows, href):
    """The table from the paper's symbols to the code's names as HTML."""
    columns = "paper", "here", "shape", "note"
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join("<tr>" + "".join(
        f'<td class="{column}">{inline(cell, href)}</td>'
        for column, cell in zip(columns, cells)) + "</tr>\n" for cells in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>" if rows else ""


def code(lines, site):
    """Lines of a file with their place."""
    name = f"{lines.file}, line {lines.first}"
    return (f'<figure><figcaption><a href="{site.link(lines.file, lines.first)}">{name}</a>'
            f"</figcaption><pre>{sources.shown(lines)}</pre></figure>")


def folded_test(name, file, site):
    """A test's name, with its source behind it."""
    body = code(sources.function(file, name), site)
    return f"<details><summary>checked by <code>{name}</code></summary>{body}</details>"


def section(left, right):
    """What stands on the left and, if there is anything, on the right."""
    right = f'<div class="code">\n{right}\n</div>\n' if right else ""
    return f"<section>\n<div>\n{left}\n</div>\n{right}</section>\n"


def row_section(row, site, href):
    """A `Row` as a section."""
    said = "".join(f'<p class="line"><b>{number}</b> <span>{inline(text, href)}</span></p>\n'
                   for number, text in row.lines)
    notes = "".join(f'<p class="note">{inline(note, href)}</p>\n' for note in row.notes)
    found = [code(sources.find(file, name), site) for name, file in row.code]
    tests = [folded_test(name, file, site) for name, file in row.tests]
    heading = f"<h2>{inline(row.heading, href)}</h2>\n" if row.heading else ""
    return section(heading + markdown(row.said, href) + said + notes, "\n".join(found + tests))


def decisions(file, site, href):
    """The decisions D1, D2, ... about a file, each with its tests."""
    made, stem = [], Path(file).stem
    for name, text in sources.departures(file).items():
        tests = re.findall(r"\btest_\w+", text)
        text = re.sub(r"\s*[\[`]+test_\w+[\]`]+", "", text)
        folded = "".join(folded_test(test, sources.test_file(test, stem), site) for test in tests)
        made.append(f'<section id="{stem}-{name}">\n<div><p class="line"><b>{name}</b> '
                    f"<span>{inline(text, href)}</span></p></div>\n<div>{folded}</div></section>\n")
    return "".join(made)


def algorithm_page(name, introduction, rows, site):
    """The page of algorithms/NAME.py as HTML: the title, and what stands below it."""
    file = f"algorithms/{name}.py"
    header = sources.header(file)
    others = [file for row in rows for _, file in row.code
              if sources.departures(file) and Path(file).stem not in sources.order()]
    files = list(dict.fromkeys([file, *others]))

    def href(text, url):
        path, _, anchor = url.partition("#")
        if re.fullmatch(r"`D\d+`", text):                              # a decision of a file
            stem = anchor.removesuffix("py") or Path(path).stem
            page = "" if stem in [Path(each).stem for each in files] else f"{stem}.html"
            return f"{page}#{stem}-{text.strip('`')}"
        if not path:                                                   # a section of EQUATIONS.md
            return f"{anchor}.html"
        return site.link(posixpath.normpath(f"docs/{path}"))

    start = "".join(header_text(paragraph, href) for paragraph in header.introduction)
    parts = [section("\n".join(["<h2>The whole round</h2>", notation(header.notation, href),
                                *(header_text(paragraph, href) for paragraph in header.algorithm)]),
                     code(sources.rounds(file), site))]
    if rows:
        parts.append(f"<h2>Line by line</h2>\n{markdown(introduction, href)}")
        parts += [row_section(row, site, href) for row in rows]
    for each in files:
        parts.append(f'<h2>Departures of <a href="{site.link(each)}">{each}</a></h2>\n'
                     f"{decisions(each, site, href)}")
    return header.title, f"<header>{start}</header>\n" + "\n".join(parts)


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

    return markdown(sources.read("docs/READING.md"), href)


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
