"""A preparation that is hit after so many bytes: `python -m tests.data.victim TEXT OUT TOKENIZER BYTES WHOM`.

WHOM is `itself`, `worker`, or `nobody`. It prints the process ids of its workers before it strikes.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import psutil

from kinfolk.data import Preparation, prepare

SMALL_JOBS = mock.patch("kinfolk.data.preparing.plan._SMALLEST_JOB", 100_000)


def main(text: str, out: str, tokenizer: str, limit: str, whom: str) -> None:
    @contextmanager
    def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
        done = 0

        def tell(n: int) -> None:
            nonlocal done
            if done < int(limit) <= done + n and whom != "nobody":
                strike(whom)
            done += n

        yield tell

    with SMALL_JOBS, mock.patch("kinfolk.data.preparing.prepare.bar", bar):
        prepare([text], out, Preparation(tokenizer=tokenizer), workers=2)


def strike(whom: str) -> None:
    workers = [child.pid for child in psutil.Process().children()]
    # near the end of the work one of them may have left already
    sys.stdout.write(" ".join(map(str, workers)) + "\n")
    sys.stdout.flush()
    os.kill(os.getpid() if whom == "itself" else workers[0], signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
