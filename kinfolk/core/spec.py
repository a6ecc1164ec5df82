"""Specs: frozen descriptions of components, and their registry.

A spec holds plain data only, so it can be hashed, compared, printed, diffed, replaced and saved. A subclass
without `kind` is an axis; a subclass with `kind` is a choice on it and registers itself by being defined:

    class Norm(Spec): ...                                an axis
    class RMSNorm(Norm, kind="rms-norm"): eps: float = 1e-6        a choice on it

Nothing else has to be edited to add a variant, so a user's own file can add one. Every value is checked against the
type of its field, with choices (`Literal`) and bounds (`kinfolk.core.bounds`), before `__post_init__` sees it; what
is left to a spec's own `__post_init__` is how its fields fit one another.
Reading and writing plain data (TOML, JSON) is `kinfolk.core.plain`; dotted paths are `kinfolk.core.paths`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, Self, dataclass_transform, get_type_hints

from kinfolk.core.bounds import problem
from kinfolk.core.errors import FieldError, SpecError, suggest


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Spec:
    """Base of all specs: a keyword-only frozen dataclass."""

    kind: ClassVar[str] = ""
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls, kind: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        if kind:
            for axis in axes_of(cls):
                twin = choices(axis).get(kind)
                if twin is not None and twin.__qualname__ != cls.__qualname__:
                    raise SpecError(f"{cls.__name__}: kind {kind!r} of {axis.__name__} is already {twin.__name__}")
        cls.kind = kind

    def __new__(cls, **values: Any) -> Self:
        """Refuse values that their fields do not allow, before `__post_init__`, where a class may do as it likes."""
        hints = field_types(cls)
        for name, value in values.items():
            # __init__ refuses names that are no field
            if name in hints and (fault := problem(value, hints[name])):
                raise FieldError(name, fault)
        return super().__new__(cls)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed; an unknown field is named."""
        names = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise SpecError(f"{type(self).__name__}.{name}: unknown field{suggest(name, names)}")
        return dataclasses.replace(self, **changes)


def field_types(cls: type[Spec]) -> dict[str, Any]:
    """Return the declared type of every field of a spec class, with choices and bounds."""
    if cls not in _field_types:
        hints = get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):
            if field.default is not dataclasses.MISSING and (fault := problem(field.default, hints[field.name])):
                raise SpecError(f"{cls.__name__}.{field.name}: the default: {fault}")
        _field_types[cls] = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    return _field_types[cls]


_field_types: dict[type[Spec], dict[str, Any]] = {}


def axes_of(cls: type[Spec]) -> Iterator[type[Spec]]:
    """Yield the axes of a choice, nearest first (`Attention` -> `Mixer`, `Part`)."""
    for base in cls.__mro__[1:]:
        if issubclass(base, Spec) and base is not Spec and not base.kind:
            yield base


def choices(axis: type[Spec]) -> dict[str, type[Spec]]:
    """Return every kind defined below an axis, by name. The newest definition of a kind wins."""
    kinds: dict[str, type[Spec]] = {}
    for cls in axis.__subclasses__():
        if cls.kind:
            kinds[cls.kind] = cls
        kinds.update(choices(cls))
    return kinds


def is_axis(cls: type[Spec]) -> bool:
    """Tell whether a value of this type must name its kind."""
    return not cls.kind and bool(choices(cls))
