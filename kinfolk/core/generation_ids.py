"""The token ids that generation begins, ends and pads with, and those it must or may not write."""

from collections.abc import Mapping
from typing import Any, Self

from kinfolk.core.bounds import NonNegativeInt
from kinfolk.core.errors import CheckpointError, SpecError
from kinfolk.core.plain import from_plain, to_plain
from kinfolk.core.spec import Spec


class GenerationIds(Spec):
    """What a model knows about its own special tokens. The defaults are those of tokenizers trained here.

    start_id: the first token of an encoder-decoder's target, and of a decoder's text where the prompt is empty.
    stop_ids: a sequence ends with the first of these that is written.
    pad_id: fills the place behind a sequence that ended.
    forced_first_id, forced_last_id: the first new token, and the last one that `max_new` allows.
    suppressed_ids: never written; suppressed_first_ids: not as the first new token.
    """

    start_id: NonNegativeInt = 1
    stop_ids: tuple[NonNegativeInt, ...] = ()
    pad_id: NonNegativeInt = 0
    forced_first_id: NonNegativeInt | None = None
    forced_last_id: NonNegativeInt | None = None
    suppressed_ids: tuple[NonNegativeInt, ...] = ()
    suppressed_first_ids: tuple[NonNegativeInt, ...] = ()

    @property
    def constrains(self) -> bool:
        """Whether some token is forced or suppressed at some position."""
        forced = self.forced_first_id is not None or self.forced_last_id is not None
        return forced or bool(self.suppressed_ids or self.suppressed_first_ids)

    def plain(self) -> dict[str, Any]:
        """Return the record as a table for TOML or JSON, without what is not set."""
        return to_plain(self)

    @classmethod
    def from_plain(cls, table: Mapping[str, Any], where: str) -> Self:
        """Read a table that `plain` returned."""
        try:
            return from_plain(cls, dict(table), where)
        except SpecError as error:
            raise CheckpointError(str(error)) from None
