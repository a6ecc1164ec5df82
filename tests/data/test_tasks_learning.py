"""A small encoder learns ListOps: more than always naming the most frequent answer."""

import dataclasses
from pathlib import Path

import pytest

import kinfolk as kf
from kinfolk.contests.suite import majority
from kinfolk.data import open_data
from kinfolk.family.supervise import judging
from kinfolk.runs.fit import labelling_of
from kinfolk.train import RunOptions, train
from kinfolk.train.metrics import read

MARGIN = 0.05
"""By how much it must be better; with 512 examples, more than two standard deviations."""


@pytest.mark.slow
def test_listops_is_learnt_beyond_the_majority_class(tmp_path: Path) -> None:
    data = open_data("listops:length=32,shortest=6,depth=4")
    recipe = kf.relative("bert", size="tiny", vocab_size=data.tokenizer.vocab_size, d_model=64, d_ff=256)
    recipe = judging(recipe, labelling_of(data))
    training = recipe.training.replace(
        steps=120,
        batch_size=32,
        eval_every=120,
        eval_batches=16,
        save_every=120,
        optimiser=dataclasses.replace(recipe.training.optimiser, lr=3e-3),
    )
    options = RunOptions(threads=1, quiet=True, tensorboard=False)
    train(recipe.replace(training=training), data, tmp_path / "run", seed=0, options=options)
    last = [row["valid"] for row in read(tmp_path / "run" / "metrics.jsonl") if "valid" in row][-1]
    assert last["accuracy"] > majority(data, 512) + MARGIN
