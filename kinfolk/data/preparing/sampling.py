"""Sample of text that a tokenizer is trained on: bounded, seeded, and never what is held out."""

from collections.abc import Iterator

import numpy as np

from kinfolk.core.rng import derive
from kinfolk.data.batches.mixing import permute
from kinfolk.data.files.reader import Bad
from kinfolk.data.preparing.job import Tell, documents, places
from kinfolk.data.preparing.plan import PreparationPlan

_MOST_JOBS = 256


def sample(plan: PreparationPlan, tell: Tell) -> Iterator[str]:
    """Yield all training text if it is small, else the beginnings of jobs picked by the seed.

    Never more than `choices.sample` bytes, so a terabyte takes no longer than a gigabyte. Bad rows are passed over
    here; the pass over everything reports them.
    """
    choices, n = plan.choices, len(plan.jobs)
    jobs = np.sort(permute(np.arange(min(n, _MOST_JOBS)), n, derive(choices.seed, "sample")))
    for job in map(int, jobs):
        left, place = choices.sample // len(jobs), places(choices.seed, job)
        for _, item in documents(plan, job, lambda _: None):
            if isinstance(item, Bad):
                continue
            held_out = next(place) < choices.valid
            for text in () if held_out else item.texts:
                tell(min(left, len(text)))
                yield text[:left]
                left = max(0, left - len(text))
            if not left:
                break
