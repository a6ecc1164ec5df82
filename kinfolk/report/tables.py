"""Tables of a page: columns that explain themselves, and rows that become cards on a narrow screen."""

import dataclasses
from collections.abc import Sequence

from kinfolk.report.html import Html, join, tag


@dataclasses.dataclass(frozen=True)
class Column:
    """A column. note: what it means, shown when its head is pointed at and below the table; text: to the left."""

    name: str
    note: str = ""
    text: bool = False


@dataclasses.dataclass(frozen=True)
class Cell:
    """What a cell shows. tip: more about it, when it is pointed at; before: markup in front of it."""

    value: str | Html
    tip: str = ""
    before: Html | None = None


@dataclasses.dataclass(frozen=True)
class TableLine:
    """A row; `kind` is its class, `name` what scripts know it by."""

    cells: Sequence[Cell | str]
    kind: str = ""
    name: str = ""


def table(columns: Sequence[Column | str], rows: Sequence[TableLine | Sequence[str]], *, small: bool = False) -> Html:
    """Return a table and the notes of its columns. The first column names the row."""
    heads = [column if isinstance(column, Column) else Column(column) for column in columns]
    heads = [dataclasses.replace(head, text=head.text or i == 0) for i, head in enumerate(heads)]
    top = tag("tr", *(tag("th", h.name, scope="col", class_=_kind(h), title=h.note or None) for h in heads))
    body = (_row(heads, row if isinstance(row, TableLine) else TableLine(row)) for row in rows)
    grid = tag("table", tag("thead", top), tag("tbody", *body), class_="small cards" if small else "cards")
    noted = [join(tag("dt", head.name), tag("dd", head.note)) for head in heads if head.note]
    notes = tag("details", tag("summary", "What the columns mean"), tag("dl", *noted)) if noted else None
    return join(tag("div", grid, class_="scroll"), notes)


def _kind(column: Column) -> str | None:
    return "text" if column.text else None


def _row(heads: Sequence[Column], row: TableLine) -> Html:
    cells = []
    for i, (head, given) in enumerate(zip(heads, row.cells, strict=True)):
        cell = given if isinstance(given, Cell) else Cell(given)
        kind = {"class_": _kind(head), "title": cell.tip or None}
        if i == 0:
            cells.append(tag("th", cell.before, cell.value, scope="row", **kind))
        else:
            cells.append(tag("td", cell.before, cell.value, data_label=head.name, **kind))
    return tag("tr", *cells, class_=row.kind or None, data_name=row.name or None)
