"""The training loop: the only one there is.

Pre-training, fine-tuning, comparing and the rest differ in the `Job` they hand in. A step is
a function of (weights, optimiser, seed, step number) and of nothing else, which is why a run that was killed and
resumed makes the same steps as one that was not.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinfolk.core import manifest
from kinfolk.runs import checkpoint, durable, folder
from kinfolk.runs.options import RunOptions
from kinfolk.train import guard, progress, report, state
from kinfolk.train.ahead import Ahead
from kinfolk.train.evaluate import bits_per_byte
from kinfolk.train.interrupt import Interrupt
from kinfolk.train.job import CLOCK, EARLY, FINISHED, INTERRUPTED, Result, TrainingJob
from kinfolk.train.memory import Memories
from kinfolk.train.metrics import MetricsLog
from kinfolk.train.parallel import Team
from kinfolk.train.peak import gemm_flops
from kinfolk.train.repeatable import products, repeatable
from kinfolk.train.scoring import score
from kinfolk.train.settling import choice_of
from kinfolk.train.step import Behind, StepOutcome, Stepper


def run(job: TrainingJob, out: Path, team: Team, options: RunOptions) -> Result:
    """Train from the newest checkpoint in the run folder, or from the start, to the end or an interruption."""
    with repeatable(), Interrupt() as interrupt, contextlib.ExitStack() as stack:
        session = Session(job, out, team, options)
        stack.callback(session.close)
        stack.enter_context(products(session.choice.precision))
        while session.status() is None:
            stop = session.update(lambda: interrupt.asked)
            improved = session.validation_is_due() and session.validate()
            if improved or stop or session.save_is_due():
                session.save()
            if stop:
                break
        return session.end(session.status() or INTERRUPTED)


class Session:
    """A run in motion."""

    def __init__(self, job: TrainingJob, out: Path, team: Team, options: RunOptions) -> None:
        self.job, self.out, self.team, self.options = job, out, team, options
        self.training, self.total = job.training, job.training.steps
        self.checkpoints = checkpoint.Checkpoints(out / "checkpoints", self.training.keep_last)
        self.choice = choice_of(job, out, team)
        forward = self.choice.wrap(team.wrap(job.learner))
        optimiser = self.training.build_optimiser(job.learner)
        self.autocast = self.choice.autocast(team.device)
        memories = Memories(job.learner, self.training.accumulate, job.batches)
        self.stepper = Stepper(
            forward, optimiser, self.training, job.seed, team, self.autocast, self.choice.scale(), memories
        )
        self.counters = self._restore()
        self.saved_step = self.counters.step
        self.peak = gemm_flops(team.device, self.choice.precision) if job.flops_per_token else 0.0
        self.metrics: MetricsLog | None = None
        self.behind: Behind | None = None
        self.clock = 0.0
        if team.main:
            path = out / "metrics.jsonl"
            self.metrics = MetricsLog.resume(path, self.counters.step, tensorboard=options.tensorboard)
        self.ahead = Ahead(job, team, self.total)
        self.progress = progress.choose(options.quiet, team.main)
        self.progress.start(self.counters.step, self.total)

    def status(self) -> str | None:
        """Return why the run is over, or None."""
        if self.counters.step >= self.total:
            return FINISHED
        if self.training.patience and self.counters.stale >= self.training.patience:
            return EARLY
        if self.options.max_seconds and self.counters.seconds >= self.options.max_seconds:
            return CLOCK
        return None

    def update(self, stop: Callable[[], bool]) -> bool:
        """Make one step and write its row, or that of the step before; return whether to end the run."""
        counters = self.counters
        step = counters.step + 1
        self.clock = time.perf_counter() if self.behind is None else self.clock
        batch, tokens, waited = self.ahead.at(step)
        pending = self.stepper.start(batch, step, self.total, tokens=tokens, stop=stop)
        counters.step, behind = step, self.behind
        self.behind = Behind(pending, step, batch, waited)
        # on an accelerator, what the step before has left is read while this one is computed
        return self.settle() if not self.stepper.late else behind is not None and self._settle(behind)

    def settle(self) -> bool:
        """Read the outcome of the last step, if that has not been done; return whether to end the run."""
        behind, self.behind = self.behind, None
        return behind is not None and self._settle(behind)

    def _settle(self, behind: "Behind") -> bool:
        """Count a step and write its row."""
        outcome, counters = behind.pending.outcome(), self.counters
        if not outcome.finite:
            guard.stop(outcome, behind.batch, behind.step, self.out, self.team.rank)
        took, self.clock = time.perf_counter() - self.clock, time.perf_counter()
        if self.options.max_seconds:
            # the clock ends a run on all processes or on none
            took = self.team.agree(took)
        counters.loss = outcome.loss
        counters.tokens += outcome.tokens
        counters.seconds += took
        self._write_step(behind.step, outcome, took, behind.waited)
        return outcome.stop

    def validation_is_due(self) -> bool:
        """Tell whether this step ends with a validation."""
        every = self.training.eval_every
        return self.job.valid is not None and (
            self.status() is not None or bool(every and self.counters.step % every == 0)
        )

    def validate(self) -> bool:
        """Score the validation data and write the row; return whether it is the best so far."""
        self.settle()
        scores, counters = score(self.job, self.team, self.autocast), self.counters
        counters.bits_per_byte = bits_per_byte(scores, self.job.split)
        improved = counters.judge({name: mean_score.mean for name, mean_score in scores.items()}, self.training.metric)
        row = {
            "step": counters.step,
            "valid": counters.valid,
            "bits_per_byte": counters.bits_per_byte,
            "seconds": counters.seconds,
            "tokens": counters.tokens,
            "flops": counters.tokens * self.job.flops_per_token,
        }
        self._write(row)
        self.progress.valid(row)
        return improved

    def save_is_due(self) -> bool:
        """Tell whether this step ends with a checkpoint."""
        every = self.training.save_every
        return self.status() is not None or bool(every and self.counters.step % every == 0)

    def save(self) -> None:
        """Write a checkpoint of this step, point `best` at the best one, and remove old ones."""
        self.settle()
        files, scalars = state.collect(self.job.learner, self.stepper.optimiser, self.team)
        files["memory"] = self.stepper.memories.tensors(self.team)
        self.saved_step = self.counters.step
        if not self.team.main:
            return
        assert self.metrics is not None
        self.metrics.sync()
        scale = self.stepper.scale
        body = {
            "counters": dataclasses.asdict(self.counters),
            "optimiser": scalars,
            "scale": dataclasses.asdict(scale) if scale else None,
        }
        self.checkpoints.save(self.counters.step, files, body)
        self.checkpoints.mark_best(self.counters.best_step)
        self.checkpoints.prune()

    def end(self, status: str) -> Result:
        """Leave the folder as a finished run, unless it was interrupted, and return the result."""
        self.settle()
        if self.saved_step != self.counters.step:
            self.save()
        result = self.result(status)
        if self.team.main and status != INTERRUPTED:
            self._leave_weights()
            folder.replace(self.out, folder.RESULT, json.dumps(dataclasses.asdict(result), indent=1) + "\n")
            if self.options.report:
                report.write(self.out)
        self.team.wait()
        return result

    def result(self, status: str) -> Result:
        """Return the result as it is now."""
        counters, flops = self.counters, self.counters.tokens * self.job.flops_per_token
        speed = counters.tokens / counters.seconds if counters.seconds else 0.0
        return Result(
            name=self.job.name,
            out=str(self.out),
            status=status,
            step=counters.step,
            total_steps=self.total,
            parameters=sum(p.numel() for p in self.job.learner.parameters()),
            tokens=counters.tokens,
            seconds=counters.seconds,
            flops=flops,
            loss=counters.loss,
            valid=counters.valid,
            bits_per_byte=counters.bits_per_byte,
            best=counters.best,
            best_step=counters.best_step,
            tokens_per_second=speed,
            mfu=self._mfu(speed),
            precision=self.choice.precision,
            compile=self.choice.compile,
        )

    def close(self) -> None:
        """Close the files."""
        self.ahead.close()
        self.progress.close()
        if self.metrics is not None:
            self.metrics.close()

    def _restore(self) -> state.Counters:
        # damaged checkpoints are set aside by one process, before the others look
        saved = self.checkpoints.newest() if self.team.main else None
        self.team.wait()
        saved = saved if self.team.main else self.checkpoints.newest()
        if self.team.main:
            self.checkpoints.prune()
        if saved is None:
            return state.Counters()
        counters, scale = state.restore(saved, self.job.learner, self.stepper.optimiser, self.team)
        self.stepper.scale = scale
        self.stepper.memories.restore(saved.tensors("memory"), self.team)
        if self.team.main:
            self.checkpoints.mark_best(counters.best_step)
        return counters

    def _write_step(self, step: int, outcome: StepOutcome, took: float, waited: float) -> None:
        speed = outcome.tokens / took
        row = {
            "step": step,
            "loss": outcome.loss,
            "lr": outcome.lr,
            "tokens": self.counters.tokens,
            "seconds": self.counters.seconds,
            "tokens_per_second": speed,
            "mfu": self._mfu(speed),
            "waiting": waited / took,
            # a step that float16 skipped has no norm
            "grad_norm": None if outcome.skipped else outcome.grad_norm,
        }
        self._write(row)
        self.progress.step(row)

    def _write(self, row: dict[str, Any]) -> None:
        if self.metrics is not None:
            self.metrics.write(row)

    def _mfu(self, speed: float) -> float | None:
        """Return the share of the device's peak that a speed is.

        The peak is measured on a machine that may be busy then and idle later: where a step does more operations a
        second than the measured product, that is the peak.
        """
        if not self.peak:
            return None
        rate = speed * self.job.flops_per_token / self.team.world
        self.peak = max(self.peak, rate)
        return rate / self.peak

    def _leave_weights(self) -> None:
        """Put the best weights, or the last where nothing was validated, where `kf.load` looks for them."""
        saved = self.checkpoints.best() or self.checkpoints.newest()
        if saved is not None:
            with manifest.replacing(self.out, folder.WEIGHTS, saved.state["files"][folder.WEIGHTS]):
                durable.copy(saved.path / folder.WEIGHTS, self.out / folder.WEIGHTS)
