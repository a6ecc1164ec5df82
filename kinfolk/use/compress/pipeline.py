"""Compress a model: take steps one after the other, measure after each, and leave an ordinary run behind."""

import contextlib
import dataclasses
import functools
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from kinfolk.core import manifest
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps
from kinfolk.core.rng import Rng, derive
from kinfolk.data import Batches
from kinfolk.family.recipe import Recipe
from kinfolk.models.folder import save_model
from kinfolk.models.model import Transformer
from kinfolk.objectives.distil import Distil
from kinfolk.objectives.learner import Learner
from kinfolk.runs import durable, folder
from kinfolk.runs.metadata import Metadata
from kinfolk.runs.run import load_model
from kinfolk.train import RunOptions
from kinfolk.train.job import INTERRUPTED
from kinfolk.train.run import reading_of, train
from kinfolk.use.compress.exchanging import Tell, is_pruning, settled
from kinfolk.use.compress.measure import Judge, Measurement
from kinfolk.use.compress.opening import CompressibleRun
from kinfolk.use.compress.steps import CompressionStep, take
from kinfolk.use.compress.surgery import weights_of

REPORT = "compression.json"
LEARNT, WHOLE = ("movement", "magnitude"), ("int8",)
OPTIONS = RunOptions(quiet=True, tensorboard=False)


@dataclasses.dataclass(frozen=True, eq=False)
class CompressionWorkshop:
    """A model to be compressed, and what that takes.

    work: a folder for what is thrown away; n_batches: of training data, by which steps decide what can go; n_valid: of
    validation data; teaching: how the whole model teaches a compressed one that continues training, None: it does not;
    precision: of learning on, "": that of the run.
    """

    opened: CompressibleRun
    work: Path
    tell: Tell
    n_batches: int = 8
    n_valid: int = 16
    teaching: Distil | None = None
    seed: int = 0
    precision: str = ""

    @functools.cached_property
    def first(self) -> Learner:
        """The model as it was trained."""
        self.opened.learner.eval()
        return self.opened.learner

    @functools.cached_property
    def judge(self) -> Judge:
        """Who measures."""
        return Judge(self.opened.recipe, self.opened.data, self.first.model, self.n_valid)

    @functools.cached_property
    def batches(self) -> list[Batch]:
        """What steps decide by."""
        reading = reading_of(self.opened.recipe.training)
        batches = Batches(self.opened.data.split("train"), seed=derive(0, "compress"), **reading)
        rng = Rng(derive(0, "compress"))
        return [self.first.prepare(batches.at(i), rng) for i in range(min(self.n_batches, batches.steps_per_epoch))]

    @functools.cached_property
    def teacher(self) -> Path:
        """Where the whole model lies for students that learn from it."""
        # of its own name: a teacher that was read is remembered by where it lay
        return save_model(self.first.model, tempfile.mkdtemp(prefix="teacher-", dir=self.work))

    def take(self, step: CompressionStep, learner: Learner) -> Learner:
        """Return a learner after a step; the one before is left as it was."""
        if step.name == "recover":
            return self.recover(learner, int(step.amount))
        return self.holding(take(step, learner, self.batches, self.tell))

    def holding(self, model: Transformer) -> Learner:
        """Return a learner of the task with this model."""
        other = Learner(model, self.first.objective, self.first.vocabulary)
        # what was learnt beside the model is learnt beside what is left of it
        other.partner = self.first.partner
        other.eval()
        return other

    def recover(self, learner: Learner, steps: int) -> Learner:
        """Learn on for some steps, taught by the whole model if there is a teacher."""
        place = self.work / f"learning-{len(list(self.work.glob('learning-*')))}"
        start = place.with_suffix(".safetensors")
        save_file({name: x.contiguous() for name, x in weights_of(learner.model).items()}, start)
        recipe = self.recipe(learner.model, steps)
        if self.teaching is not None:
            taught = self.teaching.replace(task=recipe.objective, teacher=str(self.teacher))
            if taught.states and recipe.model.d_model != self.first.model.spec.d_model:
                # states of other widths have no angle between them
                taught = taught.replace(states=0.0)
            recipe = recipe.replace(objective=taught)
        source = self.opened.metadata.data.arguments()
        done = train(recipe, self.opened.data, place, seed=self.seed, options=OPTIONS, source=source, start=start)
        if done.status == INTERRUPTED:
            raise KeyboardInterrupt
        return self.holding(settled(load_model(place)))

    def recipe(self, model: Transformer, steps: int) -> Recipe:
        """Return how a model continues training: as it was trained, for `steps` steps, in the precision found then."""
        training = self.opened.recipe.training
        training = training.replace(steps=steps, eval_every=steps, save_every=steps, patience=0)
        choice = self.opened.metadata.choice
        precision = self.precision or (choice.precision if choice else "")
        if precision:
            training = training.replace(precision=precision, compile="off")
        return self.opened.recipe.replace(model=model.spec, training=training)


def ordered(steps: Sequence[CompressionStep], recover: int) -> list[CompressionStep]:
    """Return the steps of a pipeline, with learning where it belongs: at the end, but before quantization."""
    steps = list(steps)
    if recover:
        at = next((i for i, step in enumerate(steps) if step.name in WHOLE), len(steps))
        steps.insert(at, CompressionStep("recover", recover))
    for i, step in enumerate(steps):
        after = steps[i + 1 : i + 2]
        if step.name in LEARNT and not (after and after[0].name == "recover"):
            raise SpecError(f"step {step}: weights are lost while learning; give --recover N, or recover=N after it")
    return steps


def run_steps(
    shop: CompressionWorkshop, steps: Sequence[CompressionStep], learner: Learner | None = None
) -> tuple[Learner, list[Measurement]]:
    """Take steps one after the other, from the whole model or another, and measure after each."""
    learner = shop.first if learner is None else learner
    found = []
    for step in steps:
        learner = shop.take(step, learner)
        if not is_pruning(learner.model):
            found.append(shop.judge.measure(described(step, shop.teaching is not None), learner))
    return learner, found


def described(step: CompressionStep, taught: bool) -> str:
    """Say a step in a table."""
    if step.name != "recover":
        return str(step)
    return f"recovered, {step.amount} steps" + (", taught" if taught else "")


def compress(
    shop: CompressionWorkshop, out: Path, steps: Sequence[CompressionStep], learner: Learner | None = None
) -> list[Measurement]:
    """Compress a model into a new run and return what each step did."""
    refuse(shop.opened, out)
    found = [shop.judge.measure("as trained", shop.first)]
    if learner is not None:
        found.append(shop.judge.measure("student", learner))
    learner, after = run_steps(shop, steps, learner)
    found += after
    write(shop.opened, out, learner.model, found)
    return found


def refuse(opened: CompressibleRun, out: Path) -> None:
    """Raise unless the folder is free."""
    folder.refuse_existing(out, dumps(opened.recipe), Metadata())


@contextlib.contextmanager
def working(out: Path) -> Iterator[Path]:
    """Give a folder beside the result for what is thrown away in the end."""
    work = out.with_name(f".{out.name}.work")
    durable.remove(work)
    work.mkdir(parents=True)
    try:
        yield work
    finally:
        durable.remove(work)


def write(opened: CompressibleRun, out: Path, model: Transformer, found: Sequence[Measurement]) -> None:
    """Leave a finished run: spec, weights, tokenizer, where it came from, and the report."""
    told: dict[str, Any] = {"from": str(opened.path), "steps": [dataclasses.asdict(m) for m in found]}
    out.parent.mkdir(parents=True, exist_ok=True)
    recipe = opened.recipe.replace(model=model.spec)
    metadata = opened.metadata
    if metadata.data.tokenizer == str(opened.words):
        own = str(out.resolve() / folder.TOKENIZER)
        metadata = metadata.replace(data=metadata.data.replace(tokenizer=own))
    with durable.folder(out) as aside:
        save_model(model, aside)
        opened.tokenizer.save(aside / folder.TOKENIZER)
        (aside / folder.SPEC).write_text(dumps(recipe), encoding="utf-8")
        metadata = metadata.replace(compressed_from=str(opened.path)).with_origin()
        (aside / folder.RUN).write_text(metadata.text(), encoding="utf-8")
        (aside / REPORT).write_text(json.dumps(told, indent=2), encoding="utf-8")
        manifest.create(aside)
