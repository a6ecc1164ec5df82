"""Speculative decoding (Leviathan et al. 2023; Chen et al. 2023): a proposer guesses tokens, one pass checks them.

The loop of decoding chooses every token itself, from logits that the model computed after the true tokens: greedy or
sampled, a text is the one that the model writes alone. Only the number of passes changes. (Their rule accepts a guess
by chance, so that the distribution stays; here random numbers belong to positions, so the very tokens stay. A pass over
several tokens rounds sums in another order than single ones, which can decide a tie.)

Proposers: a smaller model with the same vocabulary, or the text itself (prompt lookup, Saxena 2023): what followed the
last tokens where they occurred before.
"""

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.decoding.engines.engine import Reading
from kinfolk.decoding.engines.torch_engine import TorchEngine
from kinfolk.decoding.engines.weight_layout import for_decoding
from kinfolk.layers.states.rows import StateRows
from kinfolk.models.model import State, Transformer
from kinfolk.runs.run import Run


class Proposer(Protocol):
    """Guesses how a text goes on."""

    def propose(self, tokens: list[int], n: int) -> list[int]:
        """Return up to `n` tokens that may follow."""


class PromptLookup:
    """Guesses what followed the last `longest` tokens, or fewer, where they occurred last. Cost: one search."""

    def __init__(self, longest: int = 3) -> None:
        self.longest = longest

    def propose(self, tokens: list[int], n: int) -> list[int]:
        """Return the continuation of the latest earlier occurrence of the longest suffix that has one."""
        for size in range(min(self.longest, len(tokens) - 1), 0, -1):
            suffix = tokens[-size:]
            for at in range(len(tokens) - size - 1, -1, -1):
                if tokens[at : at + size] == suffix:
                    return tokens[at + size : at + size + n]
        return []


class DraftModel:
    """Guesses greedily with a smaller model, which keeps a KV cache of its own."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.read = model.eval(), list[int]()
        self.state: State | None = None
        self.room = 0

    def propose(self, tokens: list[int], n: int) -> list[int]:
        """Read what is new of the text, from the first token that differs on, and write `n` more."""
        limit = self.model.limit
        n = n if limit is None else min(n, limit - len(tokens))
        if n <= 0:
            return []
        start = self._rewound(tokens, len(tokens) + n)
        new, guesses = tokens[start:], list[int]()
        while True:
            hidden_BLD = self.model.run(_batch(new), self.state).hidden
            self.read += new
            guesses.append(int(self.model.head.logits(hidden_BLD[:, -1]).argmax()))
            if len(guesses) == n:
                return guesses
            new = guesses[-1:]

    def _rewound(self, tokens: list[int], need: int) -> int:
        """Return how many of the tokens are in the cache; at least the last one is read again, for its logits."""
        most = min(len(self.read), len(tokens) - 1)
        same = next((i for i in range(most) if self.read[i] != tokens[i]), most)
        if self.state is None or need > self.room:
            same, self.room = 0, max(need, 2 * self.room)
            if self.model.limit is not None:
                self.room = min(self.room, self.model.limit)
            self.state = self.model.new_state(1, self.room)
        self.state.rewind(same)
        self.read = self.read[:same]
        return same


@dataclasses.dataclass
class Speculated:
    """The state of a model that has read ahead of the text."""

    state: State
    rows: list[list[int]]  # every token read, or about to be
    room: int
    guesses: list[int] = dataclasses.field(default_factory=list)
    logits_nV: Tensor | None = None  # after each guess


class SpeculativeEngine(TorchEngine):
    """Runs a model that reads `ahead` guesses at once. With several sequences in a batch it does not guess."""

    def __init__(self, model: Transformer, proposer: Proposer, ahead: int = 4) -> None:
        super().__init__(model)
        if self.pairs:
            raise SpecError("speculative decoding: an encoder-decoder is not supported; its target is short")
        self.proposer, self.ahead = proposer, ahead
        self.passes = 0
        """Passes of the model so far, prompts included: what speculation saves."""

    def read(self, prompts: list[list[int]], sources: list[list[int]] | None, need: int, chunk: int) -> Reading:
        """Prefill."""
        state, logits_BV, scores = yield from super().read(prompts, sources, need, chunk)
        fixed = [name for name, part in state.parts.items() if not (isinstance(part, StateRows) and part.rewinds)]
        if fixed:
            kind = type(state.parts[fixed[0]]).__name__
            raise SpecError(
                f"speculative decoding: layer {fixed[0]} keeps a {kind}, which cannot go back to an earlier position; "
                "it needs a KV cache of all positions"
            )
        self.passes += 1
        return Speculated(state, [list(row) for row in prompts], need), logits_BV, scores

    def join(self, state: Any, n: int, other: Any, n_other: int) -> Any:
        """Append rows."""
        _forget(state)
        _forget(other)
        joined = super().join(state.state, n, other.state, n_other)
        return Speculated(joined, state.rows + other.rows, min(state.room, other.room))

    def select(self, state: Any, rows_B: Tensor) -> Any:
        """Copy rows."""
        _forget(state)
        chosen = super().select(state.state, rows_B)
        return Speculated(chosen, [list(state.rows[i]) for i in rows_B.tolist()], state.room)

    def advance(self, state: Any, tokens_B: Tensor) -> Tensor:
        """Append a token to every row: from the pass before, if it was guessed, else by a pass with new guesses."""
        for row, token in zip(state.rows, tokens_B.tolist(), strict=True):
            row.append(token)
        if len(state.rows) > 1:
            self.passes += 1
            return super().advance(state.state, tokens_B)
        (row,) = state.rows
        if state.guesses and state.guesses[0] == row[-1]:
            logits_1V, state.guesses, state.logits_nV = state.logits_nV[:1], state.guesses[1:], state.logits_nV[1:]
            return logits_1V
        state.state.rewind(len(row) - 1)
        guesses = self.proposer.propose(row, min(self.ahead, state.room - len(row)))
        self.passes += 1
        hidden_BLD = self.model.run(_batch([row[-1], *guesses], self.device), state.state).hidden
        logits_nV = self.model.head.logits(hidden_BLD)[0]
        state.guesses, state.logits_nV = guesses, logits_nV[1:]
        return logits_nV[:1]


def speculative(model: Transformer, draft: str, ahead: int = 4) -> SpeculativeEngine:
    """Return the engine of a model with the draft of a run, or with that of the text where `draft` is "lookup"."""
    if ahead < 1:
        raise SpecError(f"ahead must be at least 1, got {ahead}")
    if draft == "lookup":
        return SpeculativeEngine(model, PromptLookup(), ahead)
    small = for_decoding(Run.open(draft).model())
    if (theirs := small.spec.vocab_size) != (own := model.spec.vocab_size):
        raise SpecError(f"draft {draft}: it has {theirs:,} tokens, the model {own:,}; both need one tokenizer")
    return SpeculativeEngine(model, DraftModel(small), ahead)


def _batch(tokens: list[int], device: torch.device | None = None) -> Batch:
    tokens_1L = torch.tensor([tokens], device=device)
    return Batch(index=tokens_1L[:, 0], tokens=tokens_1L)


def _forget(state: Speculated) -> None:
    """Go back to the true text."""
    if state.guesses:
        state.state.rewind(len(state.rows[0]))
        state.guesses, state.logits_nV = [], None
