"""Metrics are defined once, and everything that reports one finds it; tasks are found by labels and by objective."""

import math
import re
from pathlib import Path

import pytest

import kinfolk.objectives
from kinfolk.core.errors import SpecError
from kinfolk.objectives.auxiliary import Auxiliary
from kinfolk.objectives.causal import CausalLM
from kinfolk.objectives.distil import Distil
from kinfolk.objectives.measures.measure import Measure, measure_of, measures, require
from kinfolk.objectives.multi_token import MultiToken
from kinfolk.objectives.sequence import SequenceToSequence
from kinfolk.objectives.span import SpanCorruption
from kinfolk.objectives.supervised import Classify, SpanAnswer, Tag
from kinfolk.objectives.tasks.registry import named, of_labels, of_objective, tasks


def test_every_name_that_an_objective_reports_is_defined():
    names = set()
    for file in Path(kinfolk.objectives.__file__).parent.glob("*.py"):
        text = file.read_text(encoding="utf-8")
        names |= set(re.findall(r'measured: ClassVar\[str\] = "([a-z-]+)"', text))
        for body in re.findall(r"def measure\(.*?(?=\n    def |\nclass |\ndef |\Z)", text, re.DOTALL):
            names |= set(re.findall(r'"([a-z]+(?:-[a-z]+)*)": ', body))
    assert len(names) > 12
    assert names - set(measures()) == set()


def test_direction_decides_what_is_better():
    accuracy, loss = measure_of("accuracy"), measure_of("class")
    assert accuracy.better(0.5, 0.4)
    assert not accuracy.better(0.4, 0.5)
    assert loss.better(0.4, 0.5)
    assert loss.better(9.0, None)
    assert not loss.better(math.nan, None)
    assert (accuracy.title, loss.title) == ("accuracy", "class loss")


def test_a_name_without_a_definition_is_a_loss_and_stays_undefined():
    own = measure_of("my-token")
    assert (own.higher, own.unit, own.tokens) == (False, "nats", True)
    assert "my-token" not in measures()
    with pytest.raises(SpecError, match="measure: unknown 'acuracy'; did you mean 'accuracy'"):
        require("acuracy")


def test_a_second_meaning_of_a_name_is_refused():
    with pytest.raises(SpecError, match="measure 'accuracy': is already defined"):
        Measure(name="accuracy", meaning="another")
    with pytest.raises(SpecError, match="`objectives` goes with `sums`"):
        Measure(name="half", meaning="half a definition", objectives=("classify",))
    assert "half" not in measures()


def test_every_task_decides_by_a_metric_that_is_defined():
    kinds = {
        "classify",
        "pairs",
        "image",
        "multi-label",
        "regress",
        "tag",
        "answer",
        "lm",
        "masked-lm",
        "seq2seq",
        "act",
    }
    assert kinds <= set(tasks())
    assert all(task.decides in measures() for task in tasks().values() if task.decides)
    assert named("tag").metric(("O", "B-x")) == "entity-f1"
    assert named("tag").metric(("noun", "verb")) == "accuracy"
    with pytest.raises(SpecError, match="task: unknown 'clasify'; did you mean 'classify'"):
        named("clasify")


def test_tasks_are_found_by_labels_and_by_objective():
    assert of_labels("class").kind == "classify"
    assert of_labels("class", 2).kind == "pairs"
    assert of_labels("class", image=True).kind == "image"
    assert of_labels("number", 2).kind == "regress"
    assert [of_objective(one).kind for one in (Classify(), Tag(), SpanAnswer())] == ["classify", "tag", "answer"]
    # what was learnt from a teacher is the task itself
    assert of_objective(Distil(task=Tag(), teacher="x")).kind == "tag"


@pytest.mark.parametrize(
    "around", [lambda of: Distil(task=of, teacher="x"), lambda of: Auxiliary(of=of), lambda of: MultiToken(of=of)]
)
def test_an_objective_around_another_has_its_task_and_changes_with_it_on_pairs(around):
    assert of_objective(around(CausalLM())).kind == of_objective(CausalLM()).kind
    denoising = around(SpanCorruption())
    assert type(denoising.on_pairs().inner) is SequenceToSequence
    assert type(denoising.inner) is SpanCorruption
