"""Tokenizers of folders: whole files as they are, and those that are made of older ones."""

import json
import struct

import pytest
import tokenizers

from kinfolk.core.errors import DataError
from kinfolk.data import Tokenizer
from kinfolk.runs.huggingface.tokenizing import read_tokenizer

TEXTS = ["Hello, World!  naïve café", "an unbelievable story", "", "don't  stop…", "日本 ok"]


def word_file(folder):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "un", "##bel", "##ie", "##vable", "story"]
    words += ["na", "##ive", "cafe", ",", "!", "an", "don", "'", "t", "stop", "日", "本", "ok"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def test_words_in_a_list_are_berts_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers", reason="its tokenizer is the other side of this test")
    word_file(tmp_path)
    ours = read_tokenizer(tmp_path, "bert")
    vocab = {word: i for i, word in enumerate((tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    theirs = transformers.BertTokenizer(vocab=vocab)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
    assert ours.encode("Hello", "World").ids == theirs("Hello", "World")["input_ids"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert read_tokenizer(tmp_path, "bert").encode("Hello").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_only_newlines_end_a_token_of_a_list(tmp_path):
    """bert-base-chinese has U+2028 as token 344: every id behind it was one too high."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "\x85", "\x0b", "\x1c", "last"]
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(words).encode())
    assert read_tokenizer(tmp_path, "bert").token_to_id("last") == len(words) - 1
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "a": 1, "\x85": 2, "a\x85": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na \x85\n", encoding="utf-8")
    assert read_tokenizer(tmp_path, "openai-gpt").get_vocab_size() == 4


def test_a_list_without_the_specials_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match=r"vocab\.txt: has no \[UNK\]"):
        read_tokenizer(tmp_path, "bert")


def test_merges_of_bytes(tmp_path):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS * 3, trainer)
    made.model.save(str(tmp_path))
    ours = read_tokenizer(tmp_path, "roberta")
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False).ids == made.encode(text).ids
        assert ours.decode(made.encode(text).ids) == text
    assert ours.encode("a").ids == [0, *made.encode("a").ids, 2]
    (tmp_path / "merges.txt").write_text("a b c\n")
    with pytest.raises(DataError, match=r"merges\.txt"):
        read_tokenizer(tmp_path, "roberta")


def field(number, kind, payload):
    key = bytes([number << 3 | kind]) if number < 16 else bytes([(number << 3 | kind) & 127 | 128, number >> 4])
    return key + (bytes([len(payload)]) if kind == 2 else b"") + payload


def piece_file(folder, model_type=1):
    """A model of unigram pieces, written by hand."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁he", -1.5), ("llo", -1.7), ("l", -4.0)]
    pieces += [("▁hello", -2.5), ("o", -4.5), ("h", -5.0), ("e", -5.0)]
    raw = b"".join(field(1, 2, field(1, 2, p.encode()) + field(2, 5, struct.pack("<f", s))) for p, s in pieces)
    raw += field(2, 2, field(3, 0, bytes([model_type])) + field(40, 0, b"\x02"))
    (folder / "spiece.model").write_bytes(raw)


def test_pieces_of_sentences(tmp_path):
    piece_file(tmp_path)
    made = read_tokenizer(tmp_path, "t5")
    assert made.encode("hello  helo").tokens == ["▁hello", "▁he", "l", "o", "</s>"]
    assert made.token_to_id("<extra_id_99>") == 11
    assert made.token_to_id("<extra_id_0>") == 110
    assert made.encode("xo").ids[:2] == [3, 2]
    assert made.decode(made.encode("hello helo").ids) == "hello helo"
    assert read_tokenizer(tmp_path, "albert").encode("HELLO").tokens == ["▁hello"]


def test_pieces_that_cannot_be_read_are_refused(tmp_path):
    piece_file(tmp_path)
    whole = (tmp_path / "spiece.model").read_bytes()
    for damaged in (whole[:-3], b"", b"\xff" * 40, b"\x0b\x01"):
        (tmp_path / "spiece.model").write_bytes(damaged)
        with pytest.raises(DataError, match=r"spiece\.model"):
            read_tokenizer(tmp_path, "t5")
    piece_file(tmp_path, model_type=4)
    with pytest.raises(DataError, match=r"of type char; allowed: unigram, BPE"):
        read_tokenizer(tmp_path, "t5")


def test_a_whole_file_goes_before_older_ones(tmp_path):
    assert read_tokenizer(tmp_path, "bert") is None
    word_file(tmp_path)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    made.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(tmp_path, "bert").encode("a").ids == [0]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path, "bert")


def test_a_foreign_model_has_a_row_for_every_special(tmp_path):
    word_file(tmp_path)
    bert = Tokenizer(read_tokenizer(tmp_path, "bert"))
    assert bert.vocab_size == 25
    assert (bert.bos, bert.eos, bert.cls, bert.sep) == (2, 3, 2, 3)
    vocab = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5}
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    roberta = Tokenizer(read_tokenizer(tmp_path, "roberta"))
    assert roberta.vocab_size == 6
    assert (roberta.bos, roberta.eos, roberta.cls, roberta.sep, roberta.mask) == (0, 2, 0, 2, 4)
