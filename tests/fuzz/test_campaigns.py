"""A seeded sample of every fuzz campaign in `make test`, the whole campaign in `make long`."""

import os
import time

import pytest

from kinfolk.use.serve.app import App
from kinfolk.use.serve.server import open_runs
from tests.fuzz import campaign
from tests.fuzz.command_lines import command_case
from tests.fuzz.data_files import file_case
from tests.fuzz.imports import import_case
from tests.fuzz.requests import BODIES, PATHS, request_case, runs
from tests.fuzz.specs import spec_case

SIZES = {
    spec_case: (20, 10_000),
    import_case: (12, 2_000),
    file_case: (20, 2_000),
    command_case: (10, 2_000),
    request_case: (20, 2_000),
}
FIRST = int(os.environ.get("KINFOLK_FUZZ_SEED", "0"))


@pytest.mark.parametrize("case", SIZES, ids=lambda case: case.__name__)
def test_a_sample_is_refused_or_works(case):
    n, _ = SIZES[case]
    report = campaign.run(case, range(FIRST, FIRST + n))
    assert report.failures == [], str(report)
    assert report.counts["refused"] > n // 5
    assert sum(report.counts.values()) == n


def busy_case(rng):
    while True:
        rng.random()


def late_case(rng):
    time.sleep(1)


def test_a_hang_is_counted_in_processor_time():
    """A minute on a busy machine may be a second of work; what only waits is waited for, within a bound."""
    assert dict(campaign.run(busy_case, [0], seconds=0.2).counts) == {"hang": 1}
    assert dict(campaign.run(late_case, [0], seconds=0.2).counts) == {"accepted": 1}
    assert dict(campaign.run(late_case, [0], seconds=0.01).counts) == {"hang": 1}


def test_every_address_that_takes_a_body_is_asked():
    app = App(open_runs(runs(), "torch", 1))
    assert set(BODIES) == {address.path for address, _ in app.addresses if address.form}
    assert set(PATHS) >= {path for path in app.paths - set(BODIES) if "{" not in path}


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", SIZES, ids=lambda case: case.__name__)
def test_a_campaign_finds_nothing(case):
    _, n = SIZES[case]
    report = campaign.run(case, range(FIRST, FIRST + n))
    assert report.failures == [], str(report)
    assert sum(report.counts.values()) == n
