"""How long a user waits for an answer: whole processes, from the start of the interpreter to its end."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work

ENGINE = False
PYTHON = "python -c pass"


def contests(long: bool = False) -> list[Contest]:
    """Return the one contest."""
    code: dict[str, list[str]] = {
        "kin --help": ["-m", "kinfolk", "--help"],
        "kin family": ["-m", "kinfolk", "family"],
        "kin train --help": ["-m", "kinfolk", "train", "--help"],
        "import kinfolk": ["-c", "import kinfolk"],
        "import kinfolk, a relative": ["-c", "import kinfolk; kinfolk.relative"],
    }
    ours = tuple(BenchContestant(name, OURS, {"arguments": words}) for name, words in code.items())
    peers = (
        BenchContestant(PYTHON, "python", {"arguments": ["-c", "pass"]}),
        BenchContestant("import torch", "torch", {"arguments": ["-c", "import torch"]}),
        BenchContestant(
            "GPT2LMHeadModel", "hf", {"arguments": ["-c", "from transformers import GPT2LMHeadModel"]}, "transformers"
        ),
        BenchContestant("import x_transformers", "x", {"arguments": ["-c", "import x_transformers"]}, "x_transformers"),
    )
    return [Contest("startup", "from the start of a process to its end", {}, (*ours, *peers), PYTHON, unit="")]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return the run of one command."""
    command = [sys.executable, *contestant.settings["arguments"]]

    def step() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return Work(step, steps=sizes.get("steps", 3), warm_up=1)
