"""Prefix language models: a decoder that reads its prompt in both directions (Liu et al. 2018; Raffel et al. 2020)."""

import torch
from torch import Tensor

from kinfolk.core.annotations import PrefixLength
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.nested import nested
from kinfolk.core.spec import Spec
from kinfolk.layers.part import Mixer


def refuse_one_way(topology: str, decoder: Spec | None) -> None:
    """Refuse a bidirectional prompt where a part of the model reads in one direction only."""
    if decoder is None or topology != "decoder":
        raise SpecError(f"prompt: only a decoder reads a prompt in both directions, this is an {topology}")
    for path, part in nested(decoder, "decoder"):
        if isinstance(part, Mixer) and not part.reads_prefix:
            raise SpecError(
                f"prompt: {path} is {part.kind!r}, which reads in one direction only; a bidirectional prompt "
                f"needs plain attention, without spans or talking heads"
            )


def last_seen(batch: Batch, prompt: str, begins: bool) -> Tensor | None:
    """Return the last key that each token may see: in a prefix all of it, behind it those up to itself.

    Training says how long prefixes are; while decoding, what is read first is the prefix. None: as patterns say.
    """
    prefix, n = batch.annotation(PrefixLength), batch.tokens.shape[1]
    if prefix is not None:
        prefix_B = prefix.length_B
    else:
        if prompt == "causal" or not begins:
            return None
        prefix_B = batch.tokens.new_full((len(batch),), n) if batch.keep is None else batch.keep.sum(1)
    own_L = torch.arange(n, device=batch.tokens.device)
    # the last index of a prefix is one less than its length
    return torch.maximum(own_L, prefix_B[:, None] - 1)
