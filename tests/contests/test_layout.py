"""How many trials side by side: cores, memory and the size of a step decide, unless the user does."""

import pytest

from kinfolk.contests.layout import Layout, choose, memories

GB = 1e9


@pytest.mark.parametrize(
    ("trials", "cores", "memory", "step_flops", "expected"),
    [
        (15, 2, 16 * GB, 1e12, Layout(2, 1)),  # many trials: one thread each
        (1, 2, 16 * GB, 1e12, Layout(1, 2)),  # one trial of a large model has the machine
        (1, 2, 16 * GB, 1e8, Layout(1, 1)),  # one trial of a tiny model would only wait for its second thread
        (3, 8, 16 * GB, 1e12, Layout(3, 2)),  # cores left over become threads, the same number for all
        (15, 8, 3 * GB, 1e12, Layout(2, 4)),  # memory for two
        (15, 8, 0.1 * GB, 1e12, Layout(1, 8)),  # memory for none: one is tried all the same
    ],
)
def test_choice(trials: int, cores: int, memory: float, step_flops: float, expected: Layout) -> None:
    assert (
        choose(trials=trials, step_flops=step_flops, trial_bytes=GB, cores=cores, memory=memory, free=memory)
        == expected
    )


def test_the_user_decides() -> None:
    known = {"trials": 15, "step_flops": 1e12, "trial_bytes": GB, "cores": 8, "memory": 64 * GB, "free": 64 * GB}
    assert choose(**known, jobs=3) == Layout(3, 2)  # type: ignore[arg-type]
    assert choose(**known, threads=4) == Layout(2, 4)  # type: ignore[arg-type]
    assert choose(**known, jobs=5, threads=7) == Layout(5, 7)  # type: ignore[arg-type]


def test_what_is_free_at_the_moment_changes_no_result() -> None:
    """Sums depend on the number of threads; how many trials run side by side changes only how long they take."""
    found = [choose(trials=15, step_flops=1e12, trial_bytes=GB, cores=8, memory=64 * GB, free=f * GB) for f in (64, 3)]
    assert found == [Layout(8, 1), Layout(2, 1)]


def test_the_machine_has_something() -> None:
    total, free = memories()
    assert total >= free > 1e6


def test_in_words() -> None:
    assert str(Layout(2, 1)) == "2 trials side by side, 1 thread each"
    assert str(Layout(1, 4)) == "1 trial at a time, 4 threads each"
