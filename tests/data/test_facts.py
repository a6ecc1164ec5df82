"""Facts of a file in tokens, whatever the tokenizer; a line that is no fact is named."""

import numpy as np
import pytest
import tokenizers

from kinfolk.core.errors import DataError
from kinfolk.data.splits.facts import read_entities, read_triples
from kinfolk.data.tokenizers.pieces import pieces_of
from kinfolk.data.tokenizers.tokenizer import Tokenizer

FACTS = "Cook\tCEO\tApple\nBeijing\tcapital\tChina\nBeijing\tis a\tcity\nBeijing\tis a\tcity\nTim Cook\tborn\t1960\n"


def words():
    known = "Tim Cook visits Beijing CEO Apple capital China is a city born 1960"
    return Tokenizer.words(known.split())


def pieces():
    """Pairs of bytes as GPT-2 merges them, with the space before a word part of it."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["Ġ" + "Cook"[:n] for n in range(1, 5)] + ["Co", "Coo", "Cook"]
    vocab = {piece: i for i, piece in enumerate([*alphabet, *names])}
    merges = [("Ġ", "C"), ("ĠC", "o"), ("ĠCo", "o"), ("ĠCoo", "k")]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(inner)


def found(tokenizer, text, file, **options):
    """Return the names that are found in a text, and what is known of them, as text."""
    row = np.array(tokenizer.encode(text))
    starts = pieces_of(tokenizer).word_starts(row)
    names = read_triples(file, tokenizer, **options)
    return [
        (tokenizer.decode(row[m.first : m.last + 1]).strip(), [tokenizer.decode(b).strip() for b in m.what])
        for m in names.mentions(row, starts)
    ]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "facts.tsv"
    path.write_text(FACTS, encoding="utf-8")
    return path


@pytest.mark.parametrize("make", [Tokenizer.byte, words, pieces])
def test_facts_are_found_in_text(make, file):
    tokenizer = make()
    assert found(tokenizer, "Tim Cook visits Beijing", file) == [
        ("Tim Cook", ["born 1960"]),
        ("Beijing", ["capital China", "is a city"]),
    ]
    assert found(tokenizer, "Beijing Cook", file, relation=False) == [
        ("Beijing", ["China", "city"]),
        ("Cook", ["Apple"]),
    ]


@pytest.mark.parametrize("make", [Tokenizer.byte, pieces])
def test_a_part_of_a_word_is_no_name(make, file):
    assert found(make(), "Cooking in Beijinger", file) == []


def test_what_cannot_be_spelt_is_nobodys_name(tmp_path):
    file = tmp_path / "facts.tsv"
    file.write_text("Zhang\tis a\tcity\nCook\tis a\tcity\n")
    tokenizer = words()
    assert list(read_triples(file, tokenizer).known) == [tuple(tokenizer.encode("Cook"))]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Cook CEO Apple", "1 columns"),
        ("Cook\tCEO\tApple\tmore", "4 columns"),
        ("Cook\t\tApple", "the relation is empty"),
    ],
)
def test_a_line_that_is_no_fact_is_named(line, words, tmp_path):
    file = tmp_path / "facts.tsv"
    file.write_text(f"Beijing\tcapital\tChina\n\n{line}\n")
    with pytest.raises(DataError, match=rf"facts\.tsv:3: .*{words}"):
        read_triples(file, Tokenizer.byte())


def test_a_file_that_is_no_text_is_named(tmp_path):
    file = tmp_path / "facts.tsv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"facts\.tsv: cannot be read as UTF-8"):
        read_triples(file, Tokenizer.byte())


def test_what_names_may_mean(tmp_path):
    file = tmp_path / "entities.tsv"
    file.write_text("Java\tisland\t10\nJava\tlanguage\t30\nBeijing\tcity\nJava\tcoffee\t10\n")
    tokenizer = Tokenizer.byte()
    names, entities = read_entities(file, tokenizer)
    assert entities == ["island", "language", "city", "coffee"]
    assert names.known[tuple(tokenizer.encode("Java"))] == ((1, 0.6), (0, 0.2), (3, 0.2))
    assert names.known[tuple(tokenizer.encode("Beijing"))] == ((2, 1.0),)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Java", "1 columns"),
        ("Java\tisland\t-1", "the prior '-1' is not a number above 0"),
        ("Java\tisland\tmany", "'many'"),
        ("Java\tisland\tnan", "'nan'"),
        ("Java\tlanguage\t2", "once more that 'Java' may mean 'language'"),
    ],
)
def test_a_line_that_says_no_meaning_is_named(line, words, tmp_path):
    file = tmp_path / "entities.tsv"
    file.write_text(f"Java\tlanguage\t1\n{line}\n")
    with pytest.raises(DataError, match=rf"entities\.tsv:2: .*{words}"):
        read_entities(file, Tokenizer.byte())
