"""Command lines: any verb with any options, on terminals without an encoding, without output, without a home."""

import contextlib
import functools
import io
import os
import random
import sys
import tempfile
from pathlib import Path

from kinfolk.cli import main
from kinfolk.core.errors import KinfolkError

HEAVY = ("bench", "compare", "scale", "serve", "claims", "evolve", "gate", "work", "doctor")
"""Verbs whose work takes minutes or never ends: of these only what is refused is tried."""
VALUES = [
    "",
    "-1",
    "0",
    "1",
    "2",
    "nan",
    "inf",
    "1e999",
    "9" * 5000,
    "bogus",
    "none",
    "auto",
    "\0",
    "é\u2028",
    "x" * 5000,
]
VALUES += [
    "[" * 2000,
    "a=b",
    "=",
    "a=",
    "model.dropout=-1",
    "training.steps=0",
    "model=none",
    "..",
    "/",
    "/dev/null",
    "-",
    "--",
]
VALUES += [
    "gpt2",
    "gpt",
    "bert",
    "byte",
    "bpe",
    "stdlib",
    "copy",
    "copy:length=-1",
    "labelled:",
    "cpu",
    "cuda",
    "fp32",
    "json",
]
PATHS = [
    "missing",
    "empty",
    "empty.txt",
    "small.txt",
    "deep.toml",
    "spec.toml",
    "binary.csv",
    "small.jsonl",
    "run",
    ".",
]
SETS = ["d_model=16", "n_layers=1", "n_heads=2", "d_ff=16", "max_len=64", "training.length=32"]


@functools.cache
def folder() -> Path:
    """Return a folder with files to name, made once."""
    path = Path(tempfile.mkdtemp(prefix="fuzz"))
    (path / "empty").mkdir()
    (path / "empty.txt").touch()
    (path / "small.txt").write_text("so it is, and so it was\n" * 200)
    (path / "small.jsonl").write_text('{"text": "it is good", "label": "yes"}\n{"text": "bad", "label": "no"}\n' * 20)
    (path / "deep.toml").write_text(f"a = {'[' * 3000}{']' * 3000}")
    (path / "spec.toml").write_text('name = "x"\n[model]\nd_model = 8\n')
    (path / "binary.csv").write_bytes(bytes(range(256)) * 8)
    train = ["train", "gpt2", "--data", "small.txt", "--steps", "1", "--out", "run", "--quiet", "--no-tensorboard"]
    with contextlib.chdir(path):
        assert call([*train, *(word for one in SETS for word in ("--set", one)), "--cache", "cache"])[0] == 0
    return path


def call(argv: list[str], encoding: str = "utf-8", closed: bool = False) -> tuple[int, str]:
    """Run the command line in this process; return its exit code and what it said in case of an error."""
    raw, error = io.BytesIO(), io.StringIO()
    out = None if closed else io.TextIOWrapper(raw, encoding=encoding)
    old, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), out, error  # type: ignore[assignment]
    try:
        code = main.main(argv)
    except SystemExit as exit_:
        # argparse prints help and leaves
        code = int(exit_.code or 0)
    finally:
        sys.stdout, sys.stderr = old
    return code, error.getvalue()


def check(argv: list[str], **how: object) -> None:
    """Run a command line: it works, or says in few words why not."""
    code, said = call(argv, **how)  # type: ignore[arg-type]
    if "unexpected" in said or "Traceback" in said:
        raise AssertionError(f"{' '.join(argv)[:150]!r}: {said[-400:]}")
    if code not in (0, 1, 2):
        raise AssertionError(f"{' '.join(argv)[:150]!r}: exit code {code}: {said[-200:]}")
    if code:
        raise KinfolkError(said[-1000:] or "without a word")


def words(rng: random.Random, verb: str) -> list[str]:
    """Return arguments of a verb: names and values that fit, or do not."""
    actions = [a for a in main.parser_of(verb)._actions if a.dest not in ("help", "plugin", "debug")]
    found = [rng.choice([*PATHS, *VALUES]) for action in actions if not action.option_strings and rng.random() < 0.9]
    named = [a for a in actions if a.option_strings]
    for action in rng.sample(named, min(len(named), rng.choice([0, 1, 2, 4]))):
        found.append(action.option_strings[-1] if rng.random() < 0.95 else action.option_strings[-1][:-1])
        if action.nargs != 0:
            found.append(rng.choice([*VALUES, *PATHS]))
    if rng.random() < 0.05:
        found.insert(rng.randrange(len(found) + 1), rng.choice(["--bogus", "-x", "--", "--help"]))
    if verb in HEAVY and "--help" not in found:
        found.append("--no-such-option")
    if verb in ("train", "finetune", "resume"):
        found += ["--steps", "1", "--threads", "1"] if verb != "resume" else []
        found += [word for one in SETS for word in ("--set", one)] if verb == "train" else []
    return found


def command_case(rng: random.Random) -> None:
    """Run one command line in a folder of its own files."""
    verb = rng.choice([*main.verbs(), rng.choice(["", "trian", "--help", "--version", "é"])])
    argv = [verb, *(words(rng, verb) if verb in main.verbs() else [])]
    environment = {"HOME": rng.choice([str(folder()), "/dev/null/home"]), "KINFOLK_CACHE": ""}
    old = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    if rng.random() < 0.5:
        os.environ["KINFOLK_CACHE"] = str(folder() / "cache")
    else:
        del os.environ["KINFOLK_CACHE"]
    try:
        with contextlib.chdir(folder()):
            check(argv, encoding=rng.choice(["utf-8", "ascii", "latin-1"]), closed=rng.random() < 0.1)
    finally:
        for name, value in old.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


command_case.setup = folder  # type: ignore[attr-defined]
