"""The page of a run: written at the end from the run's own files, small, and without a script that it needs."""

import dataclasses
import html
import json
import re
from pathlib import Path

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.paths import set_path
from kinfolk.data import open_data
from kinfolk.decoding.samples import samples
from kinfolk.runs.options import RunOptions
from kinfolk.train import train
from kinfolk.train.report import MOST, NAME, TextSample, render, write

TOY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16}
QUIET = RunOptions(quiet=True, tensorboard=False, device="cpu", threads=1)


def trained(out: Path, **options: object) -> None:
    data = open_data("stdlib:megabytes=1")
    recipe = kf.relative("gpt2", size="tiny", vocab_size=data.tokenizer.vocab_size, **TOY)
    for path, value in {"steps": 4, "eval_every": 2, "eval_batches": 1, "batch_size": 2, "length": 16}.items():
        recipe = set_path(recipe, f"training.{path}", value)
    train(recipe, data, out, options=dataclasses.replace(QUIET, **options))


def test_a_finished_run_has_its_page(tmp_path: Path) -> None:
    trained(tmp_path / "a")
    page = (tmp_path / "a" / NAME).read_text()
    assert "finished after 4 of 4 steps" in page
    for said in ("next-token by step", "learning rate by step", "gradient norm by step", "spec.toml", "run.toml"):
        assert said in page
    assert len(page) < 100_000
    assert "http" not in re.sub(r"(?s)<pre>.*?</pre>", "", page)
    found = samples(tmp_path / "a", length=8)
    assert len(found) == 1
    assert found == samples(tmp_path / "a", length=8)
    write(tmp_path / "a", [TextSample("<p>", "<b>")])
    assert "<strong>&lt;p&gt;</strong>&lt;b&gt;" in (tmp_path / "a" / NAME).read_text()
    trained(tmp_path / "b", report=False)
    assert not (tmp_path / "b" / NAME).exists()


def test_the_command_adds_a_sample(tmp_path: Path) -> None:
    numbers = [f"--set={name}={value}" for name, value in TOY.items()]
    numbers += ["--set=training.batch_size=2", "--set=training.length=16", "--set=training.eval_batches=1"]
    words = ["train", "gpt2", "--data", "stdlib:megabytes=1", "--steps", "2", "--quiet", "--no-tensorboard"]
    assert main([*words, *numbers, "--out", str(tmp_path / "a")]) == 0
    assert 'id="samples"' in (tmp_path / "a" / NAME).read_text()


def test_long_runs_are_thinned_and_names_are_text(tmp_path: Path) -> None:
    nasty = "</title><script>"
    rows = [{"step": i, "loss": 5 / i, "lr": 1e-3, "tokens_per_second": 10.0} for i in range(1, 5001)]
    rows.append({"step": 5000, "valid": {nasty: 2.0}})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 5')
    page = render(tmp_path)
    assert "<script>" not in page.replace('<script>"use strict"', "")
    assert nasty in html.unescape(page)
    assert "not finished" in page
    longest = max(path.count("L") for path in re.findall(r'd="M[^"]*"', page))
    assert MOST / 2 < longest <= MOST


def test_samples_of_what_writes_no_text(tmp_path: Path) -> None:
    assert samples(tmp_path) == []
