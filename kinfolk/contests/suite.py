"""Run a suite: one comparison per task, and the cost of a training step at several lengths.

Every task is a comparison of its own in a folder of its own, so whatever is true of those is true here: the same
command goes on where it was stopped, and seeds or contestants can be added.
"""

import dataclasses
from typing import Any, cast

import numpy as np

from kinfolk.contests.arena import Arena, arena
from kinfolk.contests.contestants import gather
from kinfolk.contests.report.suite import write
from kinfolk.contests.run import pace, run
from kinfolk.contests.settings import Settings
from kinfolk.contests.suite_result import SuiteResult
from kinfolk.core.console import Console
from kinfolk.core.errors import SpecError
from kinfolk.data import Data, open_data
from kinfolk.runs.fit import Needs


def run_suite(name: str, settings: Settings, command: str = "", console: Console | None = None) -> SuiteResult:
    """Run every task and measure every length; write the results into the folder, and return them."""
    asked, console = arena(name), console or Console(stderr=True)
    if settings.table or settings.data != Settings().data:
        raise SpecError(f"suite {name!r} has data of its own, and no published table's rows")
    folder = settings.folder if settings.out else settings.folder.with_name(f"{name}-{settings.folder.name[8:]}")
    own = (f"training.eval_batches={_batches(asked, settings)}",)
    settings = dataclasses.replace(
        settings, contestants=settings.contestants or asked.origin.first, assignments=own + settings.assignments
    )
    comparisons, paces, guesses = {}, {}, {}
    for task, data in asked.tasks.items():
        console.print(f"{task}: {data}", markup=False, highlight=False)
        guesses[task] = 100 * majority(open_data(data), asked.valid)
        comparisons[task] = run(dataclasses.replace(settings, data=data, out=folder / task), command, console)
    for n in asked.lengths:
        console.print(f"steps a second and memory at {n:,} tokens", markup=False, highlight=False)
        # a text and its end; one at a time, so that none is slowed down by a neighbour
        alone = dataclasses.replace(
            settings,
            data=f"text:length={n - 1}",
            out=folder / f"length-{n}",
            assignments=(*settings.assignments, f"training.batch_size={asked.rows}"),
            jobs=1,
        )
        paces[n] = pace(alone, console)
    result = SuiteResult(
        suite=asked, folder=folder, command=command, comparisons=comparisons, paces=paces, guesses=guesses
    )
    write(result)
    return result


def majority(data: Data, n: int) -> float:
    """Return how often the most frequent class is right on the first examples of valid."""
    split = cast(Any, data.split("valid"))
    labels = np.hstack([label for *_, label in split.examples(np.arange(min(n, len(split))))])
    # of classes of tokens, those that are asked for
    labels = labels[labels >= 0]
    return float(max(np.bincount(labels)) / len(labels))


def _batches(asked: Arena, settings: Settings) -> int:
    """Return how many batches a validation takes, with the batch size that the first contestant will have."""
    first = gather(settings.contestants or asked.origin.first, settings.size, settings.assignments)[0]
    return max(1, asked.valid // first.recipe(Needs(263)).training.batch_size)
