"""LaTeX tables: plain text in, every special character escaped."""

from collections.abc import Sequence

SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "†": r"$\dagger$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def escape(text: str) -> str:
    """Return text as LaTeX prints it."""
    return "".join(SPECIAL.get(character, character) for character in " ".join(text.split()))


def tabular(heads: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[bool] = ()) -> str:
    """Return a booktabs table: the first column to the left, the others to the right; bold: which rows are."""
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        _row(heads, False),
        "\\midrule",
        *(_row(row, heavy) for row, heavy in zip(rows, [*bold, *[False] * len(rows)], strict=False)),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str], heavy: bool) -> str:
    words = (f"\\textbf{{{escape(cell)}}}" if heavy else escape(cell) for cell in cells)
    return f"{' & '.join(words)} \\\\"
