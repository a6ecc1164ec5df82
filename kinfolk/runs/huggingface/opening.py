"""Load the weights of a Hugging Face checkpoint into a model, all or nothing."""

import dataclasses
import fnmatch
from collections.abc import Iterable

import torch
from torch import Tensor

from kinfolk.core.errors import CheckpointError, suggest
from kinfolk.models.model import Transformer
from kinfolk.runs.huggingface.format import Architecture, Format
from kinfolk.runs.huggingface.places import PlacedRow, rows
from kinfolk.runs.huggingface.tensors import Tensors

SHOWN = 8


def fill(
    model: Transformer, form: Format, architecture: Architecture, tensors: Tensors, ignore: Iterable[str] = ()
) -> list[str]:
    """Give a model the tensors of a folder and return the names of those it has no use for.

    If any tensor is missing, unknown or misshapen, all of them are named and nothing is loaded.
    """
    at = {form.rename(name): name for name in tensors.shapes}
    bare = bool(form.prefix) and not any(name.startswith(form.prefix) for name in at)

    def here(name: str) -> str:
        return name.removeprefix(form.prefix) if bare else name

    own = model.state_dict()
    table = form.places(model.spec, architecture, form.prefix)
    plan = [PlacedRow(r.ours, r.place, tuple(map(here, r.theirs))) for r in rows(table, own)]
    ties = {here(theirs): ours for theirs, ours in {**form.tied_to(model.spec), **architecture.ties}.items()}
    unused = [here(p) for p in (*form.unused, *architecture.unused, *form.buffers)] + list(ignore)
    used = {name for row in plan for name in row.theirs}
    spare = sorted(name for name in at if name not in used and any(fnmatch.fnmatchcase(name, p) for p in unused))
    zero = [name for name in at if name not in used and any(fnmatch.fnmatchcase(name, here(p)) for p in form.zeros)]
    for name in zero:
        if bool(tensors.read(at[name]).any()):
            raise CheckpointError(
                f"{tensors.where[at[name]].path}: {name} is not zero, and what it does cannot be expressed"
            )
    problems = [f"missing {name}" for row in plan for name in row.theirs if name not in at]
    problems += _unknown(at.keys() - used - {*spare, *zero} - ties.keys(), used)
    dtype = _dtype(tensors, [at[name] for name in used if name in at])
    weights: dict[str, Tensor] = {}
    for row in plan:
        if all(name in at for name in row.theirs):
            problems += _take(row, TensorSource(tensors, at, dtype), own[row.ours].shape, weights)
            if row.ours in weights and not weights[row.ours].isfinite().all():
                problems.append(f"{', '.join(row.theirs)}: holds values that are NaN or infinite")
    if problems:
        rest = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckpointError(f"{tensors.folder} does not fit its config.json: {'; '.join(problems[:SHOWN])}{rest}")
    for theirs, ours in ties.items():
        if theirs in at and not torch.equal(
            tensors.read(at[theirs]).to(dtype), weights[ours].view(tensors.shapes[at[theirs]])
        ):
            raise CheckpointError(
                f"{tensors.where[at[theirs]].path}: {theirs} is not the same as the tensor it is tied to "
                f"({', '.join(next(r.theirs for r in plan if r.ours == ours))}); an untied one cannot be expressed here"
            )
    model.load_state_dict(weights, assign=True)
    return [name for name in spare if not any(fnmatch.fnmatchcase(name, p) for p in form.buffers)]


def _unknown(names: Iterable[str], used: set[str]) -> list[str]:
    return [f"unknown {name}{suggest(name, used).partition(' (known')[0]}" for name in sorted(names)]


def _dtype(tensors: Tensors, names: list[str]) -> torch.dtype:
    """Return the widest type of a folder's weights; models are trained in float32 at least."""
    dtype = torch.float32
    for name in names:
        dtype = torch.promote_types(dtype, tensors.dtype(name))
    return dtype


@dataclasses.dataclass(frozen=True)
class TensorSource:
    """Tensors by their present names, as numbers of one type."""

    tensors: Tensors
    at: dict[str, str]
    dtype: torch.dtype

    def get(self, name: str, copies: bool) -> Tensor:
        """Return a tensor: mapped from its file where nothing has to be changed."""
        old = self.at[name]
        x = self.tensors.read(old) if copies or self.tensors.dtype(old) != self.dtype else self.tensors.view(old)
        return x.to(self.dtype)


def _take(row: PlacedRow, source: TensorSource, want: torch.Size, weights: dict[str, Tensor]) -> list[str]:
    """Read a parameter, or say why it cannot be it."""
    shapes = ", ".join(f"{name} {list(source.tensors.shapes[source.at[name]])}" for name in row.theirs)
    try:
        x = row.place.read(lambda name: source.get(name, row.place.copies), row.theirs, tuple(want)).to(source.dtype)
    except RuntimeError:
        return [f"{shapes} cannot become one of shape {list(want)}"]
    if x.shape != want:
        return [f"{shapes} becomes {list(x.shape)}, where config.json says {list(want)}"]
    weights[row.ours] = x
    return []
