"""Axis Knowledge: what is looked up about the names in a text before a model reads it.

A recipe says where it is written and how it is used; `kinfolk.data.facts` reads it for a tokenizer. What comes of it is
a function from prepared batches to batches, which runs where data is loaded: see `Vocabulary.known`.
"""

import dataclasses

import numpy as np
import torch

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.knowledge import Branches, Ids, Mention, Names, SentenceTree
from kinfolk.core.spec import Spec
from kinfolk.layers.attention import Attention
from kinfolk.layers.part import FeedForward
from kinfolk.layers.position import NoPosition
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.objectives.objective import Vocabulary
from kinfolk.ops.pattern import Full


class Knowledge(Spec):
    """Axis: what is known, and in which file it is written; "" is nothing."""

    file: str = ""

    def fits(self, model: Model) -> None:
        """Refuse a model that cannot be told."""


class Triples(Knowledge, kind="triples"):
    """Facts as sentence trees (Liu et al. 2020, K-BERT): `subject TAB relation TAB object` in each line of a file.

    Behind a subject that a text names, "relation object" is read as a branch, which only the tokens of its subject see;
    with `relation` false, "object" alone. Of several facts the first `most` are read, and of a row's as many as fit.
    """

    most: int = 2
    relation: bool = True

    def __post_init__(self) -> None:
        if self.most < 0:
            raise SpecError(f"most: {self.most} is not allowed; it is a number of facts about one name")

    def fits(self, model: Model) -> None:
        """Where tokens stand must be said by their embeddings, and who sees whom by nothing else."""
        if model.topology != "encoder" or not isinstance(model.encoder, Stack):
            raise SpecError(f"knowledge: branches are read by an encoder of blocks, not by {model.topology!r}")
        for i, block in enumerate(model.encoder.blocks):
            for j, part in enumerate(block.parts):
                plain = type(part) is Attention and part.position == NoPosition() and part.pattern == Full()
                if not (plain or isinstance(part, FeedForward)):
                    where = f"model.encoder.blocks[{i}].parts[{j}]"
                    raise SpecError(
                        f"knowledge: {where} is {part.kind!r}, which cannot be told that a branch stands beside the "
                        "sentence (it takes attention to everything, without distances)"
                    )


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """Branches of every subject."""

    names: Names[Branches]
    most: int = 2

    def inform(self, batch: Batch, vocabulary: Vocabulary, limit: int | None) -> Batch:
        """Read facts beside the rows: the sentence first, so that targets and spans stay where they are."""
        if batch.document is not None or batch.visible is not None or batch.positions is not None:
            raise ShapeError("knowledge: rows of packed documents, or with their own rule of who sees whom, take none")
        trees = [self.tree(row, vocabulary, limit) for row in _rows(batch)]
        if all(tree.trunk.all() for tree in trees):
            return batch
        width = max(batch.tokens.shape[1], *(len(tree.tokens) for tree in trees))
        tokens = np.full((len(trees), width), vocabulary.pad, np.int64)
        positions, keep = np.zeros_like(tokens), np.zeros(tokens.shape, np.bool_)
        visible = np.zeros((*tokens.shape, width), np.bool_)
        segments = None if batch.segments is None else np.zeros_like(tokens)
        for i, tree in enumerate(trees):
            n = len(tree.tokens)
            tokens[i, :n], positions[i, :n], keep[i, :n], visible[i, :n, :n] = (
                tree.tokens,
                tree.positions,
                True,
                tree.visible,
            )
            if segments is not None and batch.segments is not None:
                # a branch belongs to the sentence it hangs on
                segments[i, :n] = batch.segments[i].numpy()[tree.parent]
        more = width - batch.tokens.shape[1]
        targets = None if batch.targets is None else torch.nn.functional.pad(batch.targets, (0, more), value=IGNORE)
        return batch.replace(
            tokens=torch.from_numpy(tokens),
            positions=torch.from_numpy(positions),
            keep=torch.from_numpy(keep),
            visible=torch.from_numpy(visible),
            segments=None if segments is None else torch.from_numpy(segments),
            targets=targets,
        )

    def tree(self, row: Ids, vocabulary: Vocabulary, limit: int | None) -> SentenceTree:
        """Return the tree of a row, its sentence first."""
        starts = None if vocabulary.pieces is None else vocabulary.pieces.word_starts(row)
        room, taken = None if limit is None else limit - len(row), []
        for mention in self.names.mentions(row, starts):
            branches = mention.what[: self.most]
            while room is not None and sum(map(len, branches)) > room:
                branches = branches[:-1]
            if branches:
                taken.append(Mention(mention.first, mention.last, branches))
                room = None if room is None else room - sum(map(len, branches))
        return SentenceTree.grow(row, taken).sentence_first()


def _rows(batch: Batch) -> list[Ids]:
    keep = batch.keep
    return [(row if keep is None else row[keep[i]]).numpy() for i, row in enumerate(batch.tokens)]
