"""Environments by name, Kinfolk's own and Gymnasium's, behind one interface.

The interface is Gymnasium's: `reset(seed=…) -> (observation, info)`, `step(action) -> (observation, reward, terminated,
truncated, info)`. Kinfolk's own environments follow it without needing the package.
"""

import dataclasses
import functools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kinfolk.contests.acting.recall import CueRecall
from kinfolk.core.errors import MissingExtraError, SpecError, suggest
from kinfolk.data.files.names import split_name

OWN: dict[str, Callable[..., Any]] = {"cue-recall": CueRecall}
"""Environments that come with Kinfolk; their numbers are set after the name, `cue-recall:corridor=30`."""

VARIABLE = "KINFOLK_ENVIRONMENT"
"""Where the processes of a study find the environment that the user named."""


class Environment(Protocol):
    """What is asked of an environment."""

    observation_space: Any
    action_space: Any

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; everything random about it follows from the seed."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act, and return what is seen then, the reward, whether it is over, whether it was cut off, and more."""


@dataclasses.dataclass(frozen=True)
class World:
    """How environments of one name are made, and what a model must know of them.

    n_tokens: kinds of observation, where they are numbered; n_features: numbers in one, where they are vectors.
    n_actions: choices there are, or numbers in an action where `bounds` says that actions are vectors between these.
    threshold: mean return from which on the environment counts as solved, where it says so.
    """

    name: str
    make: Callable[[], Environment]
    n_actions: int
    n_tokens: int = 0
    n_features: int = 0
    first_token: int = 0
    first_action: int = 0
    bounds: tuple[Any, Any] | None = None
    threshold: float | None = None
    flatten: Callable[[Any], Any] = np.asarray

    def encode(self, observations: Sequence[Any]) -> Tensor:
        """Return observations as a model reads them: [B] token ids, or [B, F] numbers."""
        if self.n_tokens:
            return torch.tensor([int(x) - self.first_token for x in observations])
        rows = [np.asarray(self.flatten(x), dtype=np.float32).reshape(-1) for x in observations]
        return torch.from_numpy(np.stack(rows))

    def decode(self, action: int | list[float]) -> Any:
        """Return an action as the environment takes it; from -1 to 1 is stretched to where its bounds are finite."""
        if self.bounds is None:
            assert isinstance(action, int)
            return action + self.first_action
        low, high = self.bounds
        found = np.asarray(action, dtype=np.float32).reshape(low.shape)
        finite = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore"):
            stretched = low + (found + 1) / 2 * (high - low)
        return np.clip(np.where(finite, stretched, found), low, high).astype(low.dtype)


def open_world(name: str) -> World:
    """Return the environment of a name: `cue-recall`, `cue-recall:corridor=30`, or any id that Gymnasium knows."""
    base = name.partition(":")[0]
    if base in OWN:
        _, numbers = split_name(name, CueRecall.NUMBERS)
        return _described(name, lambda: OWN[base](**numbers))
    return _gymnasium(name)


def permit(name: str) -> None:
    """Let the processes that this one starts import the module of an environment: the user has named it."""
    os.environ[VARIABLE] = name


def require_permitted(name: str, where: str | Path) -> None:
    """Raise where an environment that only a file names is in a module that would be imported for it."""
    module, named, _ = name.partition(":")
    if named and module not in OWN and module not in sys.modules and name != os.environ.get(VARIABLE):
        raise SpecError(
            f"{where}: its environment is in Python module {module!r}, and nothing that a file names is imported; "
            f"if you trust the module, import it in a file of your own and name that: --plugin FILE.py"
        )


def _described(name: str, make: Callable[[], Environment]) -> World:
    """Look at one environment and say what a model must know."""
    env = make()
    seen, acts = env.observation_space, env.action_space
    rest: dict[str, Any] = {"threshold": getattr(getattr(env, "spec", env), "reward_threshold", None)}
    if type(acts).__name__ == "Box" and np.issubdtype(acts.dtype, np.floating):
        rest |= {"n_actions": int(np.prod(acts.shape)), "bounds": (acts.low, acts.high)}
    elif hasattr(acts, "n") and not isinstance(acts.n, np.ndarray):
        rest |= {"n_actions": int(acts.n), "first_action": int(getattr(acts, "start", 0))}
    else:
        raise SpecError(f"{name}: actions are {acts}; a choice (Discrete) or numbers (Box) can be learnt so far")
    if hasattr(seen, "n") and not isinstance(seen.n, np.ndarray) and hasattr(seen, "start"):
        return World(name, make, n_tokens=int(seen.n), first_token=int(seen.start), **rest)
    flatten: Callable[[Any], Any] = np.asarray
    if type(seen).__name__ != "Box":
        from gymnasium.spaces import flatten as flattened

        # boxes are flat vectors already; whatever else there is, Gymnasium makes one of it
        flatten = functools.partial(flattened, seen)
    first = np.asarray(flatten(env.reset(seed=0)[0]), dtype=np.float32)
    return World(name, make, n_features=first.size, flatten=flatten, **rest)


def _gymnasium(name: str) -> World:
    """Return an environment of Gymnasium's registry."""
    try:
        import gymnasium
    except ImportError:
        known = ", ".join(OWN)
        why = f"environment {name!r} is none of Kinfolk's own ({known}); one of Gymnasium's"
        raise MissingExtraError("rl", why) from None

    def make() -> Environment:
        # Gymnasium remarks on newer versions, but a request for v0 gets v0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gymnasium.make(name, disable_env_checker=True)

    # "module:Name-v0" is Gymnasium's way of importing a module first
    if ":" not in name and name not in gymnasium.registry:
        # as everywhere, but without the list of the hundreds of names that Gymnasium has
        hint = suggest(name, [*OWN, *gymnasium.registry]).partition(" (known:")[0]
        known = f"Kinfolk's own: {', '.join(OWN)}; Gymnasium's: `gymnasium.pprint_registry()` lists them"
        raise SpecError(f"unknown environment {name!r}{hint} ({known})")
    try:
        return _described(name, make)
    except (gymnasium.error.Error, ImportError) as error:
        raise SpecError(f"environment {name!r} cannot be made: {error}") from None
