"""From a recipe and data to a run, and from a run folder to its continuation."""

import contextlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cattrs
import torch
from cattrs.errors import BaseValidationError

from kinfolk.core import manifest, memory, plugins
from kinfolk.core.errors import CheckpointError, DataError, SpecError, TrainingError
from kinfolk.core.plain import dumps, load
from kinfolk.core.rng import Rng, derive
from kinfolk.data import Batches, Data
from kinfolk.data.batches.halves import validation
from kinfolk.data.batches.order import VERSION as ORDER
from kinfolk.data.location import located
from kinfolk.family.building import build
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import cost
from kinfolk.models.folder import load_weights
from kinfolk.models.model import Transformer
from kinfolk.objectives.learner import Learner
from kinfolk.optim import Training
from kinfolk.optim.noise import NoNoise
from kinfolk.runs import folder, knowledge
from kinfolk.runs.checkpoint import Checkpoints, adopt
from kinfolk.runs.fit import n_cut
from kinfolk.runs.metadata import DataSource, Metadata, Plugin, ReadingNotes, Versions
from kinfolk.runs.options import RunOptions
from kinfolk.runs.run import Run
from kinfolk.runs.vocabulary import counted, knowing_vocabulary
from kinfolk.train import loop, parallel, settling
from kinfolk.train.evaluate import MeanScore, scoring
from kinfolk.train.job import CLOCK, EARLY, FINISHED, Result, TrainingJob
from kinfolk.train.parallel import Team
from kinfolk.train.precision import settle
from kinfolk.train.scoring import check_metric

Judging = Callable[[Data, int, int, int], Callable[[Any], dict[str, MeanScore]]]
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
    start: a safetensors file with the weights to begin with, or the folder of another run's checkpoint to go on from;
        without it weights are drawn from the seed.
    judging: makes the further scores of each validation that `options.written` asks for.
    """
    recipe = recipe.settled()
    out, options = Path(out), settling.with_threads(recipe, options or RunOptions())
    run = describe(data, seed, options, source)
    with parallel.join(options.strategy, options.device) as team, settling.threads(options.threads):
        # what cannot run here is refused before there is a folder
        choice = settle(recipe.training, team.device)
        job = _judged(make_job(recipe, data, seed, team), data, options, judging)
        branch = None if start is None or not Path(start).is_dir() else Path(start)
        if start is not None and branch is None:
            load_weights(job.learner.model, start)
            job.learner.begin()
        if team.main and not (parallel.restarts() and (out / folder.RUN).exists()):
            try_out(job, team)
            say_cut(job, data)
            begun = None if start is None or branch is not None else Path(start)
            about = run.replace(choice=choice.record()).with_origin()
            folder.create(out, dumps(recipe), about, data.tokenizer, begun, knowledge.file_of(recipe))
            if branch is not None:
                adopt(branch, out / "checkpoints")
        team.wait()
        return _carry_out(job, out, team, options)


def resume(
    out: str | Path,
    *,
    data: Data | None = None,
    options: RunOptions | None = None,
    judging: Judging | None = None,
    precision: str = "",
) -> Result:
    """Go on with a run that was stopped, as it was begun; a finished one returns its result.

    data: the run's data if it is open already. options: others than the run was begun with. judging: as in `train`.
    precision: another than it was begun with, which run.toml then records.
    """
    out = Path(out)
    done = finished(out)
    if done is not None:
        return done
    run = folder.opened(out, folder.START)
    recipe = knowledge.own(load(Recipe, out / folder.SPEC), out)
    options = options or run.options or RunOptions()
    versions = run.versions or Versions()
    begun = versions.torch
    if begun != torch.__version__:
        text = f"{out}: begun with torch {begun}, goes on with {torch.__version__}: the same only up to rounding"
        warnings.warn(text, OtherVersion, stacklevel=2)
    if not options.threads:
        # sums depend on how many threads share them
        options = options.replace(threads=versions.threads)
    data = data or reopen(out)
    if data.fingerprint != run.fingerprint:
        raise DataError(f"{data.name}: is not the data {out} was begun with (fingerprints differ)")
    with parallel.join(options.strategy, options.device) as team, settling.threads(options.threads):
        if team.main:
            settling.keep_choice(out, recipe.training, precision, team.device)
        team.wait()
        job = make_job(recipe, data, run.seed, team, order=_order_of(run, out))
        if (out / folder.START).exists():
            load_weights(job.learner.model, out / folder.START)
            job.learner.begin()
        return _carry_out(_judged(job, data, options, judging), out, team, options)


def finished(out: Path) -> Result | None:
    """Return the result of a run that has ended; one that is damaged is rebuilt from the checkpoints."""
    done = folder.result(out)
    if done is not None:
        with contextlib.suppress(BaseValidationError):
            result = cattrs.structure(done, Result)
            if result.status in (FINISHED, EARLY, CLOCK):
                return result
    if (out / folder.RESULT).exists() and not Checkpoints(out / "checkpoints").steps():
        raise CheckpointError(
            f"{out / folder.RESULT}: damaged, and no checkpoint is left to make it again from; "
            "the weights of the run can still be used (kin eval, kin generate …)"
        )
    return None


def reopen(out: str | Path) -> Data:
    """Open the data of a run again."""
    return Run.open(out).data()


def describe(data: Data, seed: int, options: RunOptions, source: Mapping[str, Any] | None = None) -> Metadata:
    """Return the part of run.toml that says what is run."""
    where = located({"name": data.name} if source is None else source)
    metadata = Metadata(
        seed=seed,
        fingerprint=data.fingerprint,
        order=ORDER,
        plugins=tuple(Plugin(**plugin) for plugin in plugins.loaded()),
        data=DataSource(**where),
        data_kind=data.kind,
        options=options,
    )
    if data.kind != "labelled":
        return metadata
    split = data.split("train")
    return metadata.replace(classes=split.classes, reading=ReadingNotes(**split.described(), pictures=split.picture))


def _order_of(run: Metadata, out: Path) -> int:
    """Return the version of the order of batches that a run was begun with."""
    order = 1 if run.order is None else run.order
    if not 1 <= order <= ORDER:
        raise CheckpointError(
            f"{out / folder.RUN}: order: version {order} of the order of batches is unknown; this Kinfolk has 1 to "
            f"{ORDER}, so the run can only go on where it was begun"
        )
    return order


def make_job(recipe: Recipe, data: Data, seed: int, team: Team | None = None, order: int = ORDER) -> TrainingJob:
    """Build what the loop works on; `order` is the version of the order of batches."""
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
    if team.world > 1 and team.strategy == "fsdp" and not isinstance(training.noise, NoNoise):
        raise SpecError(
            f"training.noise: {training.noise.kind!r} needs whole weights in every pass, and --strategy fsdp shards "
            "them; use --strategy ddp"
        )
    model = build(recipe, seed)
    model.generation = tokenizer.generation
    _check_memory(recipe, data, team)
    vocabulary = knowing_vocabulary(recipe, tokenizer)
    vocabulary = counted(vocabulary, data) if recipe.objective.counts else vocabulary
    learner = Learner(model, recipe.objective, vocabulary, seed)
    for network in (m for m in learner.modules() if isinstance(m, Transformer)):
        network.set_recompute(training.recompute)
    training.groups.freeze(learner)
    learner.disturbance = training.noise.build()
    valid, reading = data.split("valid"), reading_of(training)
    # version 1 left grouped batches sorted by length
    sorting = {"grouping": "sorted"} if order == 1 and training.grouping == "auto" else {}
    job = TrainingJob(
        name=recipe.name,
        learner=learner,
        training=training,
        batches=Batches(split=data.split("train"), seed=seed, **reading | sorting),
        valid=validation(data, by_length=training.eval_batches, **reading),
        split=valid,
        seed=seed,
    )
    return job.replace(flops_per_token=flops_per_token(job, recipe))


def _check_memory(recipe: Recipe, data: Data, team: Team) -> None:
    """Raise if one batch alone is larger than the memory there is."""
    training = recipe.training
    # a row of text is as long as they come; of others, at least a token and the next one
    tokens = training.batch_size // team.world * (training.length if data.kind == "text" else 2)
    needed = 32 * tokens + 4 * tokens * recipe.model.d_model // training.accumulate
    memory.require(needed, f"training.batch_size: a batch of {training.batch_size:,} rows")


def reading_of(training: Training) -> dict[str, Any]:
    """Return how a training reads its data: arguments of `Batches`."""
    return {name: getattr(training, name) for name in ("batch_size", "length", "order", "cut", "grouping")}


def try_out(job: TrainingJob, team: Team) -> None:
    """Run one long row forward, so that what cannot work is refused before there is a folder, not in some step."""
    assert isinstance(job.batches, Batches)
    batch, _ = job.read(1 + job.batches.widest(), Team())
    with torch.no_grad():
        job.learner(batch.rows(slice(0, 1)))
        if job.training.metric:
            check_metric(job, job.learner.measure(batch.rows(slice(0, 1))), team.world)
    _try_validation(job)


def _try_validation(job: TrainingJob) -> None:
    """Prepare the first and the last validation batch and score a row of each: a short part has unusual batches."""
    assert job.valid is not None
    last = min(job.training.eval_batches or job.valid.steps_per_epoch, job.valid.steps_per_epoch) - 1
    with scoring(job.learner):
        for step in sorted({0, last}):
            batch = job.learner.prepare(job.valid.at(step), Rng(derive(0, "valid")))
            scores = job.learner.measure(batch if last == 0 else batch.rows(slice(0, 1)))
            if last == 0 and not all(bool(count) for _, count in scores.values()):
                raise DataError(
                    f"the valid part is so short that objective {job.learner.objective.kind!r} has nothing to score; "
                    "validate on a longer text"
                )


def say_cut(job: TrainingJob, data: Data) -> None:
    """Warn of labelled examples that lose their end, with the words that are then never asked about."""
    for part in ("train", "valid") if data.kind == "labelled" else ():
        split, length = data.split(part), job.training.length
        if n := n_cut(split, length):
            words = split.words_cut(length)
            lost = f", {words:,} words with them" if words else ""
            text = f"{data.name}: {n:,} of {len(split):,} examples of the {part} part are longer than {length:,} tokens"
            warnings.warn(f"{text} and lose their end{lost} (training.length)", Shortened, stacklevel=3)


def flops_per_token(job: TrainingJob, recipe: Recipe, samples: int = 4) -> float:
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
        network_flops = sum(cost(m, batch.tokens.shape[1], source, scored).train_flops_per_token for m in networks)
        flops += network_flops * batch.tokens.numel() * recipe.objective.passes
        tokens += read
    return flops / tokens


def _judged(job: TrainingJob, data: Data, options: RunOptions, judging: Judging | None) -> TrainingJob:
    if not options.written or judging is None or data.kind != "pairs":
        return job
    if options.strategy == "fsdp":
        raise SpecError("options.written: a model whose weights are sharded writes nothing; use --strategy ddp")
    return job.replace(judge=judging(data, options.written, job.training.batch_size, job.training.length))


def _carry_out(job: TrainingJob, out: Path, team: Team, options: RunOptions) -> Result:
    try:
        with folder.locked(out) if team.main else contextlib.nullcontext():
            if team.main and not (out / manifest.NAME).exists():
                manifest.create(out)
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
