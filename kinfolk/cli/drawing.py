"""`kin generate` of a run that makes pictures: PNG files instead of text."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.models.model import Transformer
    from kinfolk.objectives.image import Pictures


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that are about pictures."""
    group = parser.add_argument_group("images, of a run that generates them")
    group.add_argument("--samples", type=int, default=4, metavar="N", help="how many to make from nothing (default: 4)")
    group.add_argument("--images", type=Path, nargs="+", metavar="FILE", help="to be completed, or made large again")
    group.add_argument("--out", type=Path, metavar="DIR", help="where PNG files go (default: RUN/pictures)")


def draw(args: argparse.Namespace, model: "Transformer", objective: "Pictures", options: dict[str, Any]) -> int:
    """Make pictures and say where they are."""
    from kinfolk.core.errors import SpecError
    from kinfolk.data.files.image_files import write_png
    from kinfolk.decoding.pictures import make_pictures

    if args.prompt is not None or args.prompts is not None:
        raise SpecError("this run makes pictures: it takes --samples or --images, and no text")
    if args.samples < 1:
        raise SpecError(f"--samples: {args.samples} is not allowed; make at least one picture")
    given, names = None, [f"sample-{i + 1:03d}" for i in range(args.samples)]
    if args.images:
        given, names = _read(args.images, model, objective)
    made = make_pictures(model, objective, given=given, n=args.samples, **options).numpy()
    folder = args.out or args.what / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.png" for name in names]
    for file, picture in zip(files, made, strict=True):
        write_png(file, picture)
    print(json.dumps({"files": [str(file) for file in files]}) if args.json else "\n".join(map(str, files)))
    return 0


def _read(files: list[Path], model: "Transformer", objective: "Pictures") -> tuple[Any, list[str]]:
    """Read picture files at the size of the model's, and name what will be made of them."""
    import numpy as np
    import torch

    from kinfolk.core.errors import DataError
    from kinfolk.data.files.image_files import decode
    from kinfolk.decoding.pictures import n_values

    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: no such file")
    grid = objective.grid
    size = n_values(model, objective) // grid.width, grid.columns
    pictures = np.stack([decode(file, size, grid.channels) for file in files])
    # two files of one name in different folders keep apart
    stems = [file.stem for file in files]
    names = [f"{stem}-{i + 1}" if stems.count(stem) > 1 else stem for i, stem in enumerate(stems)]
    return torch.from_numpy(pictures), names
