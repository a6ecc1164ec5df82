"""Tasks that are made on the fly: right answers, disjoint splits, nothing remembered."""

import numpy as np
import pytest

from kinfolk.core.errors import DataError
from kinfolk.data import Data, open_data
from kinfolk.data.generated.pairs import GeneratedSplit


def texts(data: Data, name: str, n: int = 400) -> list[tuple[str, str]]:
    split = data.split(name)
    assert isinstance(split, GeneratedSplit)
    return [(data.tokenizer.decode(s), data.tokenizer.decode(t)) for s, t in split.pairs(np.arange(n))]


def looked_up(source: str) -> str:
    given, _, asked = source.partition("+")
    pairs = dict(zip(given[::2], given[1::2], strict=True))
    assert sorted(asked) == sorted(pairs)
    return "".join(pairs[key] for key in asked)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("copy", lambda s: s),
        ("queries", looked_up),
        ("queries:pairs=26", looked_up),
        ("reverse", lambda s: s[::-1]),
        ("sort", lambda s: "".join(sorted(s))),
        ("duplication", lambda s: s + s),
        ("addition", lambda s: str(sum(map(int, s.split("+"))))),
        ("copy:length=1,symbols=26", lambda s: s),
        ("reverse:length=40,symbols=2", lambda s: s[::-1]),
        ("sort:length=30,symbols=26", lambda s: "".join(sorted(s))),
        ("addition:digits=17", lambda s: str(sum(map(int, s.split("+"))))),
    ],
)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_answers_are_right(name: str, answer: "callable[[str], str]", split: str) -> None:  # type: ignore[valid-type]
    examples = texts(open_data(name), split)
    assert all(target == answer(source) for source, target in examples)  # type: ignore[misc]
    assert len({source for source, _ in examples}) > 1


@pytest.mark.parametrize("name", ["copy:length=3,symbols=5", "sort:length=3,symbols=4", "addition:digits=2"])
def test_no_question_is_in_both_splits(name: str) -> None:
    data = open_data(name)
    train, valid = ({source for source, _ in texts(data, split, 5000)} for split in ("train", "valid"))
    assert train.isdisjoint(valid)
    assert len(valid) > 3


def test_one_plus_two_and_two_plus_one_are_the_same_question() -> None:
    data = open_data("addition:digits=2")
    asked = [{tuple(sorted(s.split("+"))) for s, _ in texts(data, split, 5000)} for split in ("train", "valid")]
    assert asked[0].isdisjoint(asked[1])


def test_lengths_and_numbers_are_spread() -> None:
    sources = [source for source, _ in texts(open_data("copy:length=8,symbols=4"), "train", 4000)]
    lengths = np.bincount([len(s) for s in sources], minlength=9)[1:]
    assert lengths.min() > 350
    letters = np.unique(list("".join(sources)), return_counts=True)[1]
    assert len(letters) == 4
    assert letters.min() > 0.9 * letters.max()
    digits = np.bincount([len(s.split("+")[0]) for s, _ in texts(open_data("addition:digits=4"), "train", 4000)])
    assert digits[1:].min() > 800


def test_an_example_is_a_function_of_its_number() -> None:
    split = open_data("addition", seed=4).split("train")
    again = open_data("addition", seed=4).split("train")
    assert isinstance(split, GeneratedSplit)
    assert isinstance(again, GeneratedSplit)
    some = np.array([70_000, 3, 3, 99_999])
    one, two = split.pairs(some), [again.pairs(some[i : i + 1])[0] for i in range(4)]
    assert [(s.tolist(), t.tolist()) for s, t in one] == [(s.tolist(), t.tolist()) for s, t in two]
    lengths = split.lengths(some)
    assert [(len(s), len(t)) for s, t in one] == list(zip(*(x.tolist() for x in lengths), strict=True))


def test_another_seed_is_another_task() -> None:
    one, two = open_data("copy", seed=0), open_data("copy", seed=1)
    assert texts(one, "train") != texts(two, "train")
    assert one.fingerprint != two.fingerprint
    assert one.fingerprint == open_data("copy", seed=0).fingerprint
    assert one.fingerprint != open_data("copy:length=17").fingerprint


def test_sizes_and_counts() -> None:
    data = open_data("copy:length=5,examples=300,valid=20")
    train = data.split("train")
    assert (len(train), len(data.split("valid"))) == (300, 20)
    total = sum(len(target) for _, target in texts(data, "train", 300))
    assert (train.n_bytes, train.n_tokens) == (total, total + 300)
    # a virtual size costs nothing
    huge = open_data("copy:examples=1000000000000").split("train")
    assert len(huge) == 10**12
    assert huge.n_bytes == pytest.approx(8.5e12, rel=0.02)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("copy:lenght=3", "unknown setting 'lenght'; did you mean 'length'"),
        ("copy:length=x", "length must be a whole number, not 'x'"),
        ("copy:length=0", "length must be from 1 to 4096, not 0"),
        ("sort:symbols=1", "symbols must be from 2 to 62"),
        ("addition:digits=18", "digits must be from 1 to 17"),
        ("copy:examples=0", "examples must be from 1"),
    ],
)
def test_impossible_numbers_are_refused(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data(name)


def test_a_task_too_small_to_hold_anything_out() -> None:
    # two questions in all, and neither is held out
    split = open_data("copy:length=1,symbols=2").split("valid")
    assert isinstance(split, GeneratedSplit)
    with pytest.raises(DataError, match="too few questions"):
        split.pairs(np.arange(2))


NOUNS, ADJECTIVES, VERBS = "abcdefghijkl", "mnopqr", "stuvwx"


def translated(source: str) -> str:
    """Translate a sentence of the made-up language by its rules."""
    dictionary = {"y": "Y"}
    for kind in (NOUNS, ADJECTIVES, VERBS):
        dictionary |= {word: kind[(i + 5) % len(kind)].upper() for i, word in enumerate(kind)}
    clauses = []
    for clause in source.split("y"):
        verb = next(i for i, word in enumerate(clause) if word in VERBS)
        # reversed, a noun and its adjective have changed places
        clauses.append(clause[:verb][::-1] + clause[verb + 1 :][::-1] + clause[verb])
    return "".join(dictionary[word] for word in "y".join(clauses))


@pytest.mark.parametrize("name", ["language", "language:clauses=1", "language:clauses=5"])
def test_a_made_up_language_is_translated_by_its_rules(name: str) -> None:
    examples = texts(open_data(name), "train", 2000)
    assert all(translated(source) == target for source, target in examples)
    lengths = {len(source) for source, _ in examples}
    clauses = {source.count("y") + 1 for source, _ in examples}
    most = int(name.partition("=")[2] or 3)
    assert clauses == set(range(1, most + 1))
    assert min(lengths) == 3
    assert len({source for source, _ in examples}) > 1500
