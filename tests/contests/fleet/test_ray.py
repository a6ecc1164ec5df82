"""A real Ray of two nodes that share nothing with the driver: the results of local processes, trial by trial."""

import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kinfolk.contests.fleet import places
from kinfolk.contests.fleet.queue import DEATHS, Queue, Ticket
from kinfolk.contests.run import run
from kinfolk.core.errors import SpecError
from tests.contests.fleet.conftest import NODE, patiently
from tests.contests.fleet.killing import ended
from tests.contests.fleet.test_compare import quiet, scores, settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "my.txt"
    file.write_text("".join(f"line {i} of a text that only the driver has\n" for i in range(4000)))
    return file


def asked(out: Path, text: Path, **more: object) -> Any:
    return settings(out, **({"contestants": ("gpt2",), "data": str(text), "budget": "8k-tokens", "jobs": 2} | more))


@pytest.mark.parametrize(("kills", "seeds"), [(2, 2), pytest.param(10, 6, marks=pytest.mark.long)])
def test_tasks_give_the_local_results_and_lost_nodes_cost_nothing(
    cluster: Any, tmp_path: Path, text: Path, kills: int, seeds: int
) -> None:
    """The second node dies at random moments while it may run a trial; data and checkpoints travel by Ray alone."""
    home, chance, stop, killed = tmp_path / "home", random.Random(kills), threading.Event(), []
    local = run(asked(tmp_path / "local", text, seeds=seeds), console=quiet())

    def kill() -> None:
        # the first moments after a claim, when nothing can have ended yet; later ones come as they may
        while len(killed) < kills and not stop.wait(chance.uniform(0.5, 2 + 8 * len(killed))):
            claims = Queue(home).claims()
            if claims and all(Ticket.read(file).deaths < DEATHS - 1 for file in claims):
                killed.append(len(list(home.glob("trials/*/work@*/run/checkpoints/step-*/state.json"))))
                cluster.remove_node(list(cluster.worker_nodes)[-1], allow_graceful=False)
                patiently(lambda: cluster.add_node(**NODE))

    thread = threading.Thread(target=kill)
    thread.start()
    comparison = run(asked(home, text, seeds=seeds, on="ray"), console=quiet())
    stop.set()
    thread.join()
    assert scores(comparison) == scores(local)
    assert killed
    assert list(ended(home).values()) == [1] * seeds
    assert Queue(home).count() == {"waiting": 0, "running": 0}


def test_fractions_of_a_gpu_and_what_a_node_lacks(cluster: Any, tmp_path: Path, text: Path) -> None:
    from kinfolk.contests.fleet.ray_engine import RayEngine

    engine = RayEngine("ray", tmp_path, places.PerTrial.parse("gpus=0.5"), None)
    assert engine._room() == 1, "no node has a GPU: one task waits, for an autoscaler to see"
    node = cluster.add_node(**NODE, num_gpus=1)
    engine._counted = 0.0
    assert engine._room() == 3
    import ray

    seen = ray.get([ray.remote(where).options(num_cpus=0.5, num_gpus=0.5).remote() for _ in range(2)])
    assert [device for device, _ in seen] == ["0", "0"]
    cluster.remove_node(node)
    engine.close()


def where() -> tuple[str | None, str]:
    return os.environ.get("CUDA_VISIBLE_DEVICES"), sys.executable


@pytest.mark.parametrize(
    ("on", "message"),
    [("ray://127.0.0.1:1", "nothing answers there"), ("ray://nowhere", "expected ray://HOST:PORT")],
)
def test_a_wrong_address_is_one_line(tmp_path: Path, text: Path, on: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        run(asked(tmp_path, text, on=on), console=quiet())
    assert Queue(tmp_path).count() == {"waiting": 2, "running": 0}
