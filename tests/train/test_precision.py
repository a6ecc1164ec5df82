"""Precision and compiling follow from the spec and the device, never from a stopwatch, and the choice is kept."""

import contextlib
import time
from pathlib import Path

import pytest
import torch

from kinfolk.core import machine
from kinfolk.core.errors import SpecError
from kinfolk.family.making import make
from kinfolk.ops import linear_map
from kinfolk.optim import Training
from kinfolk.runs import folder
from kinfolk.runs.metadata import Precision
from kinfolk.runs.options import RunOptions
from kinfolk.train import loop, metrics, peak, precision, settling
from kinfolk.train.calibrate import calibrate
from kinfolk.train.parallel import Team
from kinfolk.train.precision import ANSWER, PrecisionChoice, fast_format, settle
from kinfolk.train.repeatable import products
from tests.train.toy import job, start

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("answer", "asked", "wanted"),
    [
        ("slow", "auto", "fp32"),
        ("fast", "auto", "bf16"),
        ("slow", "bf16", "bf16"),
        ("fast", "fp32", "fp32"),
    ],
)
def test_the_device_decides_what_the_spec_leaves_open(
    monkeypatch: pytest.MonkeyPatch, answer: str, asked: str, wanted: str
) -> None:
    monkeypatch.setenv(ANSWER, answer)
    assert settle(Training(precision=asked), CPU) == PrecisionChoice(wanted, "off")
    assert settle(Training(precision=asked, compile="on"), CPU).compile == "on"


def test_a_cpu_is_asked_for_its_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ANSWER, raising=False)
    for amx, instructions, wanted in ((True, "AVX512", "bf16"), (True, "AVX2", "fp32"), (False, "AVX512", "fp32")):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=instructions: name)
        assert fast_format(CPU) == wanted
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert fast_format(torch.device("cuda")) == "fp16"
    monkeypatch.setenv(ANSWER, "perhaps")
    with pytest.raises(SpecError, match="KINFOLK_BF16: expected fast or slow"):
        fast_format(CPU)


def test_no_clock_is_read_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever decides about bits must not ask what time it is."""

    def refuse() -> float:
        raise AssertionError("a clock was read")

    for name in ("time", "perf_counter", "monotonic", "process_time", "perf_counter_ns"):
        monkeypatch.setattr(time, name, refuse)
    assert settle(Training(), CPU).compile == "off"
    recipe = make("gpt2", size="tiny")
    assert settling.with_threads(recipe, RunOptions()).threads >= 1
    assert "parameters" in settling.headline(recipe, RunOptions())


def test_fp16_on_a_cpu_is_refused() -> None:
    with pytest.raises(SpecError, match=r"training.precision: 'fp16' is for accelerators.*use bf16 or fp32"):
        settle(Training(precision="fp16"), CPU)


def test_a_resumed_run_repeats_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANSWER, "fast")
    assert start(tmp_path / "run", job(precision="auto", compile="auto", steps=2)).precision == "bf16"
    assert folder.read(tmp_path / "run").choice.precision == "bf16"
    monkeypatch.setenv(ANSWER, "slow")
    (tmp_path / "run/result.json").unlink()
    assert start(tmp_path / "run", job(precision="auto", compile="auto", steps=2)).precision == "bf16"
    # unless another is asked for, which is recorded
    assert settling.keep_choice(tmp_path / "run", Training(), "", CPU).precision == "bf16"
    assert settling.keep_choice(tmp_path / "run", Training(), "fp32", CPU).precision == "fp32"
    assert folder.read(tmp_path / "run").choice == Precision(precision="fp32", begun_with="bf16")


def test_threads_follow_from_the_work_of_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(machine, "_QUOTA", quota)
    assert [machine.threads_for(flops) for flops in (0.0, 1e9, 5e9, 1e12)] == [1, 1, 2, 8]
    assert machine.threads_for(1e12, processes=3) == 2
    for text, wanted in (("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)):
        quota.write_text(text)
        assert machine.cores() == wanted
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert machine.threads_for(0.0) == 5
    before = torch.get_num_threads()
    with settling.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_a_peak_measured_on_a_busy_machine_is_corrected_by_faster_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of the peak above 1 says only that the peak was measured too low."""
    monkeypatch.setattr(loop, "gemm_flops", lambda *_: 1.0)
    result = start(tmp_path / "run", job(steps=3).replace(flops_per_token=1e6))
    rows = [row["mfu"] for row in metrics.read(tmp_path / "run/metrics.jsonl") if "mfu" in row]
    assert len(rows) == 3
    assert max(rows) == rows[0] == 1.0
    assert 0 < result.mfu <= 1


def test_autocast_computes_in_the_chosen_format() -> None:
    x = torch.ones(2, 2)
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with PrecisionChoice(kind).autocast(CPU)():
            assert (x @ x).dtype == dtype
    assert PrecisionChoice().autocast(CPU) is contextlib.nullcontext


def test_half_precision_trains_like_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the toy is small enough for fp16 on a CPU
    monkeypatch.setattr(precision, "settle", lambda training, _: PrecisionChoice(training.precision))
    losses = {}
    for kind in ("fp32", "bf16", "fp16"):
        losses[kind] = start(tmp_path / kind, job(steps=30, precision=kind)).valid["next-token"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.05)


def test_the_peak_is_measured() -> None:
    assert peak.gemm_flops(CPU, size=64, seconds=0.001) > 1e6


def test_the_peak_is_that_of_the_library_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where oneDNN has wider units than MKL, a share of MKL's peak would be more than everything."""
    called, real = [], linear_map.linear_into
    monkeypatch.setattr(peak, "linear_into", lambda *given: called.append(given) or real(*given))
    peak.gemm_flops.cache_clear()
    assert peak.gemm_flops(CPU, size=96, seconds=0.001) > 1e6
    peak.gemm_flops.cache_clear()
    assert {x.shape for x, *_ in called} == {(96, 96)}


def test_calibrating_costs_nothing_but_time() -> None:
    the_job = job()
    before = {name: x.clone() for name, x in the_job.learner.state_dict().items()}
    assert calibrate(the_job, steps=2, warm_up=1, team=Team()) > 0
    assert all(torch.equal(x, before[name]) for name, x in the_job.learner.state_dict().items())


def test_tf32_is_a_choice_on_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="'tf32' is a format of CUDA devices, and this one is cpu; use fp32"):
        settle(Training(precision="tf32"), CPU)
    choice = settle(Training(precision="tf32"), torch.device("cuda"))
    assert choice.precision == "tf32"
    assert choice.scale() is None
    # what was set before comes back, whatever it was
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    for precision_name, wanted in (("tf32", "high"), ("fp32", "highest"), ("bf16", "highest")):
        before = torch.get_float32_matmul_precision()
        with products(precision_name), PrecisionChoice(precision_name).autocast(CPU)():
            assert torch.get_float32_matmul_precision() == wanted
            assert torch.backends.cudnn.allow_tf32 == (wanted == "high")
        assert torch.get_float32_matmul_precision() == before
        assert torch.backends.cudnn.allow_tf32


def test_the_peak_of_an_accelerator_is_that_of_a_product_that_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which computes nothing: the sizes are asked for, and the device is waited for."""
    sizes = []
    monkeypatch.setattr(peak, "linear_into", lambda a, *_: sizes.append(len(a)))
    monkeypatch.setattr(peak, "best_time", lambda work, device, seconds: work() or 1.0)
    peak.gemm_flops.cache_clear()
    assert peak.gemm_flops(torch.device("meta"), "bf16") == 2 * 8192.0**3
    assert peak.gemm_flops(CPU) == 2 * 1024.0**3
    peak.gemm_flops.cache_clear()
    assert sizes == [8192, 1024]
