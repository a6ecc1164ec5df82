"""The plan of a comparison: recipes on one vocabulary, widths matched, a budget turned into steps.

All contestants see the same batches in the same order, so batch size and length are those of the first contestant.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.contests import devices, layout, match
from kinfolk.contests.budget import Budget
from kinfolk.contests.comparison import Card
from kinfolk.contests.contestants import Contestant, gather, gather_rows
from kinfolk.contests.finetuned import Tuned, gather_tuned
from kinfolk.contests.layout import Layout
from kinfolk.contests.outcome import read_kept, write_json
from kinfolk.contests.reading import Reading, cost_of, read
from kinfolk.contests.settings import Settings
from kinfolk.contests.space import assigned
from kinfolk.contests.trial import Trial
from kinfolk.core import paths
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.nested import nested
from kinfolk.core.plain import dumps, to_plain
from kinfolk.data import Data, open_data
from kinfolk.data.batches.halves import TEST, halved, judging
from kinfolk.data.location import located
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import ModelCost
from kinfolk.runs.fit import Needs

VALIDATIONS = (5, 10)
"""Fewest and most validations of a trial; the first, after a fifth to a tenth of the steps, is the early loss."""

VALIDATING = 0.2
"""The share of training's work that validations may cost, as far as the fewest allow it."""

SLACK = 1.1
"""A trial with a budget in seconds is stopped when it has used this much of it."""

CALIBRATING = 3.0
"""Seconds for which steps are timed where the budget is not a time and sizes are matched by it."""

KEPT = "layout.json"
"""How the trials of a folder are run, chosen once: trials side by side, threads of each, precision."""

PROGRAM_BYTES = 4e8
"""What a trial takes before it has a model: interpreter, libraries, a view of the data."""

_EQUAL = ("batch_size", "length", "accumulate", "eval_batches", "precision", "compile")
"""Fields of a training that all contestants have from the first."""

_version = functools.cache(importlib.metadata.version)
"""Read from disk once, and not for each of thousands of trials."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entrant:
    """A contestant whose recipe is settled but for its number of steps.

    matched, widths: what matching did, in words and numbers. reading: its own, where it has one.
    """

    contestant: Contestant
    recipe: Recipe
    cost: ModelCost
    matched: str = ""
    widths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    reading: Reading | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.contestant.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is known before the first trial starts; `unavailable`: rows of a table, and why."""

    settings: Settings
    data: Data
    needs: Needs
    reading: Reading
    entrants: tuple[Entrant, ...]
    layout: Layout
    unavailable: tuple[tuple[str, str], ...] = ()

    @property
    def budget(self) -> Budget:
        """The budget of a trial."""
        return self.settings.allowance

    def calibration(self, entrant: Entrant) -> Trial:
        """Return the measurement of how long a step of this contestant takes."""
        timed = self.budget.unit == "seconds"
        seconds = min(10.0, max(1.0, self.budget.amount / 20)) if timed else CALIBRATING
        return self.order(entrant, entrant.recipe, seed=0, max_seconds=seconds, calibrate=True)

    def trial(
        self,
        entrant: Entrant,
        seed: int,
        seconds_per_step: float | None = None,
        *,
        lr: float | None = None,
        others: Mapping[str, float] | None = None,
        share: float = 1.0,
        held_out: str = "",
    ) -> Trial:
        """Return one trial of a contestant: at its own rate or another, with all of the budget or a share of it.

        A share has a schedule of its own that ends. others: further hyperparameters. held_out: see `Trial`.
        """
        steps = self.steps(entrant, seconds_per_step, share)
        # a validation batch is a forward pass, a third of a step
        affordable = 3 * VALIDATING * steps / max(1, entrant.recipe.training.eval_batches)
        every = math.ceil(steps / min(max(affordable, VALIDATIONS[0]), VALIDATIONS[1]))
        training = entrant.recipe.training.replace(
            steps=steps, eval_every=every, save_every=every, keep_last=1, patience=0
        )
        if lr is not None:
            training = training.replace(optimiser=training.optimiser.replace(lr=lr))
        clock = SLACK * share * self.budget.amount if self.budget.unit == "seconds" else 0.0
        recipe = assigned(entrant.recipe.replace(training=training), others or {})
        return self.order(entrant, recipe, seed, max_seconds=clock, held_out=held_out)

    def steps(self, entrant: Entrant, seconds_per_step: float | None = None, share: float = 1.0) -> int:
        """Return how many steps of a contestant a share of the budget allows."""
        flops = entrant.cost.train_flops_per_token
        reading = entrant.reading or self.reading
        budget = dataclasses.replace(self.budget, amount=share * self.budget.amount)
        return budget.steps(reading.tokens_per_step, flops, seconds_per_step)

    def order(
        self, entrant: Entrant, recipe: Recipe, seed: int, extra: Mapping[str, Any] | None = None, **fields: Any
    ) -> Trial:
        """Return a trial of a contestant with a recipe that is settled to its last number."""
        return Trial(
            name=entrant.name,
            seed=seed,
            recipe=to_plain(recipe),
            **self._reads(entrant),
            flops_per_token=entrant.cost.train_flops_per_token,
            threads=self.layout.threads,
            nice=self.settings.nice,
            extra={"version": _version("kinfolk"), "budget": str(self.budget), "foreign": _foreign(recipe)}
            | ({"jobs": self.layout.jobs} if self.budget.unit == "seconds" else {})
            | dict(extra or {}),
            **fields,
        )

    def _reads(self, entrant: Entrant) -> dict[str, Any]:
        """Return what a trial reads, and what it begins with."""
        contestant = entrant.contestant
        if not isinstance(contestant, Tuned):
            # a relative path must not depend on where the trial is started
            return {"data": located(self.settings.source), "fingerprint": self.data.fingerprint}
        source, data = contestant.prepared.where, contestant.prepared.data
        return {"data": dict(source), "fingerprint": data.fingerprint, "begins": contestant.begins}

    def card(self, entrant: Entrant, trial: Trial | None, problem: str = "") -> Card:
        """Return what a report says of a contestant."""
        contestant, recipe = entrant.contestant, entrant.recipe
        about = contestant.about
        if trial is not None:
            recipe = recipe.replace(training=recipe.training.replace(steps=trial.recipe["training"]["steps"]))
        parent = contestant.parent(self.needs)
        return Card(
            name=entrant.name,
            parent=(about.parent or "") if about else "",
            year=about.year if about else 0,
            paper=about.paper if about else "",
            changes=contestant.changes,
            differences=_differences(parent, recipe),
            matched=entrant.matched,
            spec=dumps(recipe),
            steps=recipe.training.steps,
            params=entrant.cost.params,
            core_params=entrant.cost.core_params,
            flops_per_token=entrant.cost.flops_per_token,
            train_flops_per_token=entrant.cost.train_flops_per_token,
            problem=problem,
        )


def make(settings: Settings, factors: Mapping[str, float] | None = None) -> Plan:
    """Settle everything that can be settled without training.

    factors: by how much the operations per token of each contestant are to differ from the first's, to match by time.
    """
    if settings.finetune:
        return _tuning(settings)
    unavailable: list[tuple[str, str]] = []
    if settings.table:
        contestants, unavailable = gather_rows(settings.table, settings.rows, settings.size, settings.assignments)
    else:
        contestants = gather(settings.contestants, settings.size, settings.assignments, settings.labels)
    names = [contestant.name for contestant in contestants]
    if settings.baseline and settings.baseline not in names:
        raise SpecError(f"against: {settings.baseline!r} is not a contestant{suggest(settings.baseline, names)}")
    data = open_data(**settings.source)
    if settings.tune != "off":
        # a part that cannot be divided is refused before anything runs
        judging(halved(data), batch_size=1, length=1)
    needs = Needs.of(data)
    recipes = [contestant.recipe(needs) for contestant in contestants]
    recipes[0] = _settled(recipes[0], settings)
    first = recipes[0].training
    reading = read(data, first.batch_size, first.length, first.grouping)
    entrants = [
        _entrant(contestant, recipe, recipes[0], reading)
        for contestant, recipe in zip(contestants, recipes, strict=True)
    ]
    # matched to the first, whose objective may have added ids
    fixed = dataclasses.replace(needs, vocab_size=recipes[0].model.vocab_size)
    entrants = [
        entrants[0],
        *(_matched(e, entrants[0], settings, reading, fixed, (factors or {}).get(e.name, 1.0)) for e in entrants[1:]),
    ]
    return Plan(
        settings=settings,
        data=data,
        needs=needs,
        reading=reading,
        entrants=tuple(entrants),
        layout=_layout(settings, entrants, reading),
        unavailable=tuple(unavailable),
    )


def _tuning(settings: Settings) -> Plan:
    """Settle a comparison of sources and tactics."""
    contestants = gather_tuned(settings)
    first, data = contestants[0].prepared.recipe, contestants[0].prepared.data
    data_of = {one.prepared.data.fingerprint: one.prepared.data for one in contestants}
    rows, length, grouping = first.training.batch_size, first.training.length, first.training.grouping
    read_of = {name: read(each, rows, length, grouping) for name, each in data_of.items()}
    entrants = []
    for one in contestants:
        reading = read_of[one.prepared.data.fingerprint]
        entrants.append(dataclasses.replace(_entrant(one, one.prepared.recipe, first, reading), reading=reading))
    reading = read_of[data.fingerprint]
    return Plan(
        settings=settings,
        data=data,
        needs=Needs.of(data),
        reading=reading,
        entrants=tuple(entrants),
        layout=_layout(settings, entrants, reading),
    )


def _entrant(contestant: Contestant, recipe: Recipe, first: Recipe, reading: Reading) -> Entrant:
    """Settle a recipe: the same batches as the first contestant, and numbers in the same precision for all."""
    equal = {name: getattr(first.training, name) for name in _EQUAL}
    recipe = recipe.replace(name=contestant.name, training=recipe.training.replace(**equal))
    return Entrant(contestant=contestant, recipe=recipe, cost=_cost(recipe, reading))


def _cost(recipe: Recipe, reading: Reading) -> ModelCost:
    """Return what a recipe costs; zeros where a part of a user's own cannot tell, which a trial then counts."""
    try:
        return cost_of(recipe, reading)
    except SpecError:
        raise
    except Exception:
        return ModelCost(0, 0.0, 0.0)


def _matched(
    entrant: Entrant, first: Entrant, settings: Settings, reading: Reading, needs: Needs, factor: float
) -> Entrant:
    """Scale a contestant's width until it is as large, or as costly, as the first; `factor` of it, to match by time."""
    by, contestant = settings.matching, entrant.contestant
    if by == "none":
        return entrant
    target = factor * _size(first.cost, by)
    if not target or not entrant.cost.params:
        return dataclasses.replace(entrant, matched="not matched: what it costs is not known")
    if not contestant.scalable:
        left = match.difference(_size(entrant.cost, by), target)
        return dataclasses.replace(
            entrant, matched=f"{by} {left} against {first.name}; its width is fixed and was left"
        )

    def at(**widths: int) -> Entrant:
        recipe = contestant.recipe(needs, widths)
        return _entrant(contestant, recipe, first.recipe, reading)

    def size(**widths: int) -> float:
        return _size(at(**widths).cost, by)

    kept = (match.kept_widths(settings.folder) or {}) if by == "time" else {}
    if entrant.name in kept:
        widths, how, what = kept[entrant.name], " by time", "operations"
    else:
        unit = match.unit_of(entrant.recipe.model)
        widths = contestant.widths(match.nearest_width(lambda d: size(**contestant.widths(d)), target, unit))
        if "d_ff" in widths:
            # what is left is taken up by the feed-forward, whose width knows no heads
            finer = match.nearest_width(lambda f: size(d_model=widths["d_model"], d_ff=f), target, 8)
            widths["d_ff"] = match.near(finer, widths["d_ff"], 8)
        how, what = "", by
    scaled = at(**widths)
    text = ", ".join(f"{name} {width}" for name, width in widths.items())
    left = match.difference(_size(scaled.cost, by), target)
    return dataclasses.replace(scaled, widths=widths, matched=f"matched to {first.name}{how}: {text}; {what} {left}")


def _size(cost: ModelCost, by: str) -> float:
    return cost.core_params if by == "params" else cost.flops_per_token


def _settled(recipe: Recipe, settings: Settings) -> Recipe:
    """Return the first recipe in the precision of all trials: asked for, kept by the folder, or the device's."""
    from kinfolk.core.device import choose_device
    from kinfolk.train.precision import settle

    training = recipe.training
    if training.precision == "auto":
        # a folder that has gone to another machine goes on as it was begun
        training = training.replace(precision=_kept(settings).get("precision", "auto"))
    choice = settle(training, choose_device("auto"))
    return recipe.replace(training=training.replace(**dataclasses.asdict(choice)))


def _kept(settings: Settings) -> Mapping[str, Any]:
    """Return what this folder's trials were begun with."""
    return read_kept(settings.folder / KEPT, _is_layout) or {}


def _is_layout(data: Any) -> bool:
    numbers = all(type(data[name]) is int and data[name] > 0 for name in ("jobs", "threads"))
    return numbers and isinstance(data.get("precision", ""), str)


def _layout(settings: Settings, entrants: Sequence[Entrant], reading: Reading) -> Layout:
    """Choose a layout, or keep the one with which this folder's trials were begun."""
    kept = _kept(settings)
    n_devices = len(devices.environments())
    trials = settings.seeds * len(entrants)
    chosen = layout.choose(
        trials=trials,
        step_flops=min(e.cost.train_flops_per_token for e in entrants) * reading.tokens_per_step,
        trial_bytes=PROGRAM_BYTES + max(_bytes(e, reading) for e in entrants),
        jobs=settings.jobs or kept.get("jobs") or min(n_devices, trials) or None,
        threads=settings.threads or kept.get("threads") or (settings.resources.cores if settings.per_trial else None),
    )
    settings.folder.mkdir(parents=True, exist_ok=True)
    precision = entrants[0].recipe.training.precision
    write_json(settings.folder / KEPT, dataclasses.asdict(chosen) | {"precision": precision})
    return chosen


def _bytes(entrant: Entrant, reading: Reading) -> float:
    """Estimate what training takes: weights, gradients and two moments, and what the backward pass needs."""
    per_step = entrant.cost.activation_bytes * reading.tokens_per_step / entrant.recipe.training.accumulate
    return 16 * entrant.cost.params + per_step


def _differences(parent: Recipe | None, recipe: Recipe) -> tuple[tuple[str, str, str], ...]:
    """Say what a recipe changes against its parent, leaving out what a comparison makes equal or counts itself."""
    if parent is None:
        return ()
    equal = {name: getattr(recipe.training, name) for name in ("steps", *_EQUAL)}
    parent = parent.replace(name=recipe.name, training=parent.training.replace(**equal))
    return tuple((d.path, paths.show(d.a), paths.show(d.b)) for d in paths.diff(parent, recipe))


def _foreign(recipe: Recipe) -> list[str]:
    """Return hashes of the users' own files that a recipe's kinds come from: another file, another trial."""
    modules = {type(part).__module__ for _, part in nested(recipe)}
    files = {sys.modules[name].__file__ for name in modules if not name.startswith("kinfolk.")}
    return sorted(hashlib.blake2b(Path(file).read_bytes(), digest_size=8).hexdigest() for file in files if file)


def held_out(data: Data) -> tuple[str, str]:
    """Say what chooses and what judges: two splits, or two halves of one."""
    if TEST in data.splits:
        return "valid", "test"
    return "one half of valid", "the other half of valid (this data has no test split)"


def slug(name: str) -> str:
    """Return a name as a folder may be called."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "contestant"
