"""Two processes with half the batch each do what one does with all of it, and checkpoints pass between them."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import kinfolk as kf
from kinfolk.core.errors import SpecError
from kinfolk.data.opening import open_data
from kinfolk.optim.noise import Mixout
from kinfolk.train import parallel
from kinfolk.train.parallel import Team
from kinfolk.train.run import make_job
from tests.train.test_loop import StopAt
from tests.train.toy import ToyBatches, job, rows, same_run, start, weights
from tests.train.worker import updates

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything two processes leave, made once."""
    out = tmp_path_factory.mktemp("parallel")
    start(out / "ddp-ended", StopAt(job(dropout=0.0), 6))
    shutil.copytree(out / "ddp-ended", out / "fsdp-ended", symlinks=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command = [*torchrun, "--rdzv-endpoint", "localhost:0", "-m", "tests.train.worker", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return out


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_halves_are_one_whole(done: Path, strategy: str) -> None:
    """In float64, with unequal numbers of targets in each half: losses, norms, weights and moments."""
    halves = [int(ToyBatches().at(1, rank, 2).keep.sum()) for rank in (0, 1)]
    assert halves[0] != halves[1]
    wanted, found = updates(Team()), load_file(done / f"{strategy}.safetensors")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-13, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_passes_from_two_processes_to_one_and_back(done: Path, tmp_path: Path, strategy: str) -> None:
    start(tmp_path / "alone", job(dropout=0.0))
    wanted = weights(tmp_path / "alone")
    begun, ended = done / f"{strategy}-begun", done / f"{strategy}-ended"
    shutil.copytree(begun, tmp_path / "begun", symlinks=True)
    start(tmp_path / "begun", job(dropout=0.0))
    for out in (tmp_path / "begun", ended):
        found = weights(out)
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5)
        losses = [[row.get("loss") or row["valid"]["next-token"] for row in rows(o)] for o in (out, tmp_path / "alone")]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_resume_to_the_bit(done: Path, strategy: str) -> None:
    assert same_run(done / f"{strategy}-whole", done / f"{strategy}-cut")


@pytest.mark.slow
def test_dropout_differs_between_processes(done: Path) -> None:
    assert (done / "dropout-0").read_text() != (done / "dropout-1").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_sharded_relatives_are_whole_ones(done: Path, rank: int) -> None:
    """A sample of the registry; the rest is in tests/train/test_sharding.py."""
    assert (done / f"sharded-{rank}").read_text() == ""


def test_sharded_weights_take_no_noise() -> None:
    recipe = kf.relative("gpt", size="tiny")
    recipe = recipe.replace(training=recipe.training.replace(noise=Mixout(), batch_size=4))
    team = Team(world=2, strategy="fsdp")
    with pytest.raises(SpecError, match=r"training.noise: 'mixout' needs whole weights .* use --strategy ddp"):
        make_job(recipe, open_data("copy"), 0, team)


def test_alone_everything_is_the_identity() -> None:
    with parallel.join("ddp", "cpu") as team:
        x = torch.ones(3)
        assert team.main
        assert team.world == 1
        assert team.sum(x) is x
        assert team.full(x) is x
        assert team.agree(3) == 3


def test_unknown_strategies_and_devices_are_refused() -> None:
    with pytest.raises(SpecError, match="strategy: unknown choice 'fsdb'; did you mean 'fsdp'"), parallel.join("fsdb"):
        pass
    with pytest.raises(SpecError, match="device"):
        parallel.choose_device("abacus")


def test_a_team_can_be_changed() -> None:
    assert dataclasses.replace(Team(), rank=1, world=2).main is False
