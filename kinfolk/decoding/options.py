"""How the next token is chosen."""

import dataclasses

from kinfolk.core.errors import SpecError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Choices of decoding. The defaults sample from the model's own distribution.

    greedy: always the likeliest token.
    temperature: below 1 sharpens, above 1 flattens.
    top_k: only the k likeliest tokens; 0: all.
    top_p: only the likeliest tokens that together reach this probability (Holtzman et al. 2020).
    repetition_penalty: scores of tokens already there are divided by it where positive, multiplied where negative
        (Keskar et al. 2019, section 4.1).
    beams: keep this many hypotheses and return the best by log-probability / ((5 + n) / 6) ** length_penalty (Wu et al.
        2016, equation 14).
    stop: token ids that end a sequence; the stopping token is part of the result.
    seed: draws depend on (seed, row of the batch, position), not on who else is in the batch.
    cached: false computes every step from scratch; it is there to be compared with.
    """

    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    beams: int = 1
    length_penalty: float = 0.6
    stop: tuple[int, ...] = ()
    seed: int = 0
    cached: bool = True

    def __post_init__(self) -> None:
        _at_least("temperature", self.temperature, 0.0, strict=True)
        _at_least("top_k", self.top_k, 0)
        _at_least("beams", self.beams, 1)
        _at_least("repetition_penalty", self.repetition_penalty, 0.0, strict=True)
        if not 0 < self.top_p <= 1:
            raise SpecError(f"top_p must lie in (0, 1], got {self.top_p}")


def _at_least(name: str, value: float, low: float, strict: bool = False) -> None:
    if value < low or (strict and value == low):
        raise SpecError(f"{name} must be {'above' if strict else 'at least'} {low:g}, got {value}")
