"""The command `kin`: a table of verbs, the options they share, and what happens when something goes wrong.

A verb is a module with `EPILOG` (examples), `arguments(parser)` and `run(args) -> int`. Its heavy imports are inside
`run`, so that help and the family tree answer at once.
"""

import argparse
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from kinfolk.cli.training import plain_warnings
from kinfolk.core.errors import DataError, KinfolkError, SpecError, TrainingError, suggest
from kinfolk.core.machine import sleep_at_barriers
from kinfolk.core.printing import clean

OK, FAILED, REFUSED, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
"""Exit codes: done; the work failed; what was asked cannot be done; Ctrl-C; the reader of the output went away."""


class Verb(NamedTuple):
    """One verb: its group in the help, and what it does in one line. Its module has its name."""

    group: str
    help: str


VERBS = {
    "family": Verb("The family", "draw the family tree, or explain one relative"),
    "diff": Verb("The family", "say what differs between two relatives, spec files or runs"),
    "axes": Verb("The family", "list every axis of the grammar, its choices, their fields and papers"),
    "compare": Verb("The main job", "train several relatives at an equal budget and rank them"),
    "gate": Verb("The main job", "is a change better than what it changes? An answer for scripts"),
    "scale": Verb("The main job", "how the loss of a relative falls with size and data"),
    "work": Verb("The main job", "run waiting trials of a comparison in a shared folder"),
    "runs": Verb("The main job", "list runs and comparisons: what they are, their scores, dates and sizes"),
    "prepare": Verb("From raw files to a trained model", "turn text, tables or pairs into tokens"),
    "train": Verb("From raw files to a trained model", "train one relative"),
    "resume": Verb("From raw files to a trained model", "go on with a run that was stopped"),
    "eval": Verb("From raw files to a trained model", "score a trained model on data"),
    "predict": Verb("From raw files to a trained model", "what a trained model says of the rows of a file"),
    "embed": Verb("From raw files to a trained model", "one vector of every text of a file"),
    "generate": Verb("From raw files to a trained model", "let a trained model write"),
    "finetune": Verb("To your own task", "fit a trained or downloaded model to your own labels or text"),
    "import": Verb("Exchange", "make a run of a folder that Hugging Face's libraries wrote"),
    "export": Verb("Exchange", "write a run for other people's tools"),
    "compress": Verb("Make it smaller", "cut heads, neurons and layers, and measure what each costs"),
    "inspect": Verb("Look inside", "every head on a text, what is special to a relative, and what heads are for"),
    "serve": Verb("Put it behind an address", "an HTTP server that OpenAI's clients can use, and a live page"),
    "bench": Verb("Measure", "speed and memory beside other libraries"),
    "doctor": Verb("Measure", "what this machine offers, and whether its device computes what it should"),
    "new": Verb("Set up", "write a plugin file that runs: a relative, a task, or an operator with its reference"),
    "completion": Verb("Set up", "print completion of verbs, options and relatives for bash, zsh or fish"),
}

EXAMPLES = """\
Examples:
  kin family                                              the family tree
  kin family gpt2                                         one relative: lineage, paper, spec, cost, attention
  kin compare gpt gpt2 --data my.txt --budget 10m         which one suits my text?
  kin train gpt2 --data stdlib --steps 200 --out runs/a   train one

`kin VERB --help` tells the options of a verb."""


class Parser(argparse.ArgumentParser):
    """argparse, with the error as one line and the nearest match for an option that does not exist."""

    def parse_all(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse everything that was given, or refuse it."""
        args, rest = self.parse_known_args(argv)
        if rest:
            options = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            kind = "option" if rest[0].startswith("-") else "argument"
            hint = suggest(rest[0].partition("=")[0], options) if kind == "option" else ""
            raise SpecError(f"unknown {kind} {rest[0]!r}{hint}")
        return args

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise SpecError(f"{message} (see {self.prog} --help)")


def verbs() -> dict[str, Verb]:
    """Return the verbs whose module is there."""
    folder = Path(__file__).parent
    return {name: verb for name, verb in VERBS.items() if (folder / f"{name}.py").exists()}


def overview() -> str:
    """Return the text of `kin --help`."""
    lines = ["usage: kin VERB [options]", "", "The whole Transformer family in one grammar.", ""]
    group = ""
    for name, verb in verbs().items():
        if verb.group != group:
            group = verb.group
            lines += [f"{group}:"]
        lines.append(f"  {name:10} {verb.help}")
    return "\n".join([*lines, "", EXAMPLES])


def parser_of(name: str) -> Parser:
    """Return the parser of a verb, with the options every verb has."""
    module = importlib.import_module(f"kinfolk.cli.{name}")
    parser = Parser(
        prog=f"kin {name}",
        description=VERBS[name].help[:1].upper() + VERBS[name].help[1:] + ".",
        epilog=getattr(module, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.arguments(parser)
    shared = parser.add_argument_group("every verb")
    shared.add_argument("--json", action="store_true", help="print the result for machines")
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    shared.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a file of your own that adds kinds or relatives",
    )
    parser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    sleep_at_barriers()
    _make_streams_safe()
    with clean(), plain_warnings():
        return _carried_out(argv)


def _carried_out(argv: list[str]) -> int:
    """Run a command line, and turn whatever ends it into an exit code."""
    try:
        code = _run(argv)
        # a reader that has gone away must be noticed here and not when the interpreter closes
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print("kin: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _explain(error, argv)
    except BaseException as error:
        # what tokenizers raise when their Rust code panics is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return _explain(DataError(f"the tokenizer cannot read this: {error}"), argv)
    return code


def _make_streams_safe() -> None:
    """Print what a terminal's encoding does not have as escapes, and nowhere if there is no output at all."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return OK
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"kinfolk {version('kinfolk')}")
        return OK
    name = argv[0]
    if name not in verbs():
        raise SpecError(f"unknown verb {name!r}{suggest(name, verbs())}")
    args = parser_of(name).parse_all(argv[1:])
    if args.plugin:
        from kinfolk.core.plugins import load_plugin

        for path in args.plugin:
            load_plugin(path)
    return args.run(args)


def _explain(error: Exception, argv: list[str]) -> int:
    """Print one clear line (and the traceback if it was asked for), and return the exit code."""
    if "--debug" in argv:
        traceback.print_exception(error)
    verb = f"kin {argv[0]}" if argv and argv[0] in VERBS else "kin"
    if isinstance(error, KinfolkError):
        print(f"{verb}: {error}", file=sys.stderr)
        return FAILED if isinstance(error, TrainingError) else REFUSED
    if isinstance(error, OSError):
        print(f"{verb}: {error}", file=sys.stderr)
        return FAILED
    hint = "" if "--debug" in argv else " (--debug shows where)"
    print(f"{verb}: unexpected {type(error).__name__}: {error}{hint}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
