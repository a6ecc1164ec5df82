"""Writes what is read from the source. Run by `make docs`.

README.md's folders, docs/family.md (the tree), docs/grammar.md (axes and choices), docs/map.md (files).
"""

import ast
import re
import sys
from pathlib import Path

HOUSE = Path(__file__).parents[1]
# from the bottom to the top: imports point from the later to the earlier
LAYERS = ["core", "ops", "optim", "data", "report", "layers", "models", "objectives", "family", "runs", "train"]
LAYERS += ["decoding", "contests", "use", "bench", "cli"]


def file_map() -> str:
    """Return one line per file: its name, and the first sentence of its docstring."""
    lines = []
    for layer in ["", *LAYERS]:
        folder = HOUSE / "kinfolk" / layer
        files = sorted(folder.glob("*.py") if not layer else folder.rglob("*.py"))
        lines += [f"{file.relative_to(HOUSE)!s:40} {first_sentence(file)}" for file in files if first_sentence(file)]
    return "\n".join(["```", *lines, "```"])


def folders() -> str:
    """Return one line per folder: its name, and what it says it is."""
    lines = [f"kinfolk/{name + '/':12} {first_sentence(HOUSE / 'kinfolk' / name / '__init__.py')}" for name in LAYERS]
    return "\n".join(["```", *lines, "```"])


def first_sentence(file: Path) -> str:
    """Return what a file says it is."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    # "et al. 2017" ends no sentence
    return re.split(r"\. (?=[A-Z`])", " ".join(text.partition("\n\n")[0].split()))[0].rstrip(".")


def tree() -> str:
    """Return the family tree as the command line draws it."""
    sys.path.insert(0, str(HOUSE))
    from kinfolk.cli.family import tree
    from kinfolk.family.catalogue import scan

    return "\n".join(["```", *tree(scan()), "```"])


def written(text: str) -> str:
    """Return the README with its generated parts brought up to date."""
    for name, part in {"map": folders()}.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*(<!-- /{name} -->)", re.DOTALL)
        text = marks.sub(lambda match, part=part: f"{match[1]}{part}\n{match[2]}", text)
    return text


def family() -> str:
    """Return the page of the family tree."""
    intro = [
        "# The family",
        "",
        "Who descends from whom, and what each one changes.",
        "`kin family NAME` explains one: lineage, paper, the difference from its parent, cost, attention pattern.",
        "`kin family --where causal,linear,year>=2020` lists those that meet conditions.",
        "",
    ]
    return "\n".join([*intro, tree(), ""])


def grammar() -> str:
    """Return the page of the grammar: every axis with its choices, their fields and the relatives that use them."""
    from kinfolk.family.grammar import axes, choices

    lines = ["# The grammar", ""]
    lines += [
        "Every axis, and the choices on it. `kin axes AXIS` prints the same with the relatives that use each.",
        "",
    ]
    lines += ["A choice is set by its path: `--set \"model.decoder.norm={kind='rms-norm'}\"`.", ""]
    for axis, meaning in axes().items():
        lines += [f"## {axis}", "", meaning, "", "| kind | what it is | fields |", "|---|---|---|"]
        for choice in choices(axis, relatives=False):
            fields = ", ".join(
                f"`{field.name}`: {field.allowed}{'' if field.required else f' (= {field.default})'}"
                for field in choice.fields
            )
            lines.append(f"| `{choice.kind}` | {_cell(choice.meaning)} | {_cell(fields)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def files() -> str:
    """Return the page of all files."""
    return f"# Where everything is\n\nImports point from the later to the earlier.\n\n{file_map()}\n"


def pages() -> dict[str, str]:
    """Return the pages that are written whole, by file."""
    return {"docs/map.md": files(), "docs/family.md": family(), "docs/grammar.md": grammar()}


if __name__ == "__main__":
    readme = HOUSE / "README.md"
    readme.write_text(written(readme.read_text(encoding="utf-8")), encoding="utf-8")
    for name, text in pages().items():
        (HOUSE / name).write_text(text, encoding="utf-8")
