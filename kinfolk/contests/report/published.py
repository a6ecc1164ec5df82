"""The section that puts a comparison beside the published table its contestants come from."""

from kinfolk.contests.published import Beside
from kinfolk.contests.published_table import cells
from kinfolk.report.html import Html, tag

WORDS = ("row", "holds")


def published(found: Beside | None) -> Html:
    """Return the section, or nothing where no table is run."""
    if found is None:
        return Html("")
    lines = [cells(line) for line in found.lines]
    head = tag("tr", *(tag("th", name, scope="col", class_=_kind(name)) for name in (lines[0] if lines else ())))
    body = (tag("tr", *(tag("td", value, class_=_kind(name)) for name, value in line.items())) for line in lines)
    told = (
        f"Ours and, after the bar, the published figure. Losses are differences to {found.baseline} of the same side; "
        "parameters, operations and speed are factors of it; ranks are among the rows below that have both final "
        "losses. Sizes, data and steps are not the paper's, so directions and orders can agree, not numbers."
    )
    return tag(
        "section",
        tag("h2", "Beside what was published"),
        tag("p", told),
        tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll"),
        tag("ul", *(tag("li", said) for said in found.sentences()), class_="notes"),
        tag("p", found.paper, class_="dim"),
        id="published",
    )


def _kind(name: str) -> str | None:
    return "text" if name in WORDS else None
