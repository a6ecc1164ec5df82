"""One Ray cluster for all tests of a session: a head and a second node, which share nothing but this machine."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contests.fleet.slurm import free_port

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
QUIET |= {"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "300"}
QUIET |= {"RAY_worker_niceness": "0"}
"""Nothing is reported to anybody. Nodes talk over this machine's own address, which never leaves it.

Ray runs tasks at a niceness of 15, where they starve beside whatever else this machine does.
"""

NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}

CLIENTS = free_port()
"""Where the head answers drivers that are no part of the cluster."""


def patiently(start: Callable[[], Any], tries: int = 8) -> Any:
    """Start a node; Ray gives up after 30 seconds, which are not enough on a machine that does other things."""
    for left in reversed(range(tries)):
        try:
            return start()
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
            time.sleep(5)
    return None


# of a module: idle nodes go on taking processor time
@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    os.environ.update(QUIET)
    import ray
    from ray.cluster_utils import Cluster

    head = NODE | {"include_dashboard": False, "ray_client_server_port": CLIENTS}
    made = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    # before there is a second node: the driver belongs to the head, and must not go with the other
    ray.init(address=made.address, log_to_driver=False)
    patiently(lambda: made.add_node(**NODE))
    yield made
    ray.shutdown()
    made.shutdown()
