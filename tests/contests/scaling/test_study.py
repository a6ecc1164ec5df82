"""The ladder, what is trained of it, and what is written, with trials that are only pretended."""

import io
import json
import math
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console

import kinfolk as kf
from kinfolk.cli import main
from kinfolk.contests import trials
from kinfolk.contests.outcome import DONE, Outcome, Point
from kinfolk.contests.scaling.ladder import Rung, amounts, body_params, rungs
from kinfolk.contests.scaling.study import scale
from kinfolk.core.errors import SpecError


def test_rungs_are_read_and_refused():
    assert rungs("2x64, 4x48x3") == [Rung(2, 64, 2), Rung(4, 48, 3)]
    for wrong in ("2-64", "2x64,2x64", "2x10x3", "0x8", ""):
        with pytest.raises(SpecError, match="rung"):
            rungs(wrong)
    assert amounts("1M,250k") == [250e3, 1e6]
    for wrong in ("1M,1M", "many"):
        with pytest.raises(SpecError, match="tokens"):
            amounts(wrong)


def test_a_rung_sets_the_numbers_that_a_relative_has():
    assert Rung(2, 64, 2).numbers("gpt2") == {"n_layers": 2, "d_model": 64, "n_heads": 2, "d_ff": 256}


def test_parameters_outside_tables_are_counted():
    recipe = kf.relative("gpt2", size="tiny", n_layers=3, d_model=32, d_ff=128, n_heads=2)
    model = kf.build(recipe)
    tables = sum(p.numel() for p in model.embedding.parameters())
    assert body_params(recipe.model) == model.n_params - tables


@pytest.fixture
def pretended(monkeypatch):
    """Trials that obey a law at once."""
    seen = []

    def run_all(jobs, slots, screen, held, *_):
        for job in jobs:
            trial = json.loads((job.folder / "trial.json").read_text())
            model = trial["recipe"]["model"]
            layers, width = len(model["decoder"]["order"]), model["d_model"]
            tokens = trial["recipe"]["training"]["steps"] * 2048
            n = 12 * layers * width**2
            loss = 1.0 + 30 / n**0.4 + 200 / tokens**0.45 + 0.001 * job.seed
            seen.append((job.name, tokens, job.seed))
            point = Point(step=1, tokens=tokens, seconds=1.0, flops=1.0, valid={"next-token": loss})
            Outcome(
                name=job.name, seed=job.seed, key=job.key, status=DONE, steps=1, tokens=tokens, curve=(point,)
            ).write(job.folder)

    monkeypatch.setattr(trials, "run_all", run_all)
    return seen


def study(folder):
    return scale(
        "gpt2",
        "stdlib:megabytes=1",
        rungs="1x32,2x48,2x64,4x96",
        tokens="100k,200k,400k",
        seeds=2,
        out=folder,
        cache=folder / "cache",
        console=Console(file=io.StringIO()),
    )


def test_every_pair_is_trained_once_and_the_law_found(pretended, tmp_path):
    found = study(tmp_path)
    assert len(pretended) == 4 * 3 * 2
    assert len(set(pretended)) == len(pretended)
    assert len(found.trials) == 24
    assert found.law.exponent("params").value == pytest.approx(0.4, abs=0.1)
    assert found.law.exponent("tokens").value == pytest.approx(0.45, abs=0.1)
    study(tmp_path)
    assert len(pretended) == 24
    written = json.loads((tmp_path / "scaling.json").read_text())
    assert written["law"]["terms"]["params"]["exponent"]["value"] == found.law.exponent("params").value


def test_the_picture_has_every_trial_and_both_panels(pretended, tmp_path):
    study(tmp_path)
    root = ElementTree.parse(tmp_path / "scaling.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{space}circle")) == 2 * 24
    for circle in root.findall(f".//{space}circle"):
        assert all(math.isfinite(float(circle.get(name))) for name in ("cx", "cy"))
    # three amounts of tokens and four sizes: a line as far as was trained, and a dashed one beyond
    dashed = root.findall(f".//{space}path[@stroke-dasharray='4 4']")
    assert len(dashed) == 3 + 4


def test_the_command_prints_the_law_and_what_was_wished(pretended, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "scale gpt2 --data stdlib:megabytes=1 --rungs 1x32,2x48,2x64,4x96 --tokens 100k,200k,400k"
    wishes = f"--predict 10M --flops 1e15 --cache {tmp_path / 'cache'}"
    assert main.main([*words.split(), *wishes.split()]) == 0
    said = capsys.readouterr().out
    for word in ("L = ", "exponent of N", "10M parameters", "operations:", "picture: runs/scale-"):
        assert word in said
    assert main.main([*words.split(), *wishes.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted"][0]["params"] == 10e6


def test_unknown_relatives_are_refused_before_anything_runs(tmp_path, capsys):
    assert main.main(["scale", "gpt3", "--out", str(tmp_path / "s")]) == 2
    assert "gpt2" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
