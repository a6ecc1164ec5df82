"""Target leakage: refuse models that see their targets or ignore their inputs, by topology and attention pattern.

An objective says where its targets are (`Objective.targets`); a model has its attention mask from its patterns and the
directions of its parts. Both are plain data, so the answer takes no weights and no time. The tests hold it to a probe:
change a target and see whether its own logit moves.
"""

from collections.abc import Iterator

from kinfolk.core.errors import SpecError
from kinfolk.core.nested import nested
from kinfolk.layers.mixers.two_stream import TwoStreamAttention
from kinfolk.layers.part import Mixer
from kinfolk.models.model import Model
from kinfolk.objectives.objective import AROUND, LATER, PERMUTED, Objective
from kinfolk.ops.patterns.both_ways import later_pair
from kinfolk.ops.patterns.leaves import Pattern


def refuse_leaks(model: Model, objective: Objective) -> None:
    """Raise a SpecError if an objective would score what this model can see, or what it never gets to see."""
    for part in objective.parts:
        if part.needs_encoder and model.topology != "encoder-decoder":
            raise SpecError(
                f"objective: {part.kind!r} gives a part of each example to an encoder, and a model of topology "
                f"{model.topology!r} would ignore it; use an encoder-decoder, or another objective "
                f"({'causal, prefix-lm' if model.topology == 'decoder' else 'masked'})"
            )
        if not part.needs_encoder and model.topology == "encoder-decoder":
            raise SpecError(
                f"objective: {part.kind!r} gives an encoder nothing to read, and this is an encoder-decoder"
            )
        reason = next(_reasons(model, part), None)
        if reason is not None:
            raise SpecError(f"{reason}, so a model trained by {part.kind!r} would see what it is asked for")


def _reasons(model: Model, objective: Objective) -> Iterator[str]:
    """Yield every way in which a target reaches its own prediction."""
    name, stack = ("encoder", model.encoder) if model.decoder is None else ("decoder", model.decoder)
    assert stack is not None
    for path, spec in nested(stack, f"model.{name}", whole=Pattern):
        # behind a prefix the batch itself bounds what a query sees, whatever the pattern
        if objective.targets == LATER and not objective.reads_prefix:
            yield from _ahead(spec, path, model)
        elif objective.targets == AROUND and isinstance(spec, Mixer):
            yield f"{path}: {spec.kind!r} shows a token its neighbours"
        elif objective.targets == PERMUTED and isinstance(spec, Mixer) and not isinstance(spec, TwoStreamAttention):
            yield f"{path}: {spec.kind!r} does not follow the order of a permutation; it takes two-stream-attention"


def _ahead(spec: object, path: str, model: Model) -> Iterator[str]:
    """Yield how a part sees later positions: by its pattern, its direction, or because it mixes all of them."""
    if isinstance(spec, Pattern):
        pair = later_pair(spec, model.max_len)
        if pair is not None:
            yield f"{path}: {spec.kind!r} lets position {pair[0]} see position {pair[1]}"
        return
    direction = getattr(spec, "direction", None)
    if direction in ("both", "future"):
        yield f"{path}.direction: {direction!r} lets a position see later ones"
    elif model.decoder is None and isinstance(spec, Mixer) and direction is None and not hasattr(spec, "pattern"):
        yield f"{path}: {spec.kind!r} lets a position see later ones in an encoder"
