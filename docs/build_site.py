"""Builds docs/ into a static site with search, offline. Run by `make docs`; writes the folder site/.

Pages are plain Markdown in the order of docs/index.md, which is the navigation. markdown-it-py renders them; any other
builder would do, since nothing but Markdown is used.
"""

import html
import json
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt

from kinfolk.core.formulas import readable

DOCS = Path(__file__).parent
HOUSE = DOCS.parent
OUTSIDE = {"../README.md": "readme", "../CONTRIBUTING.md": "contributing", "../AGENTS.md": "agents"}
"""Pages from outside docs/, and what they are called in the site."""

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title} · Kinfolk</title><link rel="stylesheet" href="style.css">
<a class="skip" href="#main">Skip to the text</a>
<nav aria-label="Pages"><a class="home" href="index.html">Kinfolk</a>
<label for="search">Search</label><input id="search" type="search" autocomplete="off"><ul id="hits"></ul>{nav}</nav>
<main id="main">{body}</main><script src="search.js"></script></html>
"""


def slug(heading: str) -> str:
    """Return the anchor of a heading, as hosts of Markdown make it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"`|\*", "", heading)).strip().lower().replace(" ", "-")


def anchors(text: str) -> list[str]:
    """Return the anchors of a page; headings inside code are none."""
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [slug(match[1]) for match in re.finditer(r"^#+ +(.+?)\s*$", outside, re.MULTILINE)]


def navigation() -> list[str]:
    """Return the pages in the order of docs/index.md."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    return list(dict.fromkeys(re.findall(r"\]\(((?:\.\./)?[\w-]+\.md)\)", text)))


def groups() -> dict[str, dict[str, str]]:
    """Return the headings of docs/index.md, and below each its pages with the names that it gives them."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    parts = re.split(r"^## +(.+)$", text, flags=re.MULTILINE)[1:]
    link = r"\[([^\]]+)\]\(((?:\.\./)?[\w-]+\.md)\)"
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {heading: {page: label for label, page in re.findall(link, below)} for heading, below in pairs}


def name_of(page: str) -> str:
    """Return the file of a page in the site."""
    return f"{OUTSIDE.get(page) or Path(page).stem}.html"


def rendered(text: str, page: str) -> tuple[str, list[dict[str, str]]]:
    """Return the HTML of a page, and its sections for the search."""
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = markdown.parse(text)
    sections: list[dict[str, str]] = []
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[i + 1].content
            token.attrSet("id", slug(heading))
            sections.append(
                {"title": re.sub(r"`", "", heading), "href": f"{name_of(page)}#{slug(heading)}", "text": ""}
            )
        elif token.type in ("inline", "fence", "code_block") and sections:
            sections[-1]["text"] += " " + token.content.lower()
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", linked(str(child.attrGet("href") or ""), page))
    body = markdown.renderer.render(tokens, markdown.options, {})
    # what scrolls sideways can be reached with the keyboard
    body = body.replace("<pre>", '<pre tabindex="0">').replace("<table>", '<div class="wide" tabindex="0"><table>')
    return body.replace("</table>", "</table></div>"), sections


def linked(href: str, page: str) -> str:
    """Return a link to a Markdown page as one to its HTML."""
    path, mark, anchor = href.partition("#")
    if not path.endswith(".md") or ":" in path:
        return href
    if page.startswith("../"):
        path = path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"
    return f"{name_of(path)}{mark}{anchor}"


def build(out: Path) -> int:
    """Write the site and return the number of its pages."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    pages = ["index.md", *navigation()]
    texts = {page: (DOCS / page).read_text(encoding="utf-8") for page in pages}
    titles = {page: re.search(r"^# (.+)$", text, re.MULTILINE) for page, text in texts.items()}
    labels = {page: label for below in groups().values() for page, label in below.items()}
    index: list[dict[str, str]] = []
    for page, text in texts.items():
        # formulas are LaTeX in Markdown, which hosts render; this page has them in tables of plain text
        body, sections = rendered(readable(text) if page == "grammar.md" else text, page)
        index += [section | {"page": labels.get(page, "")} for section in sections]
        lists = (
            f"<h2>{html.escape(heading)}</h2><ul>"
            + "".join(
                f'<li><a href="{name_of(other)}"{" aria-current=page" * (other == page)}>{html.escape(label)}</a></li>'
                for other, label in below.items()
            )
            + "</ul>"
            for heading, below in groups().items()
        )
        own = titles[page]
        title = re.sub("`", "", own[1]) if own is not None else page
        nav = "".join(lists)
        (out / name_of(page)).write_text(PAGE.format(title=html.escape(title), nav=nav, body=body), encoding="utf-8")
    for picture in (*DOCS.glob("*.svg"), *DOCS.glob("*.png")):
        shutil.copy(picture, out / picture.name)
    shutil.copytree(DOCS / "reports", out / "reports", dirs_exist_ok=True)
    shutil.copy(DOCS / "site" / "style.css", out / "style.css")
    search = (DOCS / "site" / "search.js").read_text(encoding="utf-8")
    (out / "search.js").write_text(search.replace("INDEX", json.dumps(index)), encoding="utf-8")
    return len(pages)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HOUSE / "site"
    sys.stdout.write(f"{build(target)} pages in {target}\n")
