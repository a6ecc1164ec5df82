"""Evaluate a trained model on parts of data: every measure, and what a report needs."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.core import durable
from kinfolk.core.errors import SpecError, suggest
from kinfolk.data import Batches, Data, Preparation
from kinfolk.data.files.treebank import is_treebank
from kinfolk.data.splits.asking import has_labels, inherited
from kinfolk.data.splits.images import is_images
from kinfolk.decoding.written import write
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.measures.measure import NATS, measure_of
from kinfolk.objectives.measures.tallies import Tally
from kinfolk.objectives.objective import Objective
from kinfolk.runs import folder
from kinfolk.runs.fit import n_cut
from kinfolk.runs.metadata import ReadingNotes
from kinfolk.runs.run import Run
from kinfolk.train.evaluate import MeanScore, bits_per_byte, require_finite
from kinfolk.train.evaluate import evaluate as score_batches
from kinfolk.train.judgement import WatchedLearner, tally_of
from kinfolk.train.longer import with_memory
from kinfolk.train.run import reading_of
from kinfolk.train.special import special
from kinfolk.use.predict.page import as_page
from kinfolk.use.predict.report import as_text, make_report
from kinfolk.use.predict.worst import Keeping

REPORTS = (".html", ".txt")
SPLITS = ("valid", "train", "all", "test", "longer")


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores by measure.

    cut: examples that were longer than what is read of them. tally: of labels. keeping: what kept examples for a
    report. special: figures that only some relatives have, such as halting steps. written: scores of texts that the
    model wrote for pairs.
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
    written: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __getitem__(self, measure: str) -> float:
        return self.scores[measure].mean

    @property
    def lost(self) -> list[str]:
        """A line about examples that lose their end, where there are some."""
        length = self.run.recipe.training.length
        line = f"cut            {self.cut:,} examples are longer than {length:,} tokens and lose their end"
        return [line] if self.cut else []

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
        } | ({"written": dict(self.written)} if self.written else {})


@dataclasses.dataclass(frozen=True)
class ReportFile:
    """A page (.html) or a text (.txt) about labels: each class, what is taken for what, and the worst examples."""

    path: Path
    worst: int = 20

    def keep(self, objective: Objective, tally: Tally | None) -> Keeping:
        """Return what keeps the worst examples beside a tally."""
        if tally is None:
            raise SpecError(f"report: objective {objective.kind!r} judges no labels, so there is nothing to report")
        if self.path.suffix not in REPORTS:
            raise SpecError(f"report: {self.path} should end with {' or '.join(REPORTS)}")
        return Keeping(tally, objective, self.worst)

    def write(self, result: Evaluation) -> None:
        """Write the report of an evaluation."""
        count = max(int(score.count) for score in result.scores.values())
        facts = {"run": str(result.run.path), "data": result.data, "part": result.split, "targets": f"{count:,}"}
        figures = {name: score.mean for name, score in result.scores.items()}
        # names say how a file is read before they say which
        title = f"{result.run.path.resolve().name} on {Path(result.data.rpartition(':')[2]).name}"
        kept = result.keeping
        report = make_report(title, facts, figures, kept.inner, kept.worst(), result.lost)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(self.path, as_page(report) if self.path.suffix == ".html" else as_text(report))


@dataclasses.dataclass(frozen=True)
class TargetWriting:
    """Targets of pairs that a model writes, to be scored by `measures` of "bleu", "rouge" and "exact".

    limit: only the first pairs; 0: all. rows: pairs decoded at once.
    """

    measures: tuple[str, ...]
    limit: int = 0
    rows: int = 32
    beams: int = 1
    length_penalty: float = 0.6

    def scores(self, run: Run, learner: Learner, data: Data, split: str) -> dict[str, Any]:
        """Return the scores, how many pairs they are of, and what the run cost."""
        part, length = data.split("valid" if split == "all" else split), run.recipe.training.length
        batches = Batches(split=part, shuffle=False, batch_size=self.rows, length=length)
        texts = write(learner.model, batches, self.limit, beams=self.beams, length_penalty=self.length_penalty)
        scores = {key: value for one in texts.scores(self.measures).values() for key, value in one.items()}
        result = folder.result(run.path)
        flops = {} if result is None else {"training FLOPs": f"{result['flops']:.2e}"}
        return {"pairs": len(texts.texts), **scores, **flops}


def evaluate(
    path: "str | Path | Run",
    data: Data | str | Path | Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    batches: int = 0,
    average: int = 0,
    memory: int | None = None,
    report: ReportFile | None = None,
    writing: TargetWriting | None = None,
) -> Evaluation:
    """Evaluate a run of any layout on its own data, or on other data that its tokenizer reads.

    data: a name as of `kin eval --data`, or the arguments of `open_data` with a `name`. split: "all" is every part; by
    default "valid", and "all" of a file that nothing is held out of. batches: only the first of each part. average:
    the mean of the weights of the newest checkpoints. memory: positions remembered before each segment.
    """
    _require_part(split)
    run = Run.open(path)
    opened, split = data_of(run, data, split)
    result = score(run, scorer_of(run, average, memory), opened, split, batches, report, writing)
    require_finite({name: one.mean for name, one in result.scores.items()}, str(run.path))
    return result


def scorer_of(run: Run, average: int = 0, memory: int | None = None) -> Learner:
    """Return the learner of a run that evaluates, with another length of segment memory if asked for."""
    learner = run.scorer(average)
    if memory is not None:
        learner.model = with_memory(learner.model, memory)
    return learner


def _require_part(split: str | None) -> None:
    if split is not None and split not in SPLITS:
        raise SpecError(f"split: unknown part {split!r}{suggest(split, SPLITS)}")


def data_of(
    run: Run, data: Data | str | Path | Mapping[str, Any] | None = None, split: str | None = None
) -> tuple[Data, str]:
    """Open the run's data, or other data under the run's tokenizer, and say which part of it is scored.

    A file that is given to a run of labels is one with labels, read with the columns and windows of the run's own.
    """
    _require_part(split)
    if data is None or isinstance(data, Data):
        return data or run.data(), split or "valid"
    source: dict[str, Any] = dict(data) if isinstance(data, Mapping) else {"name": str(data)}
    name = str(source["name"])
    file = Path(name)
    text = file.is_file() and not is_images(file)
    if text and run.task is not None and run.task.labels:
        name = f"labelled:{name}"
    whole = source.get("valid") is None and ((text and not is_treebank(file)) or has_labels(name))
    notes = run.metadata.reading or ReadingNotes()
    shape = {key: value for key, value in {"window": notes.window, "stride": notes.stride}.items() if value}
    source["name"] = inherited(name, run.metadata.data.name, **shape)
    split = split or ("all" if whole else "valid")
    if whole and split == "all":
        words = {key: source.pop(key, None) for key in ("tokenizer", "vocab")}
        words["tokenizer"] = words["tokenizer"] or run.tokenizer_file
        source["choices"] = Preparation(**{key: value for key, value in words.items() if value}, valid=0.0)
    return run.data(source), split


def score(
    run: Run,
    learner: Learner,
    data: Data,
    split: str,
    batches: int = 0,
    report: ReportFile | None = None,
    writing: TargetWriting | None = None,
) -> Evaluation:
    """Score a learner of a run on a part of data, and write a report of it."""
    reading = reading_of(run.recipe.training)
    totals: dict[str, MeanScore] = {}
    names: tuple[str, ...] = ("train", "valid") if split == "all" else (split,)
    # a file that is scored whole has nothing held out
    names = tuple(name for name in names if split != "all" or len(data.splits[name]))
    splits = [data.split(name) for name in names]
    if len(splits) > 1 and (joined := splits[0].joined(splits[1])) is not None:
        splits = [joined]
    tally = tally_of(run.recipe.objective, splits[-1])
    keeping = None if report is None else report.keep(run.recipe.objective, tally)
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
    texts = {} if writing is None or not writing.measures else writing.scores(run, learner, data, split)
    result = Evaluation(run, data.name, split, totals, cut, tally, keeping, bits, special(learner, first), texts)
    if report is not None:
        report.write(result)
    return result


def perplexity(measure: str, mean: float) -> float | None:
    """Return the perplexity of a loss in nats; an accuracy has none."""
    return math.exp(min(mean, 700.0)) if measure_of(measure).unit == NATS else None
