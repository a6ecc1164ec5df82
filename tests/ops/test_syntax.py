"""Depths and relations in a tree: against a tree written out by hand, walking by loops, and NetworkX."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kinfolk.core.errors import ShapeError
from kinfolk.ops.dependency_tree import grow
from kinfolk.ops.naive import dependency_tree as slow


def grown(heads, words):
    tree = grow(torch.tensor([heads]), torch.tensor([words]))
    return tree.depth_BL[0].tolist(), tree.relation_BLM[0].tolist()


def test_a_tree_written_out_by_hand():
    """The cat sat on mats: sat is the root, cat and mats its children, the below cat, on below mats."""
    depths, relation = grown([1, 2, -1, 4, 2], [0, 1, 2, 3, 4])
    assert depths == [2, 1, 0, 2, 1]
    assert relation == [
        [0, -1, -2, 4, 3],
        [1, 0, -1, 3, 2],
        [2, 1, 0, 2, 1],
        [-4, -3, -2, 0, -1],
        [-3, -2, -1, 1, 0],
    ]


def test_pieces_of_a_word_stand_where_it_stands_and_the_end_is_a_root_of_its_own():
    depths, relation = grown([1, -1], [0, 0, 1, -1])
    assert depths == [1, 1, 0, 0]
    assert relation == [[0, 0, -1, 1], [0, 0, -1, 1], [1, 1, 0, 0], [-1, -1, 0, 0]]


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_chain_from_the_left_is_the_sequence(n):
    depths, relation = grown([i - 1 for i in range(n)], list(range(n)))
    assert depths == list(range(n))
    assert relation == [[j - i for j in range(n)] for i in range(n)]


@st.composite
def forests(draw):
    """Heads without circles: words are attached one after another, in any order, to one that is there or to none."""
    n = draw(st.integers(1, 9))
    order = draw(st.permutations(range(n)))
    heads = [-1] * n
    for at in range(1, n):
        heads[order[at]] = draw(st.sampled_from([-1, *order[:at]]))
    words = sorted(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=11)))
    return heads, words + [-1] * draw(st.integers(0, 2))


@given(forests())
@example(([-1, -1], [0, 1, -1]))
def test_equals_walking_and_is_antisymmetric(forest):
    heads, words = forest
    depths, relation = grown(heads, words)
    n = len(words)
    assert depths == [slow.depth(heads, w) for w in words]
    assert relation == [[slow.relation(heads, words, i, j) for j in range(n)] for i in range(n)]
    assert all(relation[i][j] == -relation[j][i] for i in range(n) for j in range(n))


def test_depths_are_shortest_paths():
    networkx = pytest.importorskip("networkx")
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        heads = [-1] + [int(torch.randint(i, (), generator=draw)) for i in range(1, 12)]
        graph = networkx.Graph([(i, h) for i, h in enumerate(heads) if h >= 0])
        depths, _ = grown(heads, list(range(12)))
        assert depths == [networkx.shortest_path_length(graph, i, 0) for i in range(12)]


def test_examples_do_not_mix_and_padding_is_harmless():
    a, b = ([1, -1, 1], [0, 1, 2, 2]), ([-1, 0], [0, 1, -1])
    tree = grow(torch.tensor([a[0], [*b[0], -1]]), torch.tensor([a[1], [*b[1], -1]]))
    for row, (heads, words) in enumerate((a, b)):
        depths, relation = grown(heads, words)
        n = len(words)
        assert tree.depth_BL[row, :n].tolist() == depths
        assert tree.relation_BLM[row, :n, :n].tolist() == relation


@pytest.mark.parametrize("heads", [[0], [1, 0], [-1, 2, 3, 1]])
def test_circles_are_refused(heads):
    with pytest.raises(ShapeError, match="go round in a circle"):
        grow(torch.tensor([heads]), torch.tensor([[0]]))
