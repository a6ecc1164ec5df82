"""What verbs share: options and the records they name, the first lines of a run, and how it ended."""

import argparse
import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kinfolk.contests.settings import Settings
    from kinfolk.data import Data
    from kinfolk.family.recipe import Recipe
    from kinfolk.train import Result, RunOptions

INTERRUPTED = 130

Record = TypeVar("Record")


def data_arguments(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add the options that say where the data is."""
    data = parser.add_argument_group("data")
    usual = f"default: {default}" if default else "default: the run's own"
    data.add_argument("--data", default=default, metavar="D", help=f"stdlib, a task, a file, a folder ({usual})")
    data.add_argument("--valid", metavar="FILE", help="for raw files: another file to validate on")
    data.add_argument("--tokenizer", metavar="T", help="for raw files: byte, char, word, bpe, unigram or a file")
    data.add_argument("--vocab", type=int, metavar="N", help="for raw files: size of a vocabulary that is learnt")
    data.add_argument("--cache", type=Path, metavar="DIR", help="where prepared data is kept")


def machine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where and how a run is carried out."""
    machine = parser.add_argument_group("the machine")
    machine.add_argument("--processes", type=int, default=1, metavar="N", help="on this machine (default: 1)")
    machine.add_argument("--strategy", help="of several processes: ddp or fsdp (default: ddp)")
    machine.add_argument("--restarts", type=int, default=0, metavar="N", help="of failed processes (default: 0)")
    machine.add_argument("--device", help="cpu, cuda, mps or xpu (default: the accelerator, if there is one)")
    machine.add_argument("--threads", type=int, metavar="N", help="of each process (default: what a step can use)")
    machine.add_argument(
        "--precision", metavar="P", help="fp32, tf32, bf16 or fp16 (default: what the device is built for)"
    )
    machine.add_argument(
        "--bleu-samples",
        "--written",
        dest="written",
        type=int,
        metavar="N",
        help="generate N targets of pairs at each validation and report BLEU",
    )
    machine.add_argument("--quiet", action="store_true", help="show no progress")
    machine.add_argument("--no-tensorboard", action="store_true", help="write no files for TensorBoard")


def begin(args: argparse.Namespace, what: object, data: object, out: Path | None) -> None:
    """Say what runs before anything large is imported, which takes seconds."""
    if speaks(args):
        print(f"{what} on {data}{f' -> {out}' if out else ''}", file=sys.stderr, flush=True)


def announce(
    args: argparse.Namespace, recipe: "Recipe", options: "RunOptions", out: Path, data: "Data | None" = None
) -> None:
    """Say how large the model and the data are, and what they are computed with."""
    from kinfolk.train.settling import headline

    if speaks(args):
        tokens = "" if data is None else f", {data.split('train').n_tokens:,} tokens to learn from"
        print(f"{recipe.name}: {headline(recipe, options)}{tokens} -> {out}", file=sys.stderr, flush=True)


def speaks(args: argparse.Namespace) -> bool:
    """Tell whether this process is the one that talks to the user: the launcher, or the first of several."""
    import os

    launcher = os.environ.get("TORCHELASTIC_RUN_ID", "")
    # our own launcher has spoken already; another, such as torchrun, has not
    spoken = launcher.startswith("kin-") or (launcher and os.environ.get("RANK") != "0")
    return not args.quiet and not spoken


def source_of(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the arguments of `open_data` that the options of `data_arguments` name; None without --data."""
    if args.data is None:
        return None
    source = {"name": args.data} | {name: getattr(args, name) for name in ("tokenizer", "vocab", "cache", "valid")}
    return {name: str(value) if name == "cache" else value for name, value in source.items() if value is not None}


def recipe_of(args: argparse.Namespace, data: "Data") -> "Recipe":
    """Return the recipe that the options name, fitted to the vocabulary and the labels of the data."""
    from kinfolk.family.knowing import informed
    from kinfolk.runs.fit import fit
    from kinfolk.runs.knowledge import fitted

    assignments = list(args.set)
    if args.steps is not None:
        assignments.append(f"training.steps={args.steps}")
    recipe = fit(args.what, data, size=args.size, assignments=[*assignments, *precision_of(args)])
    return recipe if args.knowledge is None else fitted(informed(recipe, str(args.knowledge)))


def precision_of(args: argparse.Namespace) -> list[str]:
    """Return the assignment that --precision is short for."""
    return [] if args.precision is None else [f"training.precision={args.precision}"]


def names(text: str) -> tuple[str, ...]:
    """Read names between commas."""
    return tuple(filter(None, text.split(",")))


def record_of(kind: type[Record], args: argparse.Namespace, **changes: Any) -> Record:
    """Return a record whose fields are the options of the same names, where they are given; `changes` replace them."""
    import dataclasses

    fields: Any = dataclasses.fields(kind)  # type: ignore[arg-type]
    named = {field.name: getattr(args, field.name, None) for field in fields}
    return kind(**{name: value for name, value in named.items() if value is not None} | changes)


def settings_of(args: argparse.Namespace, **changes: Any) -> "Settings":
    """Return the settings of a comparison that options of the same names give; `changes` replace them."""
    from kinfolk.contests.settings import Settings

    return record_of(Settings, args, **{"assignments": (*args.set, *precision_of(args)), "events": args.json} | changes)


def options_of(args: argparse.Namespace, given: "RunOptions | None" = None) -> "RunOptions":
    """Return how to carry a run out: what was begun with, where the options do not say otherwise."""
    from kinfolk.train import RunOptions

    options = given or RunOptions()
    changes = {name: getattr(args, name) for name in ("strategy", "device", "threads", "written")}
    options = options.replace(**{name: value for name, value in changes.items() if value is not None})
    quiet, tensorboard = options.quiet or args.quiet, options.tensorboard and not args.no_tensorboard
    return options.replace(quiet=quiet, tensorboard=tensorboard)


def command_of(verb: str, args: argparse.Namespace, **changes: Any) -> list[str]:
    """Return the command line that these options came from, for the processes that a launcher starts."""
    options = vars(args) | changes
    words = [verb, str(options.pop("what"))]
    for name in ("run", "plugin", "processes", "restarts"):
        # plugins travel in the environment; the rest is the launcher's
        options.pop(name, None)
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, list):
            words += [word for item in value for word in (option, str(item))]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words


def show(result: "Result", as_json: bool, unit: str = "tokens") -> int:
    """Print how a run ended, once, and return the exit code."""
    import dataclasses
    import os

    from kinfolk.train.progress import clock

    code = INTERRUPTED if result.status == "interrupted" else 0
    if os.environ.get("RANK", "0") != "0":
        return code
    if as_json:
        print(json.dumps(dataclasses.asdict(result), indent=1))
        return code
    mfu = "" if result.mfu is None else f", MFU {100 * result.mfu:.0f} %"
    speed = f"{result.tokens_per_second:,.0f} {unit.split()[0]}/s{mfu}, {result.precision}"
    print(f"{result.name}: {result.step:,} steps, {result.tokens:,} {unit} in {clock(result.seconds)} ({speed})")
    scores = "  ".join(f"{name} {value:.4f}" for name, value in result.valid.items())
    bits = "" if result.bits_per_byte is None else f"  {result.bits_per_byte:.4f} bits per byte"
    if scores:
        print(f"valid: {scores}{bits}  (best {result.best:.4f} at step {result.best_step})")
    where = f"step {result.step} of {result.total_steps}"
    ends = {
        "finished": result.out,
        "early": f"{result.out}: stopped early, no improvement since step {result.best_step}",
        "clock": f"{result.out}: stopped by the clock at {where}",
        "interrupted": f"interrupted at {where}; go on with: kin resume {result.out}",
    }
    print(ends[result.status])
    if code == 0:
        _add_samples(Path(result.out))
    return code


def _add_samples(out: Path) -> None:
    """Add a sampled text to the report of a run that writes texts."""
    from kinfolk.decoding.samples import samples
    from kinfolk.train.report import NAME, write

    texts = samples(out) if (out / NAME).exists() else []
    if texts:
        write(out, texts)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show a warning as one line that a user can read."""

    def say(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        print(f"kin: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield
