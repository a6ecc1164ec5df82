"""The specs inside a spec, with their dotted paths."""

import dataclasses
from collections.abc import Iterator

from kinfolk.core.spec import Spec


def nested(spec: Spec, path: str = "", whole: type[Spec] | None = None) -> Iterator[tuple[str, Spec]]:
    """Yield every spec inside a spec with its dotted path, outermost first; nothing inside those of type `whole`."""
    for field in dataclasses.fields(spec):
        value, where = getattr(spec, field.name), f"{path}.{field.name}".removeprefix(".")
        several = isinstance(value, tuple)
        for i, item in enumerate(value if several else (value,)):
            if isinstance(item, Spec):
                at = f"{where}[{i}]" if several else where
                yield at, item
                if whole is None or not isinstance(item, whole):
                    yield from nested(item, at, whole)
