"""Shapes: small grey images of one figure each, anywhere, of any size, turned, on a background of any shade, noisy.

An image task that needs no image files. What the classes differ in is form alone: shade, place, size, rotation
and noise are drawn alike for all of them.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.batches.mixing import below, fraction, mix
from kinfolk.data.generated.made import Square
from kinfolk.data.generated.rows import Made, held_out, pictures
from kinfolk.data.generated.task import MOST_TRIES, task, within
from kinfolk.data.splits.split import Indices

Plane = NDArray[np.floating]

CLASSES = ("disc", "ring", "half", "square", "frame", "bar", "triangle", "plus", "star", "pair")

# corners of a polygon as seen from its centre lie on such a wave of the angle
_POINTS = 5


@task("shapes")
@dataclasses.dataclass(frozen=True)
class Shapes(Square):
    """Images of `size` by `size` of `kinds` kinds of figure, with noise of `noise` shades of grey."""

    size: int = 32
    kinds: int = len(CLASSES)
    noise: int = 16

    @property
    def classes(self) -> tuple[str, ...]:
        return CLASSES[: self.kinds]

    def check(self) -> None:
        within("size", self.size, 8, 512)
        within("kinds", self.kinds, 2, len(CLASSES))
        within("noise", self.noise, 0, 64)

    def draw(self, seed: int, numbers: Indices, *, valid: bool) -> Made:
        """Return the images of these numbers as rows of pixels."""
        images = np.zeros((len(numbers), self.size, self.size), np.uint8)
        labels = np.zeros(len(numbers), np.int64)
        left = np.arange(len(numbers))
        for tried in range(MOST_TRIES):
            if not len(left):
                return Made((pictures(images),), labels)
            words = mix(seed, numbers[left], tried)
            labels[left] = below(mix(1, words), self.kinds)
            images[left] = self._paint(words, labels[left])
            flat = images[left].reshape(len(left), -1)
            identity = np.bitwise_xor.reduce(mix(2, np.arange(flat.shape[1]), flat), axis=1)
            left = left[held_out(identity) != valid]
        raise DataError(f"{self}: too few images to hold some out; make them larger")

    def _paint(self, words: NDArray[np.uint64], labels: Indices) -> NDArray[np.uint8]:
        uniform = fraction(mix(3, words[:, None], np.arange(7))).astype(np.float32)[:, :, None, None]
        radius = self.size * (0.22 + 0.18 * uniform[:, 0])
        centre = [radius + u * (self.size - 1 - 2 * radius) for u in (uniform[:, 1], uniform[:, 2])]
        y, x = np.mgrid[: self.size, : self.size].astype(np.float32)
        x, y = (x - centre[0]) / radius, (y - centre[1]) / radius
        angle = 2 * np.pi * uniform[:, 3]
        x, y = np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y
        inside = np.zeros(x.shape, np.float32)
        for kind in np.unique(labels):
            here = labels == kind
            # soft edges, one pixel wide
            inside[here] = np.clip(0.5 - radius[here] * _outside(CLASSES[kind], x[here], y[here]), 0, 1)
        ground = 32 + 192 * uniform[:, 4]
        # the figure is lighter or darker by enough to be seen
        contrast = (48 + 80 * uniform[:, 5]) * np.where(ground > 128, -1, 1)
        grain = fraction(mix(4, words[:, None, None], *np.ogrid[: self.size, : self.size])).astype(np.float32) - 0.5
        shade = ground + contrast * inside + 2 * self.noise * grain
        return np.rint(np.clip(shade, 0, 255)).astype(np.uint8)


def _outside(kind: str, x: Plane, y: Plane) -> Plane:
    """Return how far points are outside a figure of radius 1, less than zero inside; exact near its edge."""
    far = np.hypot(x, y)
    box = np.maximum(np.abs(x), np.abs(y))
    distances: dict[str, Plane] = {
        "disc": far - 0.9,
        "ring": np.abs(far - 0.75) - 0.17,
        "half": np.maximum(far - 1, -x),
        "square": box - 0.7,
        "frame": np.abs(box - 0.58) - 0.14,
        "bar": np.maximum(np.abs(x) - 0.95, np.abs(y) - 0.22),
        "triangle": _polygon(x, y, 3) - 0.5,
        "plus": np.minimum(
            np.maximum(np.abs(x) - 0.95, np.abs(y) - 0.22), np.maximum(np.abs(x) - 0.22, np.abs(y) - 0.95)
        ),
        "star": _star(x, y),
        "pair": np.hypot(np.abs(x) - 0.6, y) - 0.38,
    }
    return distances[kind]


def _polygon(x: Plane, y: Plane, corners: int) -> Plane:
    """Return the largest of the distances along the normals of the sides."""
    normals = 2 * np.pi * np.arange(corners) / corners
    sides = [np.cos(n) * x + np.sin(n) * y for n in normals.astype(np.float32)]
    largest: Plane = np.maximum.reduce(sides)
    return largest


def _star(x: Plane, y: Plane) -> Plane:
    """Return how far points are outside a star: within one of its tips, the side nearer to them counts."""
    angle = np.abs((np.arctan2(y, x) + np.pi / _POINTS) % (2 * np.pi / _POINTS) - np.pi / _POINTS)
    far = np.hypot(x, y)
    u, v = far * np.cos(angle), far * np.sin(angle)
    # from the tip at (1, 0) to the notch between two tips
    notch_x, notch_y = 0.42 * np.cos(np.pi / _POINTS), 0.42 * np.sin(np.pi / _POINTS)
    length = np.hypot(1 - notch_x, notch_y)
    outside: Plane = ((u - 1) * notch_y + v * (1 - notch_x)) / length
    return outside
