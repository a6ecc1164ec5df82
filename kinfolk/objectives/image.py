"""Autoregressive image modelling: all pixels, super-resolution, or completion.

An image is read in raster order, with or without an opening token before it, and predicted in the order of the model's
grid (Parmar et al. 2018). Values have one byte, so bits per dimension are nats / ln 2.
"""

import math

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.bounds import Inside, PositiveInt
from kinfolk.core.device import wide
from kinfolk.core.errors import DataError, SpecError
from kinfolk.core.grid import Grid
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output
from kinfolk.objectives.objective import LATER, Objective, Vocabulary, summed, token_losses


class ImageObjective(Objective):
    """Axis: objectives over images: which values are given, which are predicted, and in which order.

    `grid` is that of the model's decoder: the order in which values are predicted.
    """

    grid: Grid

    @property
    def targets(self) -> str:
        return LATER

    @property
    def needs_encoder(self) -> bool:
        return True

    def divide(self, values_BL: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return what is given of images, if anything, and what is to be predicted, both in raster order."""
        raise NotImplementedError

    def join(self, values_BL: Tensor, predicted_BL: Tensor) -> Tensor:
        """Return whole images in raster order from whole or given ones and what was predicted of them."""
        return predicted_BL

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        source, target = self.divide(values_of(batch, vocabulary))
        target = target[:, self.grid.order(target.shape[1])]
        opening = torch.full_like(target[:, :1], vocabulary.bos)
        tokens = torch.cat([opening, target[:, :-1]], 1)
        return Batch(index=batch.index, tokens=tokens, source=source, targets=target)

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        losses, real = token_losses(output, batch)
        nats, count = summed(losses, real)
        return {"bits-per-dimension": (nats / math.log(2), count)} | self._further(losses, real)

    def _further(self, losses_BL: Tensor, real_BL: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {}


class PixelByPixel(ImageObjective, kind="pixel-by-pixel"):
    """Every value from those before it (Parmar et al. 2018, section 3)."""

    @property
    def needs_encoder(self) -> bool:
        return False

    def divide(self, values_BL: Tensor) -> tuple[Tensor | None, Tensor]:
        return None, values_BL

    def _further(self, losses_BL: Tensor, real_BL: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """In nats, as of any text; and of the lower half given the upper, where the order goes from top to bottom."""
        n = losses_BL.shape[1]
        found = {"next-token": summed(losses_BL, real_BL)}
        late_L = self.grid.order(n) >= n // 2
        if n > 1 and bool(late_L[n // 2 :].all()):
            found["continuation"] = summed(losses_BL, real_BL & late_L.to(real_BL.device))
        return found


class SuperResolution(ImageObjective, kind="super-resolution"):
    """An image from a small one, each pixel of which is the mean of `factor` x `factor` of its own (section 5.3)."""

    factor: PositiveInt = 4

    def __post_init__(self) -> None:
        if self.grid.columns % self.factor:
            raise SpecError(f"factor: {self.factor} does not divide the {self.grid.columns} columns of the image")

    def divide(self, values_BL: Tensor) -> tuple[Tensor | None, Tensor]:
        return shrunk(values_BL, self.grid, self.factor), values_BL


class Completion(ImageObjective, kind="completion"):
    """The lower part of an image from the upper one, which has `given` of its rows (section 5.1)."""

    given: Inside = 0.5

    def divide(self, values_BL: Tensor) -> tuple[Tensor | None, Tensor]:
        n = self.n_given(values_BL.shape[1])
        return values_BL[:, :n], values_BL[:, n:]

    def join(self, values_BL: Tensor, predicted_BL: Tensor) -> Tensor:
        return torch.cat([values_BL[:, : self.n_given(values_BL.shape[1])], predicted_BL], 1)

    def n_given(self, n: int) -> int:
        """Return how many of n values are given: whole rows of blocks, at least one and not all."""
        row = self.grid.width * max(1, self.grid.block_height)
        if n < 2 * row:
            raise DataError(f"{n} values cannot be divided: there are {row} in every row of blocks, and two are needed")
        return min(max(1, round(self.given * n / row)), n // row - 1) * row


def values_of(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """Return the values of images in raster order, without the token that may open them."""
    if batch.keep is not None and not bool(batch.keep.all()):
        raise DataError("images of one batch are of one size, and these are not")
    opened = bool((batch.tokens[:, 0] == vocabulary.bos).all())
    return batch.tokens[:, 1:] if opened else batch.tokens


def shrunk(values_BL: Tensor, grid: Grid, factor: int) -> Tensor:
    """Make images smaller: the mean of every square of `factor` pixels a side, rounded, channel by channel."""
    if values_BL.shape[1] % (grid.width * factor):
        raise DataError(
            f"{values_BL.shape[1]} values are no whole squares of {factor} x {factor} pixels: an image "
            f"{grid.columns} columns wide has a multiple of {grid.width * factor}"
        )
    tiles = values_BL.unflatten(1, (-1, factor, grid.columns // factor, factor, grid.channels))
    return wide(tiles).mean((2, 4)).round().to(values_BL.dtype).flatten(1)
