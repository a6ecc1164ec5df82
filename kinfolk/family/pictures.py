"""Recipes fitted to images: their width and channels, and that they are read whole."""

import dataclasses
from collections.abc import Container

from kinfolk.family.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Picture:
    """The size of every image of some data, in pixels and channels."""

    height: int
    width: int
    channels: int

    @property
    def n_values(self) -> int:
        """Values of an image, each a token."""
        return self.height * self.width * self.channels

    def numbers(self, known: Container[str]) -> dict[str, int]:
        """Return what a relative that takes these numbers must be made with to read such images."""
        every = {"image_width": self.width, "channels": self.channels, "max_len": self.n_values}
        return {name: value for name, value in every.items() if name in known}


def read_whole(recipe: Recipe, picture: Picture | None) -> Recipe:
    """Let a recipe read images from their first value to their last; other data asks nothing."""
    if picture is None:
        return recipe
    return recipe.replace(training=recipe.training.replace(length=picture.n_values))
