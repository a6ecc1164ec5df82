"""What a relative is built around, as a number: how far an estimate of attention is off, how far heads look.

Users of a Performer cannot see in the loss whether its features suffice; this says it, on their own data.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.core.batch import Batch
    from kinfolk.objectives.learner import Learner

SPECIAL = {
    "approximation_error": "approximation error (distance from exact attention, relative to its size)",
    "span": "span (how many positions back heads look)",
}
"""Taps that mean something as an average, and what they are."""


def special(learner: "Learner", batch: "Batch") -> dict[str, list[float]]:
    """Return the mean of every special tap of every layer that has it, over one batch as read."""
    from kinfolk.core.rng import Rng, derive
    from kinfolk.train.evaluate import scoring

    with scoring(learner):
        prepared = learner.prepare(batch, Rng(derive(0, "special")))
        taps = learner.model.run(prepared, taps=tuple(SPECIAL)).taps
    layers: dict[str, list[float]] = {}
    for path, value in taps.items():
        layers.setdefault(path.rsplit(".", 1)[-1], []).append(float(value.float().mean()))
    return layers


def sentences(layers: dict[str, list[float]]) -> list[str]:
    """Say it."""
    return [
        f"{SPECIAL[name]}: {sum(values) / len(values):.3g} on average over {len(values)} layers"
        + (f", from {min(values):.3g} to {max(values):.3g}" if len(values) > 1 else "")
        for name, values in layers.items()
    ]
