"""Muon: momentum whose matrices are orthogonalised before they are added (Jordan et al. 2024), AdamW for the rest."""

import math
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, Rate
from kinfolk.optim.eager import SpecOptimiser, eager
from kinfolk.optim.groups import Groups
from kinfolk.optim.optimiser import Optimiser, embeddings_of, named_groups

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the quintic that Newton-Schulz iterates: steepest at 0, near 1 within half of it."""
HEADS = "Head", "HeadModule"
"""How classes of output layers end."""


@runtime_checkable
class Packed(Protocol):
    """A linear map that says how many maps its matrix packs, one under the other."""

    packs: int
    weight: Tensor


class Muon(Optimiser, kind="muon"):
    r"""$w \leftarrow w - \eta\,(0.2\sqrt{\max(n, m)}\,\mathrm{NS}(g + \mu B) + \lambda w)$, $B \leftarrow \mu B + g$.

    For the matrices of hidden layers; embeddings, output layers, norms, biases and everything that is no matrix move
    by AdamW with the same rate. The factor makes an update as large as one of AdamW (Liu et al. 2025,
    arXiv:2502.16982, equation 4), so that one rate fits both. Maps that are packed into one matrix (queries, keys and
    values) are orthogonalised apart. As `torch.optim.Muon`, but iterated in the precision of the weights instead of
    bfloat16, which few CPUs compute quickly.

    momentum: $\mu$. n_iterations: of Newton-Schulz. betas, eps: of AdamW.
    """

    lr: PositiveFloat = 1e-3
    momentum: Rate = 0.95
    n_iterations: PositiveInt = 5
    betas: tuple[Rate, Rate] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1

    def build(self, model: nn.Module, groups: Groups | None = None) -> torch.optim.Optimizer:
        """Make the optimiser of a model; its groups are divided into matrices of hidden layers and the rest."""
        ends = {id(p) for m in model.modules() if type(m).__name__.endswith(HEADS) for p in m.parameters()}
        ends |= embeddings_of(model)
        packs = {id(m.weight): m.packs for m in model.modules() if isinstance(m, Packed)}
        divided = []
        for group in named_groups(model, self.decay, self.weight_decay, groups):
            for hidden in (True, False):
                chosen = [i for i, p in enumerate(group["params"]) if (p.ndim == 2 and id(p) not in ends) is hidden]
                lists = {key: [group[key][i] for i in chosen] for key in ("params", "names", "places")}
                own = {"hidden": hidden, "packs": [packs.get(id(p), 1) for p in lists["params"]]}
                divided += [group | lists | own] if chosen else []
        return _Muon(divided, self)


@eager
class _Muon(SpecOptimiser):
    def update(self, group: dict[str, Any]) -> None:
        for p, packs in zip(group["params"], group["packs"], strict=True):
            if p.grad is not None:
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(self._muon(p, packs) if group["hidden"] else self._adam(p), alpha=-group["lr"])

    def _muon(self, p: Tensor, packs: int) -> Tensor:
        state, momentum = self.state[p], self.spec.momentum
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        mean = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
        update = p.grad.lerp(mean, momentum)  # type: ignore[union-attr]
        whole = [orthogonalised(part, self.spec.n_iterations) for part in update.chunk(packs)]
        return torch.cat([part * (0.2 * math.sqrt(max(part.shape))) for part in whole])

    def _adam(self, p: Tensor) -> Tensor:
        state, (beta_m, beta_v) = self.state[p], self.spec.betas
        if not state:
            state["step"], state["exp_avg"], state["exp_avg_sq"] = torch.tensor(0.0), *map(torch.zeros_like, (p, p))
        state["step"] += 1
        count = float(state["step"])
        mean = state["exp_avg"].lerp_(p.grad, 1 - beta_m)
        square = state["exp_avg_sq"].mul_(beta_v).addcmul_(p.grad, p.grad, value=1 - beta_v)
        return mean / (1 - beta_m**count) / ((square / (1 - beta_v**count)).sqrt() + self.spec.eps)


def orthogonalised(x: Tensor, n_iterations: int) -> Tensor:
    r"""Return a matrix with singular values near 1: $X \leftarrow aX + (bXX^\top + c(XX^\top)^2)X$, repeated."""
    a, b, c = COEFFICIENTS
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.mT
    # a Frobenius norm of 1 bounds the spectral norm, so that the iteration converges; clamped for a gradient of zeros
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(n_iterations):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT
