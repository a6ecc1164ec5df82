"""The same command on the same machine gives the same weights, however busy the machine is."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETS = ["d_model=32", "n_layers=2", "n_heads=2", "d_ff=64", "training.batch_size=8", "training.length=32"]
BUSY = "while True: pass"


def trained(out: Path, relative: str) -> str:
    """Train as a user would, with nothing chosen, and return a hash of the weights."""
    words = ["train", relative, "--data", "stdlib:megabytes=1", "--steps", "6", "--out", str(out), "--no-tensorboard"]
    words += [word for text in SETS for word in ("--set", text)]
    environment = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "kinfolk.cli.main", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


@pytest.mark.long
@pytest.mark.parametrize("relative", ["gpt2", "albert"])
def test_equal_commands_on_a_busy_machine_give_equal_weights(tmp_path: Path, relative: str) -> None:
    """A quarter of the runs with nothing beside them, and the others beside one, two or three busy processes."""
    times = int(os.environ.get("KINFOLK_TIMES", "4"))
    busy: list[subprocess.Popen[bytes]] = []
    try:
        found = []
        for i in range(times):
            while len(busy) < i % 4:
                busy.append(subprocess.Popen([sys.executable, "-c", BUSY]))
            while len(busy) > i % 4:
                end(busy.pop())
            found.append(trained(tmp_path / str(i), relative))
    finally:
        for process in busy:
            end(process)
    assert len(set(found)) == 1, f"{len(set(found))} results of {times} equal commands"
