"""One relative under FSDP2 beside itself without: losses, side losses, gradients, segment memory and validation."""

import sys

import torch

from kinfolk.core.rng import Rng
from kinfolk.train.parallel import Team, join
from tests.family import test_relatives as registry

ROWS, LENGTH = 4, 60


def differences(name: str, team: Team) -> list[str]:
    """Return what differs; every process must call it. Gradients are means over the processes, each with its rows."""
    plain = [_outcome(registry.learner(name), name, rank, team) for rank in range(team.world)]
    learn = registry.learner(name)
    team.wrap(learn)
    assert any(hasattr(p, "full_tensor") for p in learn.parameters())
    found, mine = _outcome(learn, name, team.rank, team), plain[team.rank]
    wanted = {key: x for key, x in mine.items() if not key.startswith("gradient")}
    for key in mine.keys() - wanted.keys():
        wanted[key] = torch.stack([outcome[key] for outcome in plain]).mean(0)
    wrong = [f"{name}: {key} is in one only" for key in sorted(found.keys() ^ wanted.keys())]
    for key in sorted(found.keys() & wanted.keys()):
        close = torch.allclose(found[key], wanted[key], rtol=1e-8, atol=1e-10)
        wrong += [] if close else [f"{name}: {key} is off by {float((found[key] - wanted[key]).abs().max()):.3g}"]
    return wrong


def _outcome(learn: torch.nn.Module, name: str, rank: int, team: Team) -> dict[str, torch.Tensor]:
    """Return everything that two segments of training and one of validation lead to."""
    memory, found = learn.new_memory(), {}
    for segment in range(2):
        rows = registry.tokens(ROWS * team.world, LENGTH, seed=segment)[rank * ROWS : (rank + 1) * ROWS]
        batch = learn.prepare(registry.read(name, rows, first=rank * ROWS), Rng(0))
        torch.manual_seed(rank)
        loss = learn(batch, *([] if memory is None else [memory]))
        (loss.total / loss.count + loss.side).backward()
        if memory is not None:
            memory.settle()
        found |= {f"total {segment}": loss.total.detach(), f"side {segment}": loss.side.detach()}
    for path, p in learn.named_parameters():
        if p.grad is not None:
            found[f"gradient of {path}"] = team.full(p.grad)
    learn.eval()
    torch.manual_seed(rank)
    with torch.no_grad():
        found |= {f"measure {key}": total for key, (total, _) in learn.measure(batch).items()}
    return found


def main(names: list[str]) -> None:
    """Report what differs, in the processes that torch elastic started."""
    torch.set_num_threads(1)
    with join("fsdp", "cpu") as team:
        wrong = [line for name in names for line in differences(name, team)]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
