"""SentencePiece model files, unigram and BPE, as tokenizers of the `tokenizers` library.

The file is a Protocol Buffers message: pieces with a score and a type, settings of the trainer and of the normaliser.
"""

import dataclasses
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from kinfolk.core.errors import DataError

UNIGRAM, BPE = 1, 2
CONTROL, USER_DEFINED = 3, 4
SPACE = "▁"
ALGORITHMS = {UNIGRAM: "unigram", BPE: "BPE", 3: "word", 4: "char"}


@dataclasses.dataclass(frozen=True)
class VocabularyPiece:
    """One entry of the vocabulary; `type` is CONTROL, USER_DEFINED or another number of the format."""

    text: str
    score: float = 0.0
    type: int = 1


@dataclasses.dataclass(frozen=True)
class SentencePieces:
    """What a model file says. `charsmap` is the compiled normalisation table, b"" if there is none."""

    pieces: tuple[VocabularyPiece, ...]
    algorithm: int
    unk_id: int
    byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool

    @property
    def scored(self) -> list[tuple[str, float]]:
        """Pieces with their scores."""
        return [(piece.text, piece.score) for piece in self.pieces]


def read_sentencepiece(file: Path) -> SentencePieces:
    """Read a SentencePiece model file."""
    try:
        pieces, trainer, normalizer = _message(file.read_bytes())
    except (OSError, ValueError, IndexError, KeyError, struct.error, UnicodeDecodeError, AttributeError) as error:
        raise DataError(f"{file}: cannot be read as a SentencePiece model: {error}") from None
    algorithm, unk_id = int(trainer.get(3, UNIGRAM)), int(trainer.get(40, 0))
    if algorithm not in (UNIGRAM, BPE):
        name = ALGORITHMS.get(algorithm, str(algorithm))
        raise DataError(f"{file}: a SentencePiece model of type {name}; allowed: unigram, BPE")
    if unk_id >= len(pieces):
        raise DataError(f"{file}: unk_id = {unk_id}, and there are {len(pieces)} pieces")
    return SentencePieces(
        tuple(pieces),
        algorithm,
        unk_id,
        bool(trainer.get(35, 0)),
        bytes(normalizer.get(2, b"")),
        bool(normalizer.get(3, 1)),
        bool(normalizer.get(4, 1)),
    )


def plain_tokenizer(model: SentencePieces) -> tokenizers.Tokenizer:
    """Return a tokenizer with the pieces of the SentencePiece library itself, whatever model it belongs to.

    Normalisation tables are applied by the `tokenizers` library, which maps one visible character at a time: a letter
    with several combining marks may be composed otherwise than SentencePiece does.
    """
    tokenizer = tokenizers.Tokenizer(model_of(model, model.scored, model.unk_id))
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(tokenizers.Regex(pattern), to) for pattern, to in ((r"\A +| +\z", ""), (" {2,}", " "))
        ]
    steps += [normalizers.Prepend(SPACE)] if model.add_dummy_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    if symbols := sorted((piece.text for piece in model.pieces if piece.type == USER_DEFINED), key=len, reverse=True):
        tokenizer.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("|".join(map(re.escape, symbols))), "isolated")
    tokenizer.decoder = _decoder(model)
    add_symbols(tokenizer, model, (CONTROL,))
    return tokenizer


def model_of(model: SentencePieces, vocab: Sequence[tuple[str, float]], unk_id: int) -> Any:
    """Return the library's model of a vocabulary, by the algorithm that the file names."""
    if model.algorithm == UNIGRAM:
        return models.Unigram(list(vocab), unk_id, model.byte_fallback)
    ids = {text: i for i, (text, _) in enumerate(vocab)}
    # user-defined symbols have no merges, and are whole words by themselves
    symbols = any(piece.type == USER_DEFINED for piece in model.pieces)
    options = {"fuse_unk": True, "byte_fallback": model.byte_fallback, "ignore_merges": symbols}
    return models.BPE(ids, merges_of(vocab), unk_token=vocab[unk_id][0], **options)


def merges_of(vocab: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """Return the merges that a BPE vocabulary implies: every split of a piece into two pieces, earlier pieces first.

    SentencePiece merges the pair whose union has the best score; scores of BPE files fall with the id.
    """
    ids = {text: i for i, (text, _) in enumerate(vocab)}
    merges = []
    for text, i in ids.items():
        for at in range(1, len(text)):
            left, right = ids.get(text[:at]), ids.get(text[at:])
            if left is not None and right is not None:
                merges.append((i, at, len(text) - at, left, right, text[:at], text[at:]))
    return [(found[5], found[6]) for found in sorted(merges)]


def add_symbols(
    tokenizer: tokenizers.Tokenizer, model: SentencePieces, types: tuple[int, ...] = (CONTROL, USER_DEFINED)
) -> None:
    """Make control pieces special tokens, and user-defined ones tokens that text is split at."""
    tokenizer.add_tokens(
        [
            tokenizers.AddedToken(piece.text, special=piece.type == CONTROL, normalized=False)
            for piece in model.pieces
            if piece.type in types
        ]
    )


def _decoder(model: SentencePieces) -> Any:
    steps: list[Any] = [decoders.Replace(SPACE, " ")]
    steps += [decoders.ByteFallback()] if model.byte_fallback else []
    steps += [decoders.Fuse()]
    return decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if model.add_dummy_prefix else [])])


def _message(raw: bytes) -> tuple[list[VocabularyPiece], dict[int, Any], dict[int, Any]]:
    """Read pieces, settings of the trainer and settings of the normaliser."""
    pieces: list[VocabularyPiece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(raw):
        if number == 1:
            piece = dict(_fields(value))
            score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
            pieces.append(VocabularyPiece(piece[1].decode(), score, int(piece.get(3, 1))))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    return pieces, trainer, normalizer


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the numbered fields of a message: a number, four or eight bytes, or bytes of a stated length."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(raw, at)
            # negative numbers are written as their 64-bit complement
            yield key >> 3, value - (1 << 64) if value >> 63 else value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"field of unknown kind {kind}")
        n, at = _varint(raw, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + n > len(raw):
            raise ValueError("it ends in the middle of a field")
        yield key >> 3, raw[at : at + n]
        at += n


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
