"""Best answer span of extractive question answering: argmax of start plus end scores."""

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.core.shapes import shaped


@shaped()
def best_span(begin_BL: Tensor, end_BL: Tensor, longest: int, threshold: float = 0.0) -> tuple[Tensor, Tensor]:
    r"""Return first and last position of the best span, [B, 2], and by how much it beats having no answer, [B].

    $\max_{1 \le i \le j < i + n} s_i + e_j$ against $s_0 + e_0$, which means no answer and is returned as (0, 0)
    where the best is not above it by more than `threshold` (Devlin et al. 2019, section 4.3). Cost: L * n additions.
    Reference: `kinfolk.ops.naive.answer_span`.
    """
    none_B = begin_BL[:, 0] + end_BL[:, 0]
    begin_BL, end_BL = begin_BL[:, 1:], end_BL[:, 1:]
    # a text of nothing but position 0 has no span, whatever the threshold
    if not begin_BL.shape[1]:
        return torch.zeros(len(none_B), 2, dtype=torch.long, device=none_B.device), torch.full_like(none_B, -torch.inf)
    n = min(longest, begin_BL.shape[1])
    # the ends that a beginning may have: itself and the n - 1 after it
    ends_BLn = F.pad(end_BL, (0, n - 1), value=-torch.inf).unfold(1, n, 1)
    reach_BL, length_BL = ends_BLn.max(-1)
    score_B, first_B = (begin_BL + reach_BL).max(-1)
    last_B = first_B + length_BL.gather(1, first_B[:, None])[:, 0]
    margin_B = score_B - none_B
    found_B = margin_B > threshold
    return torch.stack([1 + first_B, 1 + last_B], -1) * found_B[:, None], margin_B
