"""Entities of tags, against an example worked by hand, and against brute force over whatever tags there are."""

import itertools

import pytest
import torch

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.data import Split
from kinfolk.data.files.conll import Tagged
from kinfolk.objectives.measures.entities import EntityConfusion, entities, marks_entities
from kinfolk.objectives.supervised import Tag
from kinfolk.train.judgement import tally_of
from tests.train.test_judgement import said


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-x I-x O", [(0, 2, "x")]),
        ("B-x B-x", [(0, 1, "x"), (1, 2, "x")]),
        # an I- that goes on with nothing begins: the older IOB, and what a model may say
        ("O I-x I-x", [(1, 3, "x")]),
        ("B-x I-y", [(0, 1, "x"), (1, 2, "y")]),
        ("I-x B-x I-x", [(0, 1, "x"), (1, 3, "x")]),
        ("S-x B-x I-x E-x O S-y", [(0, 1, "x"), (1, 4, "x"), (5, 6, "y")]),
        ("B-x E-x I-x", [(0, 2, "x"), (2, 3, "x")]),
        ("U-x B-x L-x", [(0, 1, "x"), (1, 3, "x")]),
        ("O E-x", [(1, 2, "x")]),
        ("B-a-b I-a-b", [(0, 2, "a-b")]),
        ("B I O", [(0, 2, "")]),
        ("O O", []),
    ],
)
def test_marks_to_entities(tags, found):
    assert entities(tags.split()) == found


def starts_and_ends(tags):
    """The rules of the shared task, as two questions about neighbours."""
    split = [tuple(tag.split("-")) if "-" in tag else ("O", "") for tag in ["O", *tags, "O"]]
    found, start = [], None
    for i, ((a, x), (b, y)) in enumerate(itertools.pairwise(split)):
        ends = (a in "BI" and b in "BSO") or a in "ES" or (a != "O" and x != y)
        begins = b in "BS" or (a in "ESO" and b in "IE") or (b != "O" and x != y)
        if ends and a != "O":
            found.append((start, i, x))
        if begins:
            start = i
    return found


def test_every_short_row_of_marks():
    marks = ["O", "B-x", "I-x", "E-x", "S-x", "I-y", "B-y"]
    for tags in itertools.product(marks, repeat=4):
        assert entities(tags) == starts_and_ends(tags), tags


def test_which_tags_mark_entities():
    assert marks_entities(["O", "B-x", "I-x"])
    assert marks_entities(["I-x", "O"])
    assert not marks_entities(["NOUN", "VERB"])
    assert not marks_entities(["O", "S"])
    assert not marks_entities(["O", "B-x", "person"])


TRUTH = ["B-PER I-PER O O B-LOC", "O B-ORG I-ORG O", "B-LOC O B-PER"]
SAID = ["B-PER I-PER O O B-ORG", "O B-ORG O O", "B-LOC O B-PER"]
CLASSES = ("B-LOC", "B-ORG", "B-PER", "I-ORG", "I-PER", "O")


class Sentences(Split):
    classes = tuple(CLASSES)
    sentences = tuple(Tagged(tuple(row.split()), tuple(row.split()), 1) for row in TRUTH)


def batches(width):
    number = {tag: i for i, tag in enumerate(CLASSES)}
    for i, (truth, answer) in enumerate(zip(TRUTH, SAID, strict=True)):
        tags, answers = ([number[tag] for tag in row.split()][:width] for row in (truth, answer))
        # every other token is no first piece of a word
        targets = torch.full((1, 2 * len(tags)), IGNORE)
        targets[0, ::2] = torch.tensor(tags)
        logits = torch.zeros(1, 2 * len(tags), len(CLASSES))
        logits[0, ::2] = torch.nn.functional.one_hot(torch.tensor(answers), len(CLASSES)).float()
        yield said(logits), Batch(index=torch.tensor([i]), tokens=targets, targets=targets)


def test_the_example_worked_by_hand():
    tally = tally_of(Tag(), Sentences())
    assert isinstance(tally, EntityConfusion)
    for output, batch in batches(9):
        tally.add(output, batch)
    # five are there, five are found, three are right: PER (0, 2), LOC (0, 1), PER (2, 3)
    assert (tally.there.total(), tally.found.total(), tally.right.total()) == (5, 5, 3)
    assert tally.values()["entity-f1"] == pytest.approx(0.6)
    assert tally.values()["accuracy"] == pytest.approx(10 / 12)
    kinds = {row["name"]: (row["labels"], row["answers"], row["right"], row["f1"]) for row in tally.plain()["entities"]}
    assert kinds == {
        "LOC": (2, 1, 1, pytest.approx(2 / 3)),
        "ORG": (1, 2, 0, 0.0),
        "PER": (2, 2, 2, 1.0),
    }


def test_what_is_cut_off_is_missed():
    tally = tally_of(Tag(), Sentences())
    for output, batch in batches(2):
        tally.add(output, batch)
    assert tally.plain()["words_cut"] == 3 + 2 + 1
    assert (tally.there.total(), tally.found.total(), tally.right.total()) == (5, 3, 2)
    assert any("words cut off  6" in line for line in tally.sentences())
