"""Settings of a comparison, checked before anything starts."""

import dataclasses
import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from kinfolk.contests import budget as budgets
from kinfolk.contests import match
from kinfolk.contests.fleet import places
from kinfolk.core.errors import SpecError, suggest
from kinfolk.family import tables
from kinfolk.train.finetune import names

TUNE = ("lr", "weight_decay", "dropout", "clip", "off")
BATTERY = ("none", "quick", "full")
LAST_SEED = 10_000
THE_BEST = "best"
"""In the place of a baseline: all others are held against the one that turns out best."""
ROUND = 2
"""Seeds that are added at a time where a verdict is open."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that `kin compare` and `kf.compare` take.

    contestants: relatives, spec files, run folders or tables; none: the first relatives.
    labels: names of the contestants, where theirs are not to be used.
    table: a published table to run again, in the place of contestants; rows: some of it, see `Table.pick`.
    finetune: runs and downloaded folders to begin with, in the place of contestants; tactics: what is tried on each;
        valid: a file of its own to validate on.
    data: a name, a file or a prepared folder; tokenizer, vocab: for raw files.
    budget: of every trial: "10m", "2M-tokens", "1e15-flops".
    seeds: trials of every contestant; seed: the first of them. max_seeds: two more at a time for what is undecided, up
        to this many; 0: none besides `seeds`.
    tune: "lr" finds each contestant's learning rate first, with other seeds and on another split than the verdict;
        "off" takes the recipes' own. Several between commas (lr,weight_decay,dropout,clip) need the extra [tune].
    match: "params" (without embedding and output layer), "flops" or "time" (of a step, measured once and kept in the
        folder) scales widths to the first contestant's; "none" leaves them. "": params; but none for fine-tuning and
        rows of a table, whose widths are what they are.
    branches: seeds with which each contestant's finished loss at 1/8, 1/4, 1/2 and all of the budget is found, from a
        constant rate with branches that cool down; 0: none, because it costs 1.2 budgets for each.
    battery: "quick" or "full" asks every trained contestant what it can do besides its loss, see `contests.battery`.
    sizes: the same comparison at each of these sizes, in the place of `size`; see `contests.sizes`.
    against: the baseline that all others are held against, or "best"; "": the best, and of a table its first row.
    assignments: `path=value`, applied to every recipe.
    on: "local" processes, "workers" that pull from the folder, "slurm", "ray" or a command that starts a worker; see
        `contests.fleet`. per_trial: what each trial is given there: "gpus=1,cores=4,hours=2".
    events: report progress as JSON, one object per line on standard error.
    jobs, threads: trials side by side and threads of each; None: chosen from the machine and the models.
    nice: politeness of the trials towards other processes. timeout: longest life of a trial, like "2h"; "" for none.
    out: folder of the comparison; None: under runs/, named after what is compared. cache: where prepared data is kept.
    """

    contestants: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    data: str = "stdlib"
    budget: str = "1m"
    seeds: int = 5
    seed: int = 0
    max_seeds: int = 0
    tune: str = "lr"
    match: str = ""
    battery: str = "none"
    sizes: tuple[str, ...] = ()
    against: str = ""
    branches: int = 0
    size: str = "tiny"
    assignments: tuple[str, ...] = ()
    tokenizer: str = "byte"
    vocab: int | None = None
    on: str = "local"
    per_trial: str = ""
    events: bool = False
    jobs: int | None = None
    threads: int | None = None
    nice: int = 5
    timeout: str = ""
    out: Path | None = None
    cache: Path | None = None
    table: str = ""
    rows: str = ""
    finetune: tuple[str, ...] = ()
    tactics: tuple[str, ...] = ()
    valid: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        require("match", self.matching, match.BY)
        require("battery", self.battery, BATTERY)
        for name in self.tuning or ("off",):
            require("tune", name, TUNE)
        self._check_sizes()
        if not 0 <= self.seed <= LAST_SEED:
            raise SpecError(
                f"seed: {self.seed} is not allowed; 0 to {LAST_SEED}, so that no seed both chooses and judges"
            )
        if self.max_seeds and self.max_seeds < self.seeds:
            raise SpecError(f"max_seeds: {self.max_seeds} is fewer than the {self.seeds} seeds to begin with")
        if self.table and self.contestants:
            raise SpecError(f"table {self.table!r} has contestants of its own, found {', '.join(self.contestants)}")
        if self.rows and not self.table:
            raise SpecError(f"rows {self.rows!r}: of which table? (known: {', '.join(tables.NAMES)})")
        if self.table:
            tables.table(self.table).pick(self.rows)
        self._check_tuning()
        budgets.parse(self.budget)
        places.check(self.on, self.allowance.unit, self.per_trial)
        for name in ("seeds", "jobs", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name} must be at least 1, got {value}")
        if self.timeout and budgets.parse(self.timeout).unit != "seconds":
            raise SpecError(f"timeout {self.timeout!r}: expected a duration, for example 2h")

    def _check_sizes(self) -> None:
        if self.sizes:
            # imports the tensor library, and what runs is printed before that
            from kinfolk.family.sizes import SIZES

            for size in self.sizes:
                require("sizes", size, SIZES)
        if len(set(self.sizes)) < len(self.sizes):
            raise SpecError(f"sizes: each once, found {', '.join(self.sizes)}")
        if self.sizes and (self.table or self.finetune):
            raise SpecError("sizes: rows of a table and runs to fine-tune have sizes of their own")

    def _check_tuning(self) -> None:
        if (self.tactics or self.valid) and not self.finetune:
            raise SpecError("tactics and a file to validate on are for --finetune RUN|FOLDER")
        if self.finetune and (self.contestants or self.table or self.matching != "none"):
            raise SpecError("--finetune has contestants of its own, whose widths are what they are")
        for tactic in self.tactics:
            names.read(tactic)

    @property
    def source(self) -> dict[str, Any]:
        """The arguments of `open_data`."""
        source = {"name": self.data, "cache": self.cache, "tokenizer": self.tokenizer, "vocab": self.vocab}
        return {name: value for name, value in source.items() if value is not None}

    @property
    def resources(self) -> places.PerTrial:
        """What each trial is given where it runs."""
        return places.PerTrial.parse(self.per_trial)

    @property
    def tuning(self) -> tuple[str, ...]:
        """The hyperparameters that are searched for; none with "off"."""
        return () if self.tune == "off" else tuple(part.strip() for part in self.tune.split(","))

    @property
    def matching(self) -> str:
        """How widths are matched."""
        return self.match or ("none" if self.finetune or self.table else "params")

    @property
    def baseline(self) -> str:
        """The contestant that all others are held against, "" for the best; of a table it is the row the others change.

        A fixed baseline needs fewer seeds than the best of many, which must first be found (Dunnett's test beside the
        studentized range).
        """
        if not self.against and self.table:
            return tables.table(self.table).rows[0].name
        return "" if self.against == THE_BEST else self.against

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which a verdict may be taken."""
        return tuple(range(self.seeds, max(self.max_seeds, self.seeds) + 1, ROUND))

    @property
    def allowance(self) -> budgets.Budget:
        """The budget of a trial."""
        return budgets.parse(self.budget)

    @property
    def limit(self) -> float | None:
        """Seconds after which a trial is stopped and called timed out.

        With a budget in seconds a trial that is far beyond it hangs; otherwise only the user can know.
        """
        if self.timeout:
            return budgets.parse(self.timeout).amount
        return 3 * self.allowance.amount + 300 if self.allowance.unit == "seconds" else None

    @property
    def folder(self) -> Path:
        """Where the comparison lives: the same command finds the same folder, and so goes on."""
        if self.out is not None:
            return Path(self.out)
        # a comparison without a table, or without fine-tuning, is called what it was before there were any
        question = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in _NOT_THE_QUESTION and (value or name not in _LATER)
        }
        question |= {"match": self.matching}
        if self.tune == "off":
            del question["tune"]
        digest = hashlib.blake2b(json.dumps(question, default=str, sort_keys=True).encode(), digest_size=4).hexdigest()
        return Path("runs") / f"compare-{digest}"


_LATER = ("labels", "seed", "table", "rows", "finetune", "tactics", "valid", "sizes")
"""Fields that came later than the names of folders."""

_NOT_THE_QUESTION = (
    *("on", "per_trial", "events", "out", "cache", "nice", "jobs", "threads", "timeout"),
    *("seeds", "max_seeds", "against", "branches", "battery"),
)
"""Fields that a folder's name does not depend on: where and how trials run, and what can be added to it later."""


def require(field: str, choice: str, choices: Collection[str]) -> None:
    """Refuse a choice that there is not."""
    if choice not in choices:
        raise SpecError(f"{field}: unknown choice {choice!r}{suggest(choice, choices)}")
