"""Facts of a comparison: how it was made, for readers who judge it or repeat it."""

import datetime
import functools
import hashlib
import importlib.metadata
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from kinfolk.contests.budget import amount
from kinfolk.contests.evidence import Protocol
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.plan import SLACK, Plan
from kinfolk.contests.rates import FACTOR
from kinfolk.core import machine
from kinfolk.core.plain import to_plain
from kinfolk.runs.metadata import Metadata, Versions

MATCHED = {
    "none": "widths as they are",
    "params": "matched by parameters, without embedding and output layer",
    "flops": "matched by operations per token",
    "time": "matched by the measured time of a step",
}


def gather(plan: Plan, command: str, protocol: Protocol, trials: str, paces: Mapping[str, float]) -> dict[str, str]:
    """Return names and sentences, in the order in which a report shows them.

    trials: how many have a result, see `ended`.
    """
    settings, layout = plan.settings, plan.layout
    return {
        "command": command,
        "budget": f"{str(plan.budget).replace('-', ' ')} of training for every trial",
        "match": MATCHED[settings.matching],
        "seeds": _seeds(protocol, settings.seeds),
        "made": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "trials": trials,
        **_chances(protocol),
        **_same_for_all(plan),
        "side by side": f"{layout}; the same for all. Only at the very end fewer are left to run beside each other.",
        **_clock(paces),
        **machine_of(),
    }


def _seeds(protocol: Protocol, n: int) -> str:
    most = protocol.looks[-1] if protocol.looks else n
    more = f", up to {most} where a verdict is open, with the error rate kept over all looks" if most > n else ""
    return f"{n} seed{'s' * (n > 1)}{more}"


def _chances(protocol: Protocol) -> dict[str, str]:
    """Say how rates were chosen, on what, and what that cost."""
    if protocol.tune == "off":
        return {"learning rates": "each recipe's own; nothing was tuned"}
    whole = sum(cost.flops or cost.tokens for cost in protocol.costs.values())
    tuning = protocol.costs.get("tuning")
    share = f"{(tuning.flops or tuning.tokens) / whole:.0%} of all training" if tuning and whole else "not finished"
    final = "the best two and its own again at all of it with two further seeds"
    if protocol.tune == "lr":
        name = "learning rates"
        search = f"tuned for each contestant: rates a factor of {FACTOR:g} apart around its own at half of the budget"
    else:
        name = "hyperparameters"
        search = f"{protocol.tune} searched for each contestant at half of the budget (Optuna, TPE)"
    return {name: f"{search}, {final}; {tuning.trials if tuning else 0} trials, {share}", **_splits(protocol)}


def _splits(protocol: Protocol) -> dict[str, str]:
    chosen, judged = protocol.chosen_on, protocol.judged_on
    again = protocol.costs.get("retrials")
    return {
        "splits": f"rates were chosen on {chosen}; the verdict is on {judged}, with fresh seeds",
        "retrials": "a contestant is worse only if it is worse at its own rate, at that of the better one and at every "
        f"finalist that its search could not exclude; {again.trials if again else 0} further trials",
    }


def ended(outcomes: Sequence[Outcome], planned: int) -> str:
    """Say how many trials have a result, and how the others ended, if they did."""
    finished = [outcome for outcome in outcomes if outcome.done]
    others = Counter(outcome.status for outcome in outcomes if not outcome.done)
    cut = sum(outcome.cut_short for outcome in finished)
    parts = [
        f"all {planned} have finished" if len(finished) == planned else f"{len(finished)} of {planned} have finished"
    ]
    parts += [f"{n} {status}" for status, n in others.items()]
    parts += [f"{cut} cut short by the clock"] if cut else []
    return ", ".join(parts)


def _same_for_all(plan: Plan) -> dict[str, str]:
    data, training = plan.data, plan.entrants[0].recipe.training
    tokens, vocabulary = amount(data.split("train").n_tokens), data.tokenizer.vocab_size
    compiled = "not compiled" if training.compile == "off" else "compiled"
    return {
        "data": f"{data.name}: {data.kind}, {tokens} tokens, vocabulary of {vocabulary}, hash {data.fingerprint[:16]}",
        "batches": f"{training.batch_size} examples of {training.length} tokens, in the same order for all "
        f"contestants with the same seed",
        "precision": f"{training.precision}, {compiled}; the same for all",
    }


def _clock(paces: Mapping[str, float]) -> dict[str, str]:
    if not paces:
        return {}
    measured = ", ".join(f"{name} {1000 * pace:.1f} ms" for name, pace in paces.items())
    return {
        "seconds": f"steps were set before training from a measured time per step ({measured}); "
        f"a clock stops a trial at {SLACK:g} times the budget"
    }


def machine_of() -> dict[str, str]:
    """Say on what all trials ran, and with which versions."""
    origin = Metadata().with_origin()
    versions = {"kinfolk": importlib.metadata.version("kinfolk")} | to_plain(origin.versions or Versions())
    commit = f", commit {origin.commit[:12]}" if origin.commit else ""
    named = [f"{name} {version}" for name, version in versions.items() if name != "threads"]
    memory = psutil.virtual_memory().total / 2**30
    cores = f"{machine.cores()} of {os.cpu_count()} cores"
    return {
        "machine": f"{machine.processor()}, {cores}, {memory:.0f} GiB, {platform.system()}",
        "versions": f"{', '.join(named)}{commit}, source {source_hash()}",
    }


@functools.cache
def source_hash() -> str:
    """Return a hash of this package's source as it is on disk: a commit does not know of changes beside it."""
    home, digest = Path(__file__).parents[1], hashlib.blake2b(digest_size=6)
    for file in sorted(home.rglob("*.py")):
        digest.update(f"{file.relative_to(home).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()
