"""Cached and sliding evaluation: they agree where they see the same, and what they cannot do they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.errors import DataError, SpecError
from kinfolk.data import Data, open_data
from kinfolk.train import RunOptions, train
from kinfolk.train import sliding as ways

SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_len": 64, "dropout": 0.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder, cache = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("cache")
    for i in range(8):
        (folder / f"{i}.txt").write_text(" ".join(str(j * (i + 3)) for j in range(10 + i)))
    return open_data(folder, cache=cache)


def model(name: str = "transformer-xl", **changes: Any) -> Any:
    made = kf.build(kf.relative(name, size="tiny", vocab_size=263, **SMALL | changes), seed=1).double()
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    return made


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "SEGMENT", 5)


@pytest.mark.parametrize("name", ["transformer-xl", "alibi"])
@pytest.mark.parametrize("length", [1, 4, 23])
def test_the_two_agree_where_they_see_the_same(data: Data, name: str, length: int) -> None:
    found = ways.compare(model(name), data.split("train"), length, samples=2)
    assert found.difference < 1e-10
    assert (found.length, found.samples, found.segments) == (length, 2, 4)
    assert min(found.cached, found.sliding, found.fused) > 0
    assert found.ratio == found.sliding / found.cached
    assert found.fused_ratio == found.fused / found.cached


def test_one_layer_sees_the_same_everywhere_and_two_do_not(data: Data) -> None:
    one = ways.compare(model(n_layers=1), data.split("train"), 7, samples=3)
    assert one.cached_nats == pytest.approx(one.sliding_nats, rel=1e-10)
    two = ways.compare(model(n_layers=2), data.split("train"), 7, samples=3)
    assert two.cached_nats != pytest.approx(two.sliding_nats, rel=1e-8)


def test_positions_are_left_out_for_the_fused_kernel_only(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    slide = ways._slide
    monkeypatch.setattr(ways, "_slide", lambda m, w: (seen.append((m, w.shape[1])), slide(m, w))[1])
    ways.compare(model(), data.split("train"), 7, samples=1)
    (own, n), (bare, m) = seen
    assert n == m == 8
    kinds = [[b.parts[0].position.kind for b in x.spec.decoder.blocks] for x in (own, bare)]
    assert kinds == [["xl", "xl"], ["none", "none"]]
    assert torch.equal(own.head.state_dict().get("weight", own.embedding.weight), bare.embedding.weight)


def test_what_cannot_slide_is_refused(data: Data) -> None:
    text = data.split("train")
    with pytest.raises(SpecError, match="not a model of 'encoder'"):
        ways.compare(model("bert"), text, 4)
    with pytest.raises(SpecError, match="has no window whose length could be set"):
        ways.compare(model("performer"), text, 4)
    with pytest.raises(SpecError, match="has 64 positions, and 84 are needed"):
        ways.compare(model("gpt2"), text, 54)
    with pytest.raises(DataError, match="not over pairs"):
        ways.compare(model(), open_data("copy").split("train"), 4)
    with pytest.raises(SpecError, match="must be at least 1, got 0 and 3"):
        ways.compare(model(), text, 0)


def test_the_command_prints_both_baselines(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"training.steps": 1, "training.batch_size": 2, "training.length": 8, "training.precision": "fp32"}
    recipe = kf.relative("transformer-xl", size="tiny", vocab_size=263, **SMALL | changes | {"training.compile": "off"})
    source = {"name": data.name, "cache": str(tmp_path / "cache")}
    options = RunOptions(quiet=True, tensorboard=False, threads=1)
    train(recipe, data, tmp_path / "run", options=options, source=source)
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--split", "train", "--sliding", "4,9", "--samples", "2"]) == 0
    text = capsys.readouterr().out
    assert "attention length 4," in text
    assert "windows at 2 sampled positions" in text
    assert text.count("where both see the same") == text.count("on the fused kernel alone") == 2
    assert main(["eval", str(tmp_path / "run"), "--split", "train", "--sliding", "4", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["sliding"][0]
    assert row["ratio"] == row["sliding"] / row["cached"]
    assert row["difference"] < 1e-5
    assert main(["eval", str(tmp_path / "run"), "--sliding", "4,five"]) != 0
    assert "not '4,five'" in capsys.readouterr().err
