"""The sample of the registry has everything that the registry has."""

import pytest

import kinfolk as kf
from tests.cover import cover, kinds, sampled

NAMES = kf.relatives()
FEATURES = {name: kinds(name) for name in NAMES}
CAUSAL = {name: FEATURES[name] for name in NAMES if kf.about(name).causal}


@pytest.mark.parametrize("features", [FEATURES, CAUSAL], ids=["all", "causal"])
@pytest.mark.parametrize("seed", ["decoding", "padding", "half precision"])
def test_every_kind_is_in_the_sample(features, seed):
    chosen = cover(features, seed)
    assert set().union(*(features[name] for name in chosen)) == set().union(*features.values())
    assert chosen == cover(dict(reversed(features.items())), seed)
    assert len(chosen) < 0.7 * len(features)


def test_a_new_kind_brings_its_relative_along():
    new = {**FEATURES, "mine": frozenset({*FEATURES["gpt2"], "a kind of mine"})}
    assert "mine" in cover(new, "decoding")
    assert len(cover(new, "decoding") - cover(FEATURES, "decoding")) < 10


def test_every_relative_is_in_some_samples():
    samples = [cover(FEATURES, f"property {n}") for n in range(120)]
    assert set().union(*samples) == set(NAMES)


def test_the_others_are_marked_long():
    cases = sampled(NAMES, "decoding", marks={"gpt2": [pytest.mark.slow]})
    assert [case.values for case in cases] == [(name,) for name in NAMES]
    chosen = cover(FEATURES, "decoding")
    for case in cases:
        (name,) = case.values
        assert [mark.name for mark in case.marks] == ["slow"] * (name == "gpt2") + ["long"] * (name not in chosen)


def test_a_case_that_is_long_anyway_stands_for_nothing():
    alone = next(name for name in cover(FEATURES, "") if len({n for n in NAMES if FEATURES[n] >= FEATURES[name]}) == 1)
    cases = {case.values[0]: case.marks for case in sampled(NAMES, "decoding", marks={alone: [pytest.mark.long]})}
    short = {name for name, marks in cases.items() if not marks}
    assert alone not in short
    reachable = set().union(*(FEATURES[name] for name in NAMES if name != alone))
    assert set().union(*(FEATURES[name] for name in short)) == reachable
