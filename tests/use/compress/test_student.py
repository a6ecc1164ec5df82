"""Students of other sizes and relatives, and what they take over from their teacher."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.errors import SpecError
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.use.compress.opening import CompressibleRun
from kinfolk.use.compress.student import begin, layers_for, student_of

TOY = {"d_model": 24, "n_layers": 6, "n_heads": 3, "d_ff": 40, "vocab_size": 30, "max_len": 32}


def opened(name="gpt2", **numbers):
    recipe = kf.relative(name, size="tiny", **(TOY | numbers))
    learner = Learner(kf.build(recipe, seed=1), recipe.objective, Vocabulary(30))
    return CompressibleRun(None, recipe, learner, None, None, {})


def test_layers_are_those_of_distilbert():
    assert layers_for(6, 12) == [0, 2, 4, 7, 9, 11]
    assert layers_for(3, 6) == [0, 2, 5]
    assert layers_for(1, 4) == [0]
    assert layers_for(4, 4) == [0, 1, 2, 3]


def test_a_student_begins_with_layers_of_its_teacher():
    given, said = opened(), []
    student = student_of(given, "gpt2", said.append, assignments=["n_layers=3"], seed=9)
    teacher = given.learner.model
    assert student.spec.decoder.n_layers == 3
    assert student.spec.d_model == 24
    for mine, its in enumerate((0, 2, 5)):
        a, b = student.decoder.blocks[mine].state_dict(), teacher.decoder.blocks[its].state_dict()
        assert all(torch.equal(a[name], b[name]) for name in b)
    assert torch.equal(student.embedding.weight, teacher.embedding.weight)
    assert "0, 2, 5" in said[0]


def test_a_student_as_deep_as_its_teacher_is_its_teacher():
    given = opened()
    student = student_of(given, "gpt2", lambda line: None, assignments=["n_layers=6"], seed=9).eval()
    tokens = torch.randint(7, 30, (2, 9))
    assert torch.equal(student(tokens).logits, given.learner.model.eval()(tokens).logits)


def test_another_relative_takes_what_fits_and_draws_the_rest():
    given, said = opened(), []
    student = student_of(given, "local", said.append, assignments=["n_layers=2", "d_ff=20"], seed=9)
    assert torch.equal(student.embedding.weight, given.learner.model.embedding.weight)
    assert "from layers" not in said[0]
    narrow = student_of(given, "gpt2", said.append, assignments=["d_model=12", "model.dropout=0.3"], seed=9)
    assert narrow.spec.dropout == 0.3
    assert begin(narrow, given.learner.model) == ({}, 0)


def test_a_student_that_reads_other_things_is_refused():
    with pytest.raises(SpecError, match="encoder-decoder"):
        student_of(opened(), "vanilla", lambda line: None)
    with pytest.raises(SpecError, match="unknown relative"):
        student_of(opened(), "gpt22", lambda line: None)


def test_layers_that_share_a_block_begin_with_one():
    given = opened("roberta")
    student = student_of(given, "albert", lambda line: None, assignments=["n_layers=2"])
    assert student.spec.topology == "encoder"
    assert len(student.spec.encoder.blocks) == 1
