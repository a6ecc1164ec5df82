"""`--tokenizer FILE`: files of other tools, each against the library or the definition that wrote it."""

import itertools
import json

import pytest
import tokenizers

from kinfolk.core.errors import DataError
from kinfolk.data import open_data
from kinfolk.data.tokenizers.choice import read_tokenizer_file
from kinfolk.data.tokenizers.tokenizer import byte_alphabet

TEXTS = ["low lower lowest", "newer wider newest", "  two  spaces ", "low"]
MERGES = [("l", "o"), ("lo", "w"), ("e", "r</w>"), ("lo", "w</w>"), ("n", "e"), ("ne", "w")]


def subword_nmt(word, merges):
    """Apply codes to a word as `subword-nmt apply-bpe` does: the earliest merge first, until there is none."""
    symbols = [*word[:-1], word[-1] + "</w>"]
    while True:
        known = [(merges.index(pair), pair) for pair in itertools.pairwise(symbols) if pair in merges]
        if not known:
            return symbols
        _, (a, b) = min(known)
        out, i = [], 0
        while i < len(symbols):
            both = i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == (a, b)
            out.append(a + b if both else symbols[i])
            i += 2 if both else 1
        symbols = out


def codes(tmp_path):
    file = tmp_path / "codes.bpe"
    file.write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES))
    return file


def test_codes_of_subword_nmt_are_applied_as_it_does(tmp_path):
    ours = read_tokenizer_file(codes(tmp_path))
    letters = set("lowern")
    for text in TEXTS:
        said = [ours.inner.id_to_token(i) for i in ours.encode(text)]
        expected = [s for word in text.split() for s in subword_nmt(word, MERGES)]
        expected = [s if set(s.removesuffix("</w>")) <= letters else "<unk>" for s in expected]
        assert said == expected
    assert ours.decode(ours.encode("low newer")) == "low newer"


def files(tmp_path):
    """Write a small file of every kind."""
    tmp_path.mkdir(exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "low", "##er", "new", "wide", "##est"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    vocab = {char: i for i, char in enumerate([*byte_alphabet(), "lo", "low"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\nlo w\n")
    codes(tmp_path)
    return [tmp_path / name for name in ("vocab.txt", "vocab.json", "merges.txt", "codes.bpe")]


@pytest.mark.parametrize("which", range(4))
def test_a_file_of_another_tool_prepares_data(tmp_path, which):
    text = tmp_path / "my.txt"
    text.write_text("low lower\nnewer low\n" * 50)
    file = files(tmp_path / "t")[which]
    data = open_data(text, tokenizer=str(file), cache=tmp_path / "cache")
    assert data.tokenizer.to_json() == read_tokenizer_file(file).to_json()
    assert data.split("train").n_tokens > 50


def test_vocabulary_and_merges_are_found_from_either(tmp_path):
    _, vocab, merges, _ = files(tmp_path)
    one, other = read_tokenizer_file(vocab), read_tokenizer_file(merges)
    assert one.to_json() == other.to_json()
    plain = tokenizers.ByteLevelBPETokenizer(str(vocab), str(merges))
    for text in TEXTS:
        assert one.encode(text) == plain.encode(text).ids


@pytest.mark.parametrize("name", ["a.npz", "a.model", "tokenizer.json", "merges.txt", "codes"])
def test_what_is_no_tokenizer_is_answered_with_what_can_be_read(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(b"PK\x03\x04\0\0 nothing" if name != "codes" else b"#version: 0.1\na b\n")
    with pytest.raises(DataError, match=r"what can be read|SentencePiece|side by side|version: 0\.2"):
        read_tokenizer_file(file)
