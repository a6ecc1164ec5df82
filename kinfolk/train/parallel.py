"""Several processes on one or more machines, by PyTorch's own engines: DDP and FSDP2 over torch elastic.

A `Team` is what the loop knows of the others. Alone, every operation is the identity, so the loop has one path.
Every process reads its rows of the global batch, so 2 processes with half the batch each make the update of one
process with the whole batch, up to rounding.
"""

import contextlib
import dataclasses
import datetime
import os
import sys
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kinfolk.core import machine
from kinfolk.core.child import PARENT, end_with_parent, safe_path
from kinfolk.core.device import CPU, choose_device, widest
from kinfolk.core.errors import SpecError, TrainingError, suggest
from kinfolk.models.stack import StackModule

STRATEGIES = ("ddp", "fsdp")


@dataclasses.dataclass(frozen=True)
class Team:
    """This process among those of the run."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU
    strategy: str = "ddp"

    @property
    def main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over the processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def agree(self, number: float) -> float:
        """Return the main process's number on all."""
        if self.world == 1:
            return number
        box = torch.tensor([number], device=self.device, dtype=widest(self.device))
        dist.broadcast(box, 0)
        return float(box)

    def wait(self) -> None:
        """Go on when all are here."""
        if self.world > 1:
            dist.barrier()

    def wrap(self, learner: nn.Module) -> nn.Module:
        """Return the learner as the engine wants to call it."""
        learner.to(self.device)
        if self.world == 1:
            return learner
        if self.strategy == "fsdp":
            return _shard(learner)
        from torch.nn.parallel import DistributedDataParallel

        # looking for unused parameters also keeps the buckets as they are: PyTorch would otherwise regroup them
        # after the first step, and a resumed run would add up in another order than an uninterrupted one
        return DistributedDataParallel(learner, gradient_as_bucket_view=True, find_unused_parameters=True)

    @contextlib.contextmanager
    def holding(self, module: nn.Module, *, last: bool) -> Iterator[None]:
        """Exchange gradients in the last micro-batch only."""
        if self.world == 1:
            yield
        elif self.strategy == "fsdp":
            module.set_requires_gradient_sync(last)  # type: ignore[operator]
            yield
        else:
            with contextlib.nullcontext() if last else module.no_sync():  # type: ignore[operator]
                yield

    def full(self, tensor: Tensor) -> Tensor:
        """Return a tensor whole, whether it is sharded or not; all processes must call it."""
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    def rows(self, tensor: Tensor) -> Tensor:
        """Return the rows of all processes, in order; all processes must call it, with equally many."""
        if self.world == 1:
            return tensor
        # not every engine sends booleans
        mine = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor.contiguous()
        every = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(every, mine)
        return torch.cat(every).to(tensor.dtype)

    def like(self, tensor: Tensor, model: Tensor) -> Tensor:
        """Return a whole tensor cut and placed as `model` is."""
        if self.world == 1 or self.strategy != "fsdp":
            return tensor.to(model.device)
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(model, DTensor):
            return tensor.to(model.device)
        # every process has the whole tensor, so each takes its part without a message
        return distribute_tensor(tensor.to(self.device), model.device_mesh, model.placements, src_data_rank=None)


def _shard(learner: nn.Module) -> nn.Module:
    """Shard the blocks of stacks one by one, and the rest as one, with FSDP2.

    Weights of the rest are whole during a step. That includes what blocks share and borrow, and everything that is
    read without calling its owner: the hooks that gather weights run when a module is called.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # the last layer of a recurrent block returns a view, and nothing is written into the output of a block
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    mesh = init_device_mesh(next(learner.parameters()).device.type, (dist.get_world_size(),))
    for stack in [module for module in learner.modules() if isinstance(module, StackModule)]:
        for block in stack.units:
            fully_shard(block, mesh=mesh)
    fully_shard(learner, mesh=mesh)
    if hasattr(learner, "measure"):
        # scoring is not `forward`, and needs the weights together just the same
        register_fsdp_forward_method(learner, "measure")
    return learner


@contextlib.contextmanager
def join(strategy: str = "ddp", device: str = "auto") -> Iterator[Team]:
    """Join the processes that torch elastic started, or be alone when it started none."""
    if strategy not in STRATEGIES:
        raise SpecError(f"strategy: unknown choice {strategy!r}{suggest(strategy, STRATEGIES)}")
    world, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    where = choose_device(device, local)
    if world == 1 or dist.is_initialized():
        rank = dist.get_rank() if dist.is_initialized() else 0
        yield Team(rank, dist.get_world_size() if dist.is_initialized() else 1, where, strategy)
        return
    if where.type != "cpu":
        torch.accelerator.set_device_index(where.index or 0)
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    end_with_parent()
    if world > int(os.environ.get("LOCAL_WORLD_SIZE", world)):
        _choose_interface()
    limit = datetime.timedelta(minutes=30)
    store, rank, world = next(iter(rendezvous("env://", timeout=limit)))
    # torch elastic keeps one store over restarts; the addresses of processes that died must not be found in it
    store = PrefixStore(f"attempt-{restarts()}", store)
    backend = dist.get_default_backend_for_device(where)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    try:
        yield Team(rank, world, where, strategy)
    finally:
        dist.destroy_process_group()


def _choose_interface() -> None:
    """Let Gloo use the interface that leads to the first node; by default it takes the one of the host's name.

    A host's name often means the loopback interface, or one that other nodes do not reach.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ or "MASTER_ADDR" not in os.environ:
        return
    import socket

    import psutil

    try:
        family, kind, _, _, address = socket.getaddrinfo(os.environ["MASTER_ADDR"], 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # a datagram socket sends nothing when it connects; it only finds the way
            probe.connect(address)
            own = probe.getsockname()[0]
    except OSError:
        return  # the rendezvous says what is wrong with the address
    names = [name for name, entries in psutil.net_if_addrs().items() if own in {entry.address for entry in entries}]
    if names:
        os.environ["GLOO_SOCKET_IFNAME"] = names[0]


def inside() -> bool:
    """Tell whether torch elastic started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def restarts() -> int:
    """Return how often torch elastic has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launch(arguments: list[str], processes: int, max_restarts: int = 0) -> int:
    """Run `kin` with these arguments in several processes on this machine; return the exit code.

    An interruption is passed on to the processes, which save and leave; after `max_restarts` failures torch elastic
    gives up, and until then the processes go on from the newest checkpoint.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # each process would otherwise start as many threads as there are cores
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, machine.cores() // processes)))
    # PyTorch advises, from C++, against looking for unused parameters; see `Team.wrap` for why it is done
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ[PARENT] = str(os.getpid())
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"kin-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        # a step may be long, and an interrupted process saves after the one it is in
        shutdown_timeout=300,
    )
    try:
        elastic_launch(config, sys.executable)(*safe_path(), "-m", "kinfolk.cli.main", *arguments)
    except SignalException:
        return 130
    except ChildFailedError as error:
        codes = {failure.exitcode for failure in error.failures.values()}
        if codes <= {130}:
            return 130
        raise TrainingError(f"{len(error.failures)} of {processes} processes failed (exit codes {codes})") from None
    return 0
