"""Random seeds as a pure function of (seed, purpose, example), so that nothing has to be remembered.

Resuming, another number of data workers or another number of processes all give the same draws, because a
draw depends on the example's number in the run and never on what was drawn before it.
"""

import dataclasses
import hashlib

import numpy as np


def derive(seed: int, *labels: str | int) -> int:
    """Return a 63-bit seed for a purpose, e.g. `derive(seed, "dropout", step, rank)`."""
    text = "/".join(map(str, (seed, *labels)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclasses.dataclass(frozen=True)
class Rng:
    """A source of independent generators, one per example."""

    seed: int

    def example(self, index: int, purpose: str = "") -> np.random.Generator:
        """Return the generator of one example for one purpose."""
        return np.random.Generator(np.random.Philox(key=derive(self.seed, purpose, index)))
