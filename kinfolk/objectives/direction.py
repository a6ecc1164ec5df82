"""Which way measures point."""

import math

HIGHER = (
    "accuracy",
    "exact-match",
    "overlap",
    "macro-f1",
    "micro-f1",
    "entity-f1",
    "entity-precision",
    "entity-recall",
    "answer-f1",
    "answer-exact",
    "mcc",
    "pearson",
    "spearman",
    "bleu",
    "rouge-l",
    "return",
)
"""Measures of which more is better; of all others, which are losses, less is. Where there is one, it decides."""


def higher_is_better(measure: str) -> bool:
    """Tell which way a measure points."""
    return measure in HIGHER


def better(measure: str, value: float, than: float | None) -> bool:
    """Tell whether a value of a measure is better than another, or than none; what is not finite never is."""
    if not math.isfinite(value):
        return False
    if than is None:
        return True
    return value > than if higher_is_better(measure) else value < than
