"""The main job: plan, measure if the budget is a time, run the trials, and make the result.

What is finished stays: a trial's folder is named after a hash of everything that decides its result, so the same
command finds it again, and one with another contestant or more seeds adds only what is missing.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.contests import facts, match, plan, rates, retrials, sizes
from kinfolk.contests.branches import COOLING, SHARES, UNIT, Tree, gathered
from kinfolk.contests.comparison import Comparison
from kinfolk.contests.evidence import Battery, Protocol, RateCurve, RatePoint, Spent
from kinfolk.contests.groups import Group, group
from kinfolk.contests.inference import OPEN, Standing
from kinfolk.contests.outcome import DONE, Outcome, write_json
from kinfolk.contests.plan import Entrant, Plan
from kinfolk.contests.rates import Search, SearchOrder
from kinfolk.contests.report.files import write
from kinfolk.contests.settings import ROUND, Settings
from kinfolk.contests.space import SpaceSearch, available
from kinfolk.contests.trial import BATTERY, Trial
from kinfolk.contests.trials import CALIBRATIONS, Trials, opened
from kinfolk.core.console import Console, progress_console
from kinfolk.core.errors import SpecError, TrainingError
from kinfolk.family.tables import table
from kinfolk.objectives.measures.measure import measure_of


def run(settings: Settings, command: str = "", console: Console | None = None) -> Comparison:
    """Compare, write the results into the folder, and return them. Interrupted, write what there is and pass it on."""
    console = console or progress_console(settings.events)
    if settings.sizes:
        return _at_sizes(settings, command, console)
    planned = plan.make(settings)
    with opened(settings, planned.layout, console, ungrouped=planned.data.kind == "text") as trials:
        if settings.matching == "time" and match.kept_widths(settings.folder) is None:
            planned = _match_by_time(planned, trials)
        _announce(planned, console)
        contest = _Contest(planned, command, trials)
        try:
            contest.calibrate()
            contest.tune()
            contest.judge()
            contest.branch()
            contest.ask()
        except KeyboardInterrupt:
            write(contest.result())
            raise
        result = contest.result()
        write(result)
        return result


def _at_sizes(settings: Settings, command: str, console: Console) -> Comparison:
    """Compare at every size, each in a folder of its own, and say what they come to together."""
    results = {}
    for size in settings.sizes:
        console.print(f"size {size} ({', '.join(settings.sizes)})", markup=False, highlight=False)
        one = dataclasses.replace(settings, sizes=(), size=size, out=settings.folder / size)
        results[size] = run(one, command, console)
    result = sizes.joined(results, f"{results[settings.sizes[-1]].title}, {len(results)} sizes", command)
    write(result)
    return result


def _match_by_time(planned: Plan, trials: Trials) -> Plan:
    """Measure how long steps take at widths of equal operations, scale, measure again, and keep the widths."""
    factors = {entrant.name: 1.0 for entrant in planned.entrants}
    for _ in range(MATCHING):
        measured = _Contest(planned, "", trials).measure()
        paces = {name: outcome.pace for name, outcome in measured.items() if outcome.pace}
        first = paces.get(planned.entrants[0].name)
        if first is None:
            raise TrainingError("match: the steps of the first contestant could not be measured")
        factors |= {name: factors[name] * first / own for name, own in paces.items()}
        planned = plan.make(planned.settings, factors)
    write_json(planned.settings.folder / match.WIDTHS, {e.name: dict(e.widths) for e in planned.entrants if e.widths})
    return plan.make(planned.settings)


MATCHING = 2
"""How often steps are measured before widths that take equal time are kept."""


def pace(settings: Settings, console: Console | None = None) -> dict[str, Outcome]:
    """Measure how long a step of each contestant takes and what memory it needs, without training."""
    planned = plan.make(settings)
    with opened(settings, planned.layout, console or progress_console(settings.events)) as trials:
        return _Contest(planned, "", trials).measure()


class _Contest:
    """A comparison in motion: every step of the protocol asks for trials, and depends on nothing but their outcomes."""

    def __init__(self, planned: Plan, command: str, trials: Trials) -> None:
        self.plan, self.settings, self.command, self.trials = planned, planned.settings, command, trials
        self.folder = planned.settings.folder
        self.paces: dict[str, float] = {}
        self.problems: dict[str, str] = {}
        self.searched: dict[str, dict[SearchOrder, Outcome]] = {entrant.name: {} for entrant in planned.entrants}
        self.rates: dict[str, RateCurve] = {}
        self.branched: dict[str, dict[float, list[Outcome]]] = {}
        self.trunks: list[Outcome] = []
        self.batteries: dict[str, Battery] = {}
        self.retried: dict[tuple[str, RatePoint], list[Trial]] = {}
        self.n_seeds = {entrant.name: planned.settings.seeds for entrant in planned.entrants}

    @property
    def tuned(self) -> bool:
        """Whether rates are searched for, so that what chooses and what judges are kept apart."""
        return self.settings.tune != "off"

    def calibrate(self) -> None:
        """Measure how long a step of each contestant takes, where the budget is a time."""
        if self.plan.budget.unit != "seconds":
            return
        measured = self.measure()
        for entrant in self.plan.entrants:
            outcome = measured.get(entrant.name)
            if outcome is not None and outcome.pace:
                self.paces[entrant.name] = outcome.pace
            else:
                why = outcome.reason if outcome else "it was not measured"
                self.problems[entrant.name] = f"its steps could not be measured: {why}"

    def measure(self) -> dict[str, Outcome]:
        """Run steps of every contestant that are thrown away, and return what they took."""
        orders = {entrant.name: self.plan.calibration(entrant) for entrant in self.plan.entrants}
        missing = [order for order in orders.values() if not _is_done(self.trials.known(order))]
        if missing:
            # the last round is filled up, so that all are measured with equally many neighbours
            jobs = [self.trials.job(order, self.trials.place(order)) for order in missing]
            short = -len(jobs) % self.plan.layout.jobs
            for i, order in enumerate(list(orders.values())[:short]):
                jobs.append(self.trials.job(order, self.folder / CALIBRATIONS / f"company-{i}"))
            self.trials.start(jobs, kept=0, what="measuring how long a step takes")
        return {name: outcome for name, order in orders.items() if (outcome := self.trials.known(order)) is not None}

    def tune(self) -> None:
        """Search for every contestant's learning rate, all contestants at once, stage by stage."""
        while self.tuned:
            searches = self._searches()
            wanted = [
                (entrant, order, trial)
                for entrant, search in searches
                for order in search.orders(self.searched[entrant.name])
                if order not in self.searched[entrant.name] and (trial := self._search_trial(entrant, order))
            ]
            if not wanted:
                self.rates = {e.name: search.result(self.searched[e.name]) for e, search in searches}
                return
            what = f"learning rates: {len(wanted)} trials"
            for (entrant, order, _), outcome in zip(
                wanted, self.trials.run([trial for *_, trial in wanted], what), strict=True
            ):
                assert outcome is not None
                self.searched[entrant.name][order] = outcome

    def judge(self) -> None:
        """Run the trials that the verdict is on, and more seeds for what is undecided.

        Seed 0 of everybody comes first, so that breaking off leaves a balance.
        """
        self.trials.run(self._ordered(self._judged, self._own))
        self.retry()
        for _ in self.settings.looks[1:]:
            undecided = self._undecided()
            if not undecided:
                return
            for name in undecided:
                self.n_seeds[name] += ROUND
            self.trials.run(self._ordered(self._judged), f"{ROUND} more seeds for {', '.join(undecided)}")
            self.retry()

    def retry(self) -> None:
        """Train the worse one of every pair told apart at the further rates that may be its best."""
        orders = {
            (pair.worse, point): self._at(pair.worse, point)
            for each, outcomes in self._groups()
            for pair in retrials.pairs(self._standings(each, outcomes, again=False), self.rates)
            for point in pair.points
        }
        every = sorted((trial for trials in orders.values() for trial in trials), key=lambda trial: trial.seed)
        if every:
            self.trials.run(every, f"retrials: {', '.join(f'{name} at {point[0]:.3g}' for name, point in orders)}")
        self.retried |= orders

    def branch(self) -> None:
        """Find finished losses at shares of the budget: all trunks first, then all branches."""
        trees = [tree for entrant in self.plan.entrants for tree in self._trees(entrant)]
        if not trees:
            return
        self.trials.run([tree.trunk() for tree in trees], f"{len(trees)} trainings at a constant rate")
        self.trunks = list(self._ended([tree.trunk() for tree in trees]))
        trees = [tree for tree in trees if _is_done(self.trials.known(tree.trunk()))]
        orders = [
            (tree, share, tree.branch(share, str(self.trials.place(tree.trunk()).resolve())))
            for tree in trees
            for share in SHARES
        ]
        outcomes = self.trials.run([order for *_, order in orders], f"{len(orders)} branches that cool down")
        for (tree, share, _), outcome in zip(orders, outcomes, strict=True):
            if outcome is not None:
                self.branched.setdefault(tree.entrant.name, {}).setdefault(share, []).append(outcome)

    def ask(self) -> None:
        """Ask the first trained trial of every contestant what it can do besides its loss."""
        level = self.settings.battery
        if level == "none":
            return
        orders = {}
        for entrant in self.plan.entrants:
            judged = next((t for t in self._judged(entrant) if _is_done(self.trials.known(t))), None)
            if judged is not None:
                begins = {"source": str(self.trials.place(judged).resolve()), BATTERY: level, "trial": judged.key}
                orders[entrant.name] = (judged, dataclasses.replace(judged, begins=begins, max_seconds=0.0))
        self.trials.run([order for _, order in orders.values()], f"battery: {level}")
        for name, (judged, order) in orders.items():
            trained, outcome = self.trials.known(judged), self.trials.known(order)
            if trained is not None and outcome is not None:
                plain = outcome.battery or {"problems": {"battery": outcome.reason or outcome.status}}
                self.batteries[name] = dataclasses.replace(Battery(**plain), train_bytes=trained.growth_bytes)

    def _trees(self, entrant: Entrant) -> list[Tree]:
        """Return the trunks of a contestant; none where it has no rate, or too few steps to be cut into forty parts."""
        point = self._point(entrant)
        if self.tuned and point is None:
            return []
        return [
            Tree(self.plan, entrant, whole.seed, whole.recipe["training"]["steps"], **_judged_at(point))
            for whole in self._seeds(entrant, self.settings.branches, point)
            if not whole.begins and whole.recipe["training"]["steps"] >= UNIT
        ]

    def result(self) -> Comparison:
        """Gather what there is."""
        cards, outcomes, as_is = [], {}, {}
        for entrant in self.plan.entrants:
            trials = self._judged(entrant)
            cards.append(self.plan.card(entrant, trials[0] if trials else None, self.problems.get(entrant.name, "")))
            outcomes[entrant.name] = self._ended(trials)
            if self.tuned:
                as_is[entrant.name] = self._ended(self._own(entrant) or trials[: self.settings.seeds])
        searched = {name: tuple(trials.values()) for name, trials in self.searched.items() if trials}
        every = [outcome for trials in outcomes.values() for outcome in trials]
        protocol = self._protocol(every, as_is, searched)
        ended, measures = facts.ended(every, sum(self.n_seeds.values())), _measures(outcomes)
        return Comparison(
            folder=self.folder,
            title=_title(self.plan),
            facts=facts.gather(self.plan, self.command, protocol, ended, self.paces),
            cards=tuple(cards),
            outcomes=outcomes,
            table=self.settings.table,
            unavailable=self.plan.unavailable,
            protocol=protocol,
            as_is=as_is,
            searched=searched,
            retried=self._retried(),
            rates=self.rates,
            branches={name: gathered(measures.get(name, ""), shares) for name, shares in self.branched.items()},
            battery=self.batteries,
            train_tokens=self.plan.data.split("train").n_tokens,
        )

    def _searches(self) -> list[tuple[Entrant, Search | SpaceSearch]]:
        """Return the search of every contestant that can run; the measure is the one it will be judged by."""
        measures = _measures({name: tuple(trials.values()) for name, trials in self.searched.items()})
        return [
            (entrant, self._search(entrant, measures.get(entrant.name, "")))
            for entrant in self.plan.entrants
            if self._trial(entrant, 0) is not None
        ]

    def _search(self, entrant: Entrant, measure: str) -> Search | SpaceSearch:
        own, higher, names = entrant.recipe.training.optimiser.lr, measure_of(measure).higher, self.settings.tuning
        if names == ("lr",):
            return Search(own, measure, higher)
        return SpaceSearch(own, available(names, entrant.recipe), measure, higher)

    def _search_trial(self, entrant: Entrant, order: SearchOrder) -> Trial | None:
        seed = order.seed + self.settings.seed
        return self._trial(entrant, seed, lr=order.lr, others=dict(order.others), share=order.share, held_out="apart")

    def _judged(self, entrant: Entrant) -> list[Trial]:
        """Return the trials of a contestant that the verdict is on: none before its rate is known."""
        if self.tuned and entrant.name not in self.rates:
            return []
        return self._seeds(entrant, self.n_seeds[entrant.name], self._point(entrant))

    def _point(self, entrant: Entrant) -> RatePoint | None:
        """Return what was chosen for a contestant; None before, and where nothing is tuned."""
        curve = self.rates.get(entrant.name)
        return None if curve is None else curve.point

    def _own(self, entrant: Entrant) -> list[Trial]:
        """Return the trials at a recipe's own rate, where another was chosen."""
        curve = self.rates.get(entrant.name)
        if curve is None or curve.point == (curve.own, ()):
            return []
        return self._seeds(entrant, self.settings.seeds, (curve.own, ()))

    def _seeds(self, entrant: Entrant, n: int, point: RatePoint | None) -> list[Trial]:
        """Return the trials of a contestant at a point, or as its recipe is, with the first seeds of the verdict."""
        first = self.settings.seed
        trials = (self._trial(entrant, seed, **_judged_at(point)) for seed in range(first, first + n))
        return [trial for trial in trials if trial is not None]

    def _ordered(self, *kinds: object) -> list[Trial]:
        """Return trials of all contestants by seed, so that breaking off leaves a balance."""
        every = [trial for kind in kinds for entrant in self.plan.entrants for trial in kind(entrant)]  # type: ignore[operator]
        return sorted(every, key=lambda trial: trial.seed)

    def _ended(self, trials: Sequence[Trial]) -> tuple[Outcome, ...]:
        return tuple(outcome for trial in trials if (outcome := self.trials.known(trial)) is not None)

    def _undecided(self) -> list[str]:
        """Return the contestants of open pairs: those not told apart from their reference, and the reference."""
        names: list[str] = []
        for each, outcomes in self._groups():
            places = self._standings(each, outcomes)
            waiting = [place.name for place in places if place.verdict == OPEN and place.difference]
            references = [place.name for place in places if place.p is None and place.seeds > 1]
            names += [*references, *waiting] if waiting else []
        return [name for name in self.n_seeds if name in names and self.n_seeds[name] < self.settings.looks[-1]]

    def _groups(self) -> list[tuple[Group, dict[str, tuple[Outcome, ...]]]]:
        """Return groups of contestants by what they are judged by, with the trials of the verdict."""
        outcomes = {entrant.name: self._ended(self._judged(entrant)) for entrant in self.plan.entrants}
        return [(each, outcomes) for each in group(outcomes)]

    def _standings(self, each: Group, outcomes: Mapping[str, Sequence[Outcome]], again: bool = True) -> list[Standing]:
        retried = self._retried() if again else {}
        settings = self.settings
        return retrials.standings(each, outcomes, settings.baseline, settings.looks, self.rates, retried)

    def _at(self, name: str, point: RatePoint) -> list[Trial]:
        """Return the trials of a contestant at a rate that it was not judged with."""
        entrant = next(entrant for entrant in self.plan.entrants if entrant.name == name)
        return self._seeds(entrant, self.n_seeds[name], point)

    def _retried(self) -> dict[tuple[str, RatePoint], tuple[Outcome, ...]]:
        return {at: self._ended(trials) for at, trials in self.retried.items()}

    def _protocol(
        self,
        judged: Sequence[Outcome],
        as_is: Mapping[str, Sequence[Outcome]],
        searched: Mapping[str, Sequence[Outcome]],
    ) -> Protocol:
        settings, first = self.settings, self.settings.seed
        keys = {o.key for o in judged}
        own = [o for found in as_is.values() for o in found if o.key not in keys]
        parts = {"tuning": [o for found in searched.values() for o in found], "verdict": judged, "as is": own}
        # a retrial may be at the recipe's own rate
        known = {o.key for part in parts.values() for o in part}
        parts["retrials"] = [o for trials in self._retried().values() for o in trials if o.key not in known]
        chosen, on = plan.held_out(self.plan.data) if self.tuned else ("", "valid")
        return Protocol(
            tune=settings.tune,
            match=settings.matching,
            chosen_on=chosen,
            judged_on=on,
            against=settings.baseline,
            looks=settings.looks,
            tuning_seeds=tuple(first + seed for seed in rates.SEEDS) if self.tuned else (),
            seeds=tuple(range(first, first + max(self.n_seeds.values(), default=0))),
            costs={name: Spent.by(outcomes) for name, outcomes in parts.items() if outcomes} | self._branching(),
        )

    def _branching(self) -> dict[str, Spent]:
        """Return what trunks and branches used; a branch counts what it begins with as its own."""
        cooled = (o for found in self.branched.values() for trials in found.values() for o in trials)
        used = [Spent.by(self.trunks), *(Spent.by([o]).share(COOLING) for o in cooled)]
        return {"branches": functools.reduce(Spent.__add__, used)} if self.trunks else {}

    def _trial(self, entrant: Entrant, seed: int, **fields: object) -> Trial | None:
        """Return a trial, or None for a contestant that cannot be run; the reason is kept."""
        if entrant.name in self.problems:
            return None
        if self.plan.budget.unit == "seconds" and entrant.name not in self.paces:
            return None
        try:
            return self.plan.trial(entrant, seed, self.paces.get(entrant.name), **fields)  # type: ignore[arg-type]
        except SpecError as error:
            self.problems[entrant.name] = str(error)
            return None


def _judged_at(point: RatePoint | None) -> dict[str, Any]:
    """Return the fields of a trial of the verdict at a point; none where nothing was tuned."""
    return {} if point is None else {"lr": point[0], "others": dict(point[1]), "held_out": "judged"}


def _measures(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, str]:
    """Return the measure by which each contestant is ranked."""
    return {name: each.measure for each in group(outcomes) for name in each.names}


def _announce(planned: Plan, console: Console) -> None:
    """Print who takes part, and what all of them are computed with."""
    from kinfolk.core.device import choose_device

    lines = []
    for entrant in planned.entrants:
        try:
            steps = f"{planned.steps(entrant):,} steps"
        except SpecError:
            # seconds need a measurement first, and a part of a user's own may not say what it costs
            steps = "steps not known yet"
        lines.append(f"{entrant.name}: {entrant.cost.params:,} parameters, {steps}")
    training, tokens = planned.entrants[0].recipe.training, planned.data.split("train").n_tokens
    lines.append(
        f"{planned.data.name}: {tokens:,} tokens to learn from; {training.precision}, {planned.layout}, "
        f"{choose_device('auto').type} -> {planned.settings.folder}"
    )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _title(planned: Plan) -> str:
    if planned.settings.table:
        return f"{table(planned.settings.table).title} {len(planned.entrants)} rows on {planned.data.name}"
    return f"{', '.join(e.name for e in planned.entrants)} on {planned.data.name}"


def _is_done(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.status == DONE
