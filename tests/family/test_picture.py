"""Patterns drawn as text."""

from kinfolk.core.spec import Spec
from kinfolk.family.picture import patterns, picture
from kinfolk.ops.patterns.leaves import Causal, Full, Global, PerHead, RandomBlocks, Window


class Eye(Spec):
    pattern: Full | Causal = Full()


class Face(Spec):
    eyes: tuple[Eye, ...]
    third: Eye | None = None
    mouth: PerHead = PerHead(patterns=(Causal(), Full()))


def test_a_small_pattern_is_drawn_pair_by_pair():
    assert picture(Causal(), side=3) == ["█··", "██·", "███"]
    assert picture(Window(left=1) | Global(n=1), side=4) == ["████", "██··", "███·", "█·██"]


def test_what_reaches_further_than_the_picture_is_shaded():
    drawn = picture(Causal() & Window(left=16), side=8)
    # one character is five positions, so that the side is two and a half times the reach
    assert drawn[3] == "▒██▒····"
    assert drawn[5] == "·▒▒██▒··"
    assert len(drawn) == 8


def test_a_seed_is_no_distance():
    drawn = picture(RandomBlocks(block=1, n=1, seed=10**9), side=8)
    assert all(set(line) <= {"█", "·"} for line in drawn)


def test_every_pattern_of_a_spec_is_found_with_its_path():
    face = Face(eyes=(Eye(), Eye(pattern=Causal())))
    assert list(patterns(face)) == [
        ("eyes[0].pattern", Full()),
        ("eyes[1].pattern", Causal()),
        ("mouth[0]", Causal()),
        ("mouth[1]", Full()),
    ]
