"""ONNX export: `model.onnx` (or `encoder.onnx` and `decoder.onnx`), `spec.toml`, `tokenizer.json`, `onnx.json`.

`onnx.json` says what the graphs take in and give out, so that any program with onnxruntime can run them.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, Self

from kinfolk.core.errors import CheckpointError
from kinfolk.core.generation_ids import GenerationIds

ABOUT, MODEL, ENCODER, DECODER = "onnx.json", "model.onnx", "encoder.onnx", "decoder.onnx"
SPEC, TOKENIZER = "spec.toml", "tokenizer.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """One tensor of a state: `state.NAME` goes in, `next.NAME` comes out (unless nothing changes it).

    axes: names of what differs ("batch", "past", "memory") and sizes of what does not. fill: what it holds before the
    first token. begins: what it holds then comes out of the encoder.
    """

    name: str
    axes: tuple[str | int, ...]
    dtype: str
    fill: float = 0.0
    begins: bool = False

    @property
    def changes(self) -> bool:
        """Whether a step gives it out again."""
        return "memory" not in self.axes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """What a program must know to run the graphs.

    topology: of the model. precision: "fp32", "int8" or "int4". padded: whether an encoder gets a padding mask;
    otherwise rows of one call have one length. segmented: whether it gets the sentence of each token. fused: whether
    keys and values are at their positions in buffers that may be larger, past and present the same one; otherwise
    each step appends to them and `seen` holds their positions. single: whether a call reads one token of each row, and
    no more. generation: special tokens of the model. limit: most positions of a row; None: as many as fit. length: of
    every row, where all agree; 0: any. kind: of the data that the run learnt from. source: digest of the weights.
    classes, reading: of labels, as in run.toml. differences: largest ones to torch that the check found, by shape;
    of integers, to fp32. errors: of integers, mean relative ones of the "weights" of matrices and of the "outputs" of
    that check.
    """

    topology: str
    precision: str
    padded: bool = True
    segmented: bool = False
    fused: bool = False
    single: bool = False
    limit: int | None = None
    length: int = 0
    vocab_size: int = 0
    generation: GenerationIds = dataclasses.field(default_factory=GenerationIds)
    state: tuple[Kept, ...] = ()
    kind: str = ""
    source: str = ""
    classes: tuple[str, ...] = ()
    reading: dict[str, Any] = dataclasses.field(default_factory=dict)
    differences: dict[str, float] = dataclasses.field(default_factory=dict)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def decodes(self) -> bool:
        """Whether the graphs generate: a decoder has a state, and what judges whole texts has none."""
        return self.topology == "encoder-decoder" or bool(self.state)

    @property
    def files(self) -> tuple[str, ...]:
        """The graphs there are."""
        return (ENCODER, DECODER) if self.topology == "encoder-decoder" else (MODEL,)

    def text(self) -> str:
        """Return it as JSON."""
        table = dataclasses.asdict(self) | {"generation": self.generation.plain()}
        return json.dumps({"format": FORMAT} | table, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read it from a folder, or say what is wrong with that."""
        file = folder / ABOUT
        try:
            table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{folder}: no {ABOUT} here: `kin export RUN --to onnx --out {folder}`") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file}: cannot be read: {error}") from None
        if table.pop("format", None) != FORMAT:
            raise CheckpointError(f"{file}: written by another version; export the run again")
        try:
            state = tuple(Kept(**one | {"axes": tuple(one["axes"])}) for one in table.pop("state"))
            generation = GenerationIds.from_plain(table.pop("generation", {}), f"{file}: generation")
            classes = tuple(map(str, table.pop("classes", ())))
            return cls(**table | {"state": state, "generation": generation, "classes": classes})
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"{file}: is not what `kin export --to onnx` writes: {error}") from None


def is_exported(folder: Path) -> bool:
    """Tell whether a folder holds graphs."""
    return (folder / ABOUT).is_file()
