"""What every test runs under: names of tensors checked, one thread, no leftovers, nothing uninitialised by luck."""

import contextlib
import functools
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ["KINFOLK_CHECK_SHAPES"] = "1"
# two test processes share two cores; more threads in each would only wait for one another
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# a busy machine is slow, which says nothing about the code: no deadlines
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_configure(config: pytest.Config) -> None:
    """Keep cached data out of the user's own cache; the workers of one run share what the first of them made."""
    # a shell starts what runs in its background deaf to Ctrl-C, and children would be born so
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="kinfolk-tests-")
        os.environ["KINFOLK_CACHE"] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fill what `torch.empty` returns with NaN, so that reading it before writing it is seen; spare what costs time."""
    # what was collected stays until the end: the garbage collector need not look through it again and again
    gc.freeze()
    if torch := sys.modules.get("torch"):
        if not torch.accelerator.is_available():
            # seeding a device that is absent writes down a stack trace for later, at every seed
            for device in (torch.cuda, torch.xpu, torch.mps, torch.mtia):
                for seeding in {"manual_seed", "manual_seed_all"} & vars(device).keys():
                    setattr(device, seeding, lambda seed: None)
        for name in ("empty", "empty_like"):
            setattr(torch, name, poisoned(getattr(torch, name)))


def poisoned(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that returns uninitialised memory."""
    if hasattr(make, "__wrapped__"):
        return make

    @functools.wraps(make)
    def filled(*args: Any, **kwargs: Any) -> Any:
        tensor = make(*args, **kwargs)
        if tensor.is_floating_point():
            tensor.detach().fill_(float("nan"))
        return tensor

    return filled


@contextlib.contextmanager
def plugins_kept_apart() -> Iterator[None]:
    """Forget the plugins that are loaded inside: a process records all it has loaded in the runs it writes."""
    from kinfolk.core import plugins

    before, modules = dict(plugins._loaded), set(sys.modules)
    environment = os.environ.get(plugins.VARIABLE, "")
    try:
        yield
    finally:
        plugins._loaded.clear()
        plugins._loaded.update(before)
        os.environ[plugins.VARIABLE] = environment
        for name in set(sys.modules) - modules:
            if name.startswith("_kinfolk_plugin_"):
                # later tests would find its kinds, readers, labels and engines
                plugins.unload(sys.modules[name])


@pytest.fixture(autouse=True, scope="module")
def _plugins_of_a_module_are_its_own() -> Iterator[None]:
    """A fixture of a module may load plugins and write runs before the first test begins."""
    with plugins_kept_apart():
        yield


@pytest.fixture(autouse=True)
def _plugins_of_a_test_are_its_own() -> Iterator[None]:
    """Later tests must not record the plugins of this one."""
    with plugins_kept_apart():
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_test_waits_for_the_disk() -> Iterator[None]:
    """No process that is killed needs it, only a machine that loses its power; tests/core/test_durable.py has that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield
