"""Metadata of a relative, known without building it: its place in the family tree and its paper."""

import dataclasses
import re

from kinfolk.core.errors import SpecError, suggest

TOPOLOGIES = ("encoder", "decoder", "encoder-decoder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """One line of the family tree. `parent` is None for the root; `changes` says in one line what is new.

    year: 0 is the one that `paper` names first.
    """

    name: str
    parent: str | None
    year: int = 0
    paper: str
    topology: str
    causal: bool
    input: str
    changes: str

    def __post_init__(self) -> None:
        """Refuse what the tree could not place."""
        if not self.year:
            named = re.search(r"\b(19|20)\d\d\b", self.paper)
            if named is None:
                raise SpecError(f"{self.name}.year: is missing, and paper {self.paper!r} names none")
            object.__setattr__(self, "year", int(named[0]))
        if self.topology not in TOPOLOGIES:
            raise SpecError(f"{self.name}.topology: unknown {self.topology!r}{suggest(self.topology, TOPOLOGIES)}")
        if self.parent == self.name:
            raise SpecError(f"{self.name}.parent: a relative cannot be its own parent")
        if "\n" in self.changes:
            raise SpecError(f"{self.name}.changes: must be one line")
