"""`kin inspect`: attention maps, head importance and internal statistics of a trained model."""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

EPILOG = """\
examples:
  kin inspect runs/a --text "for i in range(10):"                   a page with every head, and what is special
  kin inspect runs/a --text "a text" --out page.html --remove       also what the loss becomes without each head
  kin inspect runs/t --text "a b c" --target "c b a"                an encoder-decoder reading a given target
  kin inspect runs/b --file book.txt --word bank                    its neighbours by the table and by context
  kin inspect runs/b --text "A sentence." --conllu treebank.conllu  which head finds which dependency relation

The page is one file that needs nothing else. With --json the numbers are printed instead: statistics of every head
and what is special to the relative (spans, steps of halting, buckets, experts, approximation error)."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("what", type=Path, metavar="RUN", help="the run folder")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="TEXT", help="what to look at; of an encoder-decoder, its source")
    source.add_argument("--file", type=Path, metavar="FILE", help="the same from a file, its first 512 tokens")
    add("--target", metavar="TEXT", help="what an encoder-decoder reads besides (default: what it writes)")
    add("--out", type=Path, default=Path("inspect.html"), metavar="FILE", help="the page (default: inspect.html)")
    add("--word", metavar="WORD", help="what is near it in the table, and near each time it occurs in the text")
    add("--layer", type=int, metavar="N", help="of --word: the layer whose states are compared (default: the last)")
    add("--remove", action="store_true", help="measure the loss without each head, on the run's validation data")
    add("--batches", type=int, default=2, metavar="N", help="of --remove (default: 2)")
    add("--conllu", type=Path, metavar="FILE", help="parsed sentences, to see which head finds which relation")
    add("--sentences", type=int, default=200, metavar="N", help="of them, at most (default: 200)")


def run(args: argparse.Namespace) -> int:
    """Write the page, or print the numbers."""
    from kinfolk.core.errors import DataError
    from kinfolk.runs import durable
    from kinfolk.runs.run import Run
    from kinfolk.use.inspect.findings import with_relations, with_worth
    from kinfolk.use.inspect.neighbours import neighbours
    from kinfolk.use.inspect.page import Findings, describe, render
    from kinfolk.use.inspect.sight import look

    run = Run.open(args.what)
    recipe, learner, tokenizer = run.recipe, run.learner(), run.tokenizer
    text = args.text if args.text is not None else _read(args.file)
    sight = look(learner.model, tokenizer, text, args.target)
    if not sight.maps and not sight.specials:
        raise DataError(f"{args.what}: nothing in {recipe.name} reports what it does")
    special = [i in tokenizer.special_ids for i in sight.tokens]
    findings = Findings(facts={"relative": recipe.name, "parameters": f"{learner.model.n_params:,}"})
    if args.conllu is not None:
        with _bar("sentences") as tell:
            findings = with_relations(findings, learner.model, tokenizer, (args.conllu, args.sentences), tell)
    if args.remove:
        with _bar("heads") as tell:
            findings = with_worth(findings, run, learner, args.batches, tell)
    if args.word is not None:
        near = neighbours(learner.model, tokenizer, text, args.word, layer=args.layer)
        findings = dataclasses.replace(findings, neighbours=near)
    data = describe(sight, special, findings)
    if args.json:
        print(json.dumps(_numbers(data), indent=2, ensure_ascii=False))
        return 0
    durable.write(args.out, render(f"Inside {args.what.name}", data))
    for line in _sentences(data):
        print(line)
    print(f"page: {args.out}")
    return 0


def _read(file: Path) -> str:
    from kinfolk.core.errors import DataError

    try:
        with file.open(encoding="utf-8") as opened:
            return opened.read(1 << 16)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as text: {error}") from None


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how far it is and how long it will take, if somebody is looking."""
    from rich.progress import Progress

    from kinfolk.core.console import Console

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _numbers(data: dict[str, Any]) -> dict[str, Any]:
    """Leave the maps out: what is left can be read."""
    maps = [{key: one[key] for key in ("path", "side", "keys", "shape", "habits")} for one in data["maps"]]
    specials = [
        {key: one[key] for key in ("path", "name", "meaning", "shape")} | _summary(one) for one in data["specials"]
    ]
    return {**{k: v for k, v in data.items() if k != "plane"}, "maps": maps, "specials": specials}


def _sentences(data: dict[str, Any]) -> list[str]:
    """Say what is special to a relative, over its layers."""
    lines = []
    for one in data["specials"]:
        summary = _summary(one)
        around = f", from {summary['least']:.4g} to {summary['most']:.4g}" if summary["least"] < summary["most"] else ""
        lines.append(f"{one['path']}: {one['meaning']}: {summary['mean']:.4g}{around}")
    return lines + _near(data["neighbours"])


def _near(found: dict[str, Any] | None) -> list[str]:
    """Say what is near a word."""
    if found is None:
        return []
    lines = [f"near {found['word']!r} in the table: " + ", ".join(one["word"] for one in found["static"])]
    for place in found["contextual"]:
        lines.append(f"near it in “{place['around']}”:")
        lines += [f"  {one['cosine']:.3f}  {one['around']}" for one in place["near"]]
    return lines


def _summary(packed: dict[str, Any]) -> dict[str, float]:
    import base64

    import numpy as np

    values = np.frombuffer(base64.b64decode(packed["data"]), np.float32)
    return {"mean": float(values.mean()), "least": float(values.min()), "most": float(values.max())}
