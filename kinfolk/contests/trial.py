"""One trial: one contestant, one seed, in a process of its own (`python -m kinfolk.contests.trial FOLDER`).

The folder holds `trial.json`, which says everything; the trial leaves `result.json`, however it ends. A trial that was
interrupted leaves none: started again, it goes on from the last checkpoint of its run.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import math
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from kinfolk.contests import devices
from kinfolk.contests.outcome import CRASHED, DIVERGED, DONE, OUT_OF_MEMORY, Outcome, Point, write_json
from kinfolk.core.child import interrupt_with_parent, last_lines
from kinfolk.core.errors import DataError, TrainingError
from kinfolk.core.memory import peak_memory, resident
from kinfolk.objectives.measures.measure import measure_of

if TYPE_CHECKING:
    from kinfolk.data import Data
    from kinfolk.family.recipe import Recipe
    from kinfolk.train import RunOptions
    from kinfolk.train.job import Result

FILE, RUN = "trial.json", "run"
INTERRUPTED = 130

TRUNK = "trunk"
"""In `extra`: a trial whose checkpoints others begin with; in `begins`: the key of the trial whose checkpoint it is."""

BATTERY = "battery"
"""In `begins`: the level of the questions that a trained trial is asked in the place of a training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """What to train, on what, with what.

    data: arguments of `open_data`, or the name of an environment as `env`; fingerprint: what the opened data must be.
    flops_per_token: of training, to count what was used.
    max_seconds: the clock that stops a run whose steps take longer than was measured; 0: none.
    begins: of fine-tuning, the source of the first weights and the tactic; of a branch, its trunk and the step of the
        checkpoint; of a battery, its level and the trial whose weights are asked; empty: weights are drawn.
    held_out: "" validates on the valid split, which is also what judges; "apart" validates on what does not judge
        (`kinfolk.data.batches.halves`); "judged" also scores the last weights on what does.
    calibrate: only measure how long a step takes, for `max_seconds` or so.
    """

    name: str
    seed: int
    recipe: dict[str, Any]
    data: dict[str, Any]
    fingerprint: str
    flops_per_token: float = 0.0
    threads: int = 1
    nice: int = 0
    max_seconds: float = 0.0
    calibrate: bool = False
    begins: dict[str, Any] = dataclasses.field(default_factory=dict)
    held_out: Literal["", "apart", "judged"] = ""
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def key(self) -> str:
        """A hash of everything that can change the result: two trials of one key are the same trial."""
        fields = dataclasses.asdict(self)
        # where the data lies and how polite the process is are not part of what is measured
        for name in ("data", "nice"):
            del fields[name]
        # nor is where a source lies, whose weights have a hash
        fields["begins"].pop("source", None)
        for name in ("begins", "held_out"):
            if not fields[name]:
                del fields[name]
        text = json.dumps(fields, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def completed(self) -> Self:
        """Return it with its recipe in full: fields that came after the version that wrote it have their defaults."""
        from kinfolk.core.plain import to_plain

        return dataclasses.replace(self, recipe=to_plain(_recipe(self)))

    def write(self, folder: Path) -> None:
        """Leave the order in the folder where the trial will find it."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote."""
        return cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))


def run(trial: Trial, folder: Path) -> Outcome | None:
    """Train, and say how it ended; None when it was interrupted and can go on."""
    outcome = Outcome(name=trial.name, seed=trial.seed, key=trial.key, threads=trial.threads, status=DONE)
    try:
        # the engine is part of the program, not of what training takes
        importlib.import_module("kinfolk.train.run")
        if "env" in trial.data:
            return _act(trial, folder / RUN, outcome.replace(start_bytes=resident()))
        data = _open(trial)
        if BATTERY in trial.begins:
            return outcome.replace(battery=_battery(trial, data, folder))
        outcome = outcome.replace(start_bytes=resident(), bytes_per_token=_bytes_per_token(data))
        result = _train(trial, data, folder / RUN)
        outcome = _with_result(outcome, result, folder / RUN, trial)
        if result.status == "interrupted":
            return None
        outcome = _judged(outcome, data.tokenizer.vocab_size)
        if trial.held_out == "judged" and outcome.done:
            outcome = outcome.replace(test=_scores(data, folder / RUN))
        return outcome.replace(special=_special(data, folder / RUN))
    except TrainingError as error:
        outcome = _with_curve(outcome, folder / RUN, trial)
        status = DIVERGED if _not_finite(error) else CRASHED
        return outcome.replace(status=status, reason=str(error), peak_bytes=peak_memory())
    except KeyboardInterrupt:
        return None
    except Exception as error:
        traceback.print_exc()
        status = OUT_OF_MEMORY if _no_memory(error) else CRASHED
        return outcome.replace(status=status, reason=_words(error), peak_bytes=peak_memory())


def measure(trial: Trial) -> Outcome:
    """Learn how long a step takes beside the neighbours it has, from steps that are thrown away."""
    import torch

    from kinfolk.train.calibrate import calibrate
    from kinfolk.train.parallel import join
    from kinfolk.train.run import make_job

    outcome = Outcome(name=trial.name, seed=trial.seed, key=trial.key, threads=trial.threads, status=DONE)
    try:
        torch.set_num_threads(trial.threads)
        data = _open(trial)
        outcome = outcome.replace(start_bytes=resident())
        with join() as team:
            job = make_job(_recipe(trial), data, trial.seed, team)
            job.learner.begin()
            rough = calibrate(job, team=team)
            steps = min(1000, max(5, round(trial.max_seconds / rough)))
            outcome = outcome.replace(steps=steps, seconds=steps * calibrate(job, steps=steps, team=team))
        return outcome.replace(peak_bytes=peak_memory(), device_bytes=devices.peak_memory())
    except Exception as error:
        traceback.print_exc()
        return outcome.replace(status=CRASHED, reason=_words(error))


def last_row(folder: Path) -> dict[str, Any]:
    """Return the newest figures of the run in a trial's folder, as its metrics tell; empty where there are none."""
    newest: dict[str, Any] = {}
    for line in reversed(last_lines(folder / RUN / "metrics.jsonl", 3).splitlines()):
        try:
            row: dict[str, Any] = json.loads(line)
            newest = row | newest if isinstance(row["step"], int) else newest
        except (ValueError, KeyError, TypeError):
            continue  # the last line may be half written
        if "tokens_per_second" in newest:
            break
    return newest


def main(folder: Path) -> int:
    """Carry out the order in a folder."""
    trial = Trial.read(folder)
    # a parent in the background of a shell hands down that interruptions are ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt_with_parent()
    if trial.nice and hasattr(os, "nice"):
        os.nice(trial.nice)
    outcome = measure(trial) if trial.calibrate else run(trial, folder)
    if outcome is None:
        return INTERRUPTED
    outcome.write(folder)
    if outcome.status == DONE and TRUNK not in trial.extra:
        _tidy(folder / RUN)
    return 0


def _open(trial: Trial) -> "Data":
    from kinfolk.data import open_data
    from kinfolk.data.batches.halves import halved

    data = open_data(**trial.data)
    if data.fingerprint != trial.fingerprint:
        raise DataError(f"{data.name}: is not the data it was when the comparison was planned")
    return halved(data) if trial.held_out else data


def _scores(data: "Data", out: Path) -> dict[str, float]:
    """Score the last weights on the split that judges."""
    from kinfolk.train.evaluate import require_finite
    from kinfolk.train.testing import final_scores

    scores = final_scores(out, data)
    require_finite(scores, str(out))
    return scores


def _train(trial: Trial, data: "Data", out: Path) -> "Result":
    from kinfolk.runs.checkpoint import name as checkpoint_name
    from kinfolk.train import resume, train

    options = _options(trial)
    if (out / "run.toml").exists():
        return resume(out, data=data, options=options)
    recipe = _recipe(trial)
    if TRUNK in trial.begins:
        branch = Path(trial.begins["source"]) / RUN / "checkpoints" / checkpoint_name(trial.begins["step"])
        return train(recipe, data, out, seed=trial.seed, options=options, source=trial.data, start=branch)
    start = _start(trial, recipe, data, out.with_name("start.safetensors")) if trial.begins else None
    return train(recipe, data, out, seed=trial.seed, options=options, source=trial.data, start=start)


def _options(trial: Trial) -> "RunOptions":
    from kinfolk.train import RunOptions

    return RunOptions(threads=trial.threads, max_seconds=trial.max_seconds, quiet=True, tensorboard=False, report=False)


def _act(trial: Trial, out: Path, outcome: Outcome) -> Outcome | None:
    """Train in an environment; None when it was interrupted."""
    from kinfolk.contests.acting import open_world, resume, train
    from kinfolk.contests.acting.environment import require_permitted

    require_permitted(trial.data["env"], out.parent)
    options = _options(trial)
    if (out / "run.toml").exists():
        result = resume(out, options=options)
    else:
        result = train(_recipe(trial), open_world(trial.data["env"]), out, seed=trial.seed, options=options)
    if result.status == "interrupted":
        return None
    outcome = _with_result(outcome, result, out, trial)
    # the headline of a run is a cost, of which less is better; a report shows the return itself
    returns = (
        dataclasses.replace(point, valid={name: x for name, x in point.valid.items() if name != "cost"})
        for point in outcome.curve
    )
    return _judged(outcome.replace(curve=tuple(returns)), 2)


def _battery(trial: Trial, data: "Data", folder: Path) -> dict[str, Any]:
    """Ask the weights of another trial what they can do besides their loss."""
    import torch

    from kinfolk.contests.battery import measure

    torch.set_num_threads(trial.threads)
    battery = measure(Path(trial.begins["source"]) / RUN, data, trial.begins[BATTERY], folder, trial.seed)
    return dataclasses.asdict(battery)


def _start(trial: Trial, recipe: "Recipe", data: "Data", file: Path) -> Path:
    """Write the weights that fine-tuning begins with."""
    from kinfolk.train.finetune.run import Prepared, write_start
    from kinfolk.train.finetune.source import open_source
    from kinfolk.train.finetune.tactics import parse

    source = open_source(trial.begins["source"])
    if source.digest != trial.begins["digest"]:
        raise DataError(f"{source.path}: its weights are not those it had when the comparison was planned")
    return write_start(Prepared(source, recipe, data, trial.data, parse(trial.begins["tactic"])), file, trial.seed)[0]


def _special(data: "Data", out: Path) -> dict[str, list[float]]:
    """Measure what is special to the relative, on the first batch of the validation data."""
    from kinfolk.data import Batches
    from kinfolk.runs.run import Run
    from kinfolk.train.run import reading_of
    from kinfolk.train.special import special

    recipe, learner = Run.open(out).recipe, Run.open(out).learner()
    batches = Batches(split=data.split("valid"), shuffle=False, **reading_of(recipe.training))
    return special(learner, batches.at(0))


def _recipe(trial: Trial) -> "Recipe":
    from kinfolk.core.plain import from_plain
    from kinfolk.family import registry
    from kinfolk.family.recipe import Recipe

    # the kinds of plugins must be known before a recipe that names them is read
    registry.load()
    return from_plain(Recipe, trial.recipe, trial.name)


def _with_result(outcome: Outcome, result: "Result", out: Path, trial: Trial) -> Outcome:
    return _with_curve(outcome, out, trial).replace(
        params=result.parameters,
        planned_steps=result.total_steps,
        steps=result.step,
        tokens=result.tokens,
        seconds=result.seconds,
        flops=result.tokens * trial.flops_per_token,
        tokens_per_second=result.tokens_per_second,
        peak_bytes=peak_memory(),
        device_bytes=devices.peak_memory(),
    )


def _with_curve(outcome: Outcome, out: Path, trial: Trial) -> Outcome:
    """Add what the metrics of a run tell, also of one that broke off."""
    from kinfolk.train import metrics

    file = out / "metrics.jsonl"
    rows = list(metrics.read(file)) if file.exists() else []
    points = (
        Point(
            step=row["step"],
            tokens=row["tokens"],
            seconds=row["seconds"],
            flops=row["tokens"] * trial.flops_per_token,
            valid=row["valid"],
        )
        for row in rows
        if "valid" in row
    )
    last = rows[-1] if rows else {"step": 0, "tokens": 0, "seconds": 0.0}
    return outcome.replace(
        curve=tuple(point for point in points if all(map(math.isfinite, point.valid.values()))),
        planned_steps=trial.recipe["training"]["steps"],
        steps=last["step"],
        tokens=last["tokens"],
        seconds=last["seconds"],
        flops=last["tokens"] * trial.flops_per_token,
    )


def _judged(outcome: Outcome, vocab_size: int) -> Outcome:
    """Call a run diverged that ended far worse than guessing, or with a validation that is not a number."""
    end = outcome.curve[-1] if outcome.curve else None
    if end is None or end.step != outcome.steps:
        return outcome.replace(status=DIVERGED, reason="the last validation is not finite")
    worst = max((value for name, value in end.valid.items() if measure_of(name).tokens), default=0.0)
    guess = math.log(vocab_size)
    if worst > 2 * guess:
        reason = f"the final loss {worst:.3g} is far worse than guessing ({guess:.3g} nats)"
        return outcome.replace(status=DIVERGED, reason=reason)
    return outcome


def _tidy(out: Path) -> None:
    """Drop what only going on would need: the weights of the run stay, its checkpoints are as large as three models."""
    from kinfolk.runs import durable

    if (out / "model.safetensors").exists():
        durable.remove(out / "checkpoints")
        # what fine-tuning began with can be restored from its source
        durable.remove(out.with_name("start.safetensors"))


def _bytes_per_token(data: "Data") -> float:
    split = data.split("valid")
    return split.n_bytes / split.n_tokens if split.n_tokens else 0.0


def _not_finite(error: TrainingError) -> bool:
    return re.search(r"\b(loss|gradient) is (-?inf|nan)\b", str(error)) is not None


def _no_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)


def _words(error: Exception) -> str:
    """Return the end of the traceback, and what and where in one last line."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = traceback.format_exception_only(error)[-1].strip()
    return "\n".join([*lines[-6:-1], f"{message} ({Path(frame.filename).name}:{frame.lineno})"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
