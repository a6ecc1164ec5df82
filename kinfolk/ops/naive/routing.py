"""Expert capacity, load balance and routing probabilities, one token after the other."""

import math

import torch
from torch import Tensor


def top_two(probs: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest expert, the likeliest of the others, and their shares."""
    experts, gates = [], []
    for row in probs:
        order = sorted(range(len(row)), key=lambda e: -row[e].item())[:2]
        total = sum((row[e] for e in order), torch.zeros_like(row[0])) + 1e-9
        experts.append(order)
        gates.append(torch.stack([row[e] / total for e in order]))
    return torch.tensor(experts), torch.stack(gates)


def take_seats(expert: Tensor, group: Tensor | None, n_experts: int, share: float, first: str) -> Tensor:
    """Go through the choices in the order of seats and count."""
    n_batch, length, k = expert.shape
    out = expert.clone()
    taken: dict[tuple[tuple[int, int], int], int] = {}
    sizes: dict[tuple[int, int], int] = {}
    where = [[(b, 0 if group is None else int(group[b, t])) for t in range(length)] for b in range(n_batch)]
    for b in range(n_batch):
        for t in range(length):
            if expert[b, t, 0] < n_experts:
                sizes[where[b][t]] = sizes.get(where[b][t], 0) + 1
    turns = [(b, t, c) for b in range(n_batch) for t in range(length) for c in range(k)]
    if first == "choice":
        turns.sort(key=lambda turn: turn[2])
    for b, t, c in turns:
        e = int(expert[b, t, c])
        if e >= n_experts:
            continue
        size = sizes[where[b][t]]
        seats = max(4, min(size, math.floor(size * share / n_experts)))
        if taken.get((where[b][t], e), 0) >= seats:
            out[b, t, c] = n_experts
        else:
            taken[where[b][t], e] = taken.get((where[b][t], e), 0) + 1
    return out


def imbalance(probs: Tensor, expert: Tensor) -> Tensor:
    """E times the sum over experts of (share of tokens) x (mean probability)."""
    n, n_experts = probs.shape
    total = probs.sum() * 0.0
    for e in range(n_experts):
        chosen = sum(int(x) == e for x in expert)
        total = total + n_experts * (chosen / n) * (sum(probs[t, e] for t in range(n)) / n)
    return total


def chance_of_choice(clean: Tensor, noisy: Tensor, std: Tensor, k: int) -> Tensor:
    """P(clean + std z > the k-th largest of the others), z standard normal."""
    rows = []
    for t in range(len(clean)):
        row = []
        for e in range(clean.shape[1]):
            others = sorted((noisy[t, o] for o in range(clean.shape[1]) if o != e), key=lambda v: -v.item())
            if k > len(others):
                row.append(torch.ones_like(clean[t, e]))
                continue
            z = (clean[t, e] - others[k - 1]) / std[t, e]
            row.append(0.5 * (1 + torch.erf(z / math.sqrt(2))))
        rows.append(torch.stack(row))
    return torch.stack(rows)
