"""Generate images as PNG files: from nothing, or from image files that are completed or enlarged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.core.errors import DataError, SpecError
from kinfolk.data.files.image_files import decode, write_png
from kinfolk.decoding.pictures import make_pictures, n_values
from kinfolk.models.model import Transformer
from kinfolk.objectives.image import ImageObjective
from kinfolk.runs.run import Run


def draw(run: str | Path | Run, out: Path, *, n: int = 4, images: Sequence[Path] = (), **options: Any) -> list[Path]:
    """Write `n` images that a run generates, or one for each of `images`, into a folder; return the files.

    options: greedy, temperature, top_k, top_p, seed (`Decoding`), and `model`, where it is open already.
    """
    run = Run.open(run)
    objective = run.recipe.objective
    if not isinstance(objective, ImageObjective):
        raise SpecError(f"{run.path}: objective {objective.kind!r} generates no images")
    if n < 1:
        raise SpecError(f"--samples: {n} is not allowed; generate at least one image")
    model = options.pop("model", None) or run.model()
    source, names = None, [f"sample-{i + 1:03d}" for i in range(n)]
    if images:
        source, names = _read(images, model, objective)
    pixels = make_pictures(model, objective, given=source, n=n, **options).numpy()
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"{name}.png" for name in names]
    for file, image in zip(files, pixels, strict=True):
        write_png(file, image)
    return files


def _read(files: Sequence[Path], model: Transformer, objective: ImageObjective) -> tuple[Tensor, list[str]]:
    """Read image files at the size of the model's, and name those that will be made of them."""
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: no such file")
    grid = objective.grid
    size = n_values(model, objective) // grid.width, grid.columns
    pixels = np.stack([decode(file, size, grid.channels) for file in files])
    # two files of one name in different folders keep apart
    stems = [file.stem for file in files]
    names = [f"{stem}-{i + 1}" if stems.count(stem) > 1 else stem for i, stem in enumerate(stems)]
    return torch.from_numpy(pixels), names
