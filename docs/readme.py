"""Writes what is read from the source. Run by `make docs`.

README.md's figures, the folders of docs/built.md, and docs/family.md (the tree), docs/grammar.md (axes and choices),
docs/map.md (files) and docs/api.md (public functions) whole. `docs/build_site.py` then makes a site of all pages.
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


def numbers() -> str:
    """Return the bullets of the README, with figures that are counted."""
    sys.path.insert(0, str(HOUSE))
    import kinfolk as kf
    from kinfolk.cli.main import verbs

    names = kf.relatives()
    choices = [choice for axis in kf.axes() for choice in kf.choices(axis, relatives=False)]
    kinds, fields = (
        {(c.kind, c.meaning) for c in choices},
        sum(len(c.fields) for c in {c.meaning: c for c in choices}.values()),
    )
    years = sorted(kf.about(name).year for name in names)
    layers = sum(len(kf.choices(axis, relatives=False)) for axis in ("mixer", "feed-forward", "position", "pattern"))
    bullets = [
        f"**{len(names)} relatives** from {years[0]} to {years[-1]}, each a short function with its paper and what it "
        "changes: `kin family`.",
        f"**{len(kinds)} choices on {len(kf.axes())} axes** with {fields} fields, each with bounds and a meaning: "
        "`kin axes`. They combine: `gpt2+rotary+rms-norm`.",
        "**A verdict, not a leaderboard**: 5 seeds, paired tests corrected for the number of contestants, matched "
        "parameters, tuned rates; a difference that is noise is called noise.",
        f"**{layers} layers for your own model**: a mixer, feed-forward, position or pattern is an `nn.Module`, equal "
        "bit for bit to the one inside its relative.",
        f"**{len(verbs())} verbs for the whole life of a model**, from raw files to an OpenAI-compatible server; the "
        "same command gives the same bits.",
    ]
    return "\n".join(f"- {bullet}" for bullet in bullets)


def written(text: str, parts: dict[str, str]) -> str:
    """Return a page with its generated parts brought up to date."""
    for name, part in parts.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*(<!-- /{name} -->)", re.DOTALL)
        text = marks.sub(lambda match, part=part: f"{match[1]}{part}\n{match[2]}", text)
    return text


def api() -> str:
    """Return the page of all public functions, from their signatures and docstrings."""
    sys.path.insert(0, str(HOUSE))
    import inspect

    import kinfolk as kf

    lines = [
        "# API",
        "",
        "Everything that `import kinfolk as kf` offers, read from the source. [Python](python.md) shows its use.",
        "",
    ]
    for name in kf.__all__:
        value = getattr(kf, name)
        target = value.__call__ if inspect.ismodule(value) and callable(value) else value
        lines += [f"## kf.{name}", ""]
        if inspect.isclass(target):
            methods = [n for n, m in vars(target).items() if not n.startswith("_") and getattr(m, "__doc__", None)]
            lines += [inspect.cleandoc(target.__doc__ or ""), ""]
            for n in methods:
                member = vars(target)[n]
                shown = f"{n}{inspect.signature(member)}" if inspect.isfunction(member) else n
                lines.append(f"- `{_plain(shown)}`: {(inspect.getdoc(member) or '').partition(chr(10))[0]}")
            lines.append("")
        elif inspect.ismodule(target):
            lines += [f"The module `{target.__name__}`: {first_sentence(Path(str(target.__file__)))}.", ""]
        else:
            lines += [
                "```python",
                f"kf.{name}{_plain(str(inspect.signature(target)))}",
                "```",
                "",
                inspect.getdoc(target) or "",
                "",
            ]
    return "\n".join(lines)


def _plain(signature: str) -> str:
    """Return a signature without the modules of its types."""
    return re.sub(r"\b(?:kinfolk|collections|pathlib|typing|numpy|torch)(?:\.\w+)*\.(?=[A-Za-z])", "", signature)


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
    return {"docs/map.md": files(), "docs/family.md": family(), "docs/grammar.md": grammar(), "docs/api.md": api()}


def parts() -> dict[str, dict[str, str]]:
    """Return the generated parts of pages that are written by hand, by file and name."""
    return {"README.md": {"numbers": numbers()}, "docs/built.md": {"map": folders()}}


if __name__ == "__main__":
    for name, own in parts().items():
        page = HOUSE / name
        page.write_text(written(page.read_text(encoding="utf-8"), own), encoding="utf-8")
    for name, text in pages().items():
        (HOUSE / name).write_text(text, encoding="utf-8")
