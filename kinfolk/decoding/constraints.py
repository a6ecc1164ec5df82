"""Tokens that must or may not be written at a position: forced, suppressed, or the end of a repeated n-gram."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kinfolk.decoding.options import Decoding


def constrain(scores_BV: Tensor, step: int, n_new: int, rows: Sequence[Sequence[int]], how: Decoding) -> Tensor:
    """Return scores of the next token with -inf where a token is not allowed, and 0 for one that is forced.

    step: how many new tokens there are; n_new: how many there may be; rows: all tokens of each row so far.
    """
    if not how.constrains:
        return scores_BV
    ids, alone = how.ids, max(map(len, rows)) - step <= 1
    # a decoder that reads a prompt has its first tokens already
    forced_first = ids.forced_first_id if alone else None
    if forced_first is not None and step == 0:
        return _only(scores_BV, forced_first)
    if ids.forced_last_id is not None and step == n_new - 1:
        return _only(scores_BV, ids.forced_last_id)
    banned = list(ids.suppressed_ids)
    banned += ids.suppressed_first_ids if step == int(forced_first is not None) else ()
    scores_BV = _without(scores_BV, slice(None), banned)
    if how.no_repeat_ngram:
        for i, row in enumerate(rows):
            scores_BV = _without(scores_BV, i, repeating(row, how.no_repeat_ngram))
    return scores_BV


def repeating(row: Sequence[int], n: int) -> list[int]:
    """Return the tokens that would make the last n tokens of a row an n-gram that the row already has."""
    if len(row) + 1 < n:
        return []
    last = tuple(row[len(row) - n + 1 :])
    return [row[i + n - 1] for i in range(len(row) - n + 1) if tuple(row[i : i + n - 1]) == last]


def _only(scores_BV: Tensor, token: int) -> Tensor:
    only = torch.full_like(scores_BV, -torch.inf)
    only[:, token] = 0.0
    return only


def _without(scores_BV: Tensor, rows: int | slice, tokens: Sequence[int]) -> Tensor:
    if not tokens:
        return scores_BV
    scores_BV = scores_BV.clone()
    scores_BV[rows, torch.tensor(tokens, device=scores_BV.device)] = -torch.inf
    return scores_BV
