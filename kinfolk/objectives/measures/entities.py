"""Entity-level F1 of BIO tags (CoNLL): whole entities of the right type."""

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.models.model import Output
from kinfolk.objectives.measures.tallies import COUNTED, Confusion, Table, Tally, counted

OUTSIDE = "O"
_MARK = re.compile(r"(?:O|([BIESLU])(?:-(.*))?)", re.DOTALL)
_BEGINS, _ENDS = ("B", "S", "U"), ("E", "L", "S", "U")

Entity = tuple[int, int, str]
"""The first word, the one after the last, and the kind."""


def marks_entities(tags: Sequence[str]) -> bool:
    """Tell whether tags mark entities: O, and B-, I-, and perhaps E- or L-, S- or U- before their kinds."""
    found = [_MARK.fullmatch(tag) for tag in tags]
    return all(found) and any(match is not None and match[1] in ("B", "I") and match[2] for match in found)


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities that tags mark, as the shared task of 2003 counted them (Tjong Kim Sang and De Meulder).

    One begins at B- or S-, and at any other mark that nothing goes before that it could go on with: another kind, O, or
    an end. So B-I, I alone (the older IOB1) and B-I-E-S are all read, and no sequence of marks is an error.
    """
    found: list[Entity] = []
    start, kind, is_open = 0, "", False
    for i, tag in enumerate((*tags, OUTSIDE)):
        match = _MARK.fullmatch(tag)
        mark, of = (match[1] or OUTSIDE, match[2] or "") if match else (OUTSIDE, "")
        goes_on = is_open and mark not in (OUTSIDE, *_BEGINS) and of == kind
        if is_open and not goes_on:
            found.append((start, i, kind))
        if not goes_on:
            start, kind = i, of
        is_open = mark != OUTSIDE
        if is_open and mark in _ENDS:
            found.append((start, i + 1, kind))
            is_open = False
    return found


@dataclasses.dataclass
class EntityConfusion(Confusion):
    """Tags of words, and the entities they mark. An entity in words that were cut off counts as missed.

    split: where the sentences are from, with all their words.
    """

    names: ClassVar[tuple[str, ...]] = ("entities", "confusion")
    said: ClassVar[tuple[str, ...]] = (*Confusion.said, "entity-f1", "entity-precision", "entity-recall")

    split: Any
    right: Counter[str] = dataclasses.field(default_factory=Counter)
    found: Counter[str] = dataclasses.field(default_factory=Counter)
    there: Counter[str] = dataclasses.field(default_factory=Counter)
    cut: int = 0

    def add(self, output: Output, batch: Batch) -> None:
        """Count the tags and the entities of a batch."""
        super().add(output, batch)
        assert batch.targets is not None
        answers, asked = output.logits.argmax(-1).cpu(), (batch.targets != IGNORE).cpu()
        for row, i in enumerate(batch.index.tolist()):
            tags = [self.classes[k] for k in answers[row][asked[row]].tolist()]
            self.judge(self.split.sentences[i].tags, tags)

    def judge(self, tags: Sequence[str], answers: Sequence[str]) -> None:
        """Count the entities of one sentence; words without an answer are outside."""
        lost = len(tags) - len(answers)
        self.cut += lost
        there, found = set(entities(tags)), set(entities([*answers, *[OUTSIDE] * lost]))
        for counter, some in ((self.there, there), (self.found, found), (self.right, there & found)):
            counter.update(kind for _, _, kind in some)

    @property
    def entity_precision(self) -> float:
        """The share of the entities found that are right."""
        return self.right.total() / max(1, self.found.total())

    @property
    def entity_recall(self) -> float:
        """The share of the entities there that were found."""
        return self.right.total() / max(1, self.there.total())

    @property
    def entity_f1(self) -> float:
        """The harmonic mean of both."""
        return _f1(self.right.total(), self.found.total(), self.there.total())

    def kinds(self) -> list[dict[str, Any]]:
        """Return the counts of each kind."""
        names = sorted({*self.there, *self.found})
        rows = [(name, self.there[name], self.found[name], self.right[name]) for name in names]
        return [{"name": n, "labels": t, "answers": f, "right": r, "f1": _f1(r, f, t)} for n, t, f, r in rows]

    def plain(self) -> dict[str, Any]:
        return super().plain() | {"entities": self.kinds(), "words_cut": self.cut}

    def sentences(self) -> list[str]:
        both = f"precision {self.entity_precision:.4f}, recall {self.entity_recall:.4f}"
        lines = [f"entity F1      {self.entity_f1:.4f}  ({both})"]
        for row in self.kinds():
            lines.append(
                f"  {row['name'] or '(no kind)':20} {row['f1']:.4f}  of {row['labels']:,}; {row['answers']:,} found"
            )
        if self.cut:
            lines.append(f"words cut off  {self.cut:,}, counted as outside every entity")
        return lines + Tally.sentences(self)

    def table(self) -> Table:
        """Return precision, recall and F1 of each kind of entity."""
        rows = tuple(counted(row["name"], row["labels"], row["answers"], row["right"]) for row in self.kinds())
        return ("entity", *COUNTED[1:]), rows


def _f1(right: int, found: int, there: int) -> float:
    return 2 * right / (found + there) if found + there else 0.0
