"""Names in rows of tokens, and the tree that facts about them make of a sentence."""

import numpy as np
import pytest

from kinfolk.core.knowledge import Mention, Names, SentenceTree

# Liu et al. 2020, figure 2: "Tim Cook is visiting Beijing now", with one fact about Cook and two about Beijing
WORDS = ["[CLS]", "Tim", "Cook", "is", "visiting", "Beijing", "now", "CEO", "Apple", "capital", "China", "is_a", "City"]
ID = {word: 10 + i for i, word in enumerate(WORDS)}
SENTENCE = np.array([ID[word] for word in ["[CLS]", "Tim", "Cook", "is", "visiting", "Beijing", "now"]])


def ids(text):
    return tuple(ID[word] for word in text.split())


FACTS = Names({ids("Cook"): (ids("CEO Apple"),), ids("Beijing"): (ids("capital China"), ids("is_a City"))})


def tree(facts=FACTS):
    return SentenceTree.grow(SENTENCE, list(facts.mentions(SENTENCE)))


def test_the_example_of_the_paper_worked_by_hand():
    found = tree()
    flat = "[CLS] Tim Cook CEO Apple is visiting Beijing capital China is_a City now"
    assert found.tokens.tolist() == list(ids(flat))
    assert found.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 6, 7, 6]
    assert found.trunk.tolist() == [w not in ["CEO", "Apple", "capital", "China", "is_a", "City"] for w in flat.split()]
    # rows and columns in the order of the flattened sentence
    picture = """
        x x x . . x x x . . . . x
        x x x . . x x x . . . . x
        x x x x x x x x . . . . x
        . . x x x . . . . . . . .
        . . x x x . . . . . . . .
        x x x . . x x x . . . . x
        x x x . . x x x . . . . x
        x x x . . x x x x x x x x
        . . . . . . . x x x . . .
        . . . . . . . x x x . . .
        . . . . . . . x . . x x .
        . . . . . . . x . . x x .
        x x x . . x x x . . . . x
    """
    wanted = np.array([[mark == "x" for mark in line.split()] for line in picture.split("\n") if line.strip()])
    assert np.array_equal(found.visible, wanted)


def test_all_tokens_of_a_longer_name_see_its_branches():
    found = tree(Names({ids("Tim Cook"): (ids("CEO Apple"),)}))
    assert found.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6]
    assert found.visible[3].tolist() == [False, True, True, True, True, False, False, False, False]
    assert np.array_equal(found.visible, found.visible.T)
    assert found.visible.diagonal().all()


def test_the_sentence_may_come_first():
    found, first = tree(), tree().sentence_first()
    n = len(SENTENCE)
    assert np.array_equal(first.tokens[:n], SENTENCE)
    assert first.positions.tolist() == [*range(n), 3, 4, 6, 7, 6, 7]
    assert first.parent.tolist() == [*range(n), 2, 2, 5, 5, 5, 5]
    place = {(t, p): i for i, (t, p) in enumerate(zip(found.tokens, found.positions, strict=True))}
    order = [place[pair] for pair in zip(first.tokens, first.positions, strict=True)]
    assert np.array_equal(first.visible, found.visible[np.ix_(order, order)])


def test_without_facts_a_sentence_is_itself():
    found = tree(Names({}))
    assert np.array_equal(found.tokens, SENTENCE)
    assert found.positions.tolist() == list(range(len(SENTENCE)))
    assert found.visible.all()
    assert found.trunk.all()


@pytest.mark.parametrize(
    ("starts", "wanted"),
    [
        (None, [(0, 1, "ab"), (2, 2, "c"), (3, 3, "a"), (4, 4, "a"), (5, 6, "ab")]),
        # token 1 goes on with the word of token 0, and token 4 with that of token 3
        ([1, 0, 1, 1, 0, 1, 1], [(0, 1, "ab"), (2, 2, "c"), (5, 6, "ab")]),
    ],
)
def test_the_longest_name_is_found_and_names_are_whole_words(starts, wanted):
    names = Names({(1, 2): "ab", (1,): "a", (3,): "c", (2, 3): "bc"})
    row = np.array([1, 2, 3, 1, 1, 1, 2])
    given = None if starts is None else np.array(starts, bool)
    assert list(names.mentions(row, given)) == [Mention(*found) for found in wanted]
