"""Continuous batching: the one decoding loop. Sequences join the batch after prefill and leave it when finished.

Each step generates one token of every sequence. Random numbers depend on a sequence's own seed, number and step, so a
sequence gets the tokens it would get alone. `generate`, beam search, the server and evaluation are callers; an engine
(`kinfolk.decoding.engines`) runs the model.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from kinfolk.core.device import host, remember, send
from kinfolk.core.errors import ShapeError
from kinfolk.decoding.constraints import constrain
from kinfolk.decoding.detokenize import Text
from kinfolk.decoding.engines.engine import Engine
from kinfolk.decoding.padding import padded
from kinfolk.decoding.sampling import choose
from kinfolk.decoding.sequence import RunningSequence, ScoredToken

P = ParamSpec("P")
T = TypeVar("T")
Group = tuple[Tensor, list[RunningSequence]]
"""Sequences whose tokens are chosen by one call, and their rows in the batch."""


def _ungraded(method: Callable[P, T]) -> Callable[P, T]:
    """Do as `torch.no_grad`, at no cost where gradients are off already, as in `torch.inference_mode`."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_grad_enabled():
            return method(*args, **kwargs)
        with torch.no_grad():
            return method(*args, **kwargs)

    return run


class RunningBatch:
    """The sequences of one model that are being decoded, and their state.

    Nothing here is differentiated; callers on a hot path add `torch.inference_mode`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.sequences = engine, list[RunningSequence]()
        self.logits_BV: Tensor | None = None
        self._state: Any = None
        self._groups: list[Group] | None = None
        self._newest_B: Tensor | None = None

    def need(self, sequence: RunningSequence) -> int:
        """Return how many positions a sequence needs; its last token is not read again."""
        return len(sequence.prefix(self.engine.pairs)) + max(0, sequence.max_new - 1)

    def check(self, sequences: Sequence[RunningSequence]) -> int:
        """Refuse sequences that do not fit the model, and return how many positions the longest needs."""
        need, limit = max(map(self.need, sequences)), self.engine.limit
        if limit is not None and need > limit:
            raise ShapeError(f"prompt and new tokens need {need} positions, the model has {limit}: lower max_new")
        return need

    def start(self, sequences: Sequence[RunningSequence]) -> None:
        """Prefill: read the prompts of new sequences, which join the batch if they have tokens to generate."""
        for _ in self.coming(sequences, max(1, *(len(one.prompt) for one in sequences))):
            raise AssertionError("one chunk is all of it")

    @torch.no_grad()
    def coming(self, sequences: Sequence[RunningSequence], chunk: int) -> Iterator[None]:
        """Do as `start`, and pause after each chunk of a single long prompt."""
        need, pairs = self.check(sequences), self.engine.pairs
        prompts = [list(one.prefix(pairs)) for one in sequences]
        sources = [list(one.prompt) for one in sequences] if pairs else None
        state, logits_BV, scores = yield from self.engine.read(prompts, sources, need, chunk)
        for i, sequence in enumerate(sequences):
            if sequence.scores_prompt:
                sequence.read = _read(sequence, scores(i))
        going = [i for i, sequence in enumerate(sequences) if sequence.max_new > 0]
        if 0 < len(going) < len(sequences):
            rows_B = _rows(going, logits_BV)
            state, logits_BV = self.engine.select(state, rows_B), logits_BV[rows_B]
        if going:
            self._join([sequences[i] for i in going], state, logits_BV)

    @_ungraded
    def step(self) -> list[ScoredToken]:
        """Choose the next token of every sequence; return the tokens in their order."""
        assert self.logits_BV is not None
        tokens_B = self._tokens(self.logits_BV)
        # the one wait for the device: all else is decided on the host
        ids = tokens_B.tolist()
        for sequence, token in zip(self.sequences, ids, strict=True):
            sequence.written.append(token)
        self._newest_B = tokens_B if tokens_B.device.type == "cpu" else remember(tokens_B, torch.tensor(ids))
        return [
            ScoredToken(token) if sequence.n_top < 0 else _scored(self.logits_BV[i, None], [token], sequence.n_top)[0]
            for i, (sequence, token) in enumerate(zip(self.sequences, ids, strict=True))
        ]

    @_ungraded
    def go_on(self, staying: Sequence[RunningSequence]) -> None:
        """Let all sequences leave but these, and read their newest tokens."""
        assert self._newest_B is not None
        tokens_B = self._newest_B
        if len(staying) < len(self.sequences):
            kept = set(staying)
            rows = [i for i, sequence in enumerate(self.sequences) if sequence in kept]
            if not rows:
                self.clear()
                return
            self.select(_rows(rows, tokens_B))
            tokens_B = send(torch.tensor([sequence.written[-1] for sequence in self.sequences]), tokens_B.device)
        self.advance(tokens_B)

    def select(self, rows_B: Tensor) -> None:
        """Make row i a copy of row `rows[i]`: leaving, repeating and reordering in one. Logits stay as they are."""
        self.sequences = [self.sequences[i] for i in host(rows_B).tolist()]
        self._state, self._groups = self.engine.select(self._state, rows_B), None

    def advance(self, tokens_B: Tensor) -> None:
        """Append a token to every row."""
        self.logits_BV = self.engine.advance(self._state, tokens_B)

    def clear(self) -> None:
        """Drop all sequences."""
        self.sequences, self._state, self.logits_BV, self._groups, self._newest_B = [], None, None, None, None

    def _join(self, sequences: list[RunningSequence], state: Any, logits_BV: Tensor) -> None:
        if self.logits_BV is None:
            self._state, self.logits_BV = state, logits_BV
        else:
            self._state = self.engine.join(self._state, len(self.sequences), state, len(sequences))
            self.logits_BV = torch.cat([self.logits_BV, logits_BV])
        self.sequences, self._groups = [*self.sequences, *sequences], None

    def _tokens(self, logits_BV: Tensor) -> Tensor:
        # who shares a call changes only when sequences join or leave
        if self._groups is None:
            members: dict[Any, list[int]] = {}
            for i, sequence in enumerate(self.sequences):
                members.setdefault(sequence.group(self.engine.pairs), []).append(i)
            self._groups = [(_rows(rows, logits_BV), [self.sequences[i] for i in rows]) for rows in members.values()]
        if len(self._groups) == 1:
            return self._chosen(logits_BV, self.sequences)
        tokens_B = torch.empty(len(logits_BV), dtype=torch.long, device=logits_BV.device)
        for rows_b, sequences in self._groups:
            tokens_B[rows_b] = self._chosen(logits_BV[rows_b], sequences)
        return tokens_B

    def _chosen(self, logits_bV: Tensor, sequences: list[RunningSequence]) -> Tensor:
        """Choose the tokens of sequences that share everything but their seeds."""
        how, seen_bL = sequences[0].how, None
        if any(one.presence or one.frequency for one in sequences):
            logits_bV = torch.stack([_weighed(*pair) for pair in zip(sequences, logits_bV, strict=True)])
        if how.constrains or how.repetition_penalty != 1.0:
            rows = [[*one.prefix(self.engine.pairs), *one.written] for one in sequences]
            seen_bL = padded(rows, logits_bV.device)
            logits_bV = constrain(logits_bV, len(sequences[0].written), sequences[0].max_new, rows, how)
        draws = [(one.how.seed, one.choice, len(one.written)) for one in sequences]
        return choose(logits_bV, how, seen_bL, draws)


def _rows(rows: Sequence[int], like: Tensor) -> Tensor:
    return send(torch.tensor(rows), like.device)


def _read(sequence: RunningSequence, scores: Iterator[Tensor]) -> list[ScoredToken]:
    """Score the tokens of a prompt, each by those before it; the first has none."""
    ids = list(sequence.prompt)
    tokens = [ScoredToken(ids[0])]
    for logits_LV in scores:
        at = len(tokens)
        tokens += _scored(logits_LV, ids[at : at + len(logits_LV)], sequence.n_top)
    return tokens


def _weighed(sequence: RunningSequence, logits_V: Tensor) -> Tensor:
    """Subtract the presence and frequency penalties of the tokens already generated."""
    if sequence.written and (sequence.presence or sequence.frequency):
        ids, times = torch.tensor(sequence.written, device=logits_V.device).unique(return_counts=True)
        logits_V = logits_V.index_add(0, ids, -(sequence.presence + sequence.frequency * times).to(logits_V))
    return logits_V


def _scored(logits_LV: Tensor, ids: list[int], n_top: int) -> list[ScoredToken]:
    log_p_LV = logits_LV.log_softmax(-1)
    own_L = log_p_LV[torch.arange(len(ids)), torch.tensor(ids, device=log_p_LV.device)].tolist()
    tops: list[Any] = [()] * len(ids)
    if n_top > 0:
        values, at = log_p_LV.topk(min(n_top, log_p_LV.shape[-1]))
        rows = zip(at.tolist(), values.tolist(), strict=True)
        tops = [tuple(zip(which, log_p, strict=True)) for which, log_p in rows]
    return [ScoredToken(*one) for one in zip(ids, own_L, tops, strict=True)]


@torch.inference_mode()
def write(batch: RunningBatch, sequences: Sequence[RunningSequence], texts: Sequence[Text], most: int) -> list[str]:
    """Decode all sequences, at most `most` at once, and return the text of each."""
    waiting, owner = list(range(len(sequences))), {one: i for i, one in enumerate(sequences)}
    written = [""] * len(sequences)
    while waiting or batch.sequences:
        free = most - len(batch.sequences)
        if waiting and free:
            batch.start([sequences[i] for i in waiting[:free]])
            waiting = waiting[free:]
        staying = []
        for sequence, scored in zip(batch.sequences, batch.step(), strict=True):
            i = owner[sequence]
            new, finish = texts[i].take(scored.token, sequence.finish)
            written[i] += new
            if finish is None:
                staying.append(sequence)
        batch.go_on(staying)
    return written
