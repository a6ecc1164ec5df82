"""Annotations of examples: what only some layers and objectives read, as records that are found by their type.

A batch and a context carry any number of them. A relative that reads something new defines a record of its own, and
neither `Batch` nor `Context` gets a field for it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Annotation:
    """Tensors of one batch, examples first. Subclasses are frozen dataclasses of `Tensor` or `Tensor | None`."""

    for_layers: ClassVar[bool] = False  # read by layers; false: by objectives and the training loop alone

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that it has, by field."""
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: x for name, x in named if x is not None}

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with a function applied to every tensor."""
        return dataclasses.replace(self, **{name: change(x) for name, x in self.tensors.items()})


A = TypeVar("A", bound=Annotation)


class Annotated:
    """Mixin of frozen dataclasses with a field `annotations`, at most one of each type."""

    annotations: tuple[Annotation, ...]

    def annotation(self, kind: type[A]) -> A | None:
        """Return the annotation of a type; None if there is none."""
        for record in self.annotations:
            if type(record) is kind:
                return record
        return None

    def annotate(self, *records: Annotation) -> Self:
        """Return a copy with these annotations, in the place of earlier ones of the same types."""
        types = set(map(type, records))
        others = (record for record in self.annotations if type(record) not in types)
        changes: Any = {"annotations": (*others, *records)}
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def without(self, kind: type[Annotation]) -> Self:
        """Return a copy without the annotation of a type."""
        changes: Any = {"annotations": tuple(record for record in self.annotations if type(record) is not kind)}
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True, eq=False)
class Visible(Annotation):
    """An attention mask of each example, besides patterns: pairs, or the last key that a query may attend to."""

    for_layers: ClassVar[bool] = True
    pairs_BLM: Tensor | None = None  # M may be fewer positions, the first
    until_BL: Tensor | None = None  # patterns are then read in both directions


@dataclasses.dataclass(frozen=True, eq=False)
class PrefixLength(Annotation):
    """Prefix language models: how many of the first positions attend to one another in both directions."""

    length_B: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class TokenIds(Annotation):
    """The ids of the tokens, for layers with tables of their own."""

    for_layers: ClassVar[bool] = True
    ids_BL: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Segments(Annotation):
    """Token types: which sentence of a pair a token belongs to, 0 or 1."""

    for_layers: ClassVar[bool] = True
    segments_BL: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Parse(Annotation):
    """A dependency parse of an encoder's input."""

    for_layers: ClassVar[bool] = True
    heads_BW: Tensor  # the head of each word, -1 of a root
    words_BL: Tensor  # the word that each token belongs to, -1 outside the parse


@dataclasses.dataclass(frozen=True, eq=False)
class DependencyTree(Annotation):
    """What layers read of a parse: the depth of every token, and the relation that replaces the distance j - i."""

    for_layers: ClassVar[bool] = True
    depth_BL: Tensor
    relation_BLM: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Mentions(Annotation):
    """Entity mentions: S of them in each example, with C candidate entities each."""

    for_layers: ClassVar[bool] = True
    spans_BS2: Tensor  # the first and the last token of a mention; below 0: there is none
    entities_BSC: Tensor  # numbers of the candidates; below 0: no further candidate
    priors_BSC: Tensor  # prior probability of each candidate
    links_BS: Tensor | None = None  # index of the gold candidate, IGNORE where it is not annotated

    @property
    def real(self) -> Tensor:
        """Which mentions have a candidate."""
        return (self.spans_BS2[..., 0] >= 0) & (self.entities_BSC >= 0).any(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class TextTokens(Annotation):
    """Which tokens are of the text itself, where facts were inserted beside it; the head scores only these."""

    keep_BL: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class OtherDocument(Annotation):
    """A passage of another document, for next sentence prediction; or the second of two that are encoded apart."""

    tokens_BM: Tensor
    keep_BM: Tensor | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class NegativeSamples(Annotation):
    """Negative samples of every position (word2vec)."""

    tokens_BLC: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class UniformNoise(Annotation):
    """A number in [0, 1) for every position: what sampling inside a pass depends on."""

    noise_BL: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class TaskNumber(Annotation):
    """Multi-task learning: which task a batch is of, the same for all of its examples."""

    task_B: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Continuation(Annotation):
    """Which examples continue the same example of the last batch, for segment memory."""

    continues_B: Tensor
