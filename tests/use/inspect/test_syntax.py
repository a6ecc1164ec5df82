"""Word-level attention by hand, and a planted head that encodes the tree."""

from types import SimpleNamespace

import pytest
import torch

from kinfolk.core.errors import DataError
from kinfolk.data import Tokenizer
from kinfolk.data.files.treebank import ParsedSentence
from kinfolk.use.inspect import syntax
from kinfolk.use.inspect.sight import AttentionMap, ModelSight


def test_pieces_of_a_word_seen_are_summed_and_of_a_word_looking_averaged():
    w = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]])
    # the first piece belongs to no word, then a word of one piece and a word of two
    got = syntax.by_words(w, [-1, 0, 1, 1], 2)
    want = torch.tensor([[[0.3, 0.3], [(0.25 + 0.0) / 2, (0.5 + 0.0) / 2]]], dtype=torch.float64)
    torch.testing.assert_close(got, want)


def test_a_word_never_finds_itself():
    words = torch.eye(3)[None] + 0.01 * torch.tensor([[[0.0, 1.0, 2.0], [1.0, 0.0, 2.0], [2.0, 1.0, 0.0]]])
    assert syntax.predict(words).tolist() == [[2, 2, 0]]


SENTENCE = ParsedSentence(
    ("a", "big", "dog", "ran"), (2, 2, 3, -1), ("X",) * 4, relations=("det", "amod", "nsubj", "root")
)


FAKE = SimpleNamespace(spec=SimpleNamespace(topology="encoder"), limit=None)


def planted(*_):
    """Head 0 of the second layer looks from each word at its head; all others everywhere."""
    n = 4
    tree = torch.zeros(n, n)
    for word, head in enumerate(SENTENCE.heads):
        tree[word, head if head >= 0 else word] = 1.0
    even = torch.full((n, n), 0.25)
    maps = (AttentionMap("encoder.0.0", torch.stack([even, even]), "tokens", "same"),)
    maps += (AttentionMap("encoder.1.0", torch.stack([tree, even]), "tokens", "same"),)
    return ModelSight((0,) * n, (), ("",) * n, (), maps, ())


def test_the_head_that_encodes_the_tree_is_found_and_beats_a_fixed_distance(monkeypatch):
    monkeypatch.setattr(syntax, "see", planted)
    monkeypatch.setattr(syntax, "FEWEST", 1)
    words = Tokenizer.words(["a", "big", "dog", "ran"])
    found = {f.relation: f for f in syntax.relations(FAKE, words, [SENTENCE] * 3)}
    assert set(found) == {"det", "amod", "nsubj"}
    assert {(one.count, one.accuracy) for one in found.values()} == {(3, 1.0)}
    # a head that looks nowhere in particular is taken to look at the first word, so it finds nothing but that
    amod = found["amod"]
    assert (amod.path, amod.head, amod.direction) == ("encoder.1.0", 0, "to head")
    assert found["det"].offset == 2
    assert found["det"].baseline == 1.0


def test_a_treebank_without_ties_is_refused():
    alone = ParsedSentence(("word",), (-1,), ("X",), relations=("root",))
    with pytest.raises(DataError, match="two words"):
        syntax.relations(FAKE, Tokenizer.words(["word"]), [alone])
