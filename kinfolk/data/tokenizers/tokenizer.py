"""Text to token ids and back. The `tokenizers` library does the work; bytes and characters have a direct way.

Every tokenizer is one `tokenizer.json`, so what is written here opens anywhere that format does. The ones
trained here share one layout, `SPECIALS` at ids 0 to 6; a file from elsewhere keeps its own ids and gets the
specials it lacks at the end. Which of its tokens begins, ends or pads a text is found by spelling, unless the file
says it: its first added token may have a table of `roles`, which other readers of the format pass over.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from kinfolk.core import durable
from kinfolk.core.errors import DataError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.data.tokenizers.words import WordMemory, splits_into_words

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

ROLES = ("pad", "bos", "eos", "unk", "sep", "cls", "mask", "start", "stop", "forced-first", "forced-last")
"""What a token may be for, in the order of SPECIALS; a decoder starts its target with `start`, and stops at `stop`."""

Roles = Mapping[str, Sequence[int]]

# a longer text is encoded in parts, because the library needs about 100 bytes a token; it is cut where that changes no
# id, which is between two words of ASCII letters, if anywhere
PART = 1 << 16
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")
_AROUND = 200
"""Characters on either side of a cut that must be encoded alike in one piece and in two."""
LARGEST = 10_000_000
"""No id or length in a tokenizer.json is larger: the library allocates a table of as many entries."""


def check_numbers(text: str, where: str) -> None:
    """Raise if a tokenizer.json holds a number, such as an id, for which the library would exhaust the memory."""
    if not re.search(r"\d{8}", text):
        return
    try:
        waiting = [json.loads(text)]
    except (ValueError, RecursionError):
        # the library says what is wrong with it
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int) and value > LARGEST:
            raise DataError(f"{where}: the number {value} is out of bounds for an id or a length (most: {LARGEST:,})")


class Tokenizer:
    """Text to ids and back. `pad`, `bos`, `eos`, `unk`, `sep`, `cls`, `mask` are the ids of the specials.

    roles: ids by role (see ROLES), where they are known and need not be found by spelling.
    """

    def __init__(self, inner: tokenizers.Tokenizer, roles: Roles | None = None) -> None:
        # text that happens to spell a special ("<eos>") is text; ids of specials are only ever put there by us
        inner.encode_special_tokens = True
        inner.no_padding()
        inner.no_truncation()
        self.roles = _known(inner, roles or {})
        own = [self.roles.get(role, (None,))[0] for role in ROLES[:N_SPECIALS]]
        ids = [_find(inner, names) if i is None else i for i, names in zip(own, _ALIASES, strict=True)]
        inner.add_special_tokens(special_tokens([name for name, i in zip(SPECIALS, ids, strict=True) if i is None]))
        self.inner = inner
        self.special_ids: tuple[int, ...] = tuple(
            _find(inner, names) or 0 if i is None else i for i, names in zip(own, _ALIASES, strict=True)
        )
        self.pad, self.bos, self.eos, self.unk, self.sep, self.cls, self.mask = self.special_ids
        self._specials = np.array(sorted({*self.special_ids, self.start, *self.roles.get("stop", ())}))

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
        every = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), behavior="isolated")
        return cls(_word_level(alphabet, every, tokenizers.decoders.Fuse()))

    @classmethod
    def words(cls, words: Sequence[str]) -> "Tokenizer":
        """Return the tokenizer whose tokens are these words, between spaces, in this order after the specials."""
        return cls(_word_level(words, tokenizers.pre_tokenizers.WhitespaceSplit()))

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
        check_numbers(text, where)
        try:
            return cls(tokenizers.Tokenizer.from_str(text), roles_in(text))
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
        return self._json

    @cached_property
    def _json(self) -> str:
        text: str = self.inner.to_str(pretty=True)
        return with_roles(text, self.roles) if self.roles else text

    def agrees(self, other: "Tokenizer") -> bool:
        """Tell whether another gives every text the same ids; what ids begin and end with may differ."""
        return bool(self.inner.to_str() == other.inner.to_str())

    @property
    def generation(self) -> GenerationIds:
        """What generation begins, ends and pads with."""
        one = {role: ids[0] for role, ids in self.roles.items()}
        return GenerationIds(
            start_id=self.start,
            stop_ids=tuple(self.roles.get("stop", (self.eos,))),
            pad_id=self.pad,
            forced_first_id=one.get("forced-first"),
            forced_last_id=one.get("forced-last"),
        )

    @property
    def start(self) -> int:
        """The first token of an encoder-decoder's target."""
        return self.roles.get("start", (self.bos,))[0]

    @property
    def source_frame(self) -> tuple[list[int], list[int]] | None:
        """The special tokens before and after a source, where it was imported with a model that reads sources."""
        return (self.around or ([], [])) if "start" in self.roles else None

    @cached_property
    def between(self) -> int:
        """How many separators are between two texts: as many as its makers put there, RoBERTa's two; else one."""
        owners = self.inner.encode("a", "b").sequence_ids
        if 0 not in owners or 1 not in owners:
            return 1
        return max(1, owners.index(1) - max(i for i, owner in enumerate(owners) if owner == 0) - 1)

    @cached_property
    def around(self) -> tuple[list[int], list[int]] | None:
        """The special tokens that its makers put before and after a text; None where they put none."""
        plain, whole = (self.inner.encode("a", add_special_tokens=special).ids for special in (False, True))
        if len(whole) == len(plain):
            return None
        at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
        return whole[:at], whole[at + len(plain) :]

    @property
    def opening(self) -> list[int]:
        """What its makers put before a prompt: the beginning of a text, where that is all they put around one."""
        return [self.bos] if self.around == ([self.bos], []) else []

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
        parts = [list(self.parts(text)) for text in texts]
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
        if self.roles and not specials:
            # the library leaves out added tokens only
            array = array[~np.isin(array, self._specials)]
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

    def parts(self, text: str) -> Iterator[str]:
        """Cut a long text into parts whose ids follow one another as those of the whole do; else it is one part."""
        start = 0
        while len(text) - start > PART and self._splits:
            places = _BETWEEN_WORDS.finditer(text, start + PART, min(len(text), start + 2 * PART))
            stop = next((at.start() for at in itertools.islice(places, 8) if self._divides(text, at.start())), None)
            if stop is None:
                break
            yield text[start:stop]
            start = stop
        yield text[start:]

    def _divides(self, text: str, at: int) -> bool:
        """Tell whether a cut leaves the ids around it as they are."""
        left, right = text[max(0, at - _AROUND) : at], text[at : at + _AROUND]
        whole, *halves = self._encode_parts([left + right, left, right])
        return bool(np.array_equal(whole, np.concatenate(halves)))

    @cached_property
    def _splits(self) -> bool:
        """Whether words are encoded one by one, so that what is far away changes no id."""
        splitter = json.loads(self.inner.to_str())["pre_tokenizer"]
        kinds = splitter["pretokenizers"] if splitter and splitter["type"] == "Sequence" else [splitter]
        return any(one and one.get("split", one.get("use_regex", True)) for one in kinds)

    def _encode_parts(self, parts: Sequence[str]) -> list[NDArray[Any]]:
        remembered = [self._words is not None and self._words.knows(part) for part in parts]
        unknown = [part for part, is_known in zip(parts, remembered, strict=True) if not is_known]
        try:
            coded = iter(self.inner.encode_batch_fast(unknown, add_special_tokens=False) if unknown else ())
        except (TypeError, UnicodeEncodeError):
            raise DataError("a text holds a lone surrogate, which is not valid Unicode") from None
        return [
            self._words.encode(part) if self._words and is_known else np.array(next(coded).ids, self.dtype)
            for part, is_known in zip(parts, remembered, strict=True)
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
        if not isinstance(self.inner.model, tokenizers.models.WordLevel):
            return None
        spec = json.loads(self.to_json())
        if spec["normalizer"] is not None:
            return None
        vocab = {token: i for token, i in spec["model"]["vocab"].items() if token not in SPECIALS}
        splitter = spec["pre_tokenizer"] or {}
        if splitter.get("pattern") != {"Regex": r"[\s\S]"} or any(len(token) != 1 for token in vocab):
            return None
        table = np.full(0x110000, self.unk, dtype=self.dtype)
        table[[ord(char) for char in vocab]] = list(vocab.values())
        return table


def roles_in(text: str) -> dict[str, list[int]]:
    """Return the roles that the added tokens of a `tokenizer.json` have."""
    # most files have none, and some are large
    if '"roles"' not in text:
        return {}
    first: dict[str, Any] = next(iter(json.loads(text).get("added_tokens") or ()), {})
    roles: dict[str, list[int]] = first.get("roles", {})
    if not isinstance(roles, dict) or not all(isinstance(i, int) for ids in roles.values() for i in ids):
        raise DataError("roles of the first added token: expected lists of ids by role")
    return roles


def with_roles(text: str, roles: Roles) -> str:
    """Return the text of a `tokenizer.json` with a table of roles, or with none; needs an added token."""
    table = json.loads(text)
    for i, token in enumerate(table["added_tokens"]):
        token.pop("roles", None)
        if roles and i == 0:
            token["roles"] = {role: list(ids) for role, ids in roles.items()}
    return json.dumps(table, indent=2, ensure_ascii=False)


def _known(inner: tokenizers.Tokenizer, roles: Roles) -> dict[str, tuple[int, ...]]:
    """Keep the roles whose ids are tokens of this tokenizer."""
    tokens = {role: tuple(i for i in roles.get(role, ()) if inner.id_to_token(i) is not None) for role in ROLES}
    return {role: ids for role, ids in tokens.items() if ids}


def special_tokens(names: Sequence[str] = SPECIALS) -> list[tokenizers.AddedToken]:
    """Return the specials as the library wants them."""
    return [tokenizers.AddedToken(name, special=True, normalized=False) for name in names]


def _word_level(tokens: Sequence[str], splitter: Any, decoder: Any = None) -> tokenizers.Tokenizer:
    """Return a tokenizer whose vocabulary is the specials and these tokens."""
    vocab = {token: i for i, token in enumerate((*SPECIALS, *tokens))}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=vocab, unk_token="<unk>"))
    inner.pre_tokenizer = splitter
    if decoder is not None:
        inner.decoder = decoder
    inner.add_special_tokens(special_tokens())
    return inner


def byte_alphabet() -> list[str]:
    """Return the printable character of each byte in byte-level files (GPT-2's table, in byte order)."""
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
    ids = (inner.token_to_id(name) for name in names)
    return next((i for i in ids if i is not None), None)
