"""The battery: what a trained contestant can do besides its loss, the same questions for all that can take them.

Loss by position; loss at 1, 2 and 4 times the trained length; copying, multi-query associative recall (Arora et al.
2023, arXiv:2312.04927) and a needle in a haystack, each learnt in a short training of its own; decoding speed and size
of the state at growing positions; time to the first token. Losses, scores and sizes are deterministic; speeds are
stopwatch readings, taken once and kept. What a contestant cannot be asked is a problem with its reason.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.contests.evidence import Battery
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import KinfolkError
from kinfolk.core.rng import Rng, derive
from kinfolk.data import Batches, Data, open_data
from kinfolk.models.model import Transformer
from kinfolk.objectives.learner import Learner
from kinfolk.runs.fit import Needs
from kinfolk.runs.run import Run
from kinfolk.train.evaluate import scoring
from kinfolk.train.run import reading_of

TIMES = (1, 2, 4)
"""Multiples of the trained length at which a loss is taken."""

POSITIONS = {"quick": (256, 1024), "full": (256, 1024, 4096, 16384)}
TASKS = {"copy": "copy:length=16", "multi-query recall": "queries:pairs=4", "needle": "needle:length=128,needles=4"}
STEPS, ROWS, BATCHES = 200, 16, 8
"""Steps and rows of a training on a task; batches of a measurement."""

DECODED, PIECE, REPEATS = 16, 512, 3
"""Tokens of a timed decoding; of a prompt, tokens that are read at once; timings, of which the median counts."""


def measure(source: Path, data: Data, level: str, folder: Path, seed: int = 0) -> Battery:
    """Ask a trained run everything of a level; `folder` is where trainings on tasks are kept, and go on from."""
    run = Run.open(source)
    learner, problems = run.learner(), dict[str, str]()

    def asked(what: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (KinfolkError, NotImplementedError, ValueError, IndexError, RuntimeError) as error:
            problems[what] = str(error).splitlines()[0] if str(error) else type(error).__name__
            return None

    tasks = {
        name: asked(name, partial(_task, run, task, folder / name.replace(" ", "-"), seed))
        for name, task in (TASKS.items() if level == "full" else ())
    }
    positions = {str(at): asked(f"decoding at {at:,}", partial(_decoding, run, at)) for at in POSITIONS[level]}
    longer = {f"{k}x": asked(f"{k} times the length", partial(_longer, run, learner, data, k)) for k in TIMES}
    return Battery(
        by_position=asked("loss by position", partial(_by_position, run, learner, data)) or {},
        longer={times: loss for times, loss in longer.items() if loss is not None},
        tasks={name: scores for name, scores in tasks.items() if scores is not None},
        decoding={at: figures for at, figures in positions.items() if figures is not None},
        latency=asked("time to the first token", partial(_latency, run)),
        problems=problems,
    )


def _losses(run: Run, learner: Learner, data: Data, times: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield losses [B, L] of next tokens at a multiple of the trained length, and which of them count."""
    if data.kind != "text" or learner.objective.inner.kind != "causal":
        raise KinfolkError("it does not predict every next token of a text")
    training = run.recipe.training
    length, limit = times * training.length, learner.model.limit
    if limit is not None and length > limit:
        raise KinfolkError(f"it has {limit:,} positions and {length:,} are asked for")
    reading = reading_of(training) | {"length": length, "batch_size": max(1, training.batch_size // times)}
    batches = Batches(split=data.split("valid"), shuffle=False, **reading)
    with scoring(learner):
        for i in range(min(BATCHES, batches.steps_per_epoch)):
            batch = learner.prepare(batches.at(i), Rng(derive(0, "valid")))
            output, batch = learner.run(batch)
            assert batch.targets is not None
            yield output.head.losses(output.hidden, batch.targets).double(), batch.targets != IGNORE


def _longer(run: Run, learner: Learner, data: Data, times: int) -> float:
    total = count = 0.0
    for losses, real in _losses(run, learner, data, times):
        total, count = total + float(losses[real].sum()), count + int(real.sum())
    return _mean(total, count)


def _by_position(run: Run, learner: Learner, data: Data) -> dict[str, float]:
    """Return mean losses in ranges of positions whose ends are powers of two, by their end."""
    sums: dict[int, list[float]] = {}
    for losses, real in _losses(run, learner, data, 1):
        length, start, end = losses.shape[1], 0, 8
        while start < length:
            part = real[:, start:end]
            total = sums.setdefault(min(end, length), [0.0, 0.0])
            total[0] += float(losses[:, start:end][part].sum())
            total[1] += int(part.sum())
            start, end = end, 2 * end
    return {str(end): _mean(*total) for end, total in sums.items() if total[1]}


def _mean(total: float, count: float) -> float:
    if not count:
        raise KinfolkError("the held-out text is too short")
    return total / count


def _task(run: Run, task: str, folder: Path, seed: int) -> dict[str, float]:
    """Learn a task from nothing, with the recipe and its rate, and return the share of right answers."""
    from kinfolk.train import RunOptions, resume, train

    data = open_data(task)
    recipe = Needs.of(data).adapt(run.recipe.fitted(data.tokenizer.vocab_size))
    training = recipe.training.replace(
        steps=STEPS, batch_size=ROWS, accumulate=1, eval_every=STEPS, save_every=STEPS, eval_batches=1, patience=0
    )
    recipe = recipe.replace(name=task, training=training)
    options = RunOptions(threads=torch.get_num_threads(), quiet=True, tensorboard=False, report=False)
    if (folder / "run.toml").exists():
        result = resume(folder, data=data, options=options)
    else:
        result = train(recipe, data, folder, seed=seed, options=options, source={"name": task})
    if result.status == "interrupted":
        raise KeyboardInterrupt
    return {"right": _right(Run.open(folder).learner(), data, recipe.training)}


def _right(learner: Learner, data: Data, training: Any) -> float:
    """Return the share of targets that the model scores highest, or the accuracy where it judges."""
    right = count = 0.0
    batches = Batches(split=data.split("valid"), shuffle=False, **reading_of(training))
    with scoring(learner):
        for i in range(BATCHES):
            batch = learner.prepare(batches.at(i), Rng(derive(0, "valid")))
            if data.kind == "labelled":
                hits, of = learner.measure(batch)["accuracy"]
                right, count = right + float(hits), count + float(of)
                continue
            output, batch = learner.run(batch)
            if batch.targets is None:
                raise KinfolkError("it has no targets to be right about")
            real = batch.targets != IGNORE
            right += float((output.logits.argmax(-1) == batch.targets)[real].sum())
            count += float(real.sum())
    return right / count


def _decoding(run: Run, position: int) -> dict[str, float]:
    """Return tokens per second and bytes of the decoding state at a given position."""
    model, most = _decoder(run), position + DECODED * (REPEATS + 1)
    if model.limit is not None and most > model.limit:
        raise KinfolkError(f"it has {model.limit:,} positions")
    state = model.new_state(1, most)
    token = _read_prompt(model, state, position)
    with torch.inference_mode():
        times = [_timed(lambda: _decode(model, token, state, DECODED)) for _ in range(REPEATS + 1)][1:]
    return {"tokens_per_second": DECODED / statistics.median(times), "state_bytes": float(n_bytes(state))}


def _latency(run: Run) -> float:
    """Return seconds from a prompt of the trained length to its first token."""
    model, length = _decoder(run), run.recipe.training.length

    def first() -> None:
        state = model.new_state(1, length + 1)
        _decode(model, _read_prompt(model, state, length - 1), state, 1)

    with torch.inference_mode():
        return statistics.median([_timed(first) for _ in range(REPEATS + 1)][1:])


def _decoder(run: Run) -> Transformer:
    model = run.model().eval()
    if model.spec.topology != "decoder":
        raise KinfolkError("it does not go on with a text, token after token")
    return model


def _read_prompt(model: Transformer, state: Any, length: int) -> Batch:
    """Read random tokens in pieces; return one more to go on with."""
    tokens = torch.randint(7, model.spec.vocab_size, (1, length + 1), generator=torch.Generator().manual_seed(1))
    index = torch.zeros(1, dtype=torch.long)
    with torch.inference_mode():
        for piece in tokens[:, :-1].split(PIECE, dim=1):
            model.run(Batch(index=index, tokens=piece), state)
    return Batch(index=index, tokens=tokens[:, -1:])


def _decode(model: Transformer, token: Batch, state: Any, n: int) -> None:
    for _ in range(n):
        model.head.logits(model.run(token, state).hidden)


def _timed(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def n_bytes(state: Any) -> int:
    """Return the size of all tensors that a state holds."""
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in _tensors(state)}.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module):
        yield from _tensors(vars(value))
    elif hasattr(value, "__slots__"):
        yield from _tensors([getattr(value, name, None) for name in value.__slots__])
