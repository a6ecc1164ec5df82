"""Every relative trains, validates, decodes and resumes, in single and in half precision."""

import dataclasses
import math
import shutil

import pytest
import torch

import kinfolk as kf
from kinfolk.core.rng import Rng
from kinfolk.optim import AdamW, Training
from kinfolk.runs import folder
from kinfolk.runs.checkpoint import Checkpoints
from kinfolk.runs.metadata import Metadata
from kinfolk.runs.options import RunOptions
from kinfolk.train.job import TrainingJob
from kinfolk.train.loop import run
from kinfolk.train.parallel import Team
from tests.cover import sampled
from tests.family.test_relatives import CAUSAL, NAMES, learner, model, read, tokens
from tests.train.toy import same_run

QUIET = RunOptions(quiet=True, tensorboard=False, device="cpu")
# in single precision the other tests of the registry hold each of these verbs already
SINGLE = {name: () if i % 12 == 0 else (pytest.mark.long,) for i, name in enumerate(NAMES)}
CASES = [
    *(pytest.param(name, "fp32", marks=marks) for name, marks in SINGLE.items()),
    *(pytest.param(*case.values, "bf16", marks=case.marks) for case in sampled(NAMES, "bf16")),
]


@dataclasses.dataclass(frozen=True)
class Texts:
    """Batches of an example each for a relative, with labels and passages where it asks for them."""

    name: str
    steps_per_epoch: int = 1

    def at(self, step, rank=0, world=1):
        return read(self.name, tokens(2, 34, seed=step), first=2 * step)


def trained(name, precision, out):
    """Make two steps with a validation and a checkpoint after each, or those that a folder still lacks."""
    numbers = {"steps": 2, "batch_size": 2, "length": 33, "eval_every": 1, "save_every": 1, "compile": "off"}
    training = Training(optimiser=AdamW(lr=1e-3), precision=precision, **numbers)
    learn = learner(name, torch.float32)
    job = TrainingJob(name=name, learner=learn, training=training, batches=Texts(name), valid=Texts(name), seed=3)
    if not (out / folder.RUN).exists():
        folder.create(out, "toy = true\n", Metadata(seed=3))
    return run(job, out, Team(), QUIET)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_trains_validates_and_resumes(name, precision, tmp_path):
    result = trained(name, precision, tmp_path / "whole")
    assert result.precision == precision
    assert result.valid
    assert all(math.isfinite(value) for value in result.valid.values())
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed", symlinks=True)
    (tmp_path / "resumed" / folder.RESULT).unlink()
    last = Checkpoints(tmp_path / "resumed" / "checkpoints").newest()
    assert last.step == 2
    shutil.rmtree(last.path)
    trained(name, precision, tmp_path / "resumed")
    assert same_run(tmp_path / "whole", tmp_path / "resumed")


@pytest.mark.parametrize("name", sampled(NAMES, "half losses"))
def test_losses_of_half_precision_are_near_and_summed_in_single(name):
    """A sum over targets in 16 bits would be off by a percent, and would not be reported by anything."""
    learn = learner(name, torch.float32)
    batch = learn.prepare(read(name, tokens(4, 60)), Rng(0))
    losses = []
    for enabled in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            losses.append(learn(batch))
    single, half = losses
    assert half.total.dtype == half.side.dtype == torch.float32
    torch.testing.assert_close(half.total, single.total, rtol=0.05, atol=0.1)
    (half.total + half.side).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learn.parameters())


@pytest.mark.parametrize("name", sampled(CAUSAL, "half decoding"))
@pytest.mark.parametrize("stored", [False, True], ids=["autocast", "weights"])
def test_decodes_in_half_precision(name, stored):
    m = model(name, torch.float32)
    m = m.to(torch.bfloat16) if stored else m
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not stored):
        texts = kf.generate(m, [[9, 30, 21], [12]], max_new=4, greedy=True)
    assert [len(text) for text in texts] == [7, 5] or m.spec.topology == "encoder-decoder"
    assert all(0 <= token < m.spec.vocab_size for text in texts for token in text)
