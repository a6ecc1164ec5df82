"""A running sequence: a prompt, how its next tokens are chosen, and the tokens generated so far."""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from kinfolk.decoding.options import Decoding


class ScoredToken(NamedTuple):
    """A token with its log-probability, and the likeliest tokens in its place with theirs."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(eq=False, kw_only=True)
class RunningSequence:
    """One sequence of the batch. The prompt of an encoder-decoder is its source.

    choice: its number among the sequences of one request, which are sampled independently.
    n_top: how many of the likeliest tokens are reported with each; -1: no probabilities at all.
    presence, frequency: subtracted from the logits of tokens already generated, once or each time.
    scores_prompt: whether the tokens of the prompt get probabilities too; they are in `read`.
    """

    prompt: Sequence[int]
    max_new: int
    how: Decoding
    choice: int = 0
    n_top: int = -1
    presence: float = 0.0
    frequency: float = 0.0
    scores_prompt: bool = False
    written: list[int] = dataclasses.field(default_factory=list)
    read: list[ScoredToken] = dataclasses.field(default_factory=list)

    @property
    def finish(self) -> str | None:
        """Why the sequence has ended: "stop", "length", or None while it runs."""
        if self.written and self.written[-1] in self.how.stops:
            return "stop"
        return "length" if len(self.written) >= self.max_new else None

    def prefix(self, pairs: bool) -> Sequence[int]:
        """Return what a decoder reads before the first new token; behind an encoder that is the start token."""
        return (self.how.ids.start_id,) if pairs else self.prompt

    def group(self, pairs: bool) -> Hashable:
        """Return a key that agrees for sequences whose tokens are chosen by one call, at this step and all later."""
        constrained = (len(self.written), self.max_new, len(self.prefix(pairs)) <= 1) if self.how.constrains else ()
        return self.how.unseeded, constrained
