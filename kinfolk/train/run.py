"""From a recipe and data to a run, and from a run folder to its continuation."""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kinfolk.core import plugins
from kinfolk.core.errors import CheckpointError, DataError, SpecError, TrainingError
from kinfolk.core.plain import dumps, from_plain, load, to_plain
from kinfolk.data import Batches, Data, Tokenizer, open_data
from kinfolk.data.pieces import pieces_of
from kinfolk.family import registry
from kinfolk.family.building import build
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import cost
from kinfolk.models.folder import load_weights
from kinfolk.models.model import Transformer
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.optim import Training
from kinfolk.train import folder, knowing, loop, parallel
from kinfolk.train.average import averaged
from kinfolk.train.checkpoint import Checkpoints, weights_file
from kinfolk.train.evaluate import Score
from kinfolk.train.fitting import n_cut
from kinfolk.train.job import Job, Result, RunOptions
from kinfolk.train.parallel import Team
from kinfolk.train.scoring import check_metric

Judging = Callable[[Data, int, int, int], Callable[[Any], dict[str, Score]]]
"""From data, a number of pairs, a batch size and a length to what scores a model."""


class OtherVersion(UserWarning):
    """A run goes on with another PyTorch than it was begun with."""


class Shortened(UserWarning):
    """Examples with labels are longer than what is read of them."""


def train(
    recipe: Recipe,
    data: Data,
    out: str | Path,
    *,
    seed: int = 0,
    options: RunOptions | None = None,
    source: Mapping[str, Any] | None = None,
    start: str | Path | None = None,
    judging: Judging | None = None,
) -> Result:
    """Train a recipe on data into a new run folder.

    source: arguments of `open_data` with which `resume` finds the data again; without them its name is used.
    start: a safetensors file with the weights to begin with; without it they are drawn from the seed.
    judging: makes the further scores of each validation that `options.written` asks for.
    """
    out, options = Path(out), options or RunOptions()
    run = describe(data, seed, options, source)
    with parallel.join(options.strategy, options.device) as team:
        job = _judged(make_job(recipe, data, seed, team), data, options, judging)
        if start is not None:
            load_weights(job.learner.model, start)
            job.learner.begin()
        if team.main and not (parallel.restarts() and (out / folder.RUN).exists()):
            try_out(job, team)
            say_cut(job, data)
            begun = None if start is None else Path(start)
            about = run | folder.origin()
            folder.create(out, dumps(recipe), about, data.tokenizer, begun, knowing.file_of(recipe))
        team.wait()
        return _carry_out(job, out, team, options)


def resume(
    out: str | Path, *, data: Data | None = None, options: RunOptions | None = None, judging: Judging | None = None
) -> Result:
    """Go on with a run that was stopped, as it was begun; a finished one returns its result.

    data: the run's data if it is open already. options: others than the run was begun with. judging: as in `train`.
    """
    out = Path(out)
    run = folder.read(out)
    done = folder.result(out)
    if done is not None:
        return Result(**done)
    for plugin in run.get("plugins", ()):
        plugins.load_plugin(plugin)
    registry.load()
    recipe = knowing.own(load(Recipe, out / folder.SPEC), out)
    options = options or from_plain(RunOptions, run["options"], str(out / folder.RUN))
    begun = run["versions"]["torch"]
    if begun != torch.__version__:
        text = f"{out}: begun with torch {begun}, goes on with {torch.__version__}: the same only up to rounding"
        warnings.warn(text, OtherVersion, stacklevel=2)
    if not options.threads:
        # sums depend on how many threads share them
        options = options.replace(threads=run["versions"]["threads"])
    data = data or reopen(out)
    if data.fingerprint != run["fingerprint"]:
        raise DataError(f"{data.name}: is not the data {out} was begun with (fingerprints differ)")
    with parallel.join(options.strategy, options.device) as team:
        job = make_job(recipe, data, run["seed"], team)
        if (out / folder.START).exists():
            load_weights(job.learner.model, out / folder.START)
            job.learner.begin()
        return _carry_out(_judged(job, data, options, judging), out, team, options)


def reopen(out: str | Path) -> Data:
    """Open the data of a run again."""
    source = dict(folder.read(Path(out))["data"])
    words = Path(source.get("tokenizer", ""))
    if words.suffix == ".json" and not words.is_file():
        # the file it was read from is gone, and the run has kept a copy
        source["tokenizer"] = str(Path(out).resolve() / folder.TOKENIZER)
    return open_data(source.pop("name"), **source)


def load_learner(out: str | Path, average: int = 0) -> tuple[Recipe, Learner]:
    """Return the recipe and the learner of a run, with the best weights it has so far.

    average: instead, the mean of the weights of so many of the newest checkpoints.
    """
    out = Path(out)
    run = folder.read(out)
    for plugin in run.get("plugins", ()):
        plugins.load_plugin(plugin)
    registry.load()
    recipe = knowing.own(load(Recipe, out / folder.SPEC), out)
    model = build(recipe, run["seed"])
    load_weights(model, weights_file(out))
    if average:
        model.load_state_dict(averaged(out, average))
    tokenizer = Tokenizer.load(out / folder.TOKENIZER)
    vocabulary = dataclasses.replace(vocabulary_of(tokenizer), known=knowing.known_by(recipe, tokenizer))
    if recipe.objective.counts:
        vocabulary = counted(vocabulary, reopen(out))
    learner = Learner(model, recipe.objective, vocabulary, run["seed"])
    if learner.partner is not None:
        load_partner(learner, out)
    return recipe, learner


def load_partner(learner: Learner, out: Path) -> None:
    """Fill what an objective learns besides the model from the checkpoint that the model's weights are from."""
    checkpoints = Checkpoints(out / "checkpoints")
    saved = checkpoints.best() or checkpoints.newest()
    found = {} if saved is None else saved.tensors("objective")
    own = {name: x for name, x in learner.state_dict().items() if not name.startswith("model.")}
    if set(found) != set(own):
        raise CheckpointError(
            f"{out}: no checkpoint has what objective {learner.objective.kind!r} learnt beside the model"
        )
    with torch.no_grad():
        for name, x in own.items():
            x.copy_(found[name])


def describe(data: Data, seed: int, options: RunOptions, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the part of run.toml that says what is run."""
    where = {"name": data.name} if source is None else {k: v for k, v in source.items() if v is not None}
    return {
        "seed": seed,
        "fingerprint": data.fingerprint,
        "plugins": [path for path in os.environ.get(plugins.VARIABLE, "").split(os.pathsep) if path],
        "data": where,
        "kind": data.kind,
        "options": to_plain(options),
    } | (_labels(data.split("train")) if data.kind == "labelled" else {})


def _labels(split: Any) -> dict[str, Any]:
    """Return what must be known of labels to read other rows, and to name what is found."""
    described = split.described() if hasattr(split, "described") else {}
    return {
        "classes": list(split.classes),
        "reading": described
        | ({"pictures": [split.height, split.width, split.channels]} if hasattr(split, "channels") else {}),
    }


def make_job(recipe: Recipe, data: Data, seed: int, team: Team | None = None) -> Job:
    """Build what the loop works on."""
    training, tokenizer, team = recipe.training, data.tokenizer, team or Team()
    extra = recipe.objective.extra_ids
    if recipe.model.vocab_size < tokenizer.vocab_size + extra:
        own = f" and the {extra} of objective {recipe.objective.kind!r}" if extra else ""
        raise SpecError(
            f"model.vocab_size: {recipe.model.vocab_size} is less than the {tokenizer.vocab_size} "
            f"tokens of {data.name}{own}; set model.vocab_size={tokenizer.vocab_size + extra}"
        )
    if training.batch_size % (team.world * training.accumulate):
        raise SpecError(
            f"training.batch_size: {training.batch_size} rows cannot be shared by {team.world} processes "
            f"with {training.accumulate} micro-batches each; take a multiple of {team.world * training.accumulate}"
        )
    model = build(recipe, seed)
    vocabulary = dataclasses.replace(vocabulary_of(tokenizer), known=knowing.known_by(recipe, tokenizer))
    vocabulary = counted(vocabulary, data) if recipe.objective.counts else vocabulary
    learner = Learner(model, recipe.objective, vocabulary, seed)
    for network in (m for m in learner.modules() if isinstance(m, Transformer)):
        network.set_recompute(training.recompute)
    training.groups.freeze(learner)
    learner.disturbance = training.noise.build()
    valid, reading = data.split("valid"), reading_of(training)
    job = Job(
        name=recipe.name,
        learner=learner,
        training=training,
        batches=Batches(split=data.split("train"), seed=seed, **reading),
        valid=Batches(split=valid, shuffle=False, **reading),
        split=valid,
        seed=seed,
    )
    return job.replace(flops_per_token=flops_per_token(job, recipe))


def reading_of(training: Training) -> dict[str, Any]:
    """Return how a training reads its data: arguments of `Batches`."""
    return {name: getattr(training, name) for name in ("batch_size", "length", "order", "cut")}


def try_out(job: Job, team: Team) -> None:
    """Run one row forward, so that what cannot work is refused before there is a folder, not in the first step."""
    batch, _ = job.read(1, Team())
    with torch.no_grad():
        job.learner(batch.rows(slice(0, 1)))
        if job.training.metric:
            check_metric(job, job.learner.measure(batch.rows(slice(0, 1))), team.world)


def say_cut(job: Job, data: Data) -> None:
    """Warn of labelled examples that lose their end, with the words that are then never asked about."""
    for part in ("train", "valid") if data.kind == "labelled" else ():
        split, length = data.split(part), job.training.length
        if n := n_cut(split, length):
            words = split.words_cut(length) if hasattr(split, "words_cut") else 0
            lost = f", {words:,} words with them" if words else ""
            text = f"{data.name}: {n:,} of {len(split):,} examples of the {part} part are longer than {length:,} tokens"
            warnings.warn(f"{text} and lose their end{lost} (training.length)", Shortened, stacklevel=3)


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Return the ids that objectives need."""
    t = tokenizer
    ids = t.pad, t.bos, t.eos, t.sep, t.cls, t.mask
    return Vocabulary(t.vocab_size, *ids, specials=t.special_ids, between=t.between, pieces=pieces_of(t))


def counted(vocabulary: Vocabulary, data: Data) -> Vocabulary:
    """Add how often each id occurs in the training part, where its kind of data can tell."""
    count = getattr(data.split("train"), "counts", None)
    return vocabulary if count is None else dataclasses.replace(vocabulary, counts=count())


def flops_per_token(job: Job, recipe: Recipe, samples: int = 4) -> float:
    """Return the operations of training per token read, from the cost model and what batches really look like.

    An objective decides what a model sees of a text or a pair (two halves, one joined row, masks), so the
    shapes are those of prepared batches, padding included: it is computed as well.
    """
    flops = tokens = 0.0
    companion = recipe.objective.companion(recipe.model)
    networks = [recipe.model] if companion is None else [recipe.model, companion]
    for step in range(samples):
        batch, read = job.read(step + 1, Team())
        scored = batch.n_scored / batch.tokens.numel()
        source = None if batch.source is None else batch.source.shape[1]
        found = sum(cost(m, batch.tokens.shape[1], source, scored).train_flops_per_token for m in networks)
        flops += found * batch.tokens.numel() * recipe.objective.passes
        tokens += read
    return flops / tokens


def _judged(job: Job, data: Data, options: RunOptions, judging: Judging | None) -> Job:
    if not options.written or judging is None or data.kind != "pairs":
        return job
    if options.strategy == "fsdp":
        raise SpecError("options.written: a model whose weights are sharded writes nothing; use --strategy ddp")
    return job.replace(judge=judging(data, options.written, job.training.batch_size, job.training.length))


def _carry_out(job: Job, out: Path, team: Team, options: RunOptions) -> Result:
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        with folder.locked(out) if team.main else contextlib.nullcontext():
            return loop.run(job, out, team, options)
    except RuntimeError as error:
        if team.world == 1 or not _is_lost_process(error):
            raise
        raise TrainingError(
            f"{out}: another process of the run is gone; `kin resume` goes on from the newest checkpoint"
        ) from error


def _is_lost_process(error: RuntimeError) -> bool:
    """Tell whether a collective operation failed, which PyTorch reports in as many ways as it has backends."""
    text = str(error).lower()
    return any(word in text for word in ("gloo", "nccl", "connection", "peer"))
