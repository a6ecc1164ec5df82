"""What is known of a relative without building it: its place in the family tree and its paper."""

import dataclasses

from kinfolk.core.errors import SpecError, suggest

TOPOLOGIES = ("encoder", "decoder", "encoder-decoder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """One line of the family tree. `parent` is None for the root; `changes` says in one line what is new."""

    name: str
    parent: str | None
    year: int
    paper: str
    topology: str
    causal: bool
    input: str
    changes: str

    def __post_init__(self) -> None:
        """Refuse what the tree could not place."""
        if self.topology not in TOPOLOGIES:
            raise SpecError(f"{self.name}.topology: unknown {self.topology!r}{suggest(self.topology, TOPOLOGIES)}")
        if self.parent == self.name:
            raise SpecError(f"{self.name}.parent: a relative cannot be its own parent")
        if "\n" in self.changes:
            raise SpecError(f"{self.name}.changes: must be one line")
