"""Masked tokens with next-sentence or sentence-order prediction (Devlin et al. 2019; Lan et al. 2020)."""

from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.annotations import OtherDocument
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import Probability
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.layers.heads.paired_head import PairedHeadModule
from kinfolk.models.model import Output
from kinfolk.objectives.masked import MaskedLM
from kinfolk.objectives.objective import Ids, Loss, Vocabulary, joined, real_rows, summed

MEASURES = {"next": "next-sentence", "order": "sentence-order"}


class SentencePairs(MaskedLM, kind="sentence-pairs"):
    """Rows `[CLS] A [SEP] B [SEP]` of one document, some tokens hidden, and a class of the pair.

    `question` "next": in half of the rows B is of another document, class 1 (Devlin et al. 2019, section 3.1);
    "order": in half of the rows A and B have changed places, class 1 (Lan et al. 2020, section 3.1). A and B are whole
    sentences of a passage, except where the passage begins and ends. A foreign B begins with a sentence as a true one
    does and is no longer, so that nothing but what is said tells them apart. `short` of the rows are cut to a random
    length. A passage of one sentence has a foreign B if B is asked for, and is cut anywhere if the order is.
    """

    question: Literal["next", "order"] = "next"
    changed: Probability = 0.5
    short: Probability = 0.1

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        if batch.source is not None:
            return self._prepare_pairs(batch, rng, vocabulary)
        passage = batch.annotation(OtherDocument)
        if passage is None and self.question == "next":
            raise SpecError("objective.question: to ask what comes next takes passages: set training.order=documents")
        width = batch.tokens.shape[1] - 1
        rows, labels = [], []
        owns = real_rows(batch.tokens, batch.keep)
        others = [own[:0] for own in owns] if passage is None else real_rows(passage.tokens_BM, passage.keep_BM)
        for own, other, index in zip(owns, others, batch.index.tolist(), strict=True):
            a, b, label = self.pair(own, other, max(2, width - 3), rng.example(index, "pair"), vocabulary)
            rows.append((a, b))
            labels.append(label)
        tokens, segments, keep = framed(rows, width, vocabulary)
        made = Batch(index=batch.index, tokens=tokens, segments=segments, keep=keep, labels=torch.tensor(labels))
        return self.hidden(made, rng, vocabulary)

    def pair(
        self, own: Ids, other: Ids, limit: int, draw: np.random.Generator, vocabulary: Vocabulary
    ) -> tuple[Ids, Ids, int]:
        """Make two passages of at most `limit` tokens together, and the class of the pair."""
        own = own[:limit]
        if draw.random() < self.short and limit > 2:
            own = own[: int(draw.integers(2, limit + 1))]
        ends = _ends(own, vocabulary)[:-1]
        alone = not len(ends)
        if alone and self.question == "order":
            ends = np.arange(1, len(own))
        cut = int(ends[draw.integers(len(ends))]) if len(ends) else len(own)
        changed = bool(draw.random() < self.changed)
        a, b = own[:cut], own[cut:]
        if self.question == "order":
            return (b, a, 1) if changed else (a, b, 0)
        if not changed and not alone:
            return a, b, 0
        foreign = _from_a_sentence(other, vocabulary)
        return (*trimmed(a, foreign if alone else foreign[: len(b)], limit, draw), 1)

    def loss(self, output: Output, batch: Batch) -> Loss:
        found = super().loss(output, batch)
        losses, real = _pair_losses(output, batch)
        return Loss(found.total, found.count, found.side + losses.sum() / real.sum().clamp(min=1))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        losses, real = _pair_losses(output, batch)
        return super().measure(output, batch) | {MEASURES[self.question]: summed(losses, real)}

    def _prepare_pairs(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        """A pair of the data's own is one row in two segments; whether it belongs together is not asked."""
        tokens, keep, is_target = joined(batch, vocabulary.sep, vocabulary.pad)
        labels = torch.full_like(batch.index, IGNORE)
        made = Batch(index=batch.index, tokens=tokens, keep=keep, segments=is_target.long(), labels=labels)
        return self.hidden(made, rng, vocabulary)


def framed(rows: list[tuple[Ids, Ids]], width: int, vocabulary: Vocabulary) -> tuple[Tensor, Tensor, Tensor]:
    """Write `[CLS] A [SEP] B [SEP]` in rows of a width, or more if one needs it: tokens, segments, which are real."""
    width = max([width, *(len(a) + len(b) + 3 for a, b in rows)])
    tokens = np.full((len(rows), width), vocabulary.pad, dtype=np.int64)
    segments, keep = np.zeros_like(tokens), np.zeros(tokens.shape, dtype=np.bool_)
    for i, (a, b) in enumerate(rows):
        row = np.concatenate([[vocabulary.cls], a, [vocabulary.sep], b, [vocabulary.sep]])
        tokens[i, : len(row)] = row
        segments[i, len(a) + 2 : len(row)] = 1
        keep[i, : len(row)] = True
    return torch.from_numpy(tokens), torch.from_numpy(segments), torch.from_numpy(keep)


def trimmed(a: Ids, b: Ids, limit: int, draw: np.random.Generator) -> tuple[Ids, Ids]:
    """Take tokens from the longer, from its beginning or its end as it falls, until both fit."""
    excess = len(a) + len(b) - limit
    for front in draw.random(max(0, excess)) < 0.5:
        longer, shorter = (a, b) if len(a) > len(b) else (b, a)
        cut = longer[1:] if front else longer[:-1]
        a, b = (cut, shorter) if len(a) > len(b) else (shorter, cut)
    return a, b


def _ends(ids: Ids, vocabulary: Vocabulary) -> Ids:
    """Return the places after which a sentence has ended; without knowledge of the text, any place."""
    if vocabulary.pieces is None or not len(ids):
        return np.arange(1, len(ids) + 1)
    return np.flatnonzero(vocabulary.pieces.sentence_ends(ids)) + 1


def _from_a_sentence(ids: Ids, vocabulary: Vocabulary) -> Ids:
    """Leave out what is left of a sentence that began before, unless that is most of it."""
    if vocabulary.pieces is None or not len(ids):
        return ids
    first = int(_ends(ids, vocabulary)[0])
    return ids[first:] if first <= len(ids) // 2 else ids


def _pair_losses(output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of the class of every pair, and of which it is asked."""
    assert batch.labels is not None
    logits = cast(PairedHeadModule, output.head).pair(output.hidden)
    return F.cross_entropy(logits, batch.labels, ignore_index=IGNORE, reduction="none"), batch.labels != IGNORE
