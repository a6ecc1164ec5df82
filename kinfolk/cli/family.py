"""`kin family`: the family tree, and one relative explained.

The tree is read from source text and imports no tensor library. Explaining one relative builds its spec, and so does.
"""

import argparse
import dataclasses
import json
import sys

from kinfolk.family import catalogue
from kinfolk.family.about import About

EPILOG = """\
examples:
  kin family                       the tree
  kin family gpt2                  lineage, paper, what it changes, cost, attention pattern
  kin family gpt2 --size base      the same with the paper's numbers
  kin family gpt2 --source         the function that makes it
  kin family --plugin my.py        the tree with a relative of your own"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.epilog = EPILOG
    parser.add_argument("name", nargs="?", metavar="NAME", help="a relative to explain; without it, the tree")
    parser.add_argument("--size", default="tiny", help="tiny, small or base (default: tiny)")
    parser.add_argument("--source", action="store_true", help="print the function that makes the relative")


def run(args: argparse.Namespace) -> int:
    """Draw the tree, or explain one relative."""
    family = known()
    if args.json:
        print(json.dumps([dataclasses.asdict(about) for about in family.values()], indent=2))
    elif sys.stdout.isatty():
        _draw_in_colour(family)
    else:
        print("\n".join(tree(family)))
    return 0


def known() -> dict[str, About]:
    """Return the family: what the source text lists, and what plugins have entered."""
    found = catalogue.scan()
    if registry := sys.modules.get("kinfolk.family.registry"):
        found |= {name: entry.about for name, entry in registry.entries().items()}
    return found


def tree(family: dict[str, About]) -> list[str]:
    """Draw the family as lines of text: name, year, and what each one changes."""
    below = catalogue.children(family)

    def draw(about: About, first: str, rest: str) -> list[str]:
        lines = [f"{first}{about.name} ({about.year})  {about.changes}"]
        inner = below.get(about.name, [])
        for child in inner[:-1]:
            lines += draw(child, f"{rest}├─ ", f"{rest}│  ")
        for child in inner[-1:]:
            lines += draw(child, f"{rest}└─ ", f"{rest}   ")
        return lines

    return [line for root in below.get(None, []) for line in draw(root, "", "")]


def _draw_in_colour(family: dict[str, About]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    below = catalogue.children(family)

    def label(about: About) -> Text:
        return Text.assemble((about.name, "bold"), (f" {about.year}  ", "dim"), about.changes)

    def grow(branch: Tree, about: About) -> None:
        for child in below.get(about.name, []):
            grow(branch.add(label(child)), child)

    for root in below.get(None, []):
        trunk = Tree(label(root), guide_style="dim")
        grow(trunk, root)
        Console().print(trunk)
