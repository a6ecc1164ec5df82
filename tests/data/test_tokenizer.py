import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace, Split, Whitespace

from kinfolk.core.errors import DataError
from kinfolk.data.preparing.preparation import TOKENIZERS, Preparation
from kinfolk.data.tokenizers.learn import make_tokenizer, needs_sample
from kinfolk.data.tokenizers.tokenizer import PART, SPECIALS, Tokenizer, cut
from tests.data.made import prose

SAMPLE = [prose(30_000), "def f(x):\n    return x  # näive\n" * 20]


@pytest.fixture(scope="module", params=TOKENIZERS)
def any_kind(request: pytest.FixtureRequest) -> Tokenizer:
    return make_tokenizer(Preparation(tokenizer=request.param, vocab=None if request.param == "byte" else 600), SAMPLE)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return make_tokenizer(Preparation(tokenizer="bpe", vocab=600), SAMPLE)


@pytest.fixture(scope="module")
def unigram() -> Tokenizer:
    return make_tokenizer(Preparation(tokenizer="unigram", vocab=600), SAMPLE)


anything = st.text(st.characters(), max_size=60)
unicode = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(anything)
def test_bytes_give_any_text_back(text: str) -> None:
    coder = Tokenizer.byte()
    assert coder.decode(coder.encode(text)) == text


@given(st.binary(max_size=60))
def test_bytes_give_any_bytes_back(raw: bytes) -> None:
    coder = Tokenizer.byte()
    assert coder.decode_bytes(coder.encode_bytes(raw)) == raw


@given(unicode)
def test_the_quick_way_of_bytes_is_the_library_s_way(text: str) -> None:
    coder = Tokenizer.byte()
    assert coder.encode(text) == coder.inner.encode(text, add_special_tokens=False).ids


@given(text=unicode)
def test_byte_level_pieces_give_any_text_back(bpe: Tokenizer, unigram: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text
    assert unigram.decode(unigram.encode(text)) == text


@given(st.text("abc東é\n <", max_size=40))
def test_the_quick_way_of_characters_is_the_library_s_way(text: str) -> None:
    coder = Tokenizer.characters("abc東 \n")
    assert coder.encode(text) == coder.inner.encode(text, add_special_tokens=False).ids
    assert coder.decode(coder.encode(text)) == "".join(char for char in text if char in "abc東 \n")


def test_the_specials_have_one_layout(any_kind: Tokenizer) -> None:
    assert any_kind.special_ids == tuple(range(7))
    assert (any_kind.pad, any_kind.bos, any_kind.eos, any_kind.unk) == (0, 1, 2, 3)
    assert (any_kind.sep, any_kind.cls, any_kind.mask) == (4, 5, 6)
    assert [any_kind.inner.id_to_token(i) for i in range(7)] == list(SPECIALS)


def test_specials_are_never_read_out_of_text(any_kind: Tokenizer) -> None:
    ids = any_kind.encode("a <eos> b<pad><mask>")
    assert not {0, 1, 2, 4, 5, 6} & set(ids)


def test_specials_are_left_out_of_text_unless_asked_for(any_kind: Tokenizer) -> None:
    ids = [1, *any_kind.encode("aab"), 2, 0]
    assert any_kind.decode(ids) == any_kind.decode(any_kind.encode("aab"))
    assert "<eos>" in any_kind.decode(ids, specials=True)


def test_saved_and_loaded_it_is_the_same(any_kind: Tokenizer, tmp_path: Path) -> None:
    any_kind.save(tmp_path / "t.json")
    again = Tokenizer.load(tmp_path / "t.json")
    assert (again.kind, again.vocab_size, again.special_ids) == (
        any_kind.kind,
        any_kind.vocab_size,
        any_kind.special_ids,
    )
    assert again.encode(SAMPLE[1]) == any_kind.encode(SAMPLE[1])
    assert again.to_json() == any_kind.to_json()


def test_pickled_it_is_the_same(any_kind: Tokenizer) -> None:
    text = "a <eos> b"
    assert pickle.loads(pickle.dumps(any_kind)).encode(text) == any_kind.encode(text)


def test_a_batch_is_its_texts_one_by_one(any_kind: Tokenizer) -> None:
    texts = ["", "a", SAMPLE[1], "ü 東"]
    assert [x.tolist() for x in any_kind.encode_batch(texts)] == [any_kind.encode(text) for text in texts]
    assert all(x.dtype == any_kind.dtype for x in any_kind.encode_batch(texts))


def test_words_are_numbered_by_frequency_then_alphabet() -> None:
    coder = make_tokenizer(Preparation(tokenizer="word"), ["b a c a b a d c e"])
    assert [coder.inner.id_to_token(i) for i in range(7, coder.vocab_size)] == ["a", "b", "c", "d", "e"]
    assert coder.encode("a zebra e") == [7, coder.unk, 11]


def test_a_vocabulary_of_words_keeps_the_most_frequent() -> None:
    coder = make_tokenizer(Preparation(tokenizer="word", vocab=9), ["b a c a b a d c e"])
    assert coder.encode("a b c") == [7, 8, coder.unk]


def test_characters_are_numbered_by_frequency_then_code() -> None:
    coder = make_tokenizer(Preparation(tokenizer="char", vocab=10), ["bbacca東", "aa"])
    assert coder.encode("abc東") == [7, 8, 9, coder.unk]


def test_more_merges_give_fewer_tokens() -> None:
    counts = [
        len(make_tokenizer(Preparation(tokenizer="bpe", vocab=v), SAMPLE).encode(SAMPLE[0])) for v in (270, 400, 900)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "unigram"])
def test_learning_is_the_same_in_another_process(kind: str) -> None:
    code = (
        "from kinfolk.data.tokenizers.learn import make_tokenizer\n"
        "from kinfolk.data.preparing.preparation import Preparation\n"
        "from tests.data.made import prose\n"
        f"print(make_tokenizer(Preparation(tokenizer={kind!r}, vocab=500), [prose(20_000)]).to_json())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, threads in (("1", "1"), ("2", "2"))
    }
    assert len(found) == 1
    assert json.loads(found.pop())["model"]["vocab"]


def test_a_long_text_is_encoded_in_parts(bpe: Tokenizer) -> None:
    text = prose(3 * PART)
    assert bpe.decode(bpe.encode(text)) == text
    assert bpe.encode(text) == [i for part in cut(text, PART) for i in bpe.encode(part)]


@given(text=st.text("ab \n", max_size=200), size=st.integers(1, 50))
def test_parts_are_short_and_together_the_text(text: str, size: int) -> None:
    parts = list(cut(text, size))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= size


def test_somebody_else_s_file_keeps_its_ids_and_gets_what_it_lacks(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2, "[PAD]": 3}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.add_special_tokens(["[PAD]", "[UNK]"])
    inner.enable_padding(length=50, pad_id=3)
    inner.enable_truncation(1)
    inner.save(str(tmp_path / "t.json"))
    coder = Tokenizer.load(tmp_path / "t.json")
    assert (coder.pad, coder.unk) == (3, 0)
    assert sorted((coder.bos, coder.eos, coder.sep, coder.cls, coder.mask)) == [4, 5, 6, 7, 8]
    assert coder.vocab_size == 9
    assert coder.encode("ab a a") == [1, 2, 1, 1]


def test_large_vocabularies_take_four_bytes() -> None:
    assert Tokenizer.byte().dtype == np.dtype("<u2")
    assert Tokenizer.characters([chr(0x4E00 + i) for i in range(100)]).dtype == np.dtype("<u2")
    assert Tokenizer.characters([chr(i) for i in range(0x10000, 0x20000)]).dtype == np.dtype("<u4")


def test_what_cannot_be_is_refused(tmp_path: Path, bpe: Tokenizer) -> None:
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(DataError, match=r"t.json: not a tokenizer.json"):
        Tokenizer.load(tmp_path / "t.json")
    with pytest.raises(DataError, match="cannot be read as a tokenizer"):
        Tokenizer.load(tmp_path / "none.json")
    with pytest.raises(DataError, match="outside the vocabulary of 263"):
        Tokenizer.byte().decode([263])
    with pytest.raises(DataError, match="lone surrogate"):
        bpe.encode("a\ud800")
    with pytest.raises(DataError, match="only the byte tokenizer"):
        bpe.encode_bytes(b"\xff")
    with pytest.raises(DataError, match="did you mean 'byte'"):
        needs_sample(Preparation(tokenizer="bytes"))
    with pytest.raises(DataError, match="has 263 ids, so 300 cannot be had"):
        needs_sample(Preparation(vocab=300))
    with pytest.raises(DataError, match="bpe needs at least 264 ids, not 100"):
        needs_sample(Preparation(tokenizer="bpe", vocab=100))


def test_what_a_gpt_lacks_is_its_end_of_text():
    """It has no rows for more ids: text begins, ends and is padded with the one special there is."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "<|endoftext|>": 2}, []))
    found = Tokenizer(inner)
    assert (found.pad, found.bos, found.eos) == (2, 2, 2)
    assert len({found.unk, found.sep, found.cls, found.mask}) == 4
    assert min(found.unk, found.sep, found.cls, found.mask) > 2


@pytest.mark.parametrize("kind", ["gpt2", "bert", "metaspace", "prepended", "unsplit", "phrases"])
def test_a_long_text_has_the_ids_of_the_whole(kind):
    """It is encoded in parts, and no id may show where they begin: runs of spaces, newlines, phrases, no spaces."""
    draw = random.Random(0)
    words = ["the", "of", "runner", "\n\n", "  ", "New York", "a\n b", "日本語", "x", "\t"]
    text = " ".join(draw.choice(words) for _ in range(40_000)) + "z" * 70_000 + "\n" * 70_000 + " the end"
    if kind == "bert":
        inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        inner.normalizer, inner.pre_tokenizer = tokenizers.normalizers.BertNormalizer(), BertPreTokenizer()
        trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]"], show_progress=False)
    else:
        inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>"], show_progress=False)
        splitters = {"gpt2": ByteLevel(add_prefix_space=False), "metaspace": Metaspace(), "phrases": Whitespace()}
        splitters["prepended"] = Split(" ", "merged_with_next")
        if kind in splitters:
            inner.pre_tokenizer = splitters[kind]
    inner.train_from_iterator([" ".join(words)] * 5, trainer)
    if kind in ("prepended", "unsplit"):
        inner.normalizer = tokenizers.normalizers.Prepend("x")
    if kind == "phrases":
        inner.add_tokens([tokenizers.AddedToken("New York", normalized=False), "the of", "runner the"])
    found = Tokenizer(inner)
    assert found.encode(text) == inner.encode(text, add_special_tokens=False).ids
    parts = list(found.parts(text))
    assert "".join(parts) == text
    assert (len(parts) > 1) == (kind in ("gpt2", "bert", "metaspace", "phrases"))
