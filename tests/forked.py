"""`kin` in a process of its own, forked from one that has imported everything: what a user starts, without the wait."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kinfolk.contests.schedule import preloaded
from kinfolk.core.child import ALWAYS
from kinfolk.core.fork_server import Forked, UnavailableError


def kin(folder: Path, *words: object, timeout: float = 300, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command line in a folder, and return its exit code and what it wrote."""
    command = [sys.executable, "-m", "kinfolk", *map(str, words)]
    variables = os.environ | ALWAYS
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        streams = [out.fileno(), errors.fileno()]
        try:
            process = Forked.start(command, preloaded(), variables, streams, environment, folder)
        except UnavailableError:
            return subprocess.run(
                command, cwd=folder, env=variables | environment, capture_output=True, text=True, timeout=timeout
            )
        process.stdin.close()
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        texts = [os.pread(stream, 1 << 24, 0).decode() for stream in streams]
    return subprocess.CompletedProcess(command, code, *texts)
