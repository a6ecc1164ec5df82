"""The main job: plan, measure if the budget is a time, run the trials, and make the result.

What is finished stays: a trial's folder is named after a hash of everything that decides its result, so the same
command finds it again, and one with another contestant or more seeds adds only what is missing.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinfolk.contests import devices, facts, plan, trial
from kinfolk.contests.comparison import Comparison
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import DONE, KEPT, Outcome
from kinfolk.contests.plan import Entrant, Plan, slug
from kinfolk.contests.report.files import write
from kinfolk.contests.schedule import lock, run_all
from kinfolk.contests.screen import Screen
from kinfolk.contests.settings import Settings
from kinfolk.contests.trial import Trial
from kinfolk.core import child
from kinfolk.core.console import Console
from kinfolk.core.errors import SpecError
from kinfolk.family.tables import table

TRIALS, CALIBRATIONS = "trials", "calibrations"


def run(settings: Settings, command: str = "", console: Console | None = None) -> Comparison:
    """Compare, write the results into the folder, and return them. Interrupted, write what there is and pass it on."""
    console = console or Console(stderr=True)
    made = plan.make(settings)
    _say(made, console)
    with lock(settings.folder) as held, _terminable():
        contest = _Contest(made, command, console, held)
        try:
            contest.calibrate()
            contest.train()
        except KeyboardInterrupt:
            write(contest.result())
            raise
        result = contest.result()
        write(result)
        return result


def pace(settings: Settings, console: Console | None = None) -> dict[str, Outcome]:
    """Measure how long a step of each contestant takes and what memory it needs, and train nobody."""
    made = plan.make(settings)
    with lock(settings.folder) as held, _terminable():
        return _Contest(made, "", console or Console(stderr=True), held).measure()


class _Contest:
    """A comparison in motion."""

    def __init__(self, made: Plan, command: str, console: Console, held: Sequence[int]) -> None:
        self.plan, self.command, self.console, self.held = made, command, console, held
        self.folder = made.settings.folder
        self.paces: dict[str, float] = {}
        self.problems: dict[str, str] = {}

    def calibrate(self) -> None:
        """Measure how long a step of each contestant takes, where the budget is a time."""
        if self.plan.budget.unit != "seconds":
            return
        measured = self.measure()
        for entrant in self.plan.entrants:
            outcome = measured.get(entrant.name)
            if outcome is not None and outcome.status == DONE and outcome.steps:
                self.paces[entrant.name] = outcome.seconds / outcome.steps
            else:
                why = outcome.reason if outcome else "it was not measured"
                self.problems[entrant.name] = f"its steps could not be measured: {why}"

    def measure(self) -> dict[str, Outcome]:
        """Run steps of every contestant that are thrown away, and return what they took."""
        orders = [(entrant, self.plan.calibration(entrant)) for entrant in self.plan.entrants]
        places = {entrant.name: self._place(CALIBRATIONS, order) for entrant, order in orders}
        missing = [order for _, order in orders if not _is_done(places[order.name])]
        if missing:
            # the last round is filled up, so that nobody is measured with fewer neighbours than the others
            jobs = [self._job(order, places[order.name]) for order in missing]
            short = -len(jobs) % self.plan.layout.jobs
            for i, order in enumerate([order for _, order in orders][:short]):
                jobs.append(self._job(order, self.folder / CALIBRATIONS / f"company-{i}"))
            self._run(jobs, kept=0, what="measuring how long a step takes")
        return {name: outcome for name, place in places.items() if (outcome := Outcome.read(place)) is not None}

    def train(self) -> None:
        """Run the trials that are missing: seed 0 of everybody first, so that breaking off leaves a balance."""
        trials = [
            found
            for seed in range(self.plan.settings.seeds)
            for e in self.plan.entrants
            if (found := self._trial(e, seed))
        ]
        missing = [t for t in trials if not _is_kept(self._place(TRIALS, t))]
        if missing:
            jobs = [self._job(t, self._place(TRIALS, t)) for t in missing]
            self._run(jobs, kept=len(trials) - len(missing), what=str(self.plan.layout))

    def result(self) -> Comparison:
        """Gather what there is."""
        made, seeds = self.plan, range(self.plan.settings.seeds)
        cards, outcomes = [], {}
        for entrant in made.entrants:
            trials = [found for seed in seeds if (found := self._trial(entrant, seed))]
            cards.append(made.card(entrant, trials[0] if trials else None, self.problems.get(entrant.name, "")))
            ended = (Outcome.read(self._place(TRIALS, t)) for t in trials)
            outcomes[entrant.name] = tuple(outcome for outcome in ended if outcome is not None)
        return Comparison(
            folder=self.folder,
            title=_title(made),
            facts=facts.gather(made, self.command, [o for found in outcomes.values() for o in found], self.paces),
            cards=tuple(cards),
            outcomes=outcomes,
            table=made.settings.table,
            unavailable=made.unavailable,
        )

    def _trial(self, entrant: Entrant, seed: int) -> Trial | None:
        """Return a trial, or None for a contestant that cannot be run; the reason is kept."""
        if entrant.name in self.problems:
            return None
        if self.plan.budget.unit == "seconds" and entrant.name not in self.paces:
            return None
        try:
            return self.plan.trial(entrant, seed, self.paces.get(entrant.name))
        except SpecError as error:
            self.problems[entrant.name] = str(error)
            return None

    def _place(self, kind: str, order: Trial) -> Path:
        return self.folder / kind / f"{slug(order.name)}-seed{order.seed}-{order.key}"

    def _job(self, order: Trial, folder: Path) -> Job:
        order.write(folder)
        steps, seconds = order.recipe["training"]["steps"], self.plan.budget.unit == "seconds"
        return Job(
            name=order.name,
            seed=order.seed,
            key=order.key,
            folder=folder,
            command=[sys.executable, *child.safe_path(), "-m", "kinfolk.contests.trial", str(folder)],
            threads=order.threads,
            weight=1.0 if seconds else steps * (order.flops_per_token or 1.0),
            limit=self.plan.settings.limit,
            progress=lambda: trial.last_step(folder) / steps,
        )

    def _run(self, jobs: Sequence[Job], kept: int, what: str) -> None:
        weight = sum(job.weight for job in jobs)
        with Screen(len(jobs) + kept, kept=kept, weight=weight, console=self.console) as screen:
            screen.note(f"{what}{f'; {kept} finished before' if kept else ''}")
            run_all(jobs, self.plan.layout.jobs, screen, self.held, devices.environments())


def _say(made: Plan, console: Console) -> None:
    """Say who takes part, and what all of them are computed with."""
    from kinfolk.core.device import choose_device

    lines = []
    for entrant in made.entrants:
        try:
            steps = f"{made.steps(entrant):,} steps"
        except SpecError:
            # seconds need a measurement first, and a part of a user's own may not say what it costs
            steps = "steps not known yet"
        lines.append(f"{entrant.name}: {entrant.cost.params:,} parameters, {steps}")
    training, tokens = made.entrants[0].recipe.training, made.data.split("train").n_tokens
    lines.append(
        f"{made.data.name}: {tokens:,} tokens to learn from; {training.precision}, {made.layout}, "
        f"{choose_device('auto').type} -> {made.settings.folder}"
    )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _title(made: Plan) -> str:
    if made.settings.table:
        return f"{table(made.settings.table).title} {len(made.entrants)} rows on {made.data.name}"
    return f"{', '.join(e.name for e in made.entrants)} on {made.data.name}"


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Take a request to terminate, as batch systems send it, for Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        # only the main thread may set handlers
        yield
        return
    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def _is_done(folder: Path) -> bool:
    outcome = Outcome.read(folder)
    return outcome is not None and outcome.status == DONE


def _is_kept(folder: Path) -> bool:
    outcome = Outcome.read(folder)
    return outcome is not None and outcome.status in KEPT
