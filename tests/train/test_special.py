import pytest

from kinfolk.data import Batches, open_data
from kinfolk.family.making import make
from kinfolk.train.run import make_job
from kinfolk.train.special import sentences, special

TINY = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 16, "max_len": 32}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return open_data("copy", cache=tmp_path_factory.mktemp("cache"))


def measured(data, name, **numbers):
    recipe = make(name, size="tiny", vocab_size=data.tokenizer.vocab_size, **TINY, **numbers)
    recipe = recipe.replace(training=recipe.training.replace(batch_size=4, length=16))
    job = make_job(recipe, data, 0)
    batch = Batches(split=data.split("valid"), batch_size=4, length=16, shuffle=False).at(0)
    job.learner.train()
    found = special(job.learner, batch)
    assert job.learner.training
    return found


def test_more_features_are_a_better_estimate(data):
    few, many = (measured(data, "performer", n_features=n)["approximation_error"] for n in (2, 512))
    assert len(few) == len(many) == 2
    assert 0 < sum(many) < 0.5 * sum(few)
    (said,) = sentences({"approximation_error": many})
    assert "over 2 layers" in said


def test_learned_spans_are_told(data):
    (spans,) = measured(data, "adaptive-span").values()
    assert len(spans) == 2
    assert all(0 <= span <= 1024 for span in spans)


def test_nothing_special_is_nothing_said(data):
    assert measured(data, "gpt2") == {}
    assert sentences({}) == []
