"""What a test process does once or not at all: fixtures for the folders whose tests train a thousand runs.

A conftest imports them. What is measured or forced here has tests of its own, which ask for the real thing.
"""

import functools
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _the_peak_is_measured_once() -> Iterator[None]:
    """Every run that starts measures matrix products for 0.2 s, which are the same in one process."""
    from kinfolk.train import loop, peak

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "gemm_flops", functools.cache(peak.gemm_flops))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_test_waits_for_the_disk() -> Iterator[None]:
    """No process that is killed needs it, only a machine that loses its power; tests/core/test_durable.py has that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield
