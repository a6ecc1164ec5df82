"""The run folder: everything a run needs to be continued, and everything it found.

spec.toml        the recipe, fully resolved
run.toml         seed, data, versions, commit, command, threads and precision
tokenizer.json   metrics.jsonl   checkpoints/   model.safetensors, result.json and report.html at the end
start.safetensors   the weights it began with, where they were given
knowledge.tsv    what it knows about names, where it was told
manifest.json    the hashes of these: what was damaged or edited is refused
"""

import contextlib
import hashlib
import json
import shlex
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinfolk.core import contained, lock, manifest, plugins
from kinfolk.core.errors import TrainingError
from kinfolk.core.plain import to_plain
from kinfolk.family import registry
from kinfolk.runs import durable
from kinfolk.runs.metadata import FILE, Metadata, Plugin

SPEC, RUN, RESULT, TOKENIZER, WEIGHTS = "spec.toml", FILE, "result.json", "tokenizer.json", "model.safetensors"
START, KNOWLEDGE = "start.safetensors", "knowledge.tsv"
CONFIG = "config.json"
"""What a folder of Hugging Face's libraries has, and none of ours."""


class DamagedResult(UserWarning):
    """The result of a run cannot be used; the run goes on from its checkpoints."""


def create(
    out: Path,
    spec: str,
    run: Metadata,
    tokenizer: Any = None,
    start: Path | None = None,
    knowledge: Path | None = None,
) -> None:
    """Make the folder of a new run in one move; an existing run is never overwritten.

    start, knowledge: files of weights to begin with, and of what is known; the run keeps copies, so that it can always
    be done again.
    """
    refuse_existing(out, spec, run)
    out.parent.mkdir(parents=True, exist_ok=True)
    with durable.folder(out) as aside:
        (aside / SPEC).write_text(spec, encoding="utf-8")
        (aside / RUN).write_text(run.text(), encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(aside / TOKENIZER)
        if start is not None:
            shutil.copyfile(start, aside / START)
        if knowledge is not None:
            shutil.copyfile(knowledge, aside / KNOWLEDGE)
        manifest.create(aside)


def refuse_existing(out: Path, spec: str, run: Metadata) -> None:
    """Raise unless the folder is free, and say what is in it."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / RUN).exists():
        raise TrainingError(f"{out}: exists and is not a run; choose another --out")
    old = read(out)
    same = (out / SPEC).read_text(encoding="utf-8") == spec
    if same and old.same_run(run):
        state = "is finished" if (out / RESULT).exists() else "was not finished"
        raise TrainingError(f"{out}: this run exists and {state}; `kin resume {shlex.quote(str(out))}` goes on with it")
    raise TrainingError(f"{out}: holds another run; choose another --out")


def read(out: Path) -> Metadata:
    """Read run.toml."""
    return Metadata.read(out)


def opened(out: Path, *files: str) -> Metadata:
    """Return run.toml of a run whose files are as they were written, and whose plugins the user has allowed.

    Nothing of the run is executed. files: what is read besides spec.toml, run.toml and the tokenizer.
    """
    contained.check(out)
    run = read(out)
    manifest.check(out, (SPEC, RUN, TOKENIZER, KNOWLEDGE, *files))
    plugins.require([to_plain(plugin) for plugin in run.plugins or ()], out)
    registry.load()
    return run


def accept(out: Path) -> list[str]:
    """Record that the files and plugins of a run were changed on purpose, and return which files were."""
    contained.check(out)
    run, loaded = read(out), {Path(plugin["path"]).name: Plugin(**plugin) for plugin in plugins.loaded()}
    recorded = run.plugins or ()
    current = tuple(loaded.get(Path(plugin.path).name, plugin) for plugin in recorded)
    if current != recorded:
        durable.write(out / RUN, run.replace(plugins=current).text())
    return manifest.accept(out)


def update(out: Path, **changes: Any) -> None:
    """Change some of run.toml."""
    replace(out, RUN, read(out).replace(**changes).text())


def replace(out: Path, name: str, text: str) -> None:
    """Write a text file of a run and its hash."""
    with manifest.replacing(out, name, hashlib.sha256(text.encode()).hexdigest()):
        durable.write(out / name, text)


def add(out: Path, name: str, write: Callable[[Path], object]) -> None:
    """Add a file to a run, and its hash to the manifest."""
    write(out / name)
    with manifest.replacing(out, name, durable.digest(out / name)):
        pass


def result(out: Path) -> dict[str, Any] | None:
    """Read result.json; None before the end, and with a warning where it is damaged."""
    try:
        values: dict[str, Any] = json.loads((out / RESULT).read_text(encoding="utf-8"))
        problem = "" if isinstance(values, dict) else "not a JSON object"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problem = str(error)
    if not problem and not manifest.unchanged(out / RESULT):
        problem = "its content does not match its hash"
    if not problem:
        return values
    warnings.warn(f"{out / RESULT}: damaged ({problem})", DamagedResult, stacklevel=2)
    return None


def locked(out: Path) -> contextlib.AbstractContextManager[int]:
    """Hold the folder against a second process; a killed holder lets go by dying."""
    contained.check(out)
    return lock.locked(out, TrainingError(f"{out}: another process is working on this run"))
