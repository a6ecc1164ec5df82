"""A model without weights of its own, to be given those of a file; and the filling of it, all or nothing."""

import fnmatch
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kinfolk.core.errors import CheckpointError, suggest
from kinfolk.exchange.format import Architecture, Format
from kinfolk.exchange.places import Row, rows
from kinfolk.exchange.tensors import Tensors
from kinfolk.models.model import Model, Transformer

SHOWN = 8


class _Undrawn(TorchFunctionMode):
    """Leaves memory untouched where weights would be drawn: pages nobody writes to cost nothing."""

    DRAWS = (Tensor.uniform_, Tensor.normal_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in self.DRAWS else func(*args, **(kwargs or {}))


def undrawn(spec: Model) -> Transformer:
    """Build a model whose parameters are still to come; what is computed (tables of sinusoids) is there."""
    with torch.random.fork_rng(devices=[]), _Undrawn():
        return Transformer(spec)


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
    plan = [Row(r.ours, r.place, tuple(map(here, r.theirs))) for r in rows(table, own)]
    ties = {here(theirs): ours for theirs, ours in {**form.tied_to(model.spec), **architecture.ties}.items()}
    unused = [here(p) for p in (*form.unused, *architecture.unused, *form.buffers)] + list(ignore)
    used = {name for row in plan for name in row.theirs}
    spare = sorted(name for name in at if name not in used and any(fnmatch.fnmatchcase(name, p) for p in unused))
    problems = _missing(plan, at.keys()) + _unknown(at.keys() - used - set(spare) - ties.keys(), used)
    problems += _misshapen(plan, {name: tensors.shapes[old] for name, old in at.items()}, own)
    if problems:
        rest = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckpointError(f"{tensors.folder} does not fit its config.json: {'; '.join(problems[:SHOWN])}{rest}")
    dtype = _dtype(tensors, [at[name] for name in used])
    found = {row.ours: _read(row, tensors, at, own[row.ours], dtype) for row in plan}
    for theirs, ours in ties.items():
        if theirs in at and not torch.equal(
            tensors.read(at[theirs]).to(dtype), found[ours].view(tensors.shapes[at[theirs]])
        ):
            raise CheckpointError(
                f"{tensors.where[at[theirs]].path}: {theirs} is not the same as the tensor it is tied to "
                f"({', '.join(next(r.theirs for r in plan if r.ours == ours))}); an untied one cannot be expressed here"
            )
    model.load_state_dict(found, assign=True)
    return [name for name in spare if not any(fnmatch.fnmatchcase(name, p) for p in form.buffers)]


def _missing(plan: list[Row], names: Iterable[str]) -> list[str]:
    known = set(names)
    return [f"missing {name}" for row in plan for name in row.theirs if name not in known]


def _unknown(names: Iterable[str], used: set[str]) -> list[str]:
    return [f"unknown {name}{suggest(name, used).partition(' (known')[0]}" for name in sorted(names)]


def _misshapen(plan: list[Row], shapes: dict[str, tuple[int, ...]], own: dict[str, Tensor]) -> list[str]:
    """Read every row from tensors that have a shape and no numbers."""
    problems = []
    for row in plan:
        if any(name not in shapes for name in row.theirs):
            continue
        given = ", ".join(f"{name} {list(shapes[name])}" for name in row.theirs)
        want = own[row.ours].shape
        try:
            found = row.place.read(lambda name: torch.empty(shapes[name], device="meta"), row.theirs, tuple(want))
        except RuntimeError:
            problems.append(f"{given}: cannot be joined into one of shape {list(want)}")
            continue
        if found.shape != want:
            problems.append(f"{given}: has shape {list(found.shape)}, where config.json says {list(want)}")
    return problems


def _dtype(tensors: Tensors, names: list[str]) -> torch.dtype:
    """Return the widest type of a folder's weights; models are trained in float32 at least."""
    dtype = torch.float32
    for name in names:
        dtype = torch.promote_types(dtype, tensors.dtype(name))
    return dtype


def _read(row: Row, tensors: Tensors, at: dict[str, str], own: Tensor, dtype: torch.dtype) -> Tensor:
    copies = row.place.copies or any(tensors.dtype(at[name]) != dtype for name in row.theirs)
    get = tensors.read if copies else tensors.view
    return row.place.read(lambda name: get(at[name]), row.theirs, tuple(own.shape)).to(dtype)
