"""A small file, one of three lines, one very long line: every relative trains, validates and resumes, or is refused."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinfolk as kf
from kinfolk.core.errors import KinfolkError
from kinfolk.data import Batches, Data, open_data
from kinfolk.family.making import numbers_of
from kinfolk.family.registry import entry
from kinfolk.train import RunOptions, resume, train
from kinfolk.train.evaluate import evaluate
from kinfolk.train.loop import Session
from kinfolk.train.parallel import Team
from kinfolk.train.run import make_job, reading_of, try_out
from tests.train.toy import same_run

QUIET = RunOptions(quiet=True, tensorboard=False, device="cpu", threads=1)
TOY = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_len": 64}
READ = {"batch_size": 4, "length": 16, "eval_batches": 0}
SHORT = READ | {"steps": 2, "eval_every": 2, "save_every": 1, "precision": "fp32", "compile": "off"}
SENTENCE = "All of the boats are gone, and the old man on the shore asks when they will return. "
TEXTS = {
    "small": "".join(SENTENCE[i % 7 : 30 + i % 53] + "\n" for i in range(120)),
    "three lines": "".join(SENTENCE * n + "\n" for n in (7, 11, 8)),
    "one long line": SENTENCE * 40,
}
NAMES = kf.relatives()


def recipe(name: str, data: Data) -> Any:
    """Return a relative of toy size that reads a text."""
    known = numbers_of(entry(name).function)
    numbers: dict[str, Any] = {key: value for key, value in TOY.items() if key in known}
    made = kf.relative(name, size="tiny", vocab_size=data.tokenizer.vocab_size, **numbers).learning_from("text")
    return made.replace(training=made.training.replace(**SHORT))


def one_of_each_kind() -> set[str]:
    """Return the first relative of every objective and every order of reading."""
    kinds: dict[tuple[str, str], str] = {}
    for name in ("gpt2", "transformer-xl", *NAMES):
        made = kf.relative(name, size="tiny")
        kinds.setdefault((made.objective.kind, made.training.order), name)
    return set(kinds.values())


FEW = one_of_each_kind()


def cases() -> list[Any]:
    """Return all relatives with all texts, of which only some are tried outside the long tests."""
    tried = {(name, "three lines") for name in FEW} | {("xlnet", "small"), ("xlnet", "one long line")}
    every = [(name, text) for name in NAMES for text in TEXTS]
    return [pytest.param(*case, marks=[pytest.mark.long] * (case not in tried)) for case in every]


def test_the_sample_has_every_objective_of_the_registry() -> None:
    assert {kf.relative(name, size="tiny").objective.kind for name in NAMES} == {
        kf.relative(name, size="tiny").objective.kind for name in FEW
    }
    assert {"xlnet", "transformer-xl"} & FEW


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Data]:
    place, found = tmp_path_factory.mktemp("text"), {}
    for i, (text, content) in enumerate(TEXTS.items()):
        (place / f"{i}.txt").write_text(content)
        found[text] = open_data(place / f"{i}.txt")
    return found


def refused(act: Callable[[], object]) -> str:
    """Return the words with which something is refused, or nothing."""
    try:
        act()
    except KinfolkError as error:
        return str(error)
    return ""


class CutError(Exception):
    """Ends a run between two steps."""


@pytest.mark.parametrize(("name", "text"), cases())
def test_every_relative_trains_validates_and_resumes(
    name: str, text: str, opened: dict[str, Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = opened[text]
    refusal = refused(lambda: train(recipe(name, data), data, tmp_path / "whole", options=QUIET))
    if refusal:
        assert not (tmp_path / "whole").exists(), f"refused too late: {refusal}"
        # a picture has rows of one width; pairs of passages take two documents to validate on
        documents = "part has one document; two or more are needed" in refusal
        assert documents if recipe(name, data).training.order == "documents" else kf.about(name).input == "image"
        return
    result = resume(tmp_path / "whole")
    assert result.valid
    assert all(map(math.isfinite, result.valid.values()))
    update = Session.update

    def dying(self: Session, stop: Any) -> Any:
        if self.counters.step:
            raise CutError
        return update(self, stop)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "update", dying)
        with pytest.raises(CutError):
            train(recipe(name, data), data, tmp_path / "cut", options=QUIET)
    assert resume(tmp_path / "cut", options=QUIET).step == 2
    assert same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("name", sorted(FEW))
def test_validation_parts_of_any_length_are_scored_or_refused_before_training(name: str, tmp_path: Path) -> None:
    """Rows of a stream run out one after the other; a row may end with a batch, within one, or before it."""
    (tmp_path / "train.txt").write_text(TEXTS["three lines"])
    files = tmp_path / "train.txt", tmp_path / "valid.txt"
    scored, job = [], None
    for n in (1, 2, 15, 16, 47, 48, 63, 65, 95, 600, 1100):
        files[1].write_text((SENTENCE * 20)[:n])
        data = open_data(files[0], valid=files[1], cache=tmp_path / "cache")
        if kf.about(name).input == "image":
            continue
        job = job or make_job(recipe(name, data), data, 0)
        job = job.replace(valid=Batches(data.split("valid"), shuffle=False, **reading_of(job.training)))
        if refused(functools.partial(try_out, job, Team())):
            continue
        scores = evaluate(job.learner, job.valid)
        assert all(math.isfinite(score.mean) for score in scores.values()), n
        scored.append(n)
    assert 1100 in scored or kf.about(name).input == "image"
