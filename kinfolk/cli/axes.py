"""`kin axes`: every axis of the grammar, or the choices of one with their fields, defaults, bounds and papers."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.family.grammar import AxisChoice

EPILOG = """\
examples:
  kin axes                 every axis and how many choices it has
  kin axes norm            every norm: its fields, its paper, the relatives that use it
  kin axes mixer --json    the same for a program

A choice is set by its path: kin train gpt2 --set model.decoder.norm.kind=rms-norm …"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.epilog = EPILOG
    parser.add_argument("axis", metavar="AXIS", nargs="?", default="", help="name of an axis, such as norm or mixer")


def run(args: argparse.Namespace) -> int:
    """List the axes, or the choices of one."""
    from kinfolk.family import grammar

    if not args.axis:
        counts = {name: len(grammar.choices(name, relatives=False)) for name in grammar.axes()}
        if args.json:
            rows = [{"axis": n, "meaning": m, "choices": counts[n]} for n, m in grammar.axes().items()]
            print(json.dumps(rows, indent=2))
            return 0
        width = max(map(len, counts))
        print("\n".join(f"{n:{width}}  {counts[n]:3}  {meaning}" for n, meaning in grammar.axes().items()))
        return 0
    found = grammar.choices(args.axis)
    if args.json:
        print(json.dumps([dataclasses.asdict(choice) for choice in found], indent=2))
        return 0
    print("\n\n".join(_lines(choice) for choice in found))
    return 0


def _lines(choice: "AxisChoice") -> str:
    lines = [f"{choice.kind}: {choice.meaning}"]
    for field in choice.fields:
        default = "required" if field.required else f"default {json.dumps(field.default)}"
        lines.append(f"    {field.name}: {field.allowed} ({default})  {field.meaning}")
    if choice.source:
        lines.append(f"    paper: {choice.source}")
    if choice.relatives:
        more = len(choice.relatives) - 8
        lines.append(f"    used by {', '.join(choice.relatives[:8])}{f' and {more} more' if more > 0 else ''}")
    return "\n".join(lines)
