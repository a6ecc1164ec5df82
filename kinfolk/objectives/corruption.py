"""Corruption for denoising pre-training: base of objectives that hide a part of a text from the encoder."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.rng import Rng
from kinfolk.objectives.objective import LATER, Objective, Vocabulary, real_rows, texts
from kinfolk.objectives.sequence import SequenceToSequence

Row = NDArray[Any]


class Halves(NamedTuple):
    """What becomes of one text: what an encoder reads and what a decoder is asked for.

    `before` is what the decoder reads before it is asked for the first token, None the opening one, and `first` is
    the position of that first token in the text.
    """

    source: Row
    target: Row
    before: int | None = None
    first: int = 0


class Corruption(Objective):
    """Axis: denoising objectives of T5. `divide` one text, by a random stream of (seed, example) and nothing else.

    Of pairs it makes one text, source, separator and target; but training on pairs predicts one side from the
    other (`on_pairs`), as a model pre-trained on text is tuned.
    """

    measured: ClassVar[str] = "denoised-token"
    whole: ClassVar[bool] = True  # a side may be as long as the text, so its end takes the place of the last token

    @property
    def targets(self) -> str:
        return LATER

    @property
    def needs_encoder(self) -> bool:
        return True

    def divide(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Halves:
        """Corrupt one text."""
        raise NotImplementedError

    def on_pairs(self) -> Objective:
        return SequenceToSequence()

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        divided = []
        for row, index in zip(real_rows(*texts(batch, vocabulary)), batch.index.tolist(), strict=True):
            row = row[:-1] if self.whole and len(row) > 1 else row
            divided.append(self.divide(row, rng.example(index, self.kind), vocabulary))
        source_BM, source_keep = padded([halves.source for halves in divided], vocabulary.pad)
        target_BL, target_keep = padded([halves.target for halves in divided], vocabulary.pad)
        before = [vocabulary.start if halves.before is None else halves.before for halves in divided]
        opening = torch.tensor(before, dtype=target_BL.dtype)[:, None]
        first_B1 = torch.tensor([halves.first for halves in divided])[:, None]
        return Batch(
            index=batch.index,
            source=source_BM,
            source_keep=source_keep,
            tokens=torch.cat([opening, target_BL[:, :-1]], 1),
            # the target is shifted by one, so what is read is real where what is predicted is
            keep=target_keep,
            targets=target_BL if target_keep is None else target_BL.masked_fill(~target_keep, IGNORE),
            positions=first_B1 + torch.arange(target_BL.shape[1]) if bool(first_B1.any()) else None,
        )


def padded(rows: list[Row], pad: int) -> tuple[Tensor, Tensor | None]:
    """Stack rows, padded on the right where they differ in length, and say which tokens are real; None: all."""
    lengths = np.array([len(row) for row in rows])
    longest = int(lengths.max())
    out = np.full((len(rows), longest), pad, dtype=np.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    keep = None if (lengths == longest).all() else torch.from_numpy(np.arange(longest) < lengths[:, None])
    return torch.from_numpy(out), keep


def ended(row: Row, vocabulary: Vocabulary) -> Row:
    """Return a row with its end."""
    return np.append(row, vocabulary.eos)


def ordinary_places(row: Row, vocabulary: Vocabulary) -> Row:
    """Return the positions of a row that may be corrupted: all but special ones."""
    return np.flatnonzero(~vocabulary.is_special[row])
