"""The plan of a preparation: the input cut into jobs, the same jobs whatever the number of workers.

A job is what one worker does at a time and what a killed run does not have to do again: up to a few hundred MB of
input, one shard of each split. Files that can be read from the middle are cut; many small files share a job.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError
from kinfolk.data.files.reader import FileSpan, reader_of
from kinfolk.data.files.readers import find_sources
from kinfolk.data.files.sources import Source
from kinfolk.data.preparing.preparation import Preparation

# so that even a small input has jobs for every core, and a large one not too many shards
_JOBS = 64
_SMALLEST_JOB = 1 << 20
_LARGEST_JOB = 256 << 20
# so that even a small text has documents for both splits
_PIECES = 128
_SMALLEST_PIECE = 512
_LARGEST_PIECE = 1 << 16


@dataclasses.dataclass(frozen=True)
class PreparationPlan:
    """Everything a worker needs to know: files, choices, jobs.

    piece: bytes that a text is cut to. bad: whole files that cannot be used, as (path, reason, what was found).
    """

    sources: tuple[Source, ...]
    choices: Preparation
    piece: int
    jobs: tuple[tuple[FileSpan, ...], ...]
    bad: tuple[tuple[str, str, str], ...]

    @property
    def total(self) -> int:
        """Bytes of all input."""
        return sum(source.total for source in self.sources)

    def size(self, job: int) -> int:
        """Return about how many bytes on disk a job reads."""
        return sum(span.size for span in self.jobs[job])

    def plain(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> "PreparationPlan":
        """Read what `plain` gives, after a trip through JSON."""
        return cls(
            sources=tuple(Source.from_plain(source) for source in data["sources"]),
            choices=Preparation(**data["choices"]),
            piece=data["piece"],
            jobs=tuple(tuple(FileSpan(**span) for span in job) for job in data["jobs"]),
            bad=tuple((path, reason, detail) for path, reason, detail in data["bad"]),
        )


def make_plan(inputs: Sequence[str | Path], choices: Preparation) -> PreparationPlan:
    """Find the files, look at each, and cut the work into jobs."""
    sources = find_sources(inputs, pairs=choices.pairs)
    if choices.label_column:
        _refuse_plain_text(sources)
    total = sum(source.total for source in sources)
    job_size = min(max(total // _JOBS, _SMALLEST_JOB), _LARGEST_JOB)
    bad: list[tuple[str, str, str]] = []
    spans: list[FileSpan] = []
    for i, source in enumerate(sources):
        reader = reader_of(source.format)
        whys = [(one.path, *why) for one in (source, source.twin) if one and (why := reader.unusable(one))]
        bad += whys
        if not whys:
            spans += reader.spans(source, i, job_size)
    return PreparationPlan(
        sources=tuple(sources),
        choices=choices,
        piece=min(max(total // _PIECES, _SMALLEST_PIECE), _LARGEST_PIECE),
        jobs=tuple(_jobs(spans, job_size)),
        bad=tuple(bad),
    )


def _refuse_plain_text(sources: Sequence[Source]) -> None:
    plain = next((source.path for source in sources if not reader_of(source.format).table), None)
    if plain is not None:
        raise DataError(f"{plain}: plain text has no columns, so no labels; use .csv, .tsv, .jsonl or .parquet")


def _jobs(spans: Sequence[FileSpan], size: int) -> Iterator[tuple[FileSpan, ...]]:
    job: list[FileSpan] = []
    taken = 0
    for span in spans:
        job.append(span)
        taken += span.size
        if taken >= size:
            yield tuple(job)
            job, taken = [], 0
    if job:
        yield tuple(job)
