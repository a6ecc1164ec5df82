"""A learner small enough to train in a blink: dropout, a norm, a tied embedding, and rows of unequal length."""

import dataclasses
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.batch import Batch
from kinfolk.optim import AdamW, Cosine, Training
from kinfolk.runs import folder
from kinfolk.runs.metadata import Metadata
from kinfolk.runs.options import RunOptions
from kinfolk.train.job import Result, TrainingJob
from kinfolk.train.loop import run
from kinfolk.train.parallel import Team

VOCAB, WIDTH = 11, 8
QUIET = RunOptions(quiet=True, tensorboard=False, device="cpu")


@dataclasses.dataclass
class ToyLoss:
    total: Tensor
    count: Tensor
    side: Tensor


class ToyModel(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.embed(tokens))
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


class ToyLearner(nn.Module):
    """Predict the next token; the side loss pulls the logits together."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def prepare(self, batch: Batch, rng: object) -> Batch:
        return batch

    def measure(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        loss = self(batch)
        return {"next-token": (loss.total, loss.count)}

    def forward(self, batch: Batch) -> ToyLoss:
        assert len(batch), "models need not know what to do with no rows"
        keep = torch.ones_like(batch.tokens) if batch.keep is None else batch.keep
        logits = self.model(batch.tokens[:, :-1])
        nats = F.cross_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten(), reduction="none")
        scored = keep[:, 1:].flatten().to(nats.dtype)
        total, count = (nats * scored).sum(), scored.sum()
        # the mean over real positions, so that it is the same however a batch is cut
        side = 0.1 * (logits.square().mean(-1).flatten() * scored).sum() / count.clamp(min=1)
        return ToyLoss(total, count, side)


@dataclasses.dataclass(frozen=True)
class ToyBatches:
    """Rows of unequal length, each a counting sequence: a pure function of the step."""

    rows: int = 8
    width: int = 9
    steps_per_epoch: int = 3
    last_rows: int = 0
    poison: int = -1

    def at(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        if step == self.poison:
            raise KeyError(step)
        rows = self.last_rows if self.last_rows and step == self.steps_per_epoch - 1 else self.rows
        make = torch.Generator().manual_seed(step)
        start = torch.randint(VOCAB, (rows, 1), generator=make)
        lengths = torch.randint(2, self.width + 1, (rows, 1), generator=make)
        where = torch.arange(self.width)
        whole = Batch(
            index=torch.arange(rows) + step * rows, tokens=(start + where * start) % VOCAB, keep=where < lengths
        )
        return whole.rows(slice(rows * rank // world, rows * (rank + 1) // world))


def training(**changes: object) -> Training:
    fixed = {"precision": "fp32", "compile": "off", "batch_size": 8, "length": 8, "eval_every": 3, "save_every": 4}
    base = {"steps": 12, "optimiser": AdamW(lr=0.02), "schedule": Cosine(warmup=3)}
    return Training(**(fixed | base | changes))  # type: ignore[arg-type]


def job(seed: int = 0, dropout: float = 0.1, flops: float = 0.0, **changes: object) -> TrainingJob:
    torch.manual_seed(seed)
    learner = ToyLearner(ToyModel(dropout))
    return TrainingJob(
        name="toy",
        learner=learner,
        training=training(**changes),
        batches=ToyBatches(),
        valid=ToyBatches(rows=4),
        seed=seed,
        flops_per_token=flops,
    )


def start(out: Path, the_job: TrainingJob, options: RunOptions = QUIET, team: Team | None = None) -> Result:
    """Begin a run, or go on with it."""
    team = team or Team()
    if team.main and not (out / folder.RUN).exists():
        folder.create(out, "toy = true\n", Metadata(seed=the_job.seed))
    team.wait()
    return run(the_job, out, team, options)


def weights(out: Path) -> dict[str, Tensor]:
    """Return every tensor of the newest checkpoint."""
    from kinfolk.runs.checkpoint import Checkpoints

    newest = Checkpoints(out / "checkpoints").newest()
    assert newest is not None
    return {f"{file}/{k}": v for file in ("model", "optimiser") for k, v in newest.tensors(file).items()}


def rows(out: Path) -> list[dict]:
    """Return the rows of metrics.jsonl without what depends on the clock."""
    from kinfolk.train.metrics import CLOCKS, read

    return [{k: v for k, v in row.items() if k not in CLOCKS} for row in read(out / "metrics.jsonl")]


def same_run(one: Path, other: Path) -> bool:
    """Tell whether two runs have equal metrics and bit-equal weights and optimisers."""
    a, b = weights(one), weights(other)
    return rows(one) == rows(other) and a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def signalled(the_job: TrainingJob, step: int, signals: list[int]) -> TrainingJob:
    """Return a job that is sent signals while it learns from the batch of a step; batches are read ahead of it."""

    def send(module: object, inputs: tuple) -> None:
        if module.training and int(inputs[0].index[0]) // ToyBatches().rows == step - 1:
            while signals:
                os.kill(os.getpid(), signals.pop())

    the_job.learner.register_forward_pre_hook(send)
    return the_job
