"""Names of places where trials run, as `--on` takes them, and what a trial needs there, as `--per-trial` says it."""

import dataclasses
from typing import Any, Self

from kinfolk.core.errors import SpecError, suggest

LOCAL, WORKERS, SLURM, RAY, FOLDER = "local", "workers", "slurm", "ray", "{dir}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerTrial:
    """What each trial is given: cores, GPUs (a fraction shares one, on Ray), hours (of a Slurm job), partition."""

    cores: int = 1
    gpus: float = 0.0
    hours: float = 1.0
    memory: float = 0.0
    partition: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `gpus=1,cores=4,hours=2`; memory is in GB."""
        types: dict[str, Any] = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        values: dict[str, int | float | str] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in types:
                raise SpecError(f"per-trial: unknown {name!r}{suggest(name, list(types))}")
            try:
                values[name] = types[name](value)
            except ValueError:
                raise SpecError(f"per-trial: {name} expects a number, found {value!r}") from None
        chosen = cls(**values)  # type: ignore[arg-type]
        if chosen.cores < 1 or chosen.gpus < 0 or chosen.hours <= 0 or chosen.memory < 0:
            raise SpecError(f"per-trial {text!r}: at least one core, no negative number, and some hours")
        return chosen


def is_ray(on: str) -> bool:
    """Tell whether a place is a Ray cluster: a new one here, or one at an address."""
    return on == RAY or on.startswith(f"{RAY}://")


def check(on: str, unit: str, per_trial: str = "") -> None:
    """Refuse a place that is unknown, and budgets that mean something else on every machine."""
    gpus = PerTrial.parse(per_trial).gpus
    if on == SLURM and gpus % 1:
        raise SpecError(f"per-trial: gpus={gpus:g}: Slurm gives whole GPUs; fractions of one are for --on {RAY}")
    if on == LOCAL:
        if per_trial:
            raise SpecError("per-trial: local trials share the machine by --jobs and --threads; give --on as well")
        return
    if on not in (WORKERS, SLURM) and FOLDER not in on and not is_ray(on):
        known = f"{LOCAL}, {WORKERS}, {SLURM}, {RAY}, {RAY}://HOST:PORT, or a command with {FOLDER} in it"
        raise SpecError(f"on: unknown {on!r} (known: {known})")
    if unit == "seconds":
        raise SpecError(f"on {on!r}: seconds are not equal work on unlike machines; give a budget in tokens or FLOPs")
