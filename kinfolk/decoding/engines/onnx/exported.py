"""An exported model in onnxruntime: prefill and decoding steps over ONNX graphs, with the KV cache in bound buffers.

Where the fused attention operator is used, the KV cache is bound once, as past and as present, so that a step takes a
token and gives logits, and nothing is copied.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import CheckpointError, ShapeError, SpecError
from kinfolk.decoding.engines.onnx.rows import DecodingRows, joined
from kinfolk.decoding.engines.onnx.session import Array, held, open_session, run
from kinfolk.runs.onnx_export import DECODER, ENCODER, MODEL, ExportRecord, Kept


class ExportedModel:
    """The ONNX graphs of one model in onnxruntime sessions. `threads` 0: one for each core."""

    def __init__(self, folder: str | Path, threads: int = 0) -> None:
        self.folder = Path(folder)
        self.about = ExportRecord.read(self.folder)
        self.generation = self.about.generation
        sessions = {name: self._open(name, threads) for name in self.about.files}
        self.encoder = sessions.get(ENCODER)
        self.main = sessions.get(DECODER) or sessions[MODEL]
        self.decodes = self.about.decodes

    def answer(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the states [B, L, D] of a whole batch, and what the head says of them."""
        if self.decodes:
            raise SpecError(f"{self.folder}: a decoder's graph says what follows; it has no answer about a whole text")
        self.fits(batch.tokens.shape[1])
        if batch.keep is None or self.about.padded:
            found = self._answer(batch.tokens, batch.keep, batch.segments)
            return found["hidden"], found["logits"]
        return self._by_length(batch)

    def scores(self, tokens_BL: Tensor) -> Tensor:
        """Return a decoder's scores at every position of texts of one length: [B, L, V]."""
        n = tokens_BL.shape[1]
        state = self.begin(len(tokens_BL), n)
        return torch.from_numpy(self.advance(state, tokens_BL.numpy(), np.arange(n)))

    def fits(self, n: int) -> None:
        """Refuse more positions than the graphs have, or others."""
        if self.about.length and n != self.about.length:
            raise ShapeError(f"{n} values are given, the exported model reads images of {self.about.length}")
        if self.about.limit is not None and n > self.about.limit:
            raise ShapeError(f"{n} positions are needed, the exported model has {self.about.limit}: lower max_new")

    def begin(self, n_rows: int, room: int) -> DecodingRows:
        """Return the state before the first token, with `room` for positions where it is set aside."""
        sizes = {"batch": n_rows, "past": room if self.about.fused else 0, "memory": 0}
        tensors = {kept.name: held(_filled(kept, sizes)) for kept in self.about.state}
        return DecodingRows(self.about, tensors, np.zeros(n_rows, np.int64), np.zeros((n_rows, 0), np.int64))

    def encode(self, sources: Sequence[Sequence[int]], room: int) -> DecodingRows:
        """Run the encoder on sources; return the state before the first token of their targets."""
        if self.about.padded:
            return self._encode(sources, room)
        return self._grouped(sources, lambda some: self._encode(some, room))

    def advance(self, state: DecodingRows, tokens_BL: Array, at_N: Array) -> Array:
        """Append tokens to every row and return the scores at some of them: [B, N, V]."""
        tokens_BL = np.ascontiguousarray(tokens_BL, np.int64)
        if self.about.single and tokens_BL.shape[1] > 1:
            zero = np.zeros(1, np.int64)
            each = [self.advance(state, token_B[:, None], zero) for token_B in tokens_BL.T]
            return np.concatenate(each, 1)[:, at_N]
        given: dict[str, Any] = {"tokens": tokens_BL, "start": state.start_B, "at": np.asarray(at_N, np.int64)}
        if self.about.fused:
            scores = self._in_place(state, given)
        else:
            given |= {"seen": state.seen_BP} | state.memory
            given |= {f"state.{name}": value for name, value in state.tensors.items()}
            found = run(self.main, given)
            scores = found["logits"].numpy()
            state.tensors |= {k.name: found[f"next.{k.name}"] for k in self.about.state if k.changes}
        state.advance(tokens_BL.shape[1])
        return np.asarray(scores)

    def prompt(self, rows: Sequence[Sequence[int]], room: int) -> tuple[DecodingRows, Array]:
        """Read prompts of any lengths; return the state after them and the scores that follow: [B, V]."""
        found: list[tuple[int, Array]] = []

        def read(some: Sequence[Sequence[int]]) -> DecodingRows:
            state, n = self.begin(len(some), room), len(some[0])
            found.append((n, self.advance(state, np.array(some), np.array([n - 1]))[:, 0]))
            return state

        state = self._grouped(rows, read)
        by_length = {n: iter(scores) for n, scores in found}
        return state, np.stack([next(by_length[len(row)]) for row in rows])

    def _open(self, name: str, threads: int) -> Any:
        if not (self.folder / name).is_file():
            raise CheckpointError(f"{self.folder}: {name} is missing")
        return open_session(self.folder / name, threads)

    def _in_place(self, state: DecodingRows, given: dict[str, Any]) -> Array:
        """Run on buffers that are past and present at once; a step like the last one finds all bound."""
        shape = (given["tokens"].shape, given["at"].shape)
        if state.bound is None or state.bound.shape != shape:
            state.bound = Bound(self.main, self.about, state, shape)
        return state.bound.run(given)

    def _encode(self, sources: Sequence[Sequence[int]], room: int) -> DecodingRows:
        assert self.encoder is not None
        n = max(map(len, sources))
        keep_BM = np.arange(n) < np.array([len(row) for row in sources])[:, None]
        source_BM = np.array([[*row, *[0] * (n - len(row))] for row in sources], np.int64)
        found = run(self.encoder, {"source": source_BM, "source_keep": keep_BM})
        state = self.begin(len(sources), room)
        state.memory = {name: value for name, value in found.items() if not name.startswith("state.")}
        state.tensors |= {k.name: found[f"state.{k.name}"] for k in self.about.state if k.begins}
        return state

    def _grouped(
        self, rows: Sequence[Sequence[int]], read: Callable[[Sequence[Sequence[int]]], DecodingRows]
    ) -> DecodingRows:
        """Read rows one length at a time, and put what is kept of them in their order."""
        lengths = sorted({len(row) for row in rows})
        order = [i for n in lengths for i, row in enumerate(rows) if len(row) == n]
        parts = [read([row for row in rows if len(row) == n]) for n in lengths]
        if len(parts) == 1:
            return parts[0]
        whole = joined(parts)
        whole.select(np.argsort(order))
        return whole

    def _answer(self, tokens_BL: Tensor, keep_BL: Tensor | None, segments_BL: Tensor | None) -> dict[str, Tensor]:
        keep = torch.ones_like(tokens_BL, dtype=torch.bool) if keep_BL is None else keep_BL
        segments = torch.zeros_like(tokens_BL) if segments_BL is None else segments_BL
        given = {"tokens": tokens_BL.numpy(), "keep": keep.numpy(), "segments": segments.numpy()}
        return {name: torch.from_numpy(value.numpy()) for name, value in run(self.main, given).items()}

    def _by_length(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Answer rows one length at a time; behind a row's end there are zeros."""
        assert batch.keep is not None
        out: dict[str, Tensor] = {}
        lengths_B, width = batch.keep.sum(1), batch.tokens.shape[1]
        for n in lengths_B.unique().tolist():
            rows_b = (lengths_B == n).nonzero()[:, 0]
            segments = None if batch.segments is None else batch.segments[rows_b, :n]
            for name, value in self._answer(batch.tokens[rows_b, :n], None, segments).items():
                wide = [width] if value.ndim == 3 else []
                new = value.new_zeros(len(batch), *wide, *value.shape[1 + len(wide) :])
                into = out.setdefault(name, new)
                into[(rows_b, slice(0, n)) if wide else rows_b] = value
        return out["hidden"], out["logits"]


class Bound:
    """A call of one shape with everything bound: buffers of the state, and places for what goes in and comes out."""

    def __init__(
        self, session: Any, about: ExportRecord, state: DecodingRows, shape: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> None:
        self.session, self.shape, self.io = session, shape, session.io_binding()
        (n_rows, _), (n_at,) = shape
        self.given = {name: held(np.zeros(size, np.int64)) for name, size in (("tokens", shape[0]), ("at", shape[1]))}
        self.given["start"] = held(np.zeros(n_rows, np.int64))
        self.logits = held(np.zeros((n_rows, n_at, about.vocab_size), np.float32))
        wanted = {one.name for one in session.get_inputs()}
        buffers = {f"state.{name}": value for name, value in state.tensors.items()}
        for name, value in (self.given | state.memory | buffers).items():
            if name in wanted:
                self.io.bind_ortvalue_input(name, value)
        self.io.bind_ortvalue_output("logits", self.logits)
        for kept in about.state:
            if kept.changes:
                self.io.bind_ortvalue_output(f"next.{kept.name}", state.tensors[kept.name])

    def run(self, given: dict[str, Array]) -> Array:
        """Run on new tokens and return a copy of the scores."""
        for name, place in self.given.items():
            place.update_inplace(given[name])
        self.session.run_with_iobinding(self.io)
        return np.array(self.logits.numpy())


def _filled(kept: Kept, sizes: dict[str, int]) -> Array:
    shape = [sizes[axis] if isinstance(axis, str) else axis for axis in kept.axes]
    return np.full(shape, kept.fill, kept.dtype)
