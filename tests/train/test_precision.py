"""Precision and compiling are chosen by what was measured, and the choice is kept."""

import contextlib
from pathlib import Path

import pytest
import torch

from kinfolk.train import folder, peak, precision
from kinfolk.train.calibrate import calibrate
from kinfolk.train.parallel import Team
from kinfolk.train.precision import Choice, choose, half_precision
from tests.train.toy import ToyBatches, job, start

CPU = torch.device("cpu")


def pretend(monkeypatch: pytest.MonkeyPatch, speeds: dict[str, float], times: dict[Choice, float]) -> None:
    """Replace the two measurements."""

    def gemm(device: object, kind: str = "fp32", **_: object) -> float:
        if kind not in speeds:
            raise RuntimeError(f"no {kind} here")
        return speeds[kind]

    def step_time(learner: object, batch: object, device: object, choice: Choice, most: int = 5) -> float:
        found = times[choice.precision, choice.compile]
        if found < 0:
            raise RuntimeError("no compiler here")
        return found

    monkeypatch.setattr(precision, "gemm_flops", gemm)
    monkeypatch.setattr(precision, "_step_time", step_time)


SLOW_HALF = {"fp32": 78e9, "bf16": 0.3e9}
FAST_HALF = {"fp32": 78e9, "bf16": 300e9}
STEPS = {("fp32", "off"): 1.0, ("bf16", "off"): 0.5}


@pytest.mark.parametrize(
    ("speeds", "times", "steps", "wanted"),
    [
        (SLOW_HALF, STEPS, 10, ("fp32", "off")),
        (FAST_HALF, STEPS, 10, ("bf16", "off")),
        # faster products, but not a faster model
        (FAST_HALF, STEPS | {("bf16", "off"): 0.99}, 10, ("fp32", "off")),
        ({"fp32": 78e9}, STEPS, 10, ("fp32", "off")),
        # long enough to try compiling: it pays, it does not pay, it does not work
        (SLOW_HALF, STEPS | {("fp32", "on"): 0.6}, 3000, ("fp32", "on")),
        (SLOW_HALF, STEPS | {("fp32", "on"): 0.98}, 3000, ("fp32", "off")),
        (SLOW_HALF, STEPS | {("fp32", "on"): -1}, 3000, ("fp32", "off")),
        (FAST_HALF, STEPS | {("bf16", "on"): 0.2}, 5000, ("bf16", "on")),
    ],
)
def test_the_faster_one_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    speeds: dict[str, float],
    times: dict[Choice, float],
    steps: int,
    wanted: tuple[str, str],
) -> None:
    pretend(monkeypatch, speeds, times)
    the_job = job(precision="auto", compile="auto", steps=steps)
    found = choose(the_job.learner, ToyBatches().at(0), the_job.training, CPU)
    assert (found.precision, found.compile) == wanted


def test_batches_of_many_shapes_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, SLOW_HALF, STEPS | {("fp32", "on"): 0.1})
    the_job = job(precision="auto", compile="auto", steps=9999)
    found = [
        choose(the_job.learner, ToyBatches().at(0), the_job.training, CPU, steady=s).compile for s in (True, False)
    ]
    assert found == ["on", "off"]


def test_a_slow_format_is_never_tried_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU without bf16 instructions one bf16 step of a large model would take minutes."""
    pretend(monkeypatch, SLOW_HALF, {("fp32", "off"): 1.0})
    the_job = job(precision="auto", compile="off")
    assert choose(the_job.learner, ToyBatches().at(0), the_job.training, CPU).measured == {}


def test_what_the_spec_fixes_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {}, {})
    for kind in ("fp32", "bf16", "fp16"):
        the_job = job(precision=kind, compile="off")
        found = choose(the_job.learner, ToyBatches().at(0), the_job.training, CPU)
        assert (found.precision, found.compile) == (kind, "off")
        assert (found.scale() is not None) == (kind == "fp16")


def test_measuring_leaves_everything_as_it_was() -> None:
    the_job = job(precision="auto", compile="auto")
    the_job.learner.register_buffer("seen", torch.zeros(()))

    def count(module: torch.nn.Module, *_: object) -> None:
        module.seen += 1

    the_job.learner.register_forward_hook(count)
    before = {name: x.clone() for name, x in the_job.learner.state_dict().items()}
    random = torch.get_rng_state()
    seen = the_job.learner.seen
    assert choose(the_job.learner, ToyBatches().at(0), the_job.training, CPU).precision in ("fp32", "bf16")
    assert the_job.learner.seen is seen
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in the_job.learner.parameters())
    assert all(torch.equal(x, before[name]) for name, x in the_job.learner.state_dict().items())


def test_a_resumed_run_repeats_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, FAST_HALF, STEPS)
    assert start(tmp_path / "run", job(precision="auto", compile="auto", steps=2)).precision == "bf16"
    assert folder.read(tmp_path / "run")["choice"]["precision"] == "bf16"
    pretend(monkeypatch, SLOW_HALF, STEPS)
    (tmp_path / "run/result.json").unlink()
    assert start(tmp_path / "run", job(precision="auto", compile="auto", steps=2)).precision == "bf16"


def test_autocast_computes_in_the_chosen_format() -> None:
    x = torch.ones(2, 2)
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with Choice(kind).autocast(CPU)():
            assert (x @ x).dtype == dtype
    assert Choice().autocast(CPU) is contextlib.nullcontext


def test_half_precision_trains_like_fp32(tmp_path: Path) -> None:
    losses = {}
    for kind in ("fp32", "bf16", "fp16"):
        losses[kind] = start(tmp_path / kind, job(steps=30, precision=kind)).valid["next-token"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.05)


def test_the_peak_is_measured() -> None:
    assert peak.gemm_flops(CPU, size=64, seconds=0.001) > 1e6
    assert half_precision(CPU) in (None, "bf16")


def test_calibrating_costs_nothing_but_time() -> None:
    the_job = job()
    before = {name: x.clone() for name, x in the_job.learner.state_dict().items()}
    assert calibrate(the_job, steps=2, warm_up=1, team=Team()) > 0
    assert all(torch.equal(x, before[name]) for name, x in the_job.learner.state_dict().items())
