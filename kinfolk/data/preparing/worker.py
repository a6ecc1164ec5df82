"""A worker process: reads the numbers of jobs from its input, does them, and tells how far it is on its output.

Everything it needs is in the folder it works for. It ends when its input ends or when its output is closed, so it
does not outlive the process that started it.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from kinfolk.core import plugins
from kinfolk.core.errors import KinfolkError
from kinfolk.data.preparing.job import PreparationWorkshop, run_job


def main(folder: str) -> None:
    """Do the jobs named on standard input, one a line."""
    # an interrupt is for the parent, which then ends us
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # only messages go to the parent, whatever a library may print
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**message: Any) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    shop: PreparationWorkshop | None = None
    for line in sys.stdin:
        try:
            plugins.load_inherited()
            shop = shop or PreparationWorkshop.open(Path(folder))
            run_job(shop, int(line), lambda n: say(read=n))
            say(done=int(line))
        except BrokenPipeError:
            os._exit(1)
        except (KinfolkError, OSError) as error:
            say(error=str(error))
        except Exception:
            say(error=f"a worker failed:\n{traceback.format_exc()}")


if __name__ == "__main__":
    main(sys.argv[1])
