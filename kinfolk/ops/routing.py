"""Expert routing: top-k choice, capacity and load-balancing loss (Switch, Fedus et al. 2021)."""

import torch
from torch import Tensor

from kinfolk.core.device import tally, wide
from kinfolk.core.shapes import shaped

FEWEST_SEATS = 4
"""An expert always takes as many tokens of a group (Mesh TensorFlow)."""


@shaped(out=("Lk", "Lk"))
def top_two(probs_LE: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two likeliest experts of each token and their shares of each other's sum (Lepikhin et al. 2020)."""
    gate_Lk, expert_Lk = probs_LE.topk(min(2, probs_LE.shape[1]), dim=-1)
    return expert_Lk, gate_Lk / (gate_Lk.sum(-1, keepdim=True) + 1e-9)


@shaped(out="BLk")
def take_seats(expert_BLk: Tensor, group_BL: Tensor | None, n_experts: int, share: float, first: str) -> Tensor:
    r"""Return the experts with none (`n_experts`) in the place of those that were full already.

    In a group of T tokens an expert has $\max(4, \min(T, \lfloor T\,s / E \rfloor))$ seats, s being the `share`.
    A group is an example, or one of its documents (`group_BL`, each in one piece): examples do not compete. Seats are
    given by `first`: "choice", all first choices before any second (Lepikhin et al. 2020, algorithm 1), or "position",
    all choices of a token before those of the next, so that none loses a seat to a later token. Without a choice it
    takes no seat and counts for no group. Reference: `kinfolk.ops.naive.routing`.
    """
    n_batch, length, k = expert_BLk.shape
    group_BL = _numbered(expert_BLk, group_BL)
    n_groups = n_batch * (1 if group_BL.shape[1] == 1 else length)
    group_BLk = group_BL[..., None].expand(n_batch, length, k)
    real_BL = expert_BLk[..., 0] < n_experts
    # the place of a choice among all, in the order in which seats are given
    turn = (0, 1, 2) if first == "position" else (2, 0, 1)
    expert, group = (x.permute(turn).flatten() for x in (expert_BLk, group_BLk))
    key = torch.where(expert < n_experts, group * n_experts + expert, n_groups * n_experts)
    order = key.argsort(stable=True)
    counts = tally(key, n_groups * n_experts + 1)
    rank = torch.empty_like(key)
    # the place among all sorted choices, less the place where those of the same expert and group begin
    rank[order] = torch.arange(len(key), device=key.device) - (counts.cumsum(0) - counts)[key[order]]
    # padding counts for no group: it is sent to one beyond the last
    sizes = tally(group_BL.expand(n_batch, length).masked_fill(~real_BL, n_groups).flatten(), n_groups + 1)
    # in the precision and the order of `most_seats`, which promises that there are no more
    seats = (wide(sizes) * share / n_experts).long().clamp(max=sizes).clamp(min=FEWEST_SEATS)
    seated = expert.masked_fill(rank >= seats[group], n_experts)
    if first == "position":
        return seated.view_as(expert_BLk)
    return seated.view(k, n_batch, length).permute(1, 2, 0)


def most_seats(n_tokens: int, n_experts: int, share: float) -> int:
    """Return how many seats an expert has in a group of up to n tokens; see `take_seats`."""
    return min(n_tokens, max(FEWEST_SEATS, int(n_tokens * share / n_experts)))


@shaped()
def imbalance(probs_LE: Tensor, expert_L: Tensor) -> Tensor:
    r"""Return $E \sum_e f_e P_e$: the share of tokens that chose e times its mean probability; 1 if all is even.

    Fedus et al. 2021, equation 4. The gradient flows through the probabilities. No tokens: 0.
    Reference: `kinfolk.ops.naive.routing`.
    """
    n_tokens, n_experts = probs_LE.shape
    counts_E = tally(expert_L, n_experts).to(probs_LE.dtype)
    # both factors are shares of the tokens
    return n_experts * (counts_E @ probs_LE.sum(0)) / max(1, n_tokens) ** 2


@shaped(out="LE")
def chance_of_choice(clean_LE: Tensor, noisy_LE: Tensor, std_LE: Tensor, k: int) -> Tensor:
    r"""Return the probability that each expert is among the k best if its own noise is drawn again.

    $\Phi\big((c_e - t_e) / s_e\big)$, $t_e$ the k-th largest noisy score of the others (Shazeer et al. 2017, equation
    9). With as many choices as experts: 1. Reference: `kinfolk.ops.naive.routing`.
    """
    if k >= clean_LE.shape[1]:
        return torch.ones_like(clean_LE)
    best_Lk = noisy_LE.topk(k + 1, dim=-1).values
    inside_L1, outside_L1 = best_Lk[:, k:], best_Lk[:, k - 1 : k]
    # one of the k best has k - 1 of them above itself, so the next one after them is its rival
    rival_LE = torch.where(noisy_LE > inside_L1, inside_L1, outside_L1)
    return torch.special.ndtr((clean_LE - rival_LE) / std_LE)


def unevenness(load_E: Tensor) -> Tensor:
    """Return the squared coefficient of variation, variance over squared mean."""
    # the 1e-10 of the released code: no tokens at all are even
    return load_E.var(correction=0) / (load_E.mean().square() + 1e-10)


def _numbered(expert_BLk: Tensor, group_BL: Tensor | None) -> Tensor:
    """Number groups through: [B, 1] if an example is one, else [B, L], at most L in each example."""
    n_batch, length = expert_BLk.shape[:2]
    first_B1 = torch.arange(n_batch, device=expert_BLk.device)[:, None]
    if group_BL is None:
        return first_B1
    starts_BL = torch.zeros_like(group_BL)
    starts_BL[:, 1:] = group_BL[:, 1:] != group_BL[:, :-1]
    return first_B1 * length + starts_BL.cumsum(1)
