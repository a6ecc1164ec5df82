"""One test over many files: all that break a rule are named, and a thousand files are not a thousand tests."""

from collections.abc import Callable, Sequence
from pathlib import Path

HOUSE = Path(__file__).parents[1]


def name_of(path: Path) -> str:
    return str(path.relative_to(HOUSE))


def over(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make a test of a check of one file; it fails with the message of every file that fails."""
    assert paths

    def decorate(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            faults = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    faults.append(f"{name_of(path)}: {error}")
            assert not faults, "\n".join(faults)

        test.__doc__, test.__name__ = check.__doc__, check.__name__
        return test

    return decorate
