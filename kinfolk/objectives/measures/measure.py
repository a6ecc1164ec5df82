"""Metrics as records: name, direction, unit, meaning and accumulation, registered by being defined.

A table, a report, checkpoint selection, `kin eval` and `kin compare` all read a metric from here. A user's own file
adds one with a single definition:

    Measure(name="kappa", meaning="agreement beyond chance", higher=True, unit="correlation", tallies=("confusion",),
            figure=lambda tally: …)

How a metric is accumulated: most are a sum and a count for each batch, which an objective reports, or `sums` computes
for the objectives named in `objectives`. Others need more than sums, so they are a `figure` of a tally
(`kinfolk.objectives.measures.tallies`), for every tally named in `tallies`.
"""

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kinfolk.core.errors import SpecError, suggest

if TYPE_CHECKING:
    from torch import Tensor

    from kinfolk.core.batch import Batch
    from kinfolk.models.model import Output

NATS = "nats"
"""The unit of a negative log-probability, which has a perplexity."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """One metric.

    higher: whether higher is better; otherwise it is a loss. unit: "nats", "bits", "share" (0 to 1), "percent",
    "correlation" (-1 to 1), or the unit of the labels. tokens: it scores tokens of the vocabulary, so that a uniform
    guess costs the logarithm of its size. objectives, sums: kinds of objectives, and the sum and the count of a batch.
    tallies, figure: names of tallies, and the value of one.
    """

    name: str
    meaning: str
    higher: bool = False
    unit: str = NATS
    tokens: bool = False
    objectives: tuple[str, ...] = ()
    sums: "Callable[[Output, Batch], tuple[Tensor, Tensor]] | None" = dataclasses.field(default=None, compare=False)
    tallies: tuple[str, ...] = ()
    figure: Callable[[Any], float] | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        twin = _defined.get(self.name)
        if twin is not None and twin != self:
            raise SpecError(f"measure {self.name!r}: is already defined, as {twin.meaning!r}")
        if bool(self.objectives) != (self.sums is not None) or bool(self.tallies) != (self.figure is not None):
            raise SpecError(f"measure {self.name!r}: `objectives` goes with `sums`, and `tallies` with `figure`")
        _defined[self.name] = self

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return self.name if self.higher else f"{self.name} loss"

    def better(self, value: float, than: float | None) -> bool:
        """Tell whether a value is better than another, or than none; a value that is not finite never is."""
        if not math.isfinite(value):
            return False
        if than is None:
            return True
        return value > than if self.higher else value < than


_defined: dict[str, Measure] = {}


class _Undefined(Measure):
    """A loss in nats that an objective reports under a name that no definition has."""

    def __post_init__(self) -> None:
        """Register nothing."""


def measures() -> dict[str, Measure]:
    """Return every measure by name, in the order of definition."""
    return dict(_defined)


def measure_of(name: str) -> Measure:
    """Return a measure by name; an objective's own name that is not defined is a loss in nats."""
    return _defined.get(name) or _Undefined(name=name, meaning="", tokens=name.endswith("-token"))


def require(name: str) -> Measure:
    """Return a measure by name, or raise with the nearest name."""
    if name not in _defined:
        raise SpecError(f"measure: unknown {name!r}{suggest(name, _defined)}")
    return _defined[name]


def of_objective(kind: str) -> tuple[Measure, ...]:
    """Return the measures that compute their own sums for an objective of this kind."""
    return tuple(m for m in _defined.values() if kind in m.objectives)


def of_tally(names: tuple[str, ...]) -> tuple[Measure, ...]:
    """Return the measures that are figures of a tally with any of these names."""
    return tuple(m for m in _defined.values() if set(names) & set(m.tallies))


FIGURES: dict[str, tuple[str, tuple[str, ...], str]] = {
    # entities of tagged words come before the tags themselves: the first figure of a tally is the usual one
    "entity-f1": ("share", ("entities",), "F1 of whole entities, both ends and the kind right"),
    "entity-precision": ("share", ("entities",), "precision of whole entities, both ends and the kind right"),
    "entity-recall": ("share", ("entities",), "recall of whole entities, both ends and the kind right"),
    "accuracy": ("share", ("confusion",), "the share of examples whose class was the one with the highest score"),
    "micro-f1": ("share", ("multi-label",), "F1 of all decisions about classes together"),
    "macro-f1": ("share", ("confusion", "multi-label"), "the mean over classes of F1"),
    "mcc": ("correlation", ("confusion",), "Matthews' correlation of labels and answers; 0 is guessing"),
    "exact-match": ("share", ("multi-label",), "the share of examples of which every class, or both ends, were right"),
    "answer-f1": (
        "share",
        ("answers",),
        "the words an answer shares with the right one, over those of both, as in SQuAD",
    ),
    "answer-exact": (
        "share",
        ("answers",),
        "the share of questions whose answer is one of the right ones, as in SQuAD",
    ),
    "pearson": ("correlation", ("correlation",), "the correlation of numbers and their guesses"),
    "spearman": ("correlation", ("correlation",), "the correlation of the ranks of numbers and their guesses"),
}
"""Figures of tallies, each an attribute of the same name: unit, tallies, meaning; higher is better."""

for _name, (_unit, _tallies, _meaning) in FIGURES.items():
    _figure = operator.attrgetter(_name.replace("-", "_"))
    Measure(name=_name, meaning=_meaning, higher=True, unit=_unit, tallies=_tallies, figure=_figure)

Measure(
    name="overlap",
    meaning="the tokens that an answer shares with the right one, twice, over the tokens of both (F1); none found "
    "where there is none is 1",
    higher=True,
    unit="share",
)
Measure(name="bleu", meaning="BLEU of what a model writes for the first pairs held out", higher=True, unit="percent")
Measure(
    name="rouge-l",
    meaning="ROUGE-L of what a model writes for the first pairs held out, the F-measure",
    higher=True,
    unit="percent",
)
Measure(name="return", meaning="the sum of the rewards of an episode", higher=True, unit="reward")
Measure(name="cost", meaning="the return with the sign of a loss", unit="reward")
Measure(name="length", meaning="the steps of an episode", unit="steps")

Measure(name="next-token", meaning="every token of a text from all before it", tokens=True)
Measure(
    name="continuation",
    meaning="every token of the second half of a window from all before it, which an encoder-decoder and a "
    "decoder can both answer",
    tokens=True,
)
Measure(name="target-token", meaning="every token of the target of a pair", tokens=True)
Measure(
    name="span-token",
    meaning="the tokens of spans that were taken out of a text, and the marks between them, from what is left; "
    "not a probability of the text, so it has no bits per byte",
    tokens=True,
)
Measure(
    name="masked-token",
    meaning="hidden tokens from both sides; not a probability of the text, so it has no bits per byte and no "
    "place among the others",
    tokens=True,
)
Measure(name="permuted-token", meaning="tokens of a text in a random order, each from those before it", tokens=True)
Measure(name="denoised-token", meaning="every token of a text from a corrupted copy of it", tokens=True)
Measure(name="lost-token", meaning="the tokens that were dropped from a text, from what is left of it", tokens=True)
Measure(name="suffix-token", meaning="the second part of a text from the first", tokens=True)
Measure(name="fragment-token", meaning="a fragment that was masked in a text, from the rest of it", tokens=True)
Measure(name="replaced-token", meaning="of every token whether it was replaced", tokens=True)
Measure(name="generator-token", meaning="hidden tokens, as the generator of replacements predicts them", tokens=True)
Measure(name="skip-gram", meaning="the words around a word, each against sampled others")
Measure(name="next-sentence", meaning="whether the second passage follows the first")
Measure(name="sentence-order", meaning="whether two passages are in their order")
Measure(
    name="bits-per-dimension",
    meaning="every value of an image that is not given, from what is given and all before it, in bits",
    unit="bits",
)
Measure(name="class", meaning="the class of an example, in nats")
Measure(name="tag", meaning="the tag of a token, in nats")
Measure(name="span", meaning="the first and the last token of an answer, in nats, half of each")
Measure(name="squared-error", meaning="the square of the difference of a number and its guess", unit="label squared")
Measure(name="absolute-error", meaning="the difference of a number and its guess", unit="label")
