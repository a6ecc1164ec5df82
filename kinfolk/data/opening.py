"""`open_data`: one door to generated tasks, embedded text, prepared folders and raw files."""

import tempfile
from pathlib import Path

import numpy as np

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.generated import TASKS, is_task, open_task
from kinfolk.data.shards import Shard, ShardWriter
from kinfolk.data.split import Data, Split, TextSplit
from kinfolk.data.stdlib import stdlib_files
from kinfolk.data.tokenizer import Tokenizer


def open_data(
    name: str | Path, *, cache: Path | None = None, seed: int = 0, tokenizer: str = "byte", vocab: int | None = None
) -> Data:
    """Open data by name or path."""
    text = str(name)
    if is_task(text):
        return open_task(text, seed)
    if text == "stdlib":
        return _thin_stdlib()
    raise DataError(f"{name}: no such data{suggest(text, [*TASKS, 'stdlib'])}")


def _thin_stdlib() -> Data:
    coder = Tokenizer.byte()
    folder = Path(tempfile.mkdtemp(prefix="kinfolk-"))
    splits: dict[str, Split] = {}
    for split in ("train", "valid"):
        with ShardWriter(folder / "aside", coder.dtype) as writer:
            n_bytes = 0
            for i, file in enumerate(stdlib_files()):
                if (i % 20 == 0) == (split == "valid"):
                    raw = file.read_bytes()
                    n_bytes += len(raw)
                    body = np.frombuffer(raw, np.uint8).astype(np.uint16) + 7
                    writer.add([np.concatenate([[coder.bos], body, [coder.eos]])])
            writer.finish(folder / split)
            splits[split] = TextSplit(
                split, coder, [Shard(folder / split, coder.dtype, writer.n_tokens, writer.n_sequences)], n_bytes
            )
    return Data("stdlib", "text", coder, "thin", splits)
