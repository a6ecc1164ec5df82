"""Pruning steps: the heads, neurons, layers or weights that matter least on data are cut."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError, suggest
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.models.model import Transformer
from kinfolk.objectives.learner import Learner
from kinfolk.use.compress.exchanging import (
    Tell,
    lower_rank,
    lower_rank_blindly,
    narrow_table,
    prune_by,
    share_blocks,
    to_int8,
    to_plain_maps,
)
from kinfolk.use.compress.measure import loss_of
from kinfolk.use.compress.surgery import (
    STACKS,
    CutPlace,
    depth,
    keep_heads,
    keep_layers,
    keep_neurons,
    parts,
    rebuild,
    weights_of,
)
from kinfolk.use.inspect.removal import importance


@dataclasses.dataclass(frozen=True)
class CompressionStep:
    """What to do, and how much of it: a share, a number or a word, as the step has it."""

    name: str
    amount: float | int | str = ""

    def __str__(self) -> str:
        amount = f"{self.amount:g}" if isinstance(self.amount, float | int) else self.amount
        return f"{self.name}={amount}" if amount else self.name


def parse(text: str) -> list[CompressionStep]:
    """Read "heads=0.5,ff=0.25,recover=200,int8": steps in the order in which they are taken."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, amount = word.partition("=")
        if name not in STEPS:
            raise SpecError(f"step {word!r}: unknown {name!r}{suggest(name, STEPS)}")
        found.append(CompressionStep(name, STEPS[name].read(word, amount)))
    if not found:
        raise SpecError(f"steps {text!r}: expected some, such as heads=0.5,ff=0.25 (known: {', '.join(STEPS)})")
    return found


def _share(word: str, amount: str) -> float:
    try:
        share = float(amount)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise SpecError(f"step {word!r}: expected a share to cut from 0 to less than 1, such as 0.5")
    return share


def _count(word: str, amount: str) -> int:
    if not amount.isdigit() or not int(amount):
        raise SpecError(f"step {word!r}: expected a whole number from 1 on, such as 2")
    return int(amount)


def _word(*known: str) -> Callable[[str, str], str]:
    def read(word: str, amount: str) -> str:
        if amount not in ("", *known):
            raise SpecError(f"step {word!r}: unknown {amount!r}{suggest(amount, known)}")
        return amount

    return read


def take(step: CompressionStep, learner: Learner, batches: Sequence[Batch], tell: Tell) -> Transformer:
    """Return the model after a step; the learner is left as it was."""
    return STEPS[step.name].take(learner, batches, step.amount, tell)


def cut_heads(learner: Learner, batches: Sequence[Batch], share: float, tell: Tell) -> Transformer:
    """Cut the heads on which the loss leans least (Michel et al. 2019), over all layers; each keeps one at least.

    Importance is divided by its length over the heads of a layer, so that layers can be compared.
    """
    model = learner.model
    heads = {p: part for p, part in parts(model.spec) if type(part) in (Attention, CrossAttention)}
    if not heads:
        raise SpecError("heads: this model has no attention whose heads could be cut out")
    found = importance(learner, batches)
    scores = {p: found[p.path] / found[p.path].norm().clamp(min=1e-30) for p in heads}
    kept = _best(scores, share)
    spec, weights = model.spec, weights_of(model)
    for place in sorted(heads):
        spec, weights = keep_heads(spec, weights, place, kept[place])
    tell(f"heads: {sum(map(len, kept.values()))} of {sum(len(s) for s in scores.values())} are left")
    return rebuild(spec, weights)


def cut_neurons(learner: Learner, batches: Sequence[Batch], share: float, tell: Tell) -> Transformer:
    r"""Cut the neurons on which the loss leans least, the same share in every feed-forward.

    A gate on neuron f scales column f of the second map: its gradient is $\sum_d W_{df}\,\partial L/\partial W_{df}$.
    """
    model = learner.model
    wide = [p for p, part in parts(model.spec) if type(part) in (Dense, Gated)]
    if not wide:
        raise SpecError("ff: this model has no feed-forward whose neurons could be cut out")
    maps = {p: model.get_parameter(f"{p.path}.narrow.weight") for p in wide}
    scores = {p: torch.zeros_like(w[0]) for p, w in maps.items()}
    for batch in batches:
        loss = learner(batch)
        grads = torch.autograd.grad(loss.total / loss.count.clamp(min=1), list(maps.values()))
        for (place, weight), grad in zip(maps.items(), grads, strict=True):
            scores[place] += (weight.detach() * grad).sum(0).abs()
    spec, weights = model.spec, weights_of(model)
    left = 0
    for place, score in scores.items():
        kept = _top(score, max(1, round((1 - share) * len(score))))
        left += len(kept)
        spec, weights = keep_neurons(spec, weights, place, kept)
    tell(f"ff: {left} of {sum(len(s) for s in scores.values())} neurons are left")
    return rebuild(spec, weights)


def cut_layers(learner: Learner, batches: Sequence[Batch], share: float, tell: Tell) -> Transformer:
    """Cut layers one by one, each time the one without which the loss is lowest; each stack keeps one at least."""
    model = learner.model
    spec, weights = model.spec, weights_of(model)
    for stack in STACKS:
        if getattr(spec, stack) is None:
            continue
        n = len(depth(spec, stack).order)
        for _ in range(min(n - 1, round(share * n))):
            left = range(len(depth(spec, stack).order))
            tries = [keep_layers(spec, weights, stack, [m for m in left if m != out]) for out in left]
            losses = [loss_of(learner, rebuild(*tried), batches) for tried in tries]
            spec, weights = tries[losses.index(min(losses))]
        tell(f"layers: {len(depth(spec, stack).order)} of {n} of the {stack} are left")
    return rebuild(spec, weights)


def clear_weights(learner: Learner, batches: Sequence[Batch], share: float, tell: Tell) -> Transformer:
    """Set the smallest weights of all maps in the stacks to zero, one threshold for all (Han et al. 2015).

    Nothing gets smaller or faster by itself: zeros have to be stored and skipped by something else.
    """
    model = learner.model
    weights = weights_of(model)
    names = [
        n
        for n, w in weights.items()
        if n.split(".")[0] in STACKS and w.ndim == 2 and w.is_floating_point() and n.endswith("weight")
    ]
    if not names:
        raise SpecError("sparse: this model has no maps in its stacks")
    sizes = torch.cat([weights[n].abs().flatten() for n in names])
    n_cleared = round(share * len(sizes))
    cleared = torch.zeros(len(sizes), dtype=torch.bool)
    cleared[sizes.argsort(stable=True)[:n_cleared]] = True
    at = 0
    for name in names:
        size = weights[name].numel()
        weights[name] = weights[name].masked_fill(cleared[at : at + size].view_as(weights[name]), 0.0)
        at += size
    tell(f"sparse: {n_cleared:,} of {len(sizes):,} weights are zero")
    return rebuild(model.spec, weights)


def _recover(learner: Learner, batches: Sequence[Batch], steps: int, tell: Tell) -> Transformer:
    raise SpecError("recover: continues training and needs a run with its data; an imported checkpoint has none")


@dataclasses.dataclass(frozen=True)
class Kind:
    """How the amount of a step is read, and how it is taken."""

    read: Callable[[str, str], Any]
    take: Callable[..., Transformer]


STEPS: dict[str, Kind] = {
    "heads": Kind(_share, cut_heads),
    "ff": Kind(_share, cut_neurons),
    "layers": Kind(_share, cut_layers),
    "share": Kind(_count, share_blocks),
    "rank": Kind(_share, lower_rank),
    "svd": Kind(_share, lower_rank_blindly),
    "table": Kind(_share, narrow_table),
    "sparse": Kind(_share, clear_weights),
    "magnitude": Kind(_share, prune_by("magnitude")),
    "movement": Kind(_share, prune_by("movement")),
    "recover": Kind(_count, _recover),
    "int8": Kind(_word("all", "weights"), to_int8),
    "plain": Kind(_word(), to_plain_maps),
}


def _best(scores: dict[CutPlace, Tensor], share: float) -> dict[CutPlace, list[int]]:
    """Return the best of all by score, at least one from each place."""
    all_of = [(float(s), place, h) for place, score in scores.items() for h, s in enumerate(score)]
    spare = {place: len(score) - 1 for place, score in scores.items()}
    gone: set[tuple[CutPlace, int]] = set()
    wanted = round(share * len(all_of))
    for _, place, h in sorted(all_of):
        if len(gone) < wanted and spare[place]:
            gone.add((place, h))
            spare[place] -= 1
    return {place: [h for h in range(len(score)) if (place, h) not in gone] for place, score in scores.items()}


def _top(score: Tensor, n: int) -> list[int]:
    return score.argsort(descending=True, stable=True)[:n].tolist()
