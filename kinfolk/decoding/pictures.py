"""From a model of images to images: from nothing, from a small one, or from the upper part of one."""

from typing import Any

import torch
from torch import Tensor

from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.decoding.decode import generate
from kinfolk.models.model import Transformer
from kinfolk.objectives.image import ImageObjective

FIRST = 7
"""The id of value 0, after the specials."""


def n_values(model: Transformer, objective: ImageObjective) -> int:
    """Return how many values an image of this model has: whole rows of blocks, as many as it has positions for."""
    row = objective.grid.width * max(1, objective.grid.block_height)
    return model.spec.max_len // row * row


def make_pictures(
    model: Transformer, objective: ImageObjective, *, given: Tensor | None = None, n: int = 4, **options: Any
) -> Tensor:
    """Return images as values [N, H, W, C] from 0 to 255; `options` are the fields of `Decoding`.

    given: whole images as values [N, H, W, C]. A model that reads small or cut-off images gets them so; one that
        reads none goes on from the upper half of each. Without them, `n` images are made from nothing.
    """
    size, grid, start = n_values(model, objective), objective.grid, model.generation.start_id
    if given is None:
        if model.spec.topology == "encoder-decoder":
            raise SpecError(f"objective: {objective.kind!r} makes images from images, and none are given")
        prompts, target, whole = [[start]] * n, size, torch.zeros(n, size, dtype=torch.long)
    else:
        whole = _ids(given, size, objective)
        source, asked = objective.divide(whole)
        target = asked.shape[1]
        if source is None:
            # what is made first is given: the upper half, or the blocks over it
            half = target // 2 // (grid.width * max(1, grid.block_height)) * grid.width * max(1, grid.block_height)
            source = torch.nn.functional.pad(asked[:, grid.order(target)][:, :half], (1, 0), value=start)
        prompts = source.tolist()
    alone = model.spec.topology == "decoder"
    rows = generate(model, prompts, target - (len(prompts[0]) - 1 if alone else 0), **options)
    made = torch.tensor(rows)[:, 1:][:, grid.inverse(target)]
    # a special is no value; hardly any is ever drawn
    values = (objective.join(whole, made) - FIRST).clamp(0, 255)
    return values.unflatten(1, (-1, grid.columns, grid.channels)).to(torch.uint8)


def _ids(given: Tensor, size: int, objective: ImageObjective) -> Tensor:
    grid = objective.grid
    wanted = (size // grid.width, grid.columns, grid.channels)
    if tuple(given.shape[1:]) != wanted:
        raise ShapeError(f"images should have rows, columns and channels {wanted}, got {tuple(given.shape[1:])}")
    return given.flatten(1).long() + FIRST
