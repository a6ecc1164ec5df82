"""Beam search: keep the best few hypotheses instead of the best one."""

import dataclasses

import torch
from torch import Tensor

from kinfolk.core.device import send
from kinfolk.decoding.constraints import constrain
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.padding import padded
from kinfolk.decoding.running import RunningBatch
from kinfolk.decoding.sampling import penalise
from kinfolk.decoding.sequence import RunningSequence


@dataclasses.dataclass
class Hypotheses:
    """The finished hypotheses of one example, best first; `closed`: no more are taken."""

    how: Decoding
    done: list[tuple[float, list[int]]] = dataclasses.field(default_factory=list)
    closed: bool = False

    def add(self, log_probability: float, tokens: list[int]) -> None:
        """Keep a finished hypothesis if it is among the best."""
        if not self.closed:
            self.done.append((log_probability / length_penalty(len(tokens), self.how), tokens))
            self.done = sorted(self.done, key=lambda item: -item[0])[: self.how.beams]

    def settle(self, best_running: float, n: int, n_most: int) -> None:
        """Close if no running hypothesis of n tokens is expected to win, however `early_stopping` estimates that."""
        if len(self.done) < self.how.beams:
            return
        # a longer hypothesis has less probability and is divided by more
        longest = n_most if self.how.early_stopping == "never" and self.how.length_penalty > 0 else n
        bound = best_running / length_penalty(longest, self.how)
        self.closed |= self.how.early_stopping == "full" or self.done[-1][0] >= bound


def length_penalty(n: int, how: Decoding) -> float:
    """Return what the log-probability of n tokens is divided by: ((5 + n) / 6) ** alpha, or n ** alpha."""
    return float(((5 + n) / 6 if how.length_norm == "wu" else n) ** how.length_penalty)


def beam_search(batch: RunningBatch, sequences: list[RunningSequence], how: Decoding) -> list[list[int]]:
    """Return the best hypothesis of every sequence, its prompt included; each beam is a row of the batch."""
    prompts = [list(sequence.prefix(batch.engine.pairs)) for sequence in sequences]
    n_rows, n_beams, max_new = len(prompts), how.beams, sequences[0].max_new
    finished = [Hypotheses(how) for _ in prompts]
    batch.start(sequences)
    assert batch.logits_BV is not None
    device = batch.logits_BV.device
    batch.select(send(torch.arange(n_rows).repeat_interleave(n_beams), device))
    logits = batch.logits_BV.repeat_interleave(n_beams, dim=0)
    # only the first beam of a row counts at the start, or all would be the same
    scores = torch.full((n_rows, n_beams), -torch.inf, dtype=torch.float64)
    scores[:, 0] = 0.0
    tails: list[list[list[int]]] = [[[] for _ in range(n_beams)] for _ in prompts]
    for step in range(max_new):
        rows = [prompt + tail for prompt, beams in zip(prompts, tails, strict=True) for tail in beams]
        log_p = _log_probabilities(logits, step, max_new, rows, how).view(n_rows, n_beams, -1)
        parents, tokens, scores, tails = _advance(scores, log_p, tails, finished, step + 1 == max_new)
        for hypotheses, row_scores in zip(finished, scores, strict=True):
            hypotheses.settle(float(row_scores.max()), step + 1, max_new)
        if all(hypotheses.closed for hypotheses in finished) or step + 1 == max_new:
            break
        # beams are ranked on the host; the model reads on its device
        batch.select(send(parents, device))
        batch.advance(send(tokens, device))
        logits = batch.logits_BV
    return [prompt + one.done[0][1] for prompt, one in zip(prompts, finished, strict=True)]


def _log_probabilities(logits: Tensor, step: int, max_new: int, rows: list[list[int]], how: Decoding) -> Tensor:
    if how.repetition_penalty != 1.0:
        logits = penalise(logits, padded(rows, logits.device), how.repetition_penalty)
    # a forced token costs nothing, and what is suppressed leaves the others as they are
    # and they are read first: not every accelerator has float64
    return constrain(logits.cpu().double().log_softmax(-1), step, max_new, rows, how)


def _advance(
    scores: Tensor, log_p: Tensor, tails: list[list[list[int]]], finished: list[Hypotheses], ends: bool
) -> tuple[Tensor, Tensor, Tensor, list[list[list[int]]]]:
    """Extend every beam by every token; the best that stop leave, the best others stay; at the end, all leave."""
    n_rows, n_beams, n_tokens = log_p.shape
    stops = finished[0].how.stops
    # a stopping token frees its place, so look far enough for all places to be filled again
    n_look = min(n_beams * (1 + len(stops)), n_beams * n_tokens)
    best = (scores[..., None] + log_p).flatten(1).topk(n_look)
    parents, tokens = torch.zeros(n_rows, n_beams, dtype=torch.long), torch.zeros(n_rows, n_beams, dtype=torch.long)
    new_scores = torch.full((n_rows, n_beams), -torch.inf, dtype=torch.float64)
    new_tails = []
    for row in range(n_rows):
        kept: list[list[int]] = []
        for rank, (score, at) in enumerate(zip(best.values[row].tolist(), best.indices[row].tolist(), strict=True)):
            beam, token = divmod(at, n_tokens)
            if score == -torch.inf or len(kept) == n_beams:
                continue
            tail = [*tails[row][beam], token]
            if token in stops or ends:
                # one of a lower rank is only there to fill a place
                if rank < n_beams:
                    finished[row].add(score, tail)
                continue
            parents[row, len(kept)], tokens[row, len(kept)] = beam, token
            new_scores[row, len(kept)] = score
            kept.append(tail)
        new_tails.append(kept + [[]] * (n_beams - len(kept)))
    offset = torch.arange(n_rows)[:, None] * n_beams
    return (parents + offset).flatten(), tokens.flatten(), new_scores, new_tails
