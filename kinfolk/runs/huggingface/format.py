"""A kind of checkpoint: how its configuration says a model, and where its tensors are.

A format is a pair of functions (`model` from a configuration, `values` of a configuration from a model), a table of
places for the body, and a row for each architecture, which is the name that their library gives to a body with a head.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from kinfolk.core.errors import CheckpointError, suggest
from kinfolk.core.spec import Spec
from kinfolk.layers.heads.head import Head
from kinfolk.layers.init import Normal
from kinfolk.models.model import Model
from kinfolk.ops.activated_linear import Activation
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.places import Place, Table, place_of

T = TypeVar("T")

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "relu": "relu",
    "silu": "swish",
    "swish": "swish",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "selu": "selu",
    "linear": "identity",
}
"""Their names of activations, and ours; of several with one meaning the first is written."""


class Misfit(Exception):  # noqa: N818
    """A model is not of this format. The deeper the place that differs, the nearer it came."""

    def __init__(self, reason: str, depth: int = 0) -> None:
        super().__init__(reason)
        self.depth = depth


def need(kind: type[T], spec: Spec, path: str) -> T:
    """Return what a spec has at a path; raise `Misfit` unless it is of the kind that a format expects there."""
    value: Any = spec
    for step in re.finditer(r"\w+|\[(-?\d+)\]", path):
        place = path[: step.start()].removesuffix(".")
        try:
            value = getattr(value, step[0]) if step[1] is None else value[int(step[1])]
        except (AttributeError, IndexError):
            raise Misfit(f"{place} is {type(value).__name__}, without {step[0]}", place.count(".")) from None
    if type(value) is not kind:
        raise Misfit(f"{path} is {type(value).__name__}, not {kind.__name__}", path.count("."))
    return value


def need_all(kind: type[T], spec: Spec, path: str) -> list[T]:
    """Return what a spec has at each place of a path with `[*]`, as `need` does."""
    before, _, behind = path.partition("[*]")
    return [need(kind, spec, f"{before}[{i}]{behind}") for i in range(len(need(tuple, spec, before)))]


def their_activation(ours: str) -> str:
    """Return their name of an activation."""
    for theirs, name in ACTIVATIONS.items():
        if name == ours:
            return theirs
    raise Misfit(f"activation {ours!r} has no name there")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A head as their library names it. `unused` tensors may be in such files, and are left out by name.

    inside: what is written before the names of a body that has no prefix under other heads; reading is `Format.rename`.
    """

    name: str
    head: type[Head]
    read: Callable[[Config], Head]
    write: Callable[[Any], Mapping[str, Any]] = lambda head: {}
    table: Table = dataclasses.field(default_factory=dict)
    ties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused: tuple[str, ...] = ()
    bare: bool = False
    inside: str = ""


class Format:
    """Base of all formats; one is registered by being defined with a `model_type`."""

    model_type: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
    table: ClassVar[Table] = {}
    unused: ClassVar[tuple[str, ...]] = ()
    buffers: ClassVar[tuple[str, ...]] = ("*position_ids",)  # what is rebuilt and need not be mentioned
    architectures: ClassVar[tuple[Architecture, ...]] = ()
    zeros: ClassVar[tuple[str, ...]] = ()  # tensors without a place here, which must be zero
    free: ClassVar[tuple[str, ...]] = ()  # fields of a model that a configuration does not say
    unsaid: ClassVar[Mapping[str, Any]] = {}  # written where nothing else is said: their own defaults may not fit
    refuses: ClassVar[str] = ""  # for people: what of the kind cannot be expressed
    width: ClassVar[str] = "hidden_size"  # the key of the model's width
    std: ClassVar[float] = 0.02  # of initial weights, where a configuration does not say it

    def __init_subclass__(cls, model_type: str = "") -> None:
        cls.model_type = model_type
        if model_type:
            FORMATS[model_type] = cls()

    def model(self, config: Config, head: Head) -> Model:
        """Return the model that a configuration says."""
        raise NotImplementedError

    def values(self, model: Model) -> dict[str, Any]:
        """Return the configuration of a model, or raise `Misfit`."""
        raise NotImplementedError

    def assembled(self, config: Config, **parts: Any) -> Model:
        """Return a model of these parts, with the width, vocabulary and initial weights of a configuration."""
        init = Normal(std=config.get("initializer_range", self.std))
        sizes = {"d_model": config.number(self.width), "vocab_size": config.number("vocab_size")}
        return Model(**{**sizes, "init": init, **parts})

    def sizes(self, model: Model) -> dict[str, Any]:
        """Return what a configuration says of the width, the vocabulary and the initial weights."""
        std = model.init.std if isinstance(model.init, Normal) else self.std
        return {self.width: model.d_model, "vocab_size": model.vocab_size, "initializer_range": std}

    def rename(self, name: str) -> str:
        """Return the present name of a tensor that older files name otherwise."""
        name = name.removesuffix(".gamma") + ".weight" if name.endswith(".gamma") else name
        return name.removesuffix(".beta") + ".bias" if name.endswith(".beta") else name

    def tied_to(self, model: Model) -> Mapping[str, str]:
        """Return the tensors that repeat a parameter of ours, besides those of an architecture."""
        return {}

    def always(self, model: Model, written: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors that such a file has besides those of the table, which are written."""
        return {}

    def beside(self, model: Model) -> Mapping[str, Any]:
        """Return what is written in other JSON files beside config.json."""
        return {}

    def body(self, model: Model) -> Table:
        """Return the table of the body; that of some formats depends on the model."""
        return self.table

    def places(self, model: Model, architecture: Architecture, prefix: str) -> Table:
        """Return the whole table of a model."""
        return prefixed(self.body(model), prefix) | dict(architecture.table)

    def architecture(self, name: str | None, where: str) -> Architecture:
        """Return an architecture by its name; without a name the body alone, the first."""
        for one in self.architectures:
            if name in (None, one.name):
                return one
        known = [one.name for one in self.architectures]
        raise CheckpointError(f"{where}: architecture {name!r} cannot be expressed{suggest(name, known)}")

    def architecture_in(self, tensors: Collection[str]) -> str | None:
        """Return the architecture with the largest head that is all there, where a file does not name it."""

        def there(name: str) -> bool:
            return any(tensor == name or tensor.startswith(f"{name}.") for tensor in tensors)

        heads = {
            one.name: [n for value in one.table.values() for n in place_of(value).names] for one in self.architectures
        }
        whole = [name for name, parts in heads.items() if parts and all(map(there, parts))]
        return max(whole, key=lambda name: len(heads[name]), default=None)

    def architecture_of(self, head: Head) -> Architecture:
        """Return the architecture whose head this is."""
        for one in self.architectures:
            if type(head) is one.head:
                return one
        raise Misfit(f"head is {type(head).__name__}, for which {self.model_type} has no name")


FORMATS: dict[str, Format] = {}


def prefixed(table: Table, prefix: str) -> dict[str, Place]:
    """Put a prefix before every name of theirs."""
    places = {ours: place_of(value) for ours, value in table.items()}
    return {
        ours: dataclasses.replace(place, names=tuple(prefix + name for name in place.names))
        for ours, place in places.items()
    }


def within(ours: str, table: Table) -> Table:
    """Put a prefix before every name of ours."""
    return {f"{ours}.{name}": place for name, place in table.items()}


def layers(ours: str, theirs: str, table: Table) -> Table:
    """Say a table of one layer for all layers."""
    return within(ours, prefixed(table, f"{theirs}."))
