"""HTML that cannot be forgotten to escape: text is escaped when it enters a tag, and only tags are not text."""

import html
import json
from importlib import resources
from typing import Any

VOID = ("meta", "link", "br", "hr", "input")


class Html(str):
    """Markup that needs no escaping."""


def tag(name: str, /, *children: str | None, **attributes: str | bool | None) -> Html:
    """Build an element; a child that is not `Html` is text. `class_` is class, `data_x` is data-x."""
    words = [name, *(_attribute(key, value) for key, value in attributes.items() if value not in (None, False))]
    if name in VOID:
        return Html(f"<{' '.join(words)}>")
    return Html(f"<{' '.join(words)}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    """Put pieces one after another."""
    return Html("".join(child if isinstance(child, Html) else html.escape(child) for child in children if child))


def page(title: str, style: Html, *body: Html) -> str:
    """Return a whole page that needs nothing from elsewhere and follows the reader's light or dark."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        # no icon is requested
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", style),
    )
    inside = "\n".join(body)
    return f'<!doctype html>\n<html lang="en">\n{head}\n<body>\n{inside}\n</body>\n</html>\n'


def embed(data: Any, identifier: str) -> Html:
    """Put data into a page for a script to read. Nothing in it can end the element early."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{html.escape(identifier)}">{text}</script>')


def _attribute(key: str, value: str | bool | None) -> str:
    key = key.rstrip("_").replace("_", "-")
    return key if value is True else f'{key}="{html.escape(str(value))}"'


def asset(name: str, package: str = "kinfolk.report") -> Html:
    """Return a style sheet or script of a package, to be put into a page as it is."""
    return Html(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
