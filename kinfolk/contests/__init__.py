"""The main job: trials at an equal budget, side by side, ranked with a test, in one report.

import kinfolk as kf
result = kf.compare(["gpt", "gpt2"], data="my.txt", budget="10m")
result.best, result.rows, result.folder
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.contests.comparison import Comparison


def compare(
    contestants: Sequence[str | Path] = (),
    data: str | Path = "stdlib",
    budget: str = "1m",
    *,
    seeds: int = 5,
    tune: str = "lr",
    match: str = "",
    size: str = "tiny",
    out: str | Path | None = None,
    **more: Any,
) -> "Comparison":
    """Find each contestant's learning rate, train it with every seed at an equal budget, and rank all on held-out data.

    `more` are the other fields of `kinfolk.contests.settings.Settings`. Interrupted, the same call goes on.
    """
    from kinfolk.contests.run import run
    from kinfolk.contests.settings import Settings

    settings = Settings(
        contestants=tuple(map(str, contestants)),
        data=str(data),
        budget=budget,
        seeds=seeds,
        tune=tune,
        match=match,
        size=size,
        out=None if out is None else Path(out),
        **more,
    )
    return run(
        settings, command=f"kf.compare({list(settings.contestants)}, data={settings.data!r}, budget={budget!r}, …)"
    )
