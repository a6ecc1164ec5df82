"""Longer segment memory at evaluation than in training (Dai et al. 2019, section 4.1)."""

from kinfolk.core.errors import SpecError
from kinfolk.core.nested import nested
from kinfolk.core.paths import set_path
from kinfolk.layers.mixers.segment_attention import SegmentAttention
from kinfolk.layers.mixers.two_stream import TwoStreamAttention
from kinfolk.models.model import Transformer, build_model
from kinfolk.ops.patterns.leaves import Local1D


def with_memory(model: Transformer, memory: int) -> Transformer:
    """Return a model with the same weights that remembers `memory` positions before each segment."""
    if memory < 0:
        raise SpecError(f"--memory: {memory} is not allowed; it is a number of positions")
    spec, places = model.spec, list[str]()
    for path, part in nested(spec):
        if isinstance(part, TwoStreamAttention):
            places.append(path)
        elif isinstance(part, SegmentAttention):
            places += [where for where, pattern in nested(part, path) if isinstance(pattern, Local1D)]
    if not places:
        raise SpecError(
            "--memory: no layer of this model carries a memory from segment to segment, as transformer-xl does"
        )
    for place in places:
        spec = set_path(spec, f"{place}.memory", memory)
    other = build_model(spec).to(next(model.parameters()))
    other.load_state_dict(model.state_dict())
    return other.train(model.training)
