"""Feature maps of kernel attention: positive vectors whose inner product is the weight of a query for a key.

A map divides the features of each vector by a factor of their own and returns its logarithm with them, so that no
exponential leaves its range. A query's factor cancels in its average; a key's comes back where keys meet.
"""

import dataclasses
import functools

import torch
from torch import Tensor

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.rng import derive
from kinfolk.core.shapes import shaped

ROWS = ("orthogonal", "independent")
"""How the directions of random features are drawn."""
RELU_FLOOR = 1e-3
"""What is added to a rectified feature, so that no key has the weight zero."""


class FeatureMap:
    """Feature map: vectors [..., K] to features [..., R] and the logarithm of their divisor, None where that is 1."""

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError

    def pull(self, x: Tensor, features: Tensor, d_features: Tensor) -> Tensor:
        """Return the gradient of the vectors from that of their features. May use `d_features` as scratch."""
        raise NotImplementedError

    def to(self, dtype: torch.dtype) -> "FeatureMap":
        """Return the map for vectors of another precision."""
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class Exponential(FeatureMap):
    r"""Random features $\exp(w_r \cdot x' - |x'|^2 / 2)$, $x' = x / K^{1/4}$ (Choromanski et al. 2021, lemma 1).

    For rows $w_r \sim N(0, I)$ the mean of $\phi(q) \cdot \phi(k) / R$ is $\exp(q \cdot k / \sqrt K)$. If the rows hold
    $-w_r$ with every $w_r$, it is the hyperbolic map of the same lemma.
    """

    w_RK: Tensor

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = x @ self._scaled.mT
        # the largest feature becomes 1, so that long vectors neither overflow nor vanish
        top = features.amax(-1, keepdim=True)
        # |x'|^2 / 2 with x' = x / K^(1/4)
        log = top[..., 0] - x.square().sum(-1) * (0.5 * self._width**-0.5)
        return features.sub_(top).exp_(), log

    def pull(self, x: Tensor, features: Tensor, d_features: Tensor) -> Tensor:
        # the gradient is that of the undivided features: the maximum is in them and in the logarithm, and cancels
        d_log = d_features.mul_(features)
        return (d_log @ self._scaled).addcmul_(x, d_log.sum(-1, keepdim=True), value=-(self._width**-0.5))

    def to(self, dtype: torch.dtype) -> "Exponential":
        return Exponential(self.w_RK.to(dtype))

    @property
    def _width(self) -> int:
        return self.w_RK.shape[1]

    @functools.cached_property
    def _scaled(self) -> Tensor:
        # the scale 1 / sqrt(K) of a product, as K^(-1/4) on either side
        return self.w_RK * self._width**-0.25


@dataclasses.dataclass(frozen=True, eq=False)
class Rectified(FeatureMap):
    r"""ReLU features $\max(0, w_r \cdot x) / \sqrt R + 0.001$: another kernel (Choromanski et al. 2021, sec. 2.2)."""

    w_RK: Tensor

    def __call__(self, x: Tensor) -> tuple[Tensor, None]:
        return (x @ self._scaled.mT).relu_().add_(RELU_FLOOR), None

    def pull(self, x: Tensor, features: Tensor, d_features: Tensor) -> Tensor:
        return d_features.mul_(features > RELU_FLOOR) @ self._scaled

    def to(self, dtype: torch.dtype) -> "Rectified":
        return Rectified(self.w_RK.to(dtype))

    @functools.cached_property
    def _scaled(self) -> Tensor:
        return self.w_RK * len(self.w_RK) ** -0.5


class Elu(FeatureMap):
    r"""ELU + 1: $\phi(x) = x + 1$ above zero, $e^x$ below (Katharopoulos et al. 2020, equation 7)."""

    def __call__(self, x: Tensor) -> tuple[Tensor, None]:
        # by the two halves: elu(x) + 1 would round e^x away against 1
        return x.clamp(max=0).exp_().add_(x.clamp(min=0)), None

    def pull(self, x: Tensor, features: Tensor, d_features: Tensor) -> Tensor:
        # below zero e^x is its own slope; above, the slope is 1 and the feature larger
        return d_features.mul_(features.clamp(max=1))


@shaped(out="RK")
def draw(n_features: int, width: int, rows: str, seed: int, count: int = 0) -> Tensor:
    r"""Draw the directions of random features in float64: a pure function of its arguments.

    "independent": rows from $N(0, I)$. "orthogonal": within each block of `width` rows, directions are orthogonal and
    uniform (Haar), and lengths are those of independent Gaussian vectors, so each row alone is still $N(0, I)$
    (Choromanski et al. 2021, section 2.4). `count` numbers the draws of one seed.
    Reference: `kinfolk.ops.naive.feature_maps`.
    """
    if rows not in ROWS:
        raise SpecError(f"rows: unknown {rows!r}{suggest(rows, ROWS)}")
    generator = torch.Generator().manual_seed(derive(seed, "features", count))
    normal_RK = torch.randn(n_features, width, generator=generator, dtype=torch.float64)
    if rows == "independent":
        return normal_RK
    n_blocks = -(-n_features // width)
    blocks = torch.randn(n_blocks, width, width, generator=generator, dtype=torch.float64)
    directions_RK = haar(blocks).flatten(0, 1)[:n_features]
    return directions_RK * normal_RK.norm(dim=1, keepdim=True)


def haar(normal: Tensor) -> Tensor:
    """Turn Gaussian matrices [..., n, n] into uniformly distributed orthogonal ones, whose rows are the directions.

    LAPACK chooses the signs of Q by a convention of its own: orthogonal, but not uniform, and the kernel is then biased
    by a tenth and more. The factorisation whose R has a positive diagonal is the uniform one (Mezzadri 2007).
    """
    # columns of Q are multiplied by the signs of R's diagonal
    q, r = torch.linalg.qr(normal)
    return (q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT
