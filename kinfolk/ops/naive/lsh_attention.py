"""LSH attention, one pair at a time, from the definition: sets first, then a softmax per round."""

import math

import torch
from torch import Tensor

from kinfolk.ops.lsh_attention import EPS, Chunks, Looking, RecentKeys

Sets = list[list[int]]


def attend_hashed(
    q: Tensor,
    v: Tensor,
    buckets: Tensor,
    looking: Looking,
    keep: Tensor | None = None,
    group: Tensor | None = None,
) -> Tensor:
    """Shapes as in `ops.lsh`; -log N makes pairs that several rounds found count once (Kitaev et al. 2020, appendix A).

    A query that finds no other key attends to itself.
    """
    n_batch, n_heads, length, _ = q.shape
    examples = []
    for b in range(n_batch):
        real = [i for i in range(length) if keep is None or bool(keep[b, i])]
        documents: dict[int, list[int]] = {}
        for i in real:
            documents.setdefault(0 if group is None else int(group[b, i]), []).append(i)
        heads = []
        for h in range(n_heads):
            rounds = [
                _sets(buckets[b, h, r].tolist(), list(documents.values()), looking) for r in range(len(buckets[b, h]))
            ]
            heads.append(torch.stack([_row(i, q[b, h], v[b, h], rounds, looking) for i in range(length)]))
        examples.append(torch.stack(heads))
    return torch.stack(examples)


def _sets(bucket: list[int], documents: Sets, looking: Looking) -> Sets:
    """Return the attention mask of one round: lists of keys, empty for padding. No token sees itself."""
    seen: Sets = [[] for _ in bucket]
    for document in documents:
        order = sorted(document, key=lambda i: (bucket[i], i))
        for i in document:
            found = _recent(i, order, bucket, looking) if isinstance(looking.sight, RecentKeys) else []
            if isinstance(looking.sight, Chunks):
                found = _chunked(i, order, bucket, looking.sight)
            seen[i] = [j for j in found if j < i or (looking.direction == "both" and j != i)]
    return seen


def _recent(i: int, order: list[int], bucket: list[int], looking: Looking) -> list[int]:
    """The last `size` tokens before i in its bucket, and the next `size` after it."""
    mates = [j for j in order if bucket[j] == bucket[i]]
    at = mates.index(i)
    return mates[max(0, at - looking.sight.size) : at + looking.sight.size + 1]


def _chunked(i: int, order: list[int], bucket: list[int], sight: Chunks) -> list[int]:
    """Those in the chunk of i and in the one before it; the first is preceded by the last."""
    chunks = [order[first : first + sight.size] for first in range(0, len(order), sight.size)]
    mine = next(c for c, chunk in enumerate(chunks) if i in chunk)
    found = chunks[mine] + (chunks[mine - 1] if len(chunks) > 1 else [])
    return [j for j in found if sight.within == "chunk" or bucket[j] == bucket[i]]


def _row(i: int, q: Tensor, v: Tensor, rounds: list[Sets], looking: Looking) -> Tensor:
    """t = s - log N inside each round's set; rounds are joined by the logarithms of their sums."""
    norms, outs = [], []
    for seen in rounds:
        if not seen[i]:
            continue
        scores = []
        for j in seen[i]:
            key = q[j] / torch.sqrt((q[j] ** 2).mean() + EPS) / math.sqrt(len(q[j]))
            times = sum(j in other[i] for other in rounds)
            scores.append(looking.scale * (q[i] * key).sum() - (math.log(times) if looking.repeats == "once" else 0.0))
        t = torch.stack(scores)
        norms.append(t.logsumexp(0))
        outs.append(sum((w * v[j] for w, j in zip(t.softmax(0), seen[i], strict=True)), torch.zeros_like(v[i])))
    if not norms:
        return v[i]
    z = torch.stack(norms)
    return sum((w * o for w, o in zip((z - z.logsumexp(0)).exp(), outs, strict=True)), torch.zeros_like(v[i]))
