"""What every labelled task keeps: examples are functions of their numbers, and splits share nothing."""

import pickle
from typing import Any

import numpy as np
import pytest

from kinfolk.core.errors import DataError
from kinfolk.data import Batches, open_data
from kinfolk.data.generated import LABELLED

SMALL = {
    "parity": "parity:length=8",
    "recall": "recall:pairs=3,keys=4,values=3",
    "needle": "needle:length=16,needles=2",
    "listops": "listops:length=12,shortest=2,depth=3",
    "logic": "logic:operators=3",
    "text": "text:length=400,families=2",
    "prose": "prose:length=400",
    "retrieval": "retrieval:length=400",
    "shapes": "shapes:size=8,kinds=3",
    "pathfinder": "pathfinder:size=24,length=4",
}


def made(split: Any, numbers: list[int]) -> list[tuple[Any, ...]]:
    return [
        (*(side.tolist() for side in sides), label) for *sides, label in split.examples(np.array(numbers, np.int64))
    ]


def test_every_task_is_tested() -> None:
    assert SMALL.keys() <= LABELLED.keys()
    # those whose labels are no classes have tests of their own
    for name in LABELLED.keys() - SMALL.keys():
        assert getattr(open_data(name).split("train"), "asks", "")


@pytest.mark.parametrize("name", SMALL.values())
def test_an_example_is_a_function_of_its_number(name: str) -> None:
    some = [700, 3, 3, 41, 0]
    for part in ("train", "valid"):
        together = made(open_data(name, seed=4).split(part), some)
        alone = [made(open_data(name, seed=4).split(part), [number])[0] for number in some]
        assert together == alone
        assert together != made(open_data(name, seed=5).split(part), some)


@pytest.mark.parametrize("name", SMALL.values())
def test_no_question_is_in_both_splits(name: str) -> None:
    data = open_data(name)
    train, valid = (
        {str(example[:-1]) for example in made(data.split(part), list(range(300)))} for part in ("train", "valid")
    )
    assert train.isdisjoint(valid)
    assert len(valid) > 3
    assert len(train) > 30


@pytest.mark.parametrize("name", SMALL.values())
def test_lengths_classes_and_symbols(name: str) -> None:
    data = open_data(name)
    split: Any = data.split("train")
    numbers = np.arange(200)
    examples = split.examples(numbers)
    lengths = split.lengths(numbers)
    sides = lengths if isinstance(lengths, tuple) else (lengths,)
    for at, side in enumerate(sides):
        assert side.tolist() == [len(example[at]) for example in examples]
        assert side.max() <= (split.longest or side.max())
        assert all(example[at].min() >= 7 and example[at].max() < data.tokenizer.vocab_size for example in examples)
    # two sequences are encoded each by itself
    assert getattr(split, "apart", False) == (len(sides) == 2)
    labels = {example[-1] for example in examples}
    assert labels == set(range(len(split.classes)))


@pytest.mark.parametrize("name", SMALL.values())
def test_batches(name: str) -> None:
    data = open_data(f"{name},examples=50,valid=20")
    assert (len(data.split("train")), len(data.split("valid"))) == (50, 20)
    batches = Batches(data.split("valid"), batch_size=8, shuffle=False)
    seen = [batches.at(step) for step in range(batches.steps_per_epoch)]
    labels = [label for batch in seen if batch.labels is not None for label in batch.labels.tolist()]
    assert labels == [example[-1] for example in made(data.split("valid"), list(range(20)))]
    split: Any = pickle.loads(pickle.dumps(data.split("valid")))
    assert made(split, [7, 1]) == made(data.split("valid"), [7, 1])


def test_what_is_kept_does_not_change_what_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    split = open_data("logic:operators=3").split("train")
    first = made(split, [1, 2, 3])
    calls = []
    task: Any = type(split.task)  # type: ignore[attr-defined]
    draw = task.draw
    monkeypatch.setattr(task, "draw", lambda self, seed, n, **k: calls.append(n.tolist()) or draw(self, seed, n, **k))
    assert made(split, [3, 2, 5, 5]) == [first[2], first[1], *made(split, [5, 5])]
    assert calls == [[5]]
    # too much to keep: everything is forgotten, and made anew
    monkeypatch.setattr("kinfolk.data.generated.made._MOST_KEPT", 10)
    assert made(split, [9, 1]) == [made(open_data("logic:operators=3").split("train"), [9])[0], first[0]]
    assert made(split, [2]) == first[1:2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("listops:lenght=3", "unknown setting 'lenght'; did you mean 'length'"),
        ("listops:length=4", "length must be from 8"),
        ("listops:depth=1", "depth must be from 2 to 32, not 1"),
        ("listops:length=100,shortest=96", "shortest must be from 0 to 95, not 96"),
        ("logic:operators=13", "operators must be from 0 to 12, not 13"),
        ("logic:operators=3,fewest=4", "fewest must be from 0 to 3, not 4"),
        ("text:families=1", "families must be from 2"),
        ("text:length=8", "length must be from 16"),
        ("retrieval:length=60000", "too few files that long"),
        ("prose:family=2", "unknown setting 'family'"),
        ("shapes:kinds=1", "kinds must be from 2 to 10"),
        ("shapes:noise=x", "noise must be a whole number"),
        ("pathfinder:size=8", "size must be from 16 to 512"),
        ("pathfinder:turn=120", "turn must be from 10 to 90"),
        ("recall:pairs=5,keys=4", "pairs must be from 1 to 4, not 5"),
        ("needle:length=16,needles=8", "needles must be from 1 to 7"),
        ("pathfinder:valid=0", "valid must be from 1"),
        ("listop", "did you mean 'listops'"),
    ],
)
def test_impossible_numbers_are_refused(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data(name)


@pytest.mark.parametrize("name", ["listops:length=300,shortest=290,depth=2", "pathfinder:size=16,length=40"])
def test_tasks_without_questions_say_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfolk.data.generated.pathfinder._MOST_TRIES", 200)
    split: Any = open_data(name).split("train")
    with pytest.raises(DataError, match="hardly any"):
        split.examples(np.arange(2))


@pytest.mark.parametrize("name", ["recall", "recall:pairs=26", "needle", "needle:length=90,needles=26"])
def test_recall_and_needle_ask_for_what_stands_behind_the_key(name: str) -> None:
    data = open_data(name)
    split: Any = data.split("train")
    asked = set()
    for ids, label in split.examples(np.arange(200)):
        text = data.tokenizer.decode(ids)
        story, key = text.split("?")
        assert story.count(key) == 1
        assert story[story.index(key) + 1] == split.classes[label]
        asked.add(story.index(key) / len(story))
    # from the beginning to the end
    assert min(asked) < 0.1
    assert max(asked) > 0.85
    labels = np.bincount([label for _, label in split.examples(np.arange(2000))])
    assert labels.min() > 0.6 * labels.max()
