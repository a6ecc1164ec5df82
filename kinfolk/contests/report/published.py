"""The section that puts a comparison beside the published table its contestants come from."""

from kinfolk.contests.published import Beside
from kinfolk.contests.published_table import cells
from kinfolk.report.figures import bullets, section
from kinfolk.report.html import Html, tag
from kinfolk.report.tables import Column, table

COLUMNS = {
    "rank": "by the final loss, among the rows that have both",
    "final loss": "difference to the baseline of the same side",
    "early loss": "difference to the baseline of the same side",
    "params": "as a factor of the baseline",
    "ops": "operations as a factor of the baseline",
    "speed": "as a factor of the baseline",
    "holds": "whether the published direction of the final loss holds here",
}


def published(found: Beside | None) -> Html:
    """Return the section, or nothing where no table is run."""
    if found is None or not found.lines:
        return Html("")
    names = ["row", *(name for name in cells(found.lines[0]) if name != "row")]
    columns = [Column(name, COLUMNS.get(name, ""), text=name in ("row", "holds")) for name in names]
    lines = [[cells(line)[name] for name in names] for line in found.lines]
    note = (
        f"Ours and, after the bar, the published figure. Losses are differences to {found.baseline} of the same side; "
        "parameters, operations and speed are factors of it; ranks are among the rows below that have both final "
        "losses. Sizes, data and steps are not the paper's, so directions and orders can agree, not numbers."
    )
    return section(
        "Beside what was published",
        tag("p", note),
        table(columns, lines),
        bullets(found.sentences()),
        tag("p", found.paper, class_="dim"),
        key="published",
    )
