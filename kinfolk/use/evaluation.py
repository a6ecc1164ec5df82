"""Evaluate a trained model on parts of data: every measure, and what a report needs."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from kinfolk.data import Batches, Data
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.measures.measure import NATS, measure_of
from kinfolk.runs.fit import n_cut
from kinfolk.runs.run import Run
from kinfolk.train.evaluate import MeanScore, bits_per_byte, require_finite
from kinfolk.train.evaluate import evaluate as score_batches
from kinfolk.train.judgement import WatchedLearner, tally_of
from kinfolk.train.run import reading_of
from kinfolk.train.special import special

Keep = Callable[[Any], Any]
"""From a tally of labels to what keeps examples beside it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores by measure.

    cut: examples that were longer than what is read of them. tally: of labels. keeping: what kept examples for a
    report. special: figures that only some relatives have, such as halting steps.
    """

    run: Run
    data: str
    split: str
    scores: Mapping[str, MeanScore]
    cut: int
    tally: Any
    keeping: Any
    bits_per_byte: float | None
    special: Mapping[str, Any]

    def __getitem__(self, measure: str) -> float:
        return self.scores[measure].mean

    @property
    def lost(self) -> list[str]:
        """A line about examples that lose their end, where there are some."""
        length = self.run.recipe.training.length
        return [f"cut            {self.cut:,} examples are longer than {length:,} tokens and lose their end"] * bool(
            self.cut
        )

    def plain(self) -> dict[str, Any]:
        """Return it as `kin eval --json` prints it."""
        return {
            "run": str(self.run.path),
            "data": self.data,
            "split": self.split,
            "cut": self.cut,
            "measures": {
                name: {"mean": score.mean, "perplexity": perplexity(name, score.mean), "count": int(score.count)}
                for name, score in self.scores.items()
            },
            "judgement": None if self.tally is None else self.tally.plain(),
            "bits_per_byte": self.bits_per_byte,
            "special": dict(self.special),
        }


def evaluate(
    path: "str | Run",
    data: Data | str | None = None,
    *,
    split: str = "valid",
    batches: int = 0,
    average: int = 0,
) -> Evaluation:
    """Evaluate a run of any layout on its own data, or on other data that its tokenizer reads.

    split: "all" is every part. batches: only the first of each part. average: of so many checkpoints' weights.
    """
    run = Run.open(path)
    if not isinstance(data, Data):
        data = run.data(None if data is None else {"name": str(data)})
    result = score(run, run.scorer(average), data, split, batches)
    require_finite({name: one.mean for name, one in result.scores.items()}, str(run.path))
    return result


def score(run: Run, learner: Learner, data: Data, split: str, batches: int = 0, keep: Keep | None = None) -> Evaluation:
    """Score a learner of a run on a part of data."""
    reading = reading_of(run.recipe.training)
    totals: dict[str, MeanScore] = {}
    names: tuple[str, ...] = ("train", "valid") if split == "all" else (split,)
    # a file that is scored whole has nothing held out
    names = tuple(name for name in names if split != "all" or len(data.splits[name]))
    splits = [data.split(name) for name in names]
    if len(splits) > 1 and (joined := splits[0].joined(splits[1])) is not None:
        splits = [joined]
    tally = tally_of(run.recipe.objective, splits[-1])
    keeping = None if keep is None else keep(tally)
    scored = learner if tally is None else WatchedLearner(learner, keeping or tally)
    cut = 0
    for part in splits:
        if keeping is not None:
            keeping.split = part
        cut += n_cut(part, run.recipe.training.length)
        for measure, one in score_batches(
            scored, Batches(split=part, shuffle=False, by_length=batches, **reading), batches
        ).items():
            old = totals.get(measure, MeanScore(0.0, 0.0))
            totals[measure] = MeanScore(old.total + one.total, old.count + one.count)
    last = data.split(names[-1])
    first = Batches(split=last, shuffle=False, **reading).at(0)
    bits = bits_per_byte(totals, last)
    return Evaluation(run, data.name, split, totals, cut, tally, keeping, bits, special(learner, first))


def perplexity(measure: str, mean: float) -> float | None:
    """Return the perplexity of a loss in nats; an accuracy has none."""
    return math.exp(min(mean, 700.0)) if measure_of(measure).unit == NATS else None
