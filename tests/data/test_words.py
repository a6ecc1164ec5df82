"""Remembering words gives the ids that the library gives."""

import unicodedata
from unittest import mock

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.tokenizers import words
from kinfolk.data.tokenizers.learn import make_tokenizer
from kinfolk.data.tokenizers.tokenizer import Tokenizer
from kinfolk.data.tokenizers.words import WordMemory, splits_into_words
from tests.data.made import prose


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def coder(request: pytest.FixtureRequest) -> Tokenizer:
    return make_tokenizer(
        Preparation(tokenizer=request.param, vocab=500), [prose(20_000), "it's I'll we've  \n\n x" * 50]
    )


CERTAIN = [chr(i) for i in range(0x3200) if words._KNOWN.fullmatch(chr(i))] + list("一龥가힣東京")
PIECES = [
    "it's",
    "I'll",
    "'S",
    "'re",
    " 's",
    "\n\n",
    "\n  x",
    "  ",
    "\t",
    "_",
    "a1b2",
    "\x1c",
    "\x85",
    " ",
    "½",
    "Ⅷ",
    "é",
    "\u0301",
]


@given(text=st.lists(st.sampled_from(CERTAIN + PIECES * 20), max_size=40).map("".join))
@example("a\n\n b \n")
@example("don't we've 'tis rock'n'roll")
@example("x\x1c y\x85z")
def test_a_text_is_encoded_as_the_library_does(coder: Tokenizer, text: str) -> None:
    assert coder.encode(text) == coder.inner.encode(text, add_special_tokens=False).ids


@given(text=st.text("ab '\n\tst019_-é—東.\r\x0b\x0c\x1f", max_size=60))
def test_whatever_the_spaces(coder: Tokenizer, text: str) -> None:
    assert coder._words is not None
    assert coder._words.knows(text)
    assert coder.encode(text) == coder.inner.encode(text, add_special_tokens=False).ids


def test_every_certain_character_is_split_as_the_library_does() -> None:
    # the class of each shows in what it joins: a letter, a digit, a sign, or nothing
    splitter = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    for start in range(0, len(CERTAIN), 100):
        some = CERTAIN[start : start + 100]
        text = "".join(f"a{c}a 1{c}1 .{c}. " for c in some)
        expected = [(a, b) for _, (a, b) in splitter.pre_tokenize_str(text)]
        found = [(match.start(), match.end()) for match in words._WORD.finditer(text)]
        assert found == expected
    letters = [c for c in CERTAIN if c not in words._OTHER and ord(c) > 0x7F and unicodedata.category(c)[0] == "L"]
    assert len(letters) > 500


def test_only_certain_texts_are_known() -> None:
    memory = WordMemory(lambda word: [len(word)], Tokenizer.byte().dtype)
    assert memory.knows("plain, “quoted” \u2013 naïve Москва 東京 서울")
    for strange in ("½", "a\u00a0b", "\u3000", "نص", "\u0301", "😀"):
        assert not memory.knows(strange)


def test_the_memory_is_bounded() -> None:
    memory = WordMemory(lambda word: [len(word)], Tokenizer.byte().dtype)
    with mock.patch("kinfolk.data.tokenizers.words._MOST_WORDS", 10):
        for i in range(50):
            assert memory.encode(f"{i} x{i}").tolist() == [len(str(i)), 2, len(str(i))]
            assert len(memory._seen) <= 14
    memory.encode("y" * 1000)
    assert "y" * 1000 not in memory._seen


def test_only_tokenizers_that_do_nothing_else(coder: Tokenizer) -> None:
    assert splits_into_words(coder.to_json())
    assert not splits_into_words(Tokenizer.byte().to_json())
    assert not splits_into_words(make_tokenizer(Preparation(tokenizer="word"), ["a b"]).to_json())
    other = Tokenizer.from_json(coder.to_json())
    other.inner.normalizer = tokenizers.normalizers.Lowercase()
    assert not splits_into_words(other.to_json())
    other = Tokenizer.from_json(coder.to_json())
    other.inner.add_tokens(["it's"])
    assert not splits_into_words(other.to_json())
