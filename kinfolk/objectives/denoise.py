"""Denoising pre-training: reconstruct a corrupted text (BART, Lewis et al. 2020), or what is missing from it.

Lewis et al. 2020, section 2.2; Raffel et al. 2020, section 3.3.
"""

from typing import ClassVar, Literal

import numpy as np
import torch

from kinfolk.core.annotations import PrefixLength
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import Inside
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.objectives.causal import CausalLM
from kinfolk.objectives.corruption import Corruption, Halves, Row, ended
from kinfolk.objectives.noise import Infilling, Masking, Noise, Permutation, Shuffling
from kinfolk.objectives.objective import Objective, Vocabulary
from kinfolk.objectives.span import SpanCorruption


class Denoising(Corruption, kind="denoising"):
    """The whole text from what `noise` has left of it, each in its turn; the default is what BART was trained with."""

    noise: tuple[Noise, ...] = (Permutation(), Infilling())

    def __post_init__(self) -> None:
        if not self.noise:
            raise SpecError("noise: without any the text is only copied; name at least one")

    def divide(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Halves:
        noisy = row
        for noise in self.noise:
            noisy = noise.apply(noisy, draw, vocabulary)
        # masks where nothing is missing could make it longer than what a model takes
        noisy = noisy[: len(row)]
        return Halves(ended(noisy, vocabulary), ended(row, vocabulary))


class DropTokens(Corruption, kind="drop-tokens"):
    """Lose each token with probability `share`; the target is what was lost, in order (Raffel et al. 2020)."""

    share: Inside = 0.15

    measured: ClassVar[str] = "lost-token"

    def divide(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Halves:
        lost = draw.random(len(row)) < self.share
        return Halves(ended(row[~lost], vocabulary), ended(row[lost], vocabulary))


class PrefixLM(Corruption, kind="prefix-lm"):
    """The rest of a text from its beginning, cut anywhere (Raffel et al. 2020; Liu et al. 2018).

    `rows`: "two" gives the beginning to an encoder and the rest to its decoder; "one" leaves both in the row of a
    decoder, which sees the beginning in both directions and is scored on the rest. Of a pair, the source is the
    beginning.
    """

    rows: Literal["one", "two"] = "two"

    measured: ClassVar[str] = "suffix-token"
    whole: ClassVar[bool] = False

    @property
    def needs_encoder(self) -> bool:
        return self.rows == "two"

    @property
    def reads_prefix(self) -> bool:
        return self.rows == "one"

    def on_topology(self, topology: str) -> Objective:
        return self.replace(rows="one" if topology == "decoder" else "two")

    def on_pairs(self) -> Objective:
        return super().on_pairs() if self.rows == "two" else self

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        if self.rows == "two":
            return super().prepare(batch, rng, vocabulary)
        read = CausalLM().prepare(batch, rng, vocabulary)
        assert read.targets is not None
        n_real_B = read.targets.new_full((len(read),), read.tokens.shape[1]) if read.keep is None else read.keep.sum(1)
        if batch.source is not None:
            # the separator is the last token before the first that is scored
            prefix_B = (read.targets != IGNORE).to(torch.uint8).argmax(1) + 1
            return read.annotate(PrefixLength(prefix_B))
        draws = [rng.example(index, self.kind) for index in batch.index.tolist()]
        cuts = [int(draw.integers(1, n)) if n > 1 else n for draw, n in zip(draws, n_real_B.tolist(), strict=True)]
        prefix_B = torch.tensor(cuts)
        # the last token of the prefix predicts the first one behind it
        in_prefix_BL = torch.arange(read.tokens.shape[1]) < prefix_B[:, None] - 1
        return read.replace(targets=read.targets.masked_fill(in_prefix_BL, IGNORE)).annotate(PrefixLength(prefix_B))

    def divide(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Halves:
        cut = int(draw.integers(1, len(row))) if len(row) > 1 else len(row)
        return Halves(ended(row[:cut], vocabulary), ended(row[cut:], vocabulary))


T5_TABLE: dict[str, Objective] = {
    "prefix-lm": PrefixLM(),
    "bert-style": Denoising(noise=(Masking(as_random=0.1),)),
    "deshuffling": Denoising(noise=(Shuffling(),)),
    "iid-mask": Denoising(noise=(Masking(),)),
    "replace-spans": SpanCorruption(noise="tokens"),
    "drop-tokens": DropTokens(),
    "random-spans": SpanCorruption(),
}
"""The objectives that T5's paper compares, by the names of its table 3, and the one that it settles on."""
