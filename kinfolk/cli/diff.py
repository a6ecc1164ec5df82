"""`kin diff A B`: what differs between two relatives, spec files or runs."""

import argparse
import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

from kinfolk.core.errors import SpecError

EPILOG = """\
examples:
  kin diff gpt gpt2                      two relatives
  kin diff gpt2 gpt2.toml --size base    a relative and a spec file of your own
  kin diff runs/a runs/b                 two runs"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help="a relative, a spec file or a run folder")
    parser.add_argument(
        "--size", default="tiny", help="of relatives given by name: tiny, small or base (default: tiny)"
    )


def run(args: argparse.Namespace) -> int:
    """Print one line per difference."""
    differences = between(read(args.a, args.size), read(args.b, args.size))
    if args.json:
        print(json.dumps(plain(differences), indent=2))
    elif not differences:
        print(f"{args.a} and {args.b} are the same")
    else:
        print("\n".join([f"{args.a} → {args.b}", *lines(differences)]))
    return 0


def read(what: str, size: str) -> Any:
    """Return the spec of a relative, a spec file or a run folder."""
    from kinfolk.core.plain import load
    from kinfolk.family.making import make
    from kinfolk.family.recipe import Recipe
    from kinfolk.family.registry import relatives
    from kinfolk.models.model import Model
    from kinfolk.runs.run import Run

    path = Path(what)
    if what in relatives():
        return make(what, size=size)
    if path.is_dir():
        return Run.open(path).spec
    if path.suffix != ".toml" and not path.exists():
        # refused by the registry, which knows the nearest name
        return make(what, size=size)
    if not path.exists():
        raise SpecError(f"{what}: there is no such file")
    # a run holds a recipe, a saved model the model alone; a file that is no TOML at all is explained by `load`
    with contextlib.suppress(ValueError, RecursionError):
        if "model" not in tomllib.loads(path.read_text(encoding="utf-8")):
            return load(Model, path)
    return load(Recipe, path)


def between(a: Any, b: Any) -> list[Any]:
    """List what differs, names apart; of a recipe and a model, the models are compared."""
    from kinfolk.core.paths import diff

    if type(a) is not type(b):
        a, b = getattr(a, "model", a), getattr(b, "model", b)
    return [one for one in diff(a, b) if one.path != "name"]


def plain(differences: list[Any]) -> list[dict[str, Any]]:
    """Return differences as data."""
    from kinfolk.core.plain import to_plain
    from kinfolk.core.spec import Spec

    def value(x: Any) -> Any:
        if isinstance(x, tuple):
            return [value(item) for item in x]
        return to_plain(x) if isinstance(x, Spec) else x

    return [{"path": one.path, "a": value(one.a), "b": value(one.b)} for one in differences]


def lines(differences: list[Any]) -> list[str]:
    """Return one line per difference: the path, the first value, the second value."""
    from kinfolk.core.paths import show

    width = max((len(one.path) for one in differences), default=0)
    return [f"{one.path:{width}}  {show(one.a)} → {show(one.b)}" for one in differences]
