"""The schedule axis: the learning rate as a pure function of (step, total), so that resuming needs no state.

Steps count from 1, as in the papers: `scale(1, total)` is the multiplier of the first update and
`scale(total, total)` that of the last.
"""

import math
from typing import Annotated

from kinfolk.core.bounds import Bounds, Fraction, NonNegativeFloat, PositiveInt, Probability
from kinfolk.core.spec import Spec


class Schedule(Spec):
    """Axis: learning-rate schedules.

    warmup: how long the rate rises from 0: a number of steps, or below 1 a share of all steps.
    """

    warmup: NonNegativeFloat = 0.0

    def warmup_steps(self, total: int) -> float:
        """Return the length of the warm-up in steps."""
        return self.warmup * total if self.warmup < 1 else self.warmup

    def scale(self, step: int, total: int) -> float:
        """Return what the learning rate is multiplied by at this update: rise, then `decay`."""
        warmup = self.warmup_steps(total)
        if step <= warmup:
            return step / warmup
        return self.decay(_progress(step, total, warmup))

    def decay(self, progress: float) -> float:
        """Return the multiplier after the warm-up; `progress` is the share of the rest already done."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it decays")


class Constant(Schedule, kind="constant"):
    """Stay at the peak."""

    def decay(self, progress: float) -> float:
        return 1.0


class LinearDecay(Schedule, kind="linear"):
    """Fall in a straight line to `floor`, a share of the peak (BERT)."""

    floor: Probability = 0.0

    def decay(self, progress: float) -> float:
        """Return the height of the line."""
        return self.floor + (1 - self.floor) * (1 - progress)


class Cosine(Schedule, kind="cosine"):
    """Fall along half a cosine to `floor`, a share of the peak (Loshchilov and Hutter 2017, equation 5)."""

    floor: Probability = 0.1

    def decay(self, progress: float) -> float:
        """Return the height of the cosine."""
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


class Cooldown(Schedule, kind="cooldown"):
    """Stay at the peak, then fall in a straight line to `floor` over the last `share` of the steps after the warm-up.

    Where to stop can be decided late: everything before the fall is the same for any length.
    """

    share: Fraction = 0.2
    floor: Probability = 0.0

    def decay(self, progress: float) -> float:
        """Return 1, or the height of the line."""
        left = min((1 - progress) / self.share, 1.0)
        return self.floor + (1 - self.floor) * left


class SlantedTriangular(Schedule, kind="slanted-triangular"):
    """A short straight rise and a long straight fall to 1 / `ratio` of the peak (Howard and Ruder 2018, equation 3).

    `warmup` is the share of steps that rise; their `cut_frac`.
    """

    warmup: NonNegativeFloat = 0.1
    ratio: Annotated[float, Bounds(1)] = 32.0

    def scale(self, step: int, total: int) -> float:
        """Return the multiplier of this update."""
        cut, done = math.floor(self.warmup_steps(total)), step - 1
        share = done / cut if done < cut else 1 - (done - cut) / max(total - cut, 1)
        return (1 + max(share, 0.0) * (self.ratio - 1)) / self.ratio


class InverseSqrt(Schedule, kind="inverse-sqrt"):
    r"""The schedule of Vaswani et al. 2017, equation 3: $d^{-0.5} \min(s^{-0.5}, s\,w^{-1.5})$.

    It is the whole learning rate, so it goes with `lr = 1`. `d_model` is the width of the model.
    """

    warmup: NonNegativeFloat = 4000.0
    d_model: PositiveInt = 512

    def scale(self, step: int, total: int) -> float:
        """Return the multiplier of this update."""
        # a short run with a fractional warm-up may round to none: then the rate falls from the first step
        warmup = max(self.warmup_steps(total), 1.0)
        return float(self.d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


class FlatInverseSqrt(Schedule, kind="flat-inverse-sqrt"):
    r"""$1 / \sqrt{\max(s, w)}$ at step s, so no rise: flat for w steps of warm-up (Raffel et al. 2020, section 3.1.2).

    It is the whole learning rate, so it goes with `lr = 1`.
    """

    warmup: NonNegativeFloat = 10_000.0

    def scale(self, step: int, total: int) -> float:
        """Return the multiplier of this update."""
        return float(max(step, self.warmup_steps(total), 1.0) ** -0.5)


def _progress(step: int, total: int, warmup: float) -> float:
    """Return the share of the steps after the warm-up that lie behind this update, so the last one still moves."""
    rest = total - warmup
    return min(max((step - 1 - warmup) / rest, 0.0), 1.0) if rest > 0 else 1.0
