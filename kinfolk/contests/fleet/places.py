"""Names of places where trials run, as `--on` takes them."""

from kinfolk.core.errors import SpecError

LOCAL, WORKERS, FOLDER = "local", "workers", "{dir}"


def check(on: str, unit: str) -> None:
    """Refuse a place that is unknown, and budgets that mean something else on every machine."""
    if on == LOCAL:
        return
    if on != WORKERS and FOLDER not in on:
        raise SpecError(f"on: unknown {on!r} (known: {LOCAL}, {WORKERS}, or a command with {FOLDER} in it)")
    if unit == "seconds":
        raise SpecError(f"on {on!r}: seconds are not equal work on unlike machines; give a budget in tokens or FLOPs")
