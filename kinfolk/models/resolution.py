"""Vision Transformers at another resolution: position embeddings interpolated bicubically."""

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.patches import Patches
from kinfolk.layers.positions.position import Learned
from kinfolk.models.model import Transformer, build_model

_POSITIONS = "embedding.position.table.weight"


def at_resolution(model: Transformer, height: int, width: int) -> Transformer:
    """Return a copy that reads images of another size (Dosovitskiy et al. 2021, section 3.2).

    Positions form a grid, which is stretched bicubically; that of the class token and all other weights stay.
    """
    spec = model.spec
    patches = spec.embedding
    if not isinstance(patches, Patches) or not isinstance(patches.position, Learned):
        raise SpecError("embedding: only learned positions of patches can be stretched to another resolution")
    changed = patches.replace(columns=width)
    new = build_model(spec.replace(embedding=changed, max_len=height * width * patches.channels))
    weights = dict(model.state_dict())
    across, across_new = (-(-columns // patches.patch) for columns in (patches.columns, width))
    weights[_POSITIONS] = stretched(weights[_POSITIONS], across, -(-height // patches.patch), across_new)
    new = new.to(weights[_POSITIONS])
    new.load_state_dict(weights)
    return new.train(model.training)


def stretched(table_ND: Tensor, across: int, rows: int, columns: int) -> Tensor:
    """Stretch a grid of vectors, `across` in each of its rows, to `rows` x `columns`; the first vector is left out."""
    first, grid = table_ND[:1], table_ND[1:].unflatten(0, (-1, across))
    if grid.shape[:2] == (rows, columns):
        return table_ND
    picture = grid.permute(2, 0, 1)[None]
    larger = F.interpolate(picture, (rows, columns), mode="bicubic", align_corners=False)
    return torch.cat([first, larger[0].permute(1, 2, 0).flatten(0, 1)])
