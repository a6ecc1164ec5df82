"""FSDP2 changes no number: every relative sharded equals itself in one piece."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import kinfolk as kf
from kinfolk.core.context import Context, SideLosses
from kinfolk.train.parallel import Team
from tests.cover import sampled
from tests.train import sharded

ROOT = Path(__file__).parents[2]


class Alone(Team):
    """A process that shards although there is no other."""

    def wrap(self, learner: torch.nn.Module) -> torch.nn.Module:
        from kinfolk.train.parallel import _shard

        return _shard(learner)


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Alone(strategy="fsdp")
    dist.destroy_process_group()


@pytest.mark.parametrize("name", sampled(kf.relatives(), "sharding"))
def test_one_process(name: str, team: Team) -> None:
    assert sharded.differences(name, team) == []


@pytest.mark.long
def test_two_processes() -> None:
    """Of a sample, tests/train/test_parallel.py tests it."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command = [*torchrun, "--rdzv-endpoint", "localhost:0", "-m", "tests.train.sharded", *kf.relatives()]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_hooks_do_not_copy_side_losses() -> None:
    from torch.distributed.fsdp._common_utils import collect_grad_tensors, replace_grad_tensors

    ctx, x = Context(side_losses=SideLosses()), torch.ones(2, requires_grad=True)
    ctx.add_loss("a", x.sum())
    copies = iter([tensor * 1 for tensor in collect_grad_tensors((x, ctx))])
    _, rebuilt = replace_grad_tensors((x, ctx), copies)
    rebuilt.add_loss("b", x.sum())
    assert set(ctx.side_losses) == {"a", "b"}
