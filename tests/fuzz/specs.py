"""Specs with wrong values: what is accepted builds and learns, everything else is refused."""

import functools
import math
import random
from typing import Any

import torch

import kinfolk as kf
from kinfolk.core.annotations import OtherDocument
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import from_plain, to_plain
from kinfolk.core.rng import Rng
from kinfolk.core.spec import Spec, choices
from kinfolk.family.recipe import Recipe
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from tests.family.test_relatives import KNOWN, NAMES, numbers, read, tokens

NUMBERS = [0, 1, 2, 3, 5, 7, 16, 33, -1, -7, 100, 2**31, 2**63, -(2**63), 10**400, 0.0, 0.5, -0.5, 1.0, 1.5, 1e-30]
NUMBERS += [1e30, 1e308, math.nan, math.inf, -math.inf]
WORDS = ["", "bogus", "none", "auto", "\0", "x" * 10_000, "relu", "past", "both", "tied", "../..", "é\u2028"]
OTHERS: list[Any] = [None, True, False, [], [0], [1, 2], [-1], {}, {"kind": "none"}, {"kind": "bogus"}, {"kind": 3}]


@functools.cache
def plain(name: str) -> dict[str, Any]:
    """Return a small relative as plain data."""
    return to_plain(kf.relative(name, size="tiny", **numbers(name)))


@functools.cache
def kinds() -> tuple[str, ...]:
    """Return the kinds of all axes."""
    return tuple(sorted({kind for axis in Spec.__subclasses__() for kind in choices(axis)}))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in ((*path, key), *leaves(item, (*path, key)))]


def wrong(rng: random.Random, old: Any) -> Any:
    """Return another value, near the old one or far from it."""
    if rng.random() < 0.7 and isinstance(old, int | float) and not isinstance(old, bool):
        return rng.choice([-old, old + 1, old - 1, old * 2, old * 3, old // 2, old // 3, 0.3 * min(old, 1e9), 0, 1, 2])
    if rng.random() < 0.3 and isinstance(old, str):
        return rng.choice(kinds())
    return rng.choice([rng.choice(NUMBERS), rng.choice(WORDS), rng.choice(OTHERS), deep(rng)])


def deep(rng: random.Random) -> Any:
    """Return lists or tables within one another."""
    value: Any = rng.choice([1, {}])
    for _ in range(rng.choice([2, 100, 5000])):
        value = [value] if rng.random() < 0.5 else {"part": value, "kind": "pre-norm"}
    return value


@functools.cache
def places(name: str) -> list[tuple[Any, ...]]:
    """Return the paths of everything in a relative."""
    return leaves(plain(name))


def mutated(rng: random.Random) -> dict[str, Any]:
    """Return a relative with one to three things wrong."""
    name = rng.choice(NAMES)
    data = copied(plain(name))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        *above, last = rng.choice(places(name))
        try:
            place = functools.reduce(lambda value, key: value[key], above, data)
            place[last] = place[last]
        except (KeyError, IndexError, TypeError):
            # something above it is changed already
            continue
        if rng.random() < 0.1:
            place.pop(last)
        elif rng.random() < 0.1 and isinstance(place, dict):
            place[rng.choice([*WORDS[1:], "n_heads", "kind"])] = wrong(rng, 1)
        else:
            place[last] = wrong(rng, place[last])
    return data


def copied(value: Any) -> Any:
    """Return plain data of its own."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def spec_case(rng: random.Random) -> None:
    """Read a spec, build it, and take one training step with it."""
    torch.set_num_threads(1)
    recipe = from_plain(Recipe, mutated(rng), "spec")
    vocab = recipe.model.vocab_size - recipe.objective.extra_ids
    if vocab < 8:
        raise SpecError(f"a tokenizer has at least its special tokens, so {vocab} ids are none")
    model = kf.build(recipe, seed=1)
    learn = Learner(model.train(), recipe.objective, Vocabulary(vocab, known=KNOWN[type(recipe.knowledge)]))
    name = recipe.name if recipe.name in NAMES else "gpt2"
    length = min(60, model.limit or 60)
    rows = read(name, tokens(2, length) % vocab)
    others = rows.annotation(OtherDocument).tokens_BM % vocab
    batch = learn.prepare(rows.annotate(OtherDocument(others)), Rng(0))
    loss = learn(batch)
    total = loss.total / loss.count + loss.side
    total.backward()
    if not total.isfinite():
        raise SpecError(f"the loss of this spec is {total.item()}")
    recipe.training.build_optimiser(learn).step()
