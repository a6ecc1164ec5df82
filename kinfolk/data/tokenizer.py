"""Text to token ids and back. The `tokenizers` library does the work; bytes and characters have a direct way.

Every tokenizer is one `tokenizer.json`, so what is written here opens anywhere that format does. The ones
trained here share one layout, `SPECIALS` at ids 0 to 6; a file from elsewhere keeps its own ids and gets the
specials it lacks at the end.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from kinfolk.core import durable
from kinfolk.core.errors import DataError
from kinfolk.data.words import WordMemory, splits_into_words

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<sep>", "<cls>", "<mask>")
N_SPECIALS = len(SPECIALS)

# the names other people's files use, in the order of SPECIALS; BERT's begin and end a text with [CLS] and [SEP], and
# RoBERTa's have <s> and </s> for all four, so that no ids are added which a model of theirs has no row for; GPT-2's
# <|endoftext|> is all it has, and padding is hidden whatever its id
_ALIASES = (
    ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>"),
    ("<bos>", "<s>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>", "[CLS]", "<|endoftext|>"),
    ("<eos>", "</s>", "[EOS]", "<|endoftext|>", "<|end_of_text|>", "[SEP]"),
    ("<unk>", "[UNK]", "<|unk|>"),
    ("<sep>", "[SEP]", "</s>"),
    ("<cls>", "[CLS]", "<s>"),
    ("<mask>", "[MASK]"),
)

# a longer text is encoded in parts, cut where a line or a word ends: the library needs about 100 bytes a token, and
# more than linear time for a word
PART = 1 << 16

Ids = NDArray[np.uint32]


class Tokenizer:
    """Text to ids and back. `pad`, `bos`, `eos`, `unk`, `sep`, `cls`, `mask` are the ids of the specials."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        # text that happens to spell a special ("<eos>") is text; ids of specials are only ever put there by us
        inner.encode_special_tokens = True
        inner.no_padding()
        inner.no_truncation()
        ids = [_find(inner, names) for names in _ALIASES]
        missing = [name for name, found in zip(SPECIALS, ids, strict=True) if found is None]
        inner.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in missing])
        self.inner = inner
        self.special_ids: tuple[int, ...] = tuple(_find(inner, names) or 0 for names in _ALIASES)
        self.pad, self.bos, self.eos, self.unk, self.sep, self.cls, self.mask = self.special_ids
        self._specials = np.array(sorted(set(self.special_ids)))

    @classmethod
    def byte(cls) -> "Tokenizer":
        """Return the tokenizer of 256 bytes: no training, no unknowns, any text."""
        vocab = {name: i for i, name in enumerate(SPECIALS)}
        vocab |= {char: N_SPECIALS + byte for byte, char in enumerate(byte_alphabet())}
        inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        inner.add_special_tokens(special_tokens())
        return cls(inner)

    @classmethod
    def characters(cls, alphabet: Sequence[str]) -> "Tokenizer":
        """Return the tokenizer whose tokens are these characters, in this order after the specials."""
        vocab = {token: i for i, token in enumerate((*SPECIALS, *alphabet))}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=vocab, unk_token="<unk>"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), behavior="isolated")
        inner.decoder = tokenizers.decoders.Fuse()
        inner.add_special_tokens(special_tokens())
        return cls(inner)

    @classmethod
    def words(cls, words: Sequence[str]) -> "Tokenizer":
        """Return the tokenizer whose tokens are these words, between spaces, in this order after the specials."""
        vocab = {token: i for i, token in enumerate((*SPECIALS, *words))}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=vocab, unk_token="<unk>"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        inner.add_special_tokens(special_tokens())
        return cls(inner)

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a `tokenizer.json`, ours or anyone's."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read as a tokenizer: {error}") from None
        return cls.from_json(text, str(path))

    @classmethod
    def from_json(cls, text: str, where: str = "tokenizer") -> "Tokenizer":
        """Read the text of a `tokenizer.json`."""
        try:
            return cls(tokenizers.Tokenizer.from_str(text))
        except DataError:
            raise
        # the library raises a plain Exception
        except Exception as error:
            raise DataError(f"{where}: not a tokenizer.json: {error}") from None

    def __reduce__(self) -> Any:
        # the library forgets that text never spells a special
        return Tokenizer.from_json, (self.to_json(),)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as a `tokenizer.json`."""
        durable.write(Path(path), self.to_json())

    def to_json(self) -> str:
        """Return the text of the tokenizer's `tokenizer.json`."""
        text: str = self.inner.to_str(pretty=True)
        return text

    @cached_property
    def between(self) -> int:
        """How many separators stand between two texts: as many as its makers put there, RoBERTa's two; else one."""
        owners = self.inner.encode("a", "b").sequence_ids
        if 0 not in owners or 1 not in owners:
            return 1
        return max(1, owners.index(1) - max(i for i, owner in enumerate(owners) if owner == 0) - 1)

    @cached_property
    def vocab_size(self) -> int:
        """How many ids there are."""
        vocab: dict[str, int] = self.inner.get_vocab(with_added_tokens=True)
        return max(vocab.values()) + 1

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of uint16 and uint32 that holds every id."""
        return np.dtype("<u2") if self.vocab_size <= 1 << 16 else np.dtype("<u4")

    @cached_property
    def kind(self) -> str:
        """What it is made of: byte, char, word, or the library's name of the model, as bpe or unigram."""
        if self._is_byte:
            return "byte"
        if self._char_table is not None:
            return "char"
        name = type(self.inner.model).__name__.lower()
        return "word" if name == "wordlevel" else name

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without specials around it."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the ids of several texts; what is read from prepared data is exactly this."""
        if self._is_byte:
            return [np.frombuffer(utf8(text), np.uint8).astype(np.uint16) + np.uint16(N_SPECIALS) for text in texts]
        if self._char_table is not None:
            table = self._char_table
            return [table[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")] for text in texts]
        parts = [list(cut(text, PART)) for text in texts]
        ids = iter(self._encode_parts([part for group in parts for part in group]))
        return [np.concatenate([next(ids) for _ in group]) for group in parts]

    def decode(self, ids: Sequence[int] | NDArray[Any], *, specials: bool = False) -> str:
        """Return the text of ids. Specials are left out unless asked for; broken UTF-8 shows as U+FFFD."""
        array = np.asarray(ids, dtype=np.int64).reshape(-1)
        if array.size and (array.min() < 0 or array.max() >= self.vocab_size):
            raise DataError(f"token id {array.max()} or {array.min()} is outside the vocabulary of {self.vocab_size}")
        if self._is_byte and not specials:
            raw = self.decode_bytes(array)
            try:
                return raw.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                return raw.decode("utf-8", "replace")
        text: str = self.inner.decode(array.tolist(), skip_special_tokens=not specials)
        return text

    def decode_bytes(self, ids: Sequence[int] | NDArray[Any]) -> bytes:
        """Return the bytes of ids: exact for the byte tokenizer, the text in UTF-8 for the others."""
        array = np.asarray(ids, dtype=np.int64).reshape(-1)
        if not self._is_byte:
            return utf8(self.decode(array))
        return (array[array >= N_SPECIALS] - N_SPECIALS).astype(np.uint8).tobytes()

    def encode_bytes(self, raw: bytes) -> list[int]:
        """Return the ids of any bytes, text or not; only the byte tokenizer can."""
        if not self._is_byte:
            raise DataError(f"a {self.kind} tokenizer encodes text; only the byte tokenizer takes any bytes")
        ids: list[int] = (np.frombuffer(raw, np.uint8).astype(np.int64) + N_SPECIALS).tolist()
        return ids

    def _encode_parts(self, parts: Sequence[str]) -> list[NDArray[Any]]:
        known = [self._words is not None and self._words.knows(part) for part in parts]
        unknown = [part for part, is_known in zip(parts, known, strict=True) if not is_known]
        try:
            coded = iter(self.inner.encode_batch_fast(unknown, add_special_tokens=False) if unknown else ())
        except (TypeError, UnicodeEncodeError):
            raise DataError("a text holds a lone surrogate, which is not valid Unicode") from None
        return [
            self._words.encode(part) if self._words and is_known else np.array(next(coded).ids, self.dtype)
            for part, is_known in zip(parts, known, strict=True)
        ]

    @cached_property
    def _words(self) -> WordMemory | None:
        if not splits_into_words(self.to_json()):
            return None
        return WordMemory(lambda word: self.inner.encode(word, add_special_tokens=False).ids, self.dtype)

    @cached_property
    def _is_byte(self) -> bool:
        if not isinstance(self.inner.model, tokenizers.models.BPE) or self.vocab_size != N_SPECIALS + 256:
            return False
        alphabet = byte_alphabet()
        return all(self.inner.token_to_id(char) == N_SPECIALS + byte for byte, char in enumerate(alphabet))

    @cached_property
    def _char_table(self) -> NDArray[Any] | None:
        """The id of every code point, where the tokens are the characters."""
        spec = json.loads(self.to_json())
        if spec["model"]["type"] != "WordLevel" or spec["normalizer"] is not None:
            return None
        vocab = {token: i for token, i in spec["model"]["vocab"].items() if token not in SPECIALS}
        splitter = spec["pre_tokenizer"] or {}
        if splitter.get("pattern") != {"Regex": r"[\s\S]"} or any(len(token) != 1 for token in vocab):
            return None
        table = np.full(0x110000, self.unk, dtype=self.dtype)
        table[[ord(char) for char in vocab]] = list(vocab.values())
        return table


def special_tokens() -> list[tokenizers.AddedToken]:
    """Return the specials as the library wants them."""
    return [tokenizers.AddedToken(name, special=True, normalized=False) for name in SPECIALS]


def byte_alphabet() -> list[str]:
    """Return the printable character that stands for each byte in byte-level files (GPT-2's table, in byte order)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def utf8(text: str) -> bytes:
    """Return the bytes of any Python string, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


def cut(text: str, size: int) -> Iterator[str]:
    """Cut a long text into parts of at most `size` characters, after a line, else after a word, else anywhere."""
    start = 0
    while len(text) - start > size:
        # a line keeps its end; a space belongs to the word after it
        line = text.rfind("\n", start + size // 2, start + size) + 1
        word = text.rfind(" ", start + size // 2 + 1, start + size)
        stop = line if line > start else word if word > start else start + size
        yield text[start:stop]
        start = stop
    yield text[start:]


def _find(inner: tokenizers.Tokenizer, names: Sequence[str]) -> int | None:
    found = (inner.token_to_id(name) for name in names)
    return next((i for i in found if i is not None), None)
