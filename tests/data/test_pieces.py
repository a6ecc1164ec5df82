"""Words and sentences of a row of tokens, for tokenizers of every kind."""

import itertools

import numpy as np
import pytest
import tokenizers

from kinfolk.data.tokenizers import pieces
from kinfolk.data.tokenizers.pieces import pieces_of
from kinfolk.data.tokenizers.tokenizer import Tokenizer, special_tokens

TEXT = "Hello wörld_1! It's 3.14 (really.) No?\n\nyes"


def groups(tokenizer, text, flags):
    """Cut a text before or after the flagged tokens, and spell the parts."""
    ids = np.array(tokenizer.encode(text))
    return [tokenizer.decode(part) for part in np.split(ids, np.flatnonzero(flags(ids))) if len(part)]


def after(flags):
    return lambda ids: np.append(False, flags(ids)[:-1])


@pytest.fixture(scope="module")
def bpe():
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=special_tokens(),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(["Hello wörld hello world really It's"] * 5, trainer)
    return Tokenizer(inner)


def test_words_of_bytes():
    byte = Tokenizer.byte()
    words = groups(byte, TEXT, pieces_of(byte).word_starts)
    assert words[:9] == ["Hello", " ", "wörld_1", "!", " ", "It", "'", "s", " "]
    assert "".join(words) == TEXT


def test_words_of_pieces_begin_with_their_space(bpe):
    words = groups(bpe, TEXT, pieces_of(bpe).word_starts)
    assert words[0] == "Hello"
    assert " wörld" in "".join(words[1:3])
    # a word is never cut, whatever the pieces
    assert not any(a[-1].isalnum() and b[0].isalnum() for a, b in itertools.pairwise(words))
    assert max(map(len, (bpe.encode(w) for w in words))) > 1


@pytest.mark.parametrize("kind", ["byte", "bpe", "char"])
def test_sentences(kind, bpe):
    tokenizer = {"byte": Tokenizer.byte(), "bpe": bpe, "char": Tokenizer.characters(sorted(set(TEXT)))}[kind]
    sentences = groups(tokenizer, TEXT, after(pieces_of(tokenizer).sentence_ends))
    # "3.14" is no end, and neither is a full stop before a bracket; empty lines end one sentence, not three
    assert [s.strip(" ") for s in sentences] == ["Hello wörld_1!", "It's 3.14 (really.) No?\n\n", "yes"]


def test_marked_pieces_and_words():
    vocab = {token: i for i, token in enumerate(["[UNK]", "play", "##ing", "ball", ".", "##s"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    pieces = pieces_of(Tokenizer(inner))
    ids = np.array([1, 2, 3, 5, 4, 1])
    assert pieces.word_starts(ids).tolist() == [True, False, True, False, True, True]
    assert pieces.sentence_ends(ids).tolist() == [False, False, False, False, True, True]
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b.": 1, "<unk>": 2}, unk_token="<unk>"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    pieces = pieces_of(Tokenizer(whole))
    assert pieces.word_starts(np.array([0, 1, 0])).all()
    assert pieces.sentence_ends(np.array([0, 1, 0])).tolist() == [False, True, True]


def test_tables_are_computed_once_and_not_before_they_are_asked_for(monkeypatch):
    calls = []
    texts = pieces._texts
    monkeypatch.setattr(pieces, "_texts", lambda tokenizer: calls.append(tokenizer) or texts(tokenizer))
    lazy = pieces.pieces_of(Tokenizer.byte())
    assert calls == []
    ids = np.array(Tokenizer.byte().encode("a b. c"))
    assert lazy.word_starts(ids).sum() > lazy.sentence_ends(ids).sum()
    assert len(calls) == 1
