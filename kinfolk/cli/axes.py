"""`kin axes`: every axis of the grammar, or the choices of one with their fields, defaults, bounds and papers."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from kinfolk.core.formulas import readable
from kinfolk.core.printing import hanging

if TYPE_CHECKING:
    from kinfolk.family.grammar import AxisChoice

EPILOG = """\
examples:
  kin axes                 every axis and how many choices it has
  kin axes norm            every norm: its fields, its paper, the relatives that use it
  kin axes mixer --json    the same for a program

A choice is added by its name, gpt2+rms-norm, or set by its path: --set model.decoder.norm.kind=rms-norm"""

ROOMS = {"model": "The model", "objective": "Objectives and tasks", "training": "Training"}
SHOWN = 8
"""Relatives named for a choice."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
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
        _overview(grammar.axes(), grammar.rooms(), counts)
        return 0
    choices = grammar.choices(args.axis)
    if args.json:
        print(json.dumps([dataclasses.asdict(choice) for choice in choices], indent=2))
        return 0
    print("\n\n".join(_lines(choice) for choice in choices))
    return 0


def _overview(axes: dict[str, str], rooms: dict[str, str], counts: dict[str, int]) -> None:
    """Print the axes of the model, of objectives and of training, with the number of choices of each."""
    width = max(map(len, axes))
    for room, title in ROOMS.items():
        print(f"{title}:")
        for name in (name for name in axes if rooms[name] == room):
            print(hanging(f"  {name:{width}} {counts[name]:3}  ", axes[name]))
    print("\n`kin axes NAME` lists the choices of an axis.")


def _lines(choice: "AxisChoice") -> str:
    lines = [hanging(f"{choice.kind}: ", readable(choice.meaning), indent=2)]
    for field in choice.fields:
        default = "required" if field.required else f"default {json.dumps(field.default)}"
        lines.append(
            hanging(f"    {field.name}: ", f"{field.allowed} ({default}). {_upper(readable(field.meaning))}", indent=8)
        )
    if choice.source:
        lines.append(hanging("    paper: ", choice.source))
    if choice.relatives:
        more = len(choice.relatives) - SHOWN
        names = ", ".join(choice.relatives[:SHOWN])
        lines.append(hanging("    used by ", names + (f" and {more} more (--json)" if more > 0 else "")))
    return "\n".join(lines)


def _upper(text: str) -> str:
    return text if text.startswith("`") else text[:1].upper() + text[1:]
