"""`kin family`: the family tree, and one relative explained.

The tree is read from source text and imports no tensor library. Explaining one relative builds its spec, and so does.
"""

import argparse
import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from kinfolk.core.errors import SpecError
from kinfolk.core.printing import hanging
from kinfolk.family import catalogue
from kinfolk.family.about import About

EPILOG = """\
examples:
  kin family                       the tree
  kin family gpt2                  lineage, paper, what it changes, cost, attention pattern
  kin family gpt2 --size base      the same with the paper's numbers
  kin family gpt2 --source         the function that makes it
  kin family gpt2 --spec           its recipe as TOML, which `kin train FILE.toml` takes
  kin family --where causal,linear,year>=2020        relatives that meet all conditions
  kin family --plugin my.py        the tree with a relative of your own"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a relative to explain; without it, the tree")
    parser.add_argument("--size", default="tiny", help="tiny, small or base (default: tiny)")
    parser.add_argument("--source", action="store_true", help="print the function that makes the relative")
    parser.add_argument("--spec", action="store_true", help="print the recipe of the relative as TOML")
    parser.add_argument(
        "--where",
        metavar="CONDITIONS",
        default="",
        help="list relatives: causal, linear, a topology, an input, year>=2020, from=RELATIVE, a kind; ! negates",
    )


def run(args: argparse.Namespace) -> int:
    """Draw the tree, or explain one relative."""
    if args.name:
        if args.where:
            raise SpecError("--where lists relatives; leave NAME away")
        if args.spec:
            return _spec(args.name, args.size, args.json)
        return _source(args.name, args.json) if args.source else _explain(args.name, args.size, args.json)
    if args.source or args.spec:
        raise SpecError(f"--{'source' if args.source else 'spec'} needs the NAME of a relative")
    if args.where:
        return _listed(args.where, args.json)
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


def explain(name: str, size: str) -> dict[str, Any]:
    """Return all that is known of one relative at one size."""
    from kinfolk.cli.diff import between
    from kinfolk.contests.reading import cost_of, one_picture, window
    from kinfolk.core.plain import to_plain
    from kinfolk.family.making import about, make
    from kinfolk.family.picture import patterns, picture
    from kinfolk.family.sizes import SIZES
    from kinfolk.models.cost import cost as parameters

    me = about(name)
    recipe = make(name, size=size)
    sees = me.input == "image"
    batch_size, length = recipe.training.batch_size, recipe.model.max_len if sees else recipe.training.length
    # the same reading of a window of text as in a comparison, so that the figures are the same
    cost = cost_of(recipe, one_picture(length) if sees else window(length))
    drawn: dict[Any, list[str]] = {}
    for path, pattern in patterns(recipe.model, "model"):
        drawn.setdefault(pattern, []).append(path)
    return {
        **dataclasses.asdict(me),
        "lineage": [step.name for step in catalogue.lineage(name, known() | {name: me})],
        "size": size,
        "differences": [] if me.parent is None else between(make(me.parent, size=size), recipe),
        "params": cost.params,
        "flops_per_token": cost.flops_per_token,
        "batch_size": batch_size,
        "length": length,
        # weights, gradients and the optimiser's two moments, in float32
        "state_bytes": 16 * cost.params,
        "activation_bytes": cost.activation_bytes * batch_size * length,
        "patterns": [
            {"pattern": to_plain(pattern), "paths": paths, "picture": picture(pattern)}
            for pattern, paths in drawn.items()
        ],
        "sizes": {each: parameters(make(name, size=each).model, 2).params for each in SIZES},
    }


def _explain(name: str, size: str, as_json: bool) -> int:
    from kinfolk.cli.diff import lines, plain
    from kinfolk.family.making import about

    found = explain(name, size)
    if as_json:
        print(json.dumps(found | {"differences": plain(found["differences"])}, indent=2))
        return 0
    family = known() | {name: about(name)}
    print(hanging(f"{name} ({found['year']})  ", found["changes"], indent=2) + "\n")
    steps = [f"{family[step].name} ({family[step].year})" for step in found["lineage"]]
    sizes = ", ".join(f"{each} {_short(params)}" for each, params in found["sizes"].items())
    window = f"{found['batch_size']} × {found['length']} tokens"
    facts = {
        "paper": found["paper"],
        "lineage": " → ".join(steps),
        "topology": f"{found['topology']}{', causal' if found['causal'] else ''}; reads {found['input']}",
        "parameters": f"{sizes}",
        f"at {size}": f"{found['params']:,} parameters, {_short(found['flops_per_token'])}FLOPs per token (forward)",
        "memory": f"{_bytes(found['state_bytes'])} weights, gradients and moments; "
        f"{_bytes(found['activation_bytes'])} activations for a batch of {window}",
    }
    width = max(map(len, facts))
    print("\n".join(hanging(f"{label:{width}}  ", fact) for label, fact in facts.items()))
    if found["parent"]:
        changes = "\n".join(f"  {line}" for line in lines(found["differences"])) or "  nothing"
        print(f"\nwhat differs from {found['parent']} at {size}\n{changes}")
    for drawing in found["patterns"]:
        where = drawing["paths"][0] + (f" and {len(drawing['paths']) - 1} more" if drawing["paths"][1:] else "")
        print(f"\nattention pattern (rows: queries, columns: keys), {where}")
        # twice as wide, because characters are about twice as high as wide
        print("\n".join("  " + "".join(2 * cell for cell in line) for line in drawing["picture"]))
    return 0


def _spec(name: str, size: str, as_json: bool) -> int:
    """Print the recipe of a relative as TOML."""
    from kinfolk.core.plain import dumps, to_plain
    from kinfolk.family.making import make

    recipe = make(name, size=size)
    print(json.dumps(to_plain(recipe), indent=2) if as_json else dumps(recipe).rstrip())
    return 0


def _listed(conditions: str, as_json: bool) -> int:
    """List the relatives that meet all conditions, oldest first."""
    from kinfolk.family.query import where

    rows = sorted(where(known(), conditions).values(), key=lambda about: (about.year, about.name))
    if as_json:
        print(json.dumps([dataclasses.asdict(about) for about in rows], indent=2))
        return 0
    width = max((len(about.name) for about in rows), default=0)
    for about in rows:
        print(hanging(f"{about.name:{width}}  {about.year}  ", about.changes))
    print(f"{len(rows)} of {len(known())} relatives", file=sys.stderr)
    return 0


def _source(name: str, as_json: bool) -> int:
    """Print the function of a relative, as it is in its file."""
    listed = catalogue.read()
    base, _, _ = name.partition("+")
    if base != name:
        raise SpecError(
            f"{name} has no function of its own: see `kin family {base} --source` and `kin diff {base} {name}`"
        )
    if name not in listed:
        # not ours: a plugin's, or unknown
        from kinfolk.family.registry import entry

        file = Path(inspect.getfile(entry(name).function))
        listed = catalogue.read([file])
    here = listed[name]
    if as_json:
        print(json.dumps({"file": str(here.file), "line": here.line, "source": here.source}, indent=2))
    else:
        print(f"# {here.file}:{here.line}\n{here.source}")
    return 0


def _short(x: float) -> str:
    """Write a number with three digits and a unit."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(x) < 999.5:
            return f"{x:.3g} {unit}" if unit else f"{x:.3g}"
        x /= 1000
    return f"{x:.3g} P"


def _bytes(x: float) -> str:
    return f"{_short(x)}B" if x >= 1000 else f"{x:.0f} B"


def _draw_in_colour(family: dict[str, About]) -> None:
    from rich.text import Text
    from rich.tree import Tree

    from kinfolk.core.console import Console

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
