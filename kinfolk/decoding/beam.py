"""Beam search: keep the best few hypotheses instead of the best one."""

import dataclasses

import torch
from torch import Tensor

from kinfolk.decoding.choose import penalise
from kinfolk.decoding.decode import Stepping
from kinfolk.decoding.options import Decoding


@dataclasses.dataclass
class Hypotheses:
    """The finished hypotheses of one example."""

    beams: int
    alpha: float
    done: list[tuple[float, list[int]]] = dataclasses.field(default_factory=list)

    def add(self, log_probability: float, tokens: list[int]) -> None:
        """Keep a finished hypothesis if it is among the best."""
        self.done.append((log_probability / length_penalty(len(tokens), self.alpha), tokens))
        self.done = sorted(self.done, key=lambda item: -item[0])[: self.beams]

    def settled(self, best_running: float, n_most: int) -> bool:
        """Tell whether no running hypothesis can still win, however long it grows."""
        if len(self.done) < self.beams:
            return False
        return self.done[-1][0] >= best_running / length_penalty(n_most, self.alpha)


def length_penalty(n: int, alpha: float) -> float:
    """Return ((5 + n) / 6) ** alpha (Wu et al. 2016, equation 14)."""
    return float(((5 + n) / 6) ** alpha)


def beam_search(steps: Stepping, max_new: int, how: Decoding) -> list[list[int]]:
    """Return the best hypothesis of every row, its prompt included."""
    prompts, n_rows, n_beams = [list(r) for r in steps.rows], len(steps.rows), how.beams
    found = [Hypotheses(n_beams, how.length_penalty) for _ in prompts]
    if max_new == 0:
        return prompts
    logits = steps.first()
    steps.select(torch.arange(n_rows).repeat_interleave(n_beams))
    logits = logits.repeat_interleave(n_beams, dim=0)
    # only the first beam of a row counts at the start, or all would be the same
    scores = torch.full((n_rows, n_beams), -torch.inf, dtype=torch.float64)
    scores[:, 0] = 0.0
    tails: list[list[list[int]]] = [[[] for _ in range(n_beams)] for _ in prompts]
    for step in range(max_new):
        log_p = _log_probabilities(logits, prompts, tails, how).view(n_rows, n_beams, -1)
        parents, tokens, scores, tails = _advance(scores, log_p, tails, found, how)
        settled = [f.settled(float(s.max()), max_new) for f, s in zip(found, scores, strict=True)]
        if all(settled) or step + 1 == max_new:
            break
        steps.select(parents)
        logits = steps.next(tokens)
    for hypotheses, row_scores, row_tails in zip(found, scores.tolist(), tails, strict=True):
        for score, tail in zip(row_scores, row_tails, strict=True):
            if score > -torch.inf and not (tail and tail[-1] in how.stop):
                hypotheses.add(score, tail)
    return [prompt + f.done[0][1] for prompt, f in zip(prompts, found, strict=True)]


def _log_probabilities(logits: Tensor, prompts: list[list[int]], tails: list[list[list[int]]], how: Decoding) -> Tensor:
    if how.repetition_penalty != 1.0:
        rows = [prompt + tail for prompt, beams in zip(prompts, tails, strict=True) for tail in beams]
        seen = torch.nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], batch_first=True, padding_value=-1)
        logits = penalise(logits, seen.to(logits.device), how.repetition_penalty)
    return logits.double().log_softmax(-1).cpu()


def _advance(
    scores: Tensor, log_p: Tensor, tails: list[list[list[int]]], found: list[Hypotheses], how: Decoding
) -> tuple[Tensor, Tensor, Tensor, list[list[list[int]]]]:
    """Extend every beam by every token; finished ones leave, the best of the others stay."""
    n_rows, n_beams, n_tokens = log_p.shape
    # a stopping token frees its place, so look far enough for all places to be filled again
    n_look = min(n_beams * (1 + len(how.stop)), n_beams * n_tokens)
    best = (scores[..., None] + log_p).flatten(1).topk(n_look)
    parents, tokens = torch.zeros(n_rows, n_beams, dtype=torch.long), torch.zeros(n_rows, n_beams, dtype=torch.long)
    new_scores = torch.full((n_rows, n_beams), -torch.inf, dtype=torch.float64)
    new_tails = []
    for row in range(n_rows):
        kept: list[list[int]] = []
        for score, at in zip(best.values[row].tolist(), best.indices[row].tolist(), strict=True):
            beam, token = divmod(at, n_tokens)
            if score == -torch.inf or len(kept) == n_beams:
                continue
            tail = [*tails[row][beam], token]
            if token in how.stop:
                found[row].add(score, tail)
                continue
            parents[row, len(kept)], tokens[row, len(kept)] = beam, token
            new_scores[row, len(kept)] = score
            kept.append(tail)
        new_tails.append(kept + [[]] * (n_beams - len(kept)))
    offset = torch.arange(n_rows)[:, None] * n_beams
    return (parents + offset).flatten(), tokens.flatten(), new_scores, new_tails
