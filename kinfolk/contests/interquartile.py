"""The interquartile mean over several tasks, with a stratified bootstrap.

The mean of the middle half of all scores, tasks and seeds together: one task that nothing solves, or that everything
solves, does not decide it, and it wastes fewer scores than a median (Agarwal et al. 2021, arXiv:2108.13264, section
4.3). The interval is the percentile bootstrap that draws seeds within each task: tasks are given, seeds are a sample.
Scores must be in one unit that means the same for all tasks, like accuracy in per cent.
"""

from collections.abc import Sequence

import numpy as np

from kinfolk.contests.inference import LEVEL
from kinfolk.contests.moderation import Floats

SAMPLES = 2000


def interquartile_mean(scores: Floats) -> Floats:
    """Return the mean along the last axis without the lowest and the highest quarter, both rounded down."""
    n = scores.shape[-1]
    return np.sort(scores, -1)[..., n // 4 : n - n // 4].mean(-1)


def bootstrap(tasks: Sequence[Sequence[float]], level: float = LEVEL) -> tuple[float, float, float]:
    """Return the interquartile mean of scores by task and seed, and its interval; the same for the same scores."""
    # a generator of its own: the same numbers in every process, whatever else is random
    rng = np.random.default_rng(2021)
    by_task = [np.asarray(scores, dtype=np.float64) for scores in tasks]
    drawn = [scores[rng.integers(len(scores), size=(SAMPLES, len(scores)))] for scores in by_task]
    low, high = np.quantile(interquartile_mean(np.concatenate(drawn, -1)), [level / 2, 1 - level / 2])
    return float(interquartile_mean(np.concatenate(by_task))), float(low), float(high)
