"""What each of two processes does in the tests of parallel training: `torchrun … -m tests.train.worker FOLDER`."""

import dataclasses
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from kinfolk.train import state
from kinfolk.train.evaluate import evaluate
from kinfolk.train.job import TrainingJob
from kinfolk.train.parallel import Team, join
from kinfolk.train.step import Stepper
from tests.train.sharded import differences
from tests.train.toy import ToyBatches, job, signalled, start

STEPS = 3
# side losses, taps inside of blocks, blocks that run several times or not at all, memory, weights read from elsewhere
SAMPLE = (
    "switch",
    "adaptive-span",
    "adaptive-softmax",
    "al-rfou",
    "funnel",
    "seq2seq",
    "universal",
    "gtrxl",
    "electra",
)


def steps(team: Team, out: Path) -> None:
    """Make a few float64 updates with this process's rows, and write down weights, optimiser and outcomes."""
    found = updates(team)
    if team.main:
        save_file(found, out / f"{team.strategy}.safetensors")


def updates(team: Team) -> dict[str, torch.Tensor]:
    """Return everything that a few updates leave, in float64 and without dropout."""
    the_job = job(dropout=0.0, accumulate=2, clip=0.3)
    learner = the_job.learner.double()
    forward = team.wrap(learner)
    optimiser = the_job.training.optimiser.build(learner)
    stepper = Stepper(forward, optimiser, the_job.training, 0, team)
    outcomes = []
    for step in range(1, STEPS + 1):
        batch = ToyBatches().at(step, team.rank, team.world)
        outcome = stepper.update(batch, step, STEPS, tokens=int(batch.keep.sum()))
        outcomes += [outcome.loss, outcome.count, outcome.grad_norm, float(outcome.tokens)]
    valid = evaluate(learner, ToyBatches(rows=4, last_rows=1), team=team)["next-token"]
    files, _ = state.collect(learner, optimiser, team)
    return {
        "outcomes": torch.tensor([*outcomes, valid.total, valid.count], dtype=torch.float64),
        **{f"{file}/{name}": x for file, tensors in files.items() for name, x in tensors.items()},
    }


def dropout(team: Team, out: Path) -> None:
    """Write down this process's own loss on rows that all processes share."""
    the_job = job(dropout=0.5)
    alone = dataclasses.replace(team, world=1)
    stepper = Stepper(the_job.learner, torch.optim.SGD(the_job.learner.parameters()), the_job.training, 0, alone)
    (out / f"dropout-{team.rank}").write_text(str(stepper.update(ToyBatches().at(0), 1, 9).totals))


def sharded(team: Team, out: Path) -> None:
    """Write down where relatives differ under FSDP2 from what they are without."""
    lines = [line for name in SAMPLE for line in differences(name, dataclasses.replace(team, strategy="fsdp"))]
    (out / f"sharded-{team.rank}").write_text("\n".join(lines))


def interrupted(the_job: TrainingJob, team: Team) -> TrainingJob:
    """Return a job to which a signal comes that reaches one process only, during the sixth step."""
    return signalled(the_job, 6, [signal.SIGTERM]) if team.rank == 1 else the_job


def main(out: Path) -> None:
    """Do everything with both strategies."""
    torch.set_num_threads(1)
    with join("ddp", "cpu") as alike:
        dropout(alike, out)
        sharded(alike, out)
        for strategy in ("ddp", "fsdp"):
            team = dataclasses.replace(alike, strategy=strategy)
            steps(team, out)
            # begun by two, stopped, to be ended by one
            stopped = start(out / f"{strategy}-begun", interrupted(job(dropout=0.0), team), team=team)
            assert stopped.status == "interrupted"
            assert stopped.step == 6
            # begun by one, to be ended by two
            assert start(out / f"{strategy}-ended", job(dropout=0.0), team=team).status == "finished"
            # stopped and ended by two
            cut = out / f"{strategy}-cut"
            start(cut, interrupted(job(), team), team=team)
            start(cut, job(), team=team)
            start(out / f"{strategy}-whole", job(), team=team)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
