"""The token ids that generation begins, ends and pads with, and those it must or may not write."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from kinfolk.core.errors import CheckpointError, suggest


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationIds:
    """What a model knows about its own special tokens. The defaults are those of tokenizers trained here.

    start_id: the first token of an encoder-decoder's target, and of a decoder's text where the prompt is empty.
    stop_ids: a sequence ends with the first of these that is written.
    pad_id: fills the place behind a sequence that ended.
    forced_first_id, forced_last_id: the first new token, and the last one that `max_new` allows.
    suppressed_ids: never written; suppressed_first_ids: not as the first new token.
    """

    start_id: int = 1
    stop_ids: tuple[int, ...] = ()
    pad_id: int = 0
    forced_first_id: int | None = None
    forced_last_id: int | None = None
    suppressed_ids: tuple[int, ...] = ()
    suppressed_first_ids: tuple[int, ...] = ()

    @property
    def constrains(self) -> bool:
        """Whether some token is forced or suppressed at some position."""
        forced = self.forced_first_id is not None or self.forced_last_id is not None
        return forced or bool(self.suppressed_ids or self.suppressed_first_ids)

    def plain(self) -> dict[str, Any]:
        """Return the record as a table for TOML or JSON, without what is not set."""
        rows = dataclasses.asdict(self).items()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in rows if value is not None}

    @classmethod
    def from_plain(cls, table: Mapping[str, Any], where: str) -> Self:
        """Read a table that `plain` returned."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in table:
            if name not in fields:
                raise CheckpointError(f"{where}: unknown {name!r}{suggest(name, fields)}")
        found: dict[str, Any] = {}
        for name, value in table.items():
            several = isinstance(fields[name].default, tuple)
            ids = value if several and isinstance(value, list | tuple) else [value]
            if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
                raise CheckpointError(f"{where}: {name} = {value!r} is not {'a list of ids' if several else 'an id'}")
            found[name] = tuple(ids) if several else value
        return cls(**found)
