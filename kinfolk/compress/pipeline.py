"""Compress a run: take steps one after the other, measure after each, and leave an ordinary run behind."""

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
import torch

from kinfolk.compress.steps import Step, Tell, take
from kinfolk.core.batch import Batch
from kinfolk.core.plain import dumps
from kinfolk.core.rng import Rng, derive
from kinfolk.data import Batches, Data
from kinfolk.family.recipe import Recipe
from kinfolk.models.folder import save_model
from kinfolk.models.model import Transformer
from kinfolk.objectives.distil import Distil
from kinfolk.objectives.learner import Learner
from kinfolk.train import durable, folder
from kinfolk.train.evaluate import evaluate
from kinfolk.train.run import load_learner, reading_of, reopen, train

REPORT = "compression.json"
TIMINGS = 7


@dataclasses.dataclass(frozen=True)
class Measured:
    """A model as it stands after a step.

    bytes: of its weights; zeros: the share of its parameters that are zero; loss: the first of `measures`, all of
    them over validation data; speed: forward passes beside the model before the first step, taken in turn.
    """

    step: str
    params: int
    bytes: int
    zeros: float
    loss: float
    measures: dict[str, float]
    speed: float


def compress(
    run: Path, out: Path, steps: Sequence[Step], tell: Tell, n_batches: int = 8, n_valid: int = 16
) -> list[Measured]:
    """Compress the model of a run folder into a new one and return what each step did.

    What can be cut is decided on `n_batches` batches of training data; quality is measured on `n_valid` of validation.
    """
    recipe, learner = load_learner(run)
    folder.refuse_existing(out, dumps(recipe), {})
    data = reopen(run)
    learner.eval()
    judged = _prepared(learner, data, recipe, n_batches)
    first = learner.model
    found = [_measure("as trained", first, first, learner, data, recipe, n_valid)]
    for step in steps:
        model = take(step, learner, judged, tell).eval()
        learner = Learner(model, learner.objective, learner.vocabulary)
        found.append(_measure(f"{step.name}={step.share:g}", model, first, learner, data, recipe, n_valid))
    _write(run, out, recipe.replace(model=learner.model.spec), learner.model, found)
    return found


def recover(run: Path, cut: Path, out: Path, steps: int, distil: bool, seed: int = 0) -> Measured:
    """Train a compressed run on, taught by the whole one if wished, and measure it beside that."""
    whole, first = load_learner(run)
    recipe, data = load_learner(cut)[0], reopen(run)
    training = recipe.training.replace(steps=steps, eval_every=steps, save_every=steps, patience=0)
    objective = recipe.objective
    if distil:
        objective = Distil(task=objective, teacher=str(run.resolve()))
    taught = recipe.replace(training=training, objective=objective)
    source = folder.read(run)["data"]
    train(taught, data, out, seed=seed, source=source, start=cut / folder.WEIGHTS)
    learner = load_learner(out)[1]
    learner.eval()
    name = f"recovered, {steps} steps" + (", taught" if distil else "")
    return _measure(name, learner.model, first.model.eval(), learner, data, whole, 16)


def _prepared(learner: Learner, data: Data, recipe: Recipe, n: int) -> list[Batch]:
    batches = Batches(data.split("train"), seed=derive(0, "compress"), **reading_of(recipe.training))
    rng = Rng(derive(0, "compress"))
    return [learner.prepare(batches.at(i), rng) for i in range(n)]


def _measure(
    name: str, model: Transformer, first: Transformer, learner: Learner, data: Data, recipe: Recipe, n_valid: int
) -> Measured:
    valid = Batches(data.split("valid"), shuffle=False, **reading_of(recipe.training))
    scores = {measure: score.mean for measure, score in evaluate(learner, valid, n_valid).items()}
    own = list(model.parameters())
    params = sum(p.numel() for p in own)
    zeros = sum(int((p == 0).sum()) for p in own) / max(1, params)
    size = sum(p.numel() * p.element_size() for p in own)
    batch = learner.prepare(valid.at(0), Rng(derive(0, "valid")))
    return Measured(name, params, size, zeros, next(iter(scores.values())), scores, _speed(model, first, batch))


@torch.inference_mode()
def _speed(model: Transformer, first: Transformer, batch: Batch) -> float:
    """Return how many times as fast as the first model this one runs, by the median of passes in turn."""
    if model is first:
        return 1.0
    ratios = []
    for _ in range(TIMINGS):
        took = []
        for one in (first, model):
            start = time.perf_counter()
            one.run(batch)
            took.append(time.perf_counter() - start)
        ratios.append(took[0] / took[1])
    return statistics.median(ratios)


def _write(run: Path, out: Path, recipe: Recipe, model: Transformer, found: Sequence[Measured]) -> None:
    """Leave a finished run: spec, weights, tokenizer, where it came from, and the report."""
    told: dict[str, Any] = {"from": str(run), "steps": [dataclasses.asdict(m) for m in found]}
    out.parent.mkdir(parents=True, exist_ok=True)
    with durable.folder(out) as aside:
        save_model(model, aside, run / folder.TOKENIZER)
        (aside / folder.SPEC).write_text(dumps(recipe), encoding="utf-8")
        old = folder.read(run)
        kept = {key: old[key] for key in ("seed", "data", "fingerprint", "plugins", "options") if key in old}
        described = kept | {"compressed_from": str(run)} | folder.origin()
        (aside / folder.RUN).write_text(tomli_w.dumps(described), encoding="utf-8")
        (aside / REPORT).write_text(json.dumps(told, indent=2), encoding="utf-8")
