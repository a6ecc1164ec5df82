"""Word and sentence boundaries of a tokenizer: what the text of each token tells."""

import functools
import json

import numpy as np

from kinfolk.core.pieces import LazyPieces, TokenPieces
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer, byte_alphabet

_STOPS = (".", "!", "?", "。", "！", "？", "…")  # noqa: RUF001
_CLOSING = "\"')]}»”’"  # noqa: RUF001


def pieces_of(tokenizer: Tokenizer) -> TokenPieces:
    """Return the tables of a tokenizer: of bytes, characters, words, or pieces marked in one of the usual ways.

    Letters, numbers and underscores make words, and anything else is a word of its own, except in a vocabulary of
    words, whose tokens are words, and of WordPiece, which marks what goes on by "##".
    """
    return LazyPieces(functools.partial(_tables, tokenizer))


Facts = tuple[bool, bool, bool, bool, bool]


def _tables(tokenizer: Tokenizer) -> TokenPieces:
    facts = {"word": _plain, "wordpiece": _marked}.get(tokenizer.kind, _spelt)
    columns = np.array([facts(text) for text in _texts(tokenizer)], dtype=np.bool_).T
    return TokenPieces(*(np.ascontiguousarray(column) for column in columns))


def _plain(text: str) -> Facts:
    return False, False, text.endswith(_STOPS), True, "\n" in text


def _marked(text: str) -> Facts:
    goes_on = text.startswith("##")
    return True, goes_on, text.endswith(_STOPS), not goes_on, False


def _spelt(text: str) -> Facts:
    """Judge a piece by its own spelling: a space before a word is part of the piece, or a piece."""
    if not text:
        return False, False, False, True, False
    stops = text.rstrip(_CLOSING).endswith(_STOPS)
    return _in_word(text[-1]), _in_word(text[0]), stops, text[0].isspace(), "\n" in text


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _texts(tokenizer: Tokenizer) -> list[str]:
    """Return the text of every id, spaces where the model writes a mark for them; of a special, nothing."""
    texts = [""] * tokenizer.vocab_size
    kind = tokenizer.kind
    if kind == "byte":
        # a byte of a letter outside ASCII counts as one: "é" of a word is two of its bytes
        texts[N_SPECIALS:] = [chr(byte) if byte < 128 else "é" for byte in range(256)]
        return texts
    of_bytes = {char: chr(byte) if byte < 128 else "é" for byte, char in enumerate(byte_alphabet())}
    spells_bytes = "ByteLevel" in json.dumps(json.loads(tokenizer.to_json())["decoder"])
    for token, at in tokenizer.inner.get_vocab(with_added_tokens=True).items():
        if at in tokenizer.special_ids:
            continue
        texts[at] = "".join(of_bytes.get(char, char) for char in token) if spells_bytes else token.replace("▁", " ")
    return texts
