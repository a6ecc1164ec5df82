"""A study: a small `vanilla` translates a made-up language exactly. It takes minutes, so it is run when asked for."""

import json
import os

import pytest

from kinfolk.cli.main import main

SHAPE = ("d_model=64", "d_ff=256", "training.batch_size=64", "training.length=16", "training.eval_batches=4")
# a smoothed model is never sure of a word, and one whose rate stays high forgets now and then what it knew
RATE = ("training.optimiser.lr=0.002", "training.clip=1.0", "training.schedule={kind = 'linear', warmup = 0.1}")
LEARNING = (*RATE, "training.eval_every=250", "objective.label_smoothing=0.0")


@pytest.mark.slow
@pytest.mark.skipif("KINFOLK_STUDIES" not in os.environ, reason="takes minutes: set KINFOLK_STUDIES=1")
@pytest.mark.timeout(3600)
def test_a_made_up_language_is_learnt(tmp_path, capsys):
    out = tmp_path / "run"
    sets = [word for number in (*SHAPE, *LEARNING) for word in ("--set", number)]
    words = ["train", "vanilla", "--data", "language:clauses=2", "--steps", "1000", "--out", str(out), "--quiet"]
    assert main([*words, *sets]) == 0
    capsys.readouterr()
    assert main(["eval", str(out), "--exact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"]["exact"] >= 0.99
