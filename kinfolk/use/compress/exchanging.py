"""Compression steps: low-rank factorisation, int8 quantization, shared layers, pruning in training."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.embedding import Factorised, Tokens
from kinfolk.layers.pruned import Pruned
from kinfolk.models.model import Model, Transformer
from kinfolk.objectives.learner import Learner
from kinfolk.use.compress.maps import factorise, make_prunable, make_whole, peeled, places, plain, rank_for, seconds_of
from kinfolk.use.compress.measure import loss_of
from kinfolk.use.compress.surgery import (
    STACKS,
    CutPlace,
    Weights,
    block_weights,
    depth,
    parts,
    rebuild,
    share_layers,
    weights_of,
)

Tell = Callable[[str], None]


def lower_rank(learner: Learner, batches: Sequence[Batch], share: float, tell: Tell) -> Transformer:
    """Make two thin maps of each, so that what comes out of it differs least on data; they have `share` less weights.

    Maps of which nothing would be saved stay. A share of 0 leaves all of them.
    """
    return _factorise(learner, share, tell, seconds_of(learner, batches) if share else {})


def lower_rank_blindly(learner: Learner, batches: Sequence[Batch], share: float, tell: Tell) -> Transformer:
    """Make two thin maps of each, nearest to its weights alone: a plain singular value decomposition."""
    return _factorise(learner, share, tell, None)


def _factorise(
    learner: Learner, share: float, tell: Tell, seconds: dict[CutPlace, dict[str, Tensor]] | None
) -> Transformer:
    model = learner.model
    spec, weights = model.spec, weights_of(model)
    before = after = 0
    for place, own in places(model).items():
        ranks = {name: rank_for(m.in_features, m.out_features, share) for name, m in own.items()} if share else {}
        before += sum(m.weight.numel() for m in own.values())
        after += sum(
            ranks[name] * (m.in_features + m.out_features) if name in ranks else m.weight.numel()
            for name, m in own.items()
        )
        if ranks:
            spec, weights = factorise(spec, weights, place, ranks, None if seconds is None else seconds[place])
    if not before:
        raise SpecError("rank: this model has no plain maps in its stacks")
    tell(f"rank: {after:,} of {before:,} weights of maps are left")
    return rebuild(spec, weights)


def narrow_table(learner: Learner, batches: Sequence[Batch], share: float, tell: Tell) -> Transformer:
    r"""Make a narrow table and a map of the table of tokens, as in ALBERT, with `share` less weights.

    What is lost is least over the tokens of data: the narrow space is that of the first right singular vectors of rows
    times the root of how often they occur, one more than was seen. A head that shares the table goes the same way back.
    """
    model = learner.model
    spec, weights = model.spec, weights_of(model)
    if type(spec.embedding) is not Tokens:
        raise SpecError(f"table: an embedding of kind {spec.embedding.kind!r} is not one table, so it stays")
    if not share:
        return rebuild(spec, weights)
    table_VD = weights.pop("embedding.table.weight")
    width = rank_for(table_VD.shape[1], table_VD.shape[0], share)
    counts_V = torch.ones(len(table_VD), dtype=torch.float64)
    for ids in (ids for batch in batches for ids in (batch.tokens, batch.source) if ids is not None):
        counts_V += torch.bincount(ids.flatten(), minlength=len(table_VD))
    wide = table_VD.double()
    right = torch.linalg.svd(wide * counts_V.sqrt()[:, None], full_matrices=False)[2][:width]
    weights["embedding.table.inner.weight"] = (wide @ right.mT).to(table_VD.dtype)
    weights["embedding.table.outer.weight"] = right.mT.contiguous().to(table_VD.dtype)
    old = {field.name: getattr(spec.embedding, field.name) for field in dataclasses.fields(spec.embedding)}
    tell(f"table: {width} wide instead of {table_VD.shape[1]}, for {len(table_VD):,} tokens")
    return rebuild(spec.replace(embedding=Factorised(**old, d_inner=width)), weights)


def to_int8(learner: Learner, batches: Sequence[Batch], word: str, tell: Tell) -> Transformer:
    """Quantize all maps in the stacks to int8; tables, norms, biases and the output layer stay as they are."""
    activations: Literal["int8", "float"] = "float" if word == "weights" else "int8"
    model = learner.model
    spec, weights, n = model.spec, weights_of(model), 0
    for place, own in places(model).items():
        spec, weights = make_whole(spec, weights, place, list(own), activations)
        n += len(own)
    if not n:
        raise SpecError("int8: this model has no plain maps in its stacks")
    tell(f"int8: {n} maps" + ("" if word == "weights" else " and their inputs"))
    return rebuild(spec, weights)


def to_plain_maps(learner: Learner, batches: Sequence[Batch], word: str, tell: Tell) -> Transformer:
    """Undo what was done to maps, keeping what they compute: an ordinary model of full size, to be exported."""
    tell("plain: every map is one matrix of floating point again")
    return plain(learner.model)


def share_blocks(learner: Learner, batches: Sequence[Batch], size: int, tell: Tell) -> Transformer:
    """Let every `size` layers in a row run one block, as in ALBERT (Lan et al. 2020, section 3.1).

    The block is that of the layer, or the mean of them all, with which the loss is lowest, group after group.
    """
    spec, weights = learner.model.spec, weights_of(learner.model)
    for stack in STACKS:
        if getattr(spec, stack) is None:
            continue
        n = len(depth(spec, stack).order)
        for start in range(0, n, size):
            runs = list(range(start, min(n, start + size)))
            if len({depth(spec, stack).order[i] for i in runs}) > 1:
                tried = _tries(spec, weights, stack, runs)
                losses = [loss_of(learner, rebuild(*one), batches) for one in tried]
                spec, weights = tried[losses.index(min(losses))]
        tell(f"share: {n} layers of the {stack} run {len(depth(spec, stack).blocks)} blocks")
    return rebuild(spec, weights)


def _tries(spec: Model, weights: Weights, stack: str, runs: Sequence[int]) -> list[tuple[Model, Weights]]:
    numbers = sorted({depth(spec, stack).order[i] for i in runs})
    tried = [share_layers(spec, weights, stack, runs, i) for i in numbers]
    each = [block_weights(weights, stack, i) for i in numbers]
    mean = {name: torch.stack([one[name].double() for one in each]).mean(0).to(x.dtype) for name, x in each[0].items()}
    return [*tried, share_layers(spec, weights, stack, runs, mean)]


def prune_by(
    method: Literal["movement", "magnitude"],
) -> Callable[[Learner, Sequence[Batch], float, Tell], Transformer]:
    """Return the step that lets maps lose weights as they learn."""

    def prune(learner: Learner, batches: Sequence[Batch], share: float, tell: Tell) -> Transformer:
        model = learner.model
        spec, weights = model.spec, weights_of(model)
        for place, own in places(model).items():
            spec, weights = make_prunable(spec, weights, place, list(own), share, method)
        if spec == model.spec:
            raise SpecError(f"{method}: this model has no plain maps in its stacks")
        tell(f"{method}: {100 * share:g} % of the weights of maps will be zero when it has learnt")
        return rebuild(spec, weights)

    return prune


def is_pruning(model: Transformer) -> bool:
    """Tell whether maps still wait to lose weights."""
    return any(isinstance(part, Pruned) for _, part in parts(model.spec))


def settled(model: Transformer) -> Transformer:
    """Return a model that has lost its weights: ordinary maps with zeros."""
    return rebuild(*peeled(model, Pruned)) if is_pruning(model) else model
