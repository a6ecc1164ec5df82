"""A run that answers: its model, its tokenizer, and what it was taught to say."""

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError, TrainingError
from kinfolk.data import Tokenizer
from kinfolk.data.files.image_rows import Size
from kinfolk.data.splits.answering import STRIDE, WINDOW, WindowReading
from kinfolk.data.splits.asking import settings_of
from kinfolk.family.supervise import Labelling
from kinfolk.layers.embeddings.patches import Patches
from kinfolk.models.model import Model
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.tasks.answering import Answer, Answering, Columns
from kinfolk.objectives.tasks.task import Task
from kinfolk.runs.metadata import ReadingNotes
from kinfolk.runs.run import Run, TrainedRun


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AnsweringRun(Answering):
    """A run ready to answer, and its task."""

    folder: Path
    task: Task


def open_run(
    path: str | Path | Run, *, answer: Answer | None = None, device: str = "cpu", average: int = 0
) -> AnsweringRun:
    """Open a run to ask it.

    answer: another engine than PyTorch, from a prepared batch to states and what the head says. average: the mean of
    the weights of the newest checkpoints.
    """
    run = Run.open(path)
    recipe, notes = run.recipe, run.metadata.reading or ReadingNotes()
    task = run.task
    if task is None or not task.labels:
        raise SpecError(
            f"{run.path}: its objective is {recipe.objective.kind!r}, which judges nothing; kin generate lets a model "
            "write, kin embed gives vectors, kin finetune teaches labels"
        )
    learner = run.scorer(average)
    names = _columns(run.metadata.data.name)
    n_texts = notes.sequences or (2 if names.second else 1)
    learner.train(False)
    learner.to(device)
    usual = recipe.training.length
    # an export records the kind of data of the run that it was made of, if that was trained here
    trained_here = run.metadata.imported is None if isinstance(run, TrainedRun) else bool(run.data_kind)
    return AnsweringRun(
        folder=run.path,
        learner=learner,
        objective=recipe.objective.inner,
        tokenizer=run.tokenizer,
        classes=run.classes,
        task=task,
        length=usual if trained_here else _length(learner, run.tokenizer, n_texts, usual),
        answer=answer or torch_answer(learner, device),
        n_texts=n_texts,
        # as in training, or else with windows that the model has positions for
        reading=WindowReading(notes.window or min(WINDOW, learner.model.limit or WINDOW), notes.stride or STRIDE)
        if task.windows
        else WindowReading(),
        always=True if notes.always is None else notes.always,
        columns=names,
        cut=recipe.training.cut,
        picture=_image_size(notes, recipe.model),
    )


def torch_answer(learner: Learner, device: str = "cpu") -> Answer:
    """Return the engine that is PyTorch."""

    def answer(batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            output, _ = learner.run(batch.map(lambda x: x.to(device)))
            logits = output.logits.cpu()
            if bool(logits.isnan().any()):
                raise TrainingError("what the model says is not a number (NaN), so it cannot be used")
            return output.hidden.cpu(), logits

    return answer


def _length(learner: Learner, tokenizer: Tokenizer, n_texts: int, usual: int) -> int:
    """Return how many tokens of a text are read by a model that was not trained here: as many as it has positions."""
    limit, row = learner.model.limit, Labelling(0, n_sequences=n_texts, between=tokenizer.between)
    return usual if limit is None else (limit - row.marks) // row.together


def _image_size(notes: ReadingNotes, model: Model) -> Size | None:
    """Return the size of images that a run judges: of its training data, or of its patches; None if it judges texts."""
    if notes.pictures is not None:
        height, width, channels = notes.pictures
        return height, width, channels
    reader = model.embedding
    if isinstance(reader, Patches):
        return model.max_len // (reader.columns * reader.channels), reader.columns, reader.channels
    return None


def _columns(name: str) -> Columns:
    """Return the columns that the name of a run's data says."""
    given = settings_of(name)
    return Columns(**{key: given[key] for key in ("text", "second") if key in given})
