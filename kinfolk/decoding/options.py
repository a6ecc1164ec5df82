"""How the next token is chosen."""

import dataclasses
import functools
from typing import Self

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.generation_ids import GenerationIds

NORMS = ("wu", "tokens")
OWN = GenerationIds()
STOPPING = ("never", "estimate", "full")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Choices of decoding. The defaults sample from the model's own distribution.

    greedy: always the likeliest token.
    temperature: below 1 sharpens, above 1 flattens.
    top_k: only the k likeliest tokens; 0: all.
    top_p: only the likeliest tokens that together reach this probability (Holtzman et al. 2020).
    repetition_penalty: scores of tokens already there are divided by it where positive, multiplied where negative
        (Keskar et al. 2019, section 4.1).
    no_repeat_ngram: no n-gram of this many tokens occurs twice; 0: any may (Paulus et al. 2018, section 2.5).
    beams: keep this many hypotheses and return the best by log-probability / ((5 + n) / 6) ** length_penalty (Wu et al.
        2016, equation 14), or / n ** length_penalty with length_norm "tokens".
    early_stopping: of beam search with `beams` finished hypotheses: "never" goes on until no running one can win,
        "estimate" until none would win if it ended now, "full" stops at once.
    ids: what the model's special tokens are, which `generate` takes from the model.
    stop: token ids that end a sequence, instead of those of `ids`; the stopping token is part of the result.
    seed: draws depend on (seed, row of the batch, position), not on who else is in the batch.
    cached: false computes every step from scratch; it is there to be compared with.
    """

    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    beams: int = 1
    length_penalty: float = 0.6
    length_norm: str = "wu"
    early_stopping: str = "never"
    ids: GenerationIds = OWN
    stop: tuple[int, ...] | None = None
    seed: int = 0
    cached: bool = True

    def __post_init__(self) -> None:
        _at_least("temperature", self.temperature, 0.0, strict=True)
        _at_least("top_k", self.top_k, 0)
        _at_least("no_repeat_ngram", self.no_repeat_ngram, 0)
        for name, value, known in (
            ("length_norm", self.length_norm, NORMS),
            ("early_stopping", self.early_stopping, STOPPING),
        ):
            if value not in known:
                raise SpecError(f"{name}: unknown {value!r}{suggest(value, known)}")
        _at_least("beams", self.beams, 1)
        _at_least("repetition_penalty", self.repetition_penalty, 0.0, strict=True)
        if not 0 < self.top_p <= 1:
            raise SpecError(f"top_p must lie in (0, 1], got {self.top_p}")

    @property
    def stops(self) -> tuple[int, ...]:
        """The token ids that end a sequence."""
        return self.ids.stop_ids if self.stop is None else self.stop

    @functools.cached_property
    def unseeded(self) -> Self:
        """The same choices with the default seed: what is left of them decides the distribution."""
        return dataclasses.replace(self, seed=0)

    @property
    def constrains(self) -> bool:
        """Whether some token may not follow at some position."""
        return self.no_repeat_ngram > 0 or self.ids.constrains


def _at_least(name: str, value: float, low: float, strict: bool = False) -> None:
    if value < low or (strict and value == low):
        raise SpecError(f"{name} must be {'above' if strict else 'at least'} {low:g}, got {value}")
