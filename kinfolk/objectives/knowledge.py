"""Axis Knowledge: entities and facts retrieved for the mentions of a text before a model reads it.

A recipe says where it is written and how it is used; `kinfolk.data.splits.facts` reads it for a tokenizer. The
result is a function from prepared batches to batches, which runs where data is loaded: see `Vocabulary.known`.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from kinfolk.core.annotations import Mentions, TextTokens, Visible
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.knowledge import Branches, Ids, Mention, Names, SentenceTree
from kinfolk.core.spec import Spec
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.knowledge_attention import KnowledgeAttention
from kinfolk.layers.part import FeedForward, Part
from kinfolk.layers.positions.position import NoPosition
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.objectives.objective import Vocabulary, real_rows
from kinfolk.ops.patterns.leaves import Full


class Knowledge(Spec):
    """Axis: knowledge that is read beside a text: triples or entities, and the file they are in ("" for none)."""

    file: str = ""

    def fits(self, model: Model) -> None:
        """Refuse a model that cannot be told."""


class Triples(Knowledge, kind="triples"):
    """Facts as sentence trees (Liu et al. 2020, K-BERT): `subject TAB relation TAB object` in each line of a file.

    Behind a subject that a text names, "relation object" is read as a branch, which only the tokens of its subject see;
    with `relation` false, "object" alone. Of several facts the first `most` are read, and of a row's as many as fit.
    """

    most: NonNegativeInt = 2
    relation: bool = True

    def fits(self, model: Model) -> None:
        """Positions must come from embeddings, and the attention mask must have no other source."""
        if model.topology != "encoder" or not isinstance(model.encoder, Stack):
            raise SpecError(f"knowledge: branches are read by an encoder of blocks, not by {model.topology!r}")
        for i, block in enumerate(model.encoder.blocks):
            for j, part in enumerate(map(_inside, block.parts)):
                plain = type(part) is Attention and part.position == NoPosition() and part.pattern == Full()
                if not (plain or isinstance(part, FeedForward)):
                    where = f"model.encoder.blocks[{i}].parts[{j}]"
                    raise SpecError(
                        f"knowledge: {where} is {part.kind!r}, which cannot know that a branch is beside the "
                        "sentence (it takes attention to everything, without distances)"
                    )


def _inside(part: Part) -> Part:
    """Return what a part is under what was added to it, such as maps of low rank."""
    inner = getattr(part, "part", None)
    return _inside(inner) if isinstance(inner, Part) else part


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """Branches of every subject."""

    names: Names[Branches]
    most: int = 2

    def inform(self, batch: Batch, vocabulary: Vocabulary, limit: int | None) -> Batch:
        """Read facts beside the rows: the sentence first, so that targets and spans stay where they are."""
        if batch.document is not None or batch.annotation(Visible) is not None or batch.positions is not None:
            raise ShapeError("knowledge: rows of packed documents, or with an attention mask of their own, take none")
        trees = [self.tree(row, vocabulary, limit) for row in real_rows(batch.tokens, batch.keep)]
        if all(tree.trunk.all() for tree in trees):
            return batch
        width = max(batch.tokens.shape[1], *(len(tree.tokens) for tree in trees))
        tokens = np.full((len(trees), width), vocabulary.pad, np.int64)
        positions, keep, spoken = np.zeros_like(tokens), *np.zeros((2, *tokens.shape), np.bool_)
        visible = np.zeros((*tokens.shape, width), np.bool_)
        segments = None if batch.segments is None else np.zeros_like(tokens)
        for i, tree in enumerate(trees):
            n = len(tree.tokens)
            tokens[i, :n], positions[i, :n], keep[i, :n] = tree.tokens, tree.positions, True
            visible[i, :n, :n], spoken[i, :n] = tree.visible, tree.trunk
            if segments is not None and batch.segments is not None:
                # a branch belongs to the sentence it hangs on
                segments[i, :n] = batch.segments[i].numpy()[tree.parent]
        more = width - batch.tokens.shape[1]
        targets = None if batch.targets is None else torch.nn.functional.pad(batch.targets, (0, more), value=IGNORE)
        return batch.replace(
            tokens=torch.from_numpy(tokens),
            positions=torch.from_numpy(positions),
            keep=torch.from_numpy(keep),
            segments=None if segments is None else torch.from_numpy(segments),
            targets=targets,
        ).annotate(Visible(torch.from_numpy(visible)), TextTokens(torch.from_numpy(spoken)))

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


class Entities(Knowledge, kind="entities"):
    """What names may mean (Peters et al. 2019, KnowBERT): `mention TAB entity TAB prior` in each line of a file.

    A prior is a number above 0, such as a count; those of a mention are divided by their sum, and without any all are
    alike. The `most` likely candidates of a mention are looked at.
    """

    most: PositiveInt = 30

    def fits(self, model: Model) -> None:
        """Somebody has to look at the candidates."""
        if not any(True for _ in attentions(model)):
            raise SpecError("knowledge: no part of the model looks at entities; give it a 'knowledge-attention'")


def attentions(model: Model) -> Iterator[tuple[int, KnowledgeAttention]]:
    """Yield the parts of an encoder that look at entities, and the blocks they are in."""
    blocks = model.encoder.blocks if isinstance(model.encoder, Stack) else ()
    for i, block in enumerate(blocks):
        yield from ((i, part) for part in block.parts if isinstance(part, KnowledgeAttention))


Candidates = tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Lexicon:
    """The candidates of every name with their priors, the likeliest first, and the names of all entities."""

    names: Names[Candidates]
    entities: tuple[str, ...] = ()
    most: int = 30

    def inform(self, batch: Batch, vocabulary: Vocabulary, limit: int | None) -> Batch:
        """Say what rows name and may mean by it."""
        if batch.source is not None:
            raise ShapeError("knowledge: what an encoder-decoder reads is not looked up")
        found = [self.mentions(row, vocabulary) for row in real_rows(batch.tokens, batch.keep)]
        width = max(map(len, found))
        if not width:
            return batch
        most = max(len(m.what[: self.most]) for row in found for m in row)
        spans, entities = np.full((len(found), width, 2), -1), np.full((len(found), width, most), -1)
        priors = np.zeros(entities.shape, np.float32)
        for i, row in enumerate(found):
            for j, mention in enumerate(row):
                known = mention.what[: self.most]
                spans[i, j] = mention.first, mention.last
                entities[i, j, : len(known)], priors[i, j, : len(known)] = zip(*known, strict=True)
        return batch.annotate(Mentions(*map(torch.from_numpy, (spans, entities, priors))))

    def mentions(self, row: Ids, vocabulary: Vocabulary) -> list[Mention[Candidates]]:
        """Return what a row names."""
        starts = None if vocabulary.pieces is None else vocabulary.pieces.word_starts(row)
        return list(self.names.mentions(row, starts))
