"""Tagging: a tag of every word, as parts of speech or named entities."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.data.files.conll import is_conll
from kinfolk.data.files.reader import FileRow
from kinfolk.data.files.treebank import is_treebank
from kinfolk.data.splits.asking import named
from kinfolk.data.splits.rows import WordRows
from kinfolk.data.splits.split import Split
from kinfolk.layers.heads.head import Head
from kinfolk.layers.heads.reconstruction_head import ReconstructionHead
from kinfolk.layers.heads.tag_head import TagHead
from kinfolk.models.model import Model
from kinfolk.objectives.measures.entities import EntityConfusion, entities, marks_entities
from kinfolk.objectives.measures.tallies import Confusion, Tally
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.supervised import Labels, Reconstruct, Tag
from kinfolk.objectives.tasks.answering import Answering, How, PredictionCounts, answered
from kinfolk.objectives.tasks.pooling import of_tokens
from kinfolk.objectives.tasks.task import Example, Task

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
_NOTES = 12


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of a sentence; where they were found in a text, also from which character to which."""

    words: tuple[str, ...]
    places: tuple[tuple[int, int], ...] | None = None


class Tagging(Task, kind="tag"):
    """A tag of every word. Tags that mark entities (B-, I-, …) are judged by whole entities."""

    labels: ClassVar[str] = "tags"
    objectives: ClassVar[tuple[type[Objective], ...]] = (Tag,)
    decides: ClassVar[str] = "accuracy"

    @classmethod
    def in_file(cls, path: Path) -> bool:
        return is_conll(path) or is_treebank(path)

    def data(self, path: Path, window: int = 0) -> str:
        settings = {"text": self.text, "label": self.label, "labels": self.labels, "unknown": self.unknown}
        return named("labelled", settings, path)

    def asking(self, model: Model, n_classes: int, *, apart: bool = False) -> tuple[Head, Objective]:
        return TagHead(n_tags=n_classes), Tag(reads=of_tokens(model))

    def metric(self, classes: Sequence[str]) -> str:
        return "entity-f1" if marks_entities(classes) else self.decides

    def tally(self, objective: Objective, split: Split) -> Tally | None:
        n, classes = len(split.classes), split.classes
        if not n:
            return None
        counts = torch.zeros(n, n, dtype=torch.long)
        whole = split.sentences is not None and marks_entities(classes)
        return EntityConfusion(classes, counts, split) if whole else Confusion(classes, counts)

    def ask(self, run: Answering, row: FileRow) -> Words:
        words = row.values.get(run.columns.tokens)
        if words is None:
            return split_words(row.text(run.columns.text))
        if not isinstance(words, Sequence) or isinstance(words, str):
            raise row.refuse(f"{run.columns.tokens!r} is {type(words).__name__}, not a list of words")
        for word in words:
            if not isinstance(word, str) or not word:
                raise row.refuse(f"{word!r} is no word")
        if not words:
            raise row.refuse("no words")
        return Words(tuple(words))

    def answers(self, run: Answering, asked: list[Any], how: How, counts: PredictionCounts) -> list[dict[str, Any]]:
        split = WordRows(run.tokenizer, [row.words for row in asked], run.classes, run.length)
        counts.parted += split.n_parted
        # a [CLS] token moves every token one to the right
        shift = int(isinstance(run.objective, Labels) and run.objective.opening == "cls")
        parts: list[tuple[list[int], list[float]]] = [([], [])] * len(split)
        for which, logits in answered(run, split, how, run.length):
            shares, best = logits.softmax(-1).max(-1)
            for row, i in enumerate(which):
                at = torch.from_numpy(split.firsts[i]) + shift
                parts[i] = best[row, at].tolist(), shares[row, at].tolist()
        tags: list[list[str]] = [[] for _ in asked]
        scores: list[list[float]] = [[] for _ in asked]
        for i, (numbers, shown) in zip(split.row_of, parts, strict=True):
            tags[i] += [run.classes[k] for k in numbers]
            scores[i] += shown
        marked = marks_entities(run.classes)
        answers = []
        for words, said, sure in zip(asked, tags, scores, strict=True):
            answer: dict[str, Any] = {"words": list(words.words), "tags": said, "scores": sure}
            answers.append(answer | ({"entities": _entities(words, said)} if marked else {}))
        return answers

    def in_words(self, split: Split, i: int, loss: float, logits: Tensor, batch: Batch) -> Example:
        assert batch.targets is not None
        scored = batch.targets[0] != IGNORE
        said = [split.classes[k] for k in logits.argmax(-1)[scored].tolist()]
        right = [split.classes[k] for k in batch.targets[0][scored].tolist()]
        if split.sentences is None:
            return Example(split.in_words(i), " ".join(right), " ".join(said), loss)
        words, right = split.sentences[i].words, list(split.sentences[i].tags)
        wrong = [f"{w}: {a} not {b}" for w, a, b in zip(words, said, right, strict=False) if a != b]
        lost = f"; {len(right) - len(said)} words cut off" if len(said) < len(right) else ""
        return Example(" ".join(words), " ".join(right), " ".join(said), loss, "; ".join(wrong[:_NOTES]) + lost)


class Reconstruction(Tagging, kind="reconstruct"):
    """Every token of what was read, from the state at its end: how much a fixed state can hold."""

    objectives: ClassVar[tuple[type[Objective], ...]] = (Reconstruct,)

    @classmethod
    def in_file(cls, path: Path) -> bool:
        return False

    def asking(self, model: Model, n_classes: int, *, apart: bool = False) -> tuple[Head, Objective]:
        return ReconstructionHead(n_classes=n_classes), Reconstruct(reads=of_tokens(model))


def split_words(text: str) -> Words:
    """Cut a text into words and punctuation."""
    matches = list(_WORD.finditer(text))
    return Words(tuple(m.group() for m in matches), tuple(m.span() for m in matches))


def _entities(words: Words, tags: list[str]) -> list[dict[str, Any]]:
    """Return the entities of a sentence: kind, words, and where they are in words and, if known, in characters."""
    spans = []
    for start, stop, kind in entities(tags):
        entity: dict[str, Any] = {"label": kind, "text": " ".join(words.words[start:stop]), "words": [start, stop]}
        if words.places is not None:
            entity |= {"start": words.places[start][0], "stop": words.places[stop - 1][1]}
        spans.append(entity)
    return spans
