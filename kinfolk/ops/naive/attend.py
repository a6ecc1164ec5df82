"""Attention under a pattern, one pair at a time, straight from the definition."""

import torch
from torch import Tensor

from kinfolk.ops.attention.scores import Scoring, View
from kinfolk.ops.patterns.leaves import Pattern


def attend(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, view: View | None = None, scoring: Scoring | None = None
) -> Tensor:
    """o_i = sum over j in S_i of softmax_j(s q_i . k_j + b_ij) v_j; 0 when S_i is empty. Shapes as in `ops.attend`."""
    view, scoring = view or View(), scoring or Scoring()
    scale = q.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    share = q.shape[1] // k.shape[1]
    examples = []
    for b in range(len(q)):
        heads = []
        for p, run in pattern.by_head(q.shape[1]):
            for h in range(run.start, run.stop):
                heads.append(_head(q[b, h], k[b, h // share], v[b, h // share], (p, view, scoring, b, h, scale)))
        examples.append(torch.stack(heads))
    return torch.stack(examples)


def _head(q: Tensor, k: Tensor, v: Tensor, where: tuple[Pattern, View, Scoring, int, int, float]) -> Tensor:
    pattern, view, scoring, b, h, scale = where
    rows = []
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if _sees(pattern, view, b, i, j)]
        if not seen:
            rows.append(torch.zeros_like(v[0]))
            continue
        scores = []
        for j in seen:
            score = (q[i] * k[j]).sum() * scale
            if scoring.before is not None:
                score = scoring.before(score)
            if scoring.bias is not None:
                i_pos, j_pos = torch.tensor([[_q_pos(view, b, i)]]), torch.tensor([[_k_pos(view, b, j)]])
                bias = scoring.bias(q[i][None, None, None], k[j][None, None, None], i_pos, j_pos, slice(h, h + 1))
                score = score + bias.reshape(())
            scores.append(score)
        if scoring.sink_H is not None:
            scores.append(scoring.sink_H[h])
        weights = torch.stack(scores).softmax(0)[: len(seen)]
        rows.append(sum((w * v[j] for w, j in zip(weights, seen, strict=True)), torch.zeros_like(v[0])))
    return torch.stack(rows)


def _sees(pattern: Pattern, view: View, b: int, i: int, j: int) -> bool:
    i_pos, j_pos = _q_pos(view, b, i), _k_pos(view, b, j)
    if j_pos < 0 or not bool(pattern.allows(torch.tensor(i_pos), torch.tensor(j_pos))):
        return False
    if view.keep_BM is not None and not bool(view.keep_BM[b, j]):
        return False
    if view.q_group_BL is not None and view.k_group_BM is not None and view.q_group_BL[b, i] != view.k_group_BM[b, j]:
        return False
    if view.until_BL is not None and j > int(view.until_BL[b, i]):
        return False
    return view.visible_BLM is None or bool(view.visible_BLM[b, i, j])


def _q_pos(view: View, b: int, i: int) -> int:
    return view.start + i if view.q_pos_BL is None else int(view.q_pos_BL[b, i])


def _k_pos(view: View, b: int, j: int) -> int:
    return j if view.k_pos_BM is None else int(view.k_pos_BM[b, j])
