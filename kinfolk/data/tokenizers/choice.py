"""Tokenizer files of any tool: what `--tokenizer FILE` reads."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from kinfolk.core.errors import DataError
from kinfolk.core.lines import read_lines
from kinfolk.data.tokenizers.files import byte_pairs, word_pieces
from kinfolk.data.tokenizers.sentencepiece import plain_tokenizer, read_sentencepiece
from kinfolk.data.tokenizers.tokenizer import SPECIALS, Tokenizer, special_tokens

PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""Names of a vocabulary and its merges, as GPT-2 and RoBERTa have them side by side."""
READABLE = (
    "tokenizer.json, SentencePiece's .model, BERT's vocab.txt, GPT-2's vocab.json with merges.txt, codes of subword-nmt"
)
LAST = "</w>"


def read_tokenizer_file(path: Path) -> Tokenizer:
    """Read the tokenizer of a file; what cannot be read is answered with what can."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise DataError(f"{path}: cannot be read as a tokenizer: {error}") from None
    pair = next((names for names in PAIRS if path.name in names), None)
    if pair is not None and all((path.parent / name).is_file() for name in pair):
        return Tokenizer(byte_pairs(path.parent / pair[0], path.parent / pair[1], _settings(path)))
    if head.startswith(b"#version"):
        return Tokenizer(subword_codes(path))
    if pair is not None and head.lstrip()[:1] != b"{":
        raise DataError(f"{path}: needs {' and '.join(pair)} side by side")
    if path.name.endswith("vocab.txt"):
        return Tokenizer(word_pieces(path, _settings(path)))
    if path.suffix in (".model", ".spm"):
        return Tokenizer(plain_tokenizer(read_sentencepiece(path)))
    try:
        return Tokenizer.load(path)
    except DataError as error:
        raise DataError(f"{error}; what can be read: {READABLE}") from None


def subword_codes(file: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of codes that `subword-nmt learn-bpe` wrote (Sennrich et al. 2016), version 0.2.

    Words are what spaces separate, and the last letter of a word has a mark. The letters are those of the codes.
    """
    first, *rest = read_lines(file)
    if first.split() != ["#version:", "0.2"]:
        raise DataError(f"{file}:1: expected '#version: 0.2' of subword-nmt's codes, got {first[:40]!r}")
    merges = []
    for number, line in enumerate(rest, 2):
        words = line.split(" ")
        if line and len(words) != 2:
            raise DataError(f"{file}:{number}: expected two symbols with a space between them, got {line[:80]!r}")
        merges += [(words[0], words[1])] if line else []
    letters = sorted({letter for pair in merges for symbol in pair for letter in symbol.removesuffix(LAST)})
    symbols = [*SPECIALS, *letters, *(letter + LAST for letter in letters), *(a + b for a, b in merges)]
    vocab = {symbol: i for i, symbol in enumerate(dict.fromkeys(symbols))}
    inner = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", end_of_word_suffix=LAST))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.BPEDecoder(suffix=LAST)
    inner.add_special_tokens(special_tokens())
    return inner


def _settings(path: Path) -> dict[str, Any]:
    file = path.parent / "tokenizer_config.json"
    try:
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as JSON: {error}") from None
    return settings if isinstance(settings, dict) else {}
