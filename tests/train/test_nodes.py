"""`kin train` on two nodes: torchrun in two network namespaces that see each other through one cable."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.train import metrics

ADDRESSES = ("10.213.7.1", "10.213.7.2")
TOY = ("n_layers=1", "d_model=16", "n_heads=2", "d_ff=32", "training.batch_size=4", "training.length=32")


def lacking() -> str:
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "needs iproute2"
    name = f"kin-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"cannot make network namespaces: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


@pytest.fixture
def nodes() -> Iterator[tuple[str, str]]:
    if reason := lacking():
        pytest.skip(reason)
    names = (f"kin-a-{os.getpid()}", f"kin-b-{os.getpid()}")
    cable = (f"ka{os.getpid() % 100000}", f"kb{os.getpid() % 100000}")
    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
        ip("link", "add", cable[0], "netns", names[0], "type", "veth", "peer", "name", cable[1], "netns", names[1])
        for name, end, address in zip(names, cable, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", end)
            for device in (end, "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield names


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def torchrun(namespaces: tuple[str, ...], *arguments: str) -> None:
    """Run `kin` on one process of each node, and wait for all."""
    processes = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"),
                *(f"--nnodes={len(namespaces)}", f"--node-rank={rank}", "--nproc-per-node=1"),
                *(f"--master-addr={ADDRESSES[0]}", "--master-port=29531", "-m", "kinfolk.cli.main", *arguments),
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, name in enumerate(namespaces)
    ]
    try:
        outputs = [process.communicate(timeout=500)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in metrics.read(run / "metrics.jsonl") if "loss" in row]


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_nodes_make_the_updates_of_one_and_go_on_as_one(
    tmp_path: Path, nodes: tuple[str, str], strategy: str
) -> None:
    """Ten steps on two nodes, or some of them on two and others on one, have the losses of ten in one process."""
    options = [word for text in TOY for word in ("--set", text)]
    train = [
        "train",
        "gpt2",
        "--data",
        "copy",
        "--quiet",
        "--device",
        "cpu",
        "--set",
        "training.save_every=5",
        *options,
    ]
    alone, together = tmp_path / "alone", tmp_path / "together"
    kin = [sys.executable, "-m", "kinfolk.cli.main"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*kin, *train, "--steps", "10", "--out", str(alone)], check=True, env=environment)
    torchrun(nodes, *train, "--steps", "10", "--out", str(together), "--strategy", strategy)
    assert json.loads((together / "result.json").read_text())["step"] == 10
    assert losses(together) == pytest.approx(losses(alone), rel=1e-4)
    # a checkpoint of two nodes is one that one process reads, and the other way round
    expected = losses(alone)
    for run in (together, alone):
        (run / "result.json").unlink()
        shutil.rmtree(run / "checkpoints" / "step-000010")
    subprocess.run([*kin, "resume", str(together), "--quiet"], check=True, env=environment)
    torchrun(nodes, "resume", str(alone), "--quiet", "--device", "cpu", "--strategy", strategy)
    for run in (together, alone):
        assert losses(run) == pytest.approx(expected, rel=1e-4)
        assert json.loads((run / "result.json").read_text())["step"] == 10
