"""Pathfinder: are the two marked ends the ends of one dashed contour, among contours that end elsewhere?

Linsley et al. 2018, in the sizes of the Long Range Arena (Tay et al. 2021): two contours of `length` strokes in a
image of `size` by `size`, marks on two of their four ends, and shorter contours beside them that mean nothing. No
turn from stroke to stroke is more than `turn` degrees, and small ones are more frequent.

The four ends are drawn before it is drawn which are joined, and only those are kept that can be joined both
ways: the first mark's contour leads to the second mark, or to the other end. So what the marks alone tell of the
answer is nothing, by construction. A mark is on a whole pixel, and the two pixels decide the split.
"""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.batches.mixing import Words, fraction, mix
from kinfolk.data.generated.made import Square
from kinfolk.data.generated.rows import Made, held_out, pictures
from kinfolk.data.generated.task import task, within
from kinfolk.data.splits.split import Indices

Points = NDArray[np.float32]
Mask = NDArray[np.bool_]

STROKE_LIGHT, MARK_LIGHT = 190, 255

# which of the four ends a contour joins, by the class of the image; ends 0 and 1 are marked
_PAIRS = {1: ((0, 1), (2, 3)), 0: ((0, 3), (2, 1))}
# strokes and the gaps between them are to each other as 2 to 1
_STEP = 1.5
# a contour may be stretched by so much of its length to end where it must
_STRETCH = 0.05
# points of different contours are this number of strokes apart, and the contours therefore at least one stroke
_APART = 1.25
_BANK = 1 << 15
_CANDIDATES, _CHOICES, _PLACES = 32, 8, 40
_MOST_TRIES, _TRIES_AT_ONCE = 1 << 15, 2048


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Images [N, size, size], their classes, and what they were made of.

    contours: points along the two contours [N, 2, points, 2], x before y. marks: the two marked pixels [N, 2, 2].
    """

    images: NDArray[np.uint8]
    labels: Indices
    contours: Points
    marks: Indices


@task("pathfinder")
@dataclasses.dataclass(frozen=True)
class Pathfinder(Square):
    """Images of `size` by `size`: contours of `length` strokes, each of `stroke` pixels, that turn by up to `turn`.

    The published lengths are 6, 9 and 14. Not told, `stroke` is a sixteenth of the size, and there are as many
    `distractors`, of a third of the length each, as come to 20 strokes.
    """

    size: int = 32
    length: int = 14
    turn: int = 90
    stroke: int | None = None
    distractors: int | None = None

    classes = ("apart", "joined")

    def check(self) -> None:
        within("size", self.size, 16, 512)
        within("length", self.length, 3, 256)
        within("turn", self.turn, 10, 90)
        within("stroke", self.pixels, 2, self.size // 8)
        within("distractors", self.others, 0, 100)

    @property
    def pixels(self) -> int:
        """How long a stroke is."""
        return max(2, self.size // 16) if self.stroke is None else self.stroke

    @property
    def others(self) -> int:
        """How many contours there are beside the two, where there is room."""
        return 20 // max(1, self.length // 3) if self.distractors is None else self.distractors

    def draw(self, seed: int, numbers: Indices, *, valid: bool) -> Made:
        """Return the images of these numbers as rows of pixels."""
        drawing = self.pictures(seed, numbers, valid=valid)
        return Made((pictures(drawing.images),), drawing.labels)

    def pictures(self, seed: int, numbers: Indices, *, valid: bool) -> Drawing:
        """Return the images of these numbers with what they were made of."""
        words = np.zeros(len(numbers), np.uint64)
        strokes = np.zeros((len(numbers), 2, self.length + 1, 2), np.float32)
        ends = np.zeros((len(numbers), 4, 2), np.int64)
        left, tried = np.arange(len(numbers)), 0
        while len(left):
            if tried >= _MOST_TRIES:
                raise DataError(f"{self}: hardly any two such contours fit the image; make it larger, or them shorter")
            step = max(1, min(64 if valid else 32, _TRIES_AT_ONCE // len(left)))
            tries = mix(seed, numbers[left][:, None], np.arange(tried, tried + step)).reshape(-1)
            where, contours, places = self._contours(tries, valid)
            # the first try of each number that came to something
            who, first = np.unique(where // step, return_index=True)
            words[left[who]], strokes[left[who]], ends[left[who]] = tries[where[first]], contours[first], places[first]
            left, tried = np.delete(left, who), tried + step
        return Drawing(self._paint(words, strokes, ends[:, :2]), _label(words), strokes, ends[:, :2])

    def _contours(self, words: Words, valid: bool) -> tuple[Indices, Points, Indices]:
        """Return which draws are good, with both contours and the four ends of each."""
        ends, good = self._ends(words)
        marks = ends[:, :2].reshape(-1, 4)
        # either mark may be the first
        identity = mix(1, marks[:, 0], marks[:, 1]) + mix(1, marks[:, 2], marks[:, 3])
        good &= held_out(identity) == valid
        left = np.flatnonzero(good)
        answers = _label(words)
        kept = np.zeros((len(words), 2, self.length + 1, 2), np.float32)
        # both ways to join the ends must be possible, whichever is then shown
        for way, pairs in _PAIRS.items():
            first, second = (
                self._between(mix(7, words[left], way, side), ends[left, a], ends[left, b])
                for side, (a, b) in enumerate(pairs)
            )
            contours, apart = _apart(first, second, _APART * self.pixels)
            shown = apart & (answers[left] == way)
            kept[left[shown]] = contours[shown]
            left = left[apart]
        return left, kept[left], ends[left]

    def _ends(self, words: Words) -> tuple[Indices, Mask]:
        """Draw four ends: two near each other, and two anywhere within reach of both."""
        border = self.pixels
        uniform = fraction(mix(2, words[:, None], np.arange(7)))
        first, *far = (border + uniform[:, i : i + 2] * (self.size - 1 - 2 * border) for i in (0, 2, 4))
        near = first + 3.5 * self.pixels * _direction(uniform[:, 6])
        ends = np.rint(np.stack([first, far[0], near, far[1]], axis=1)).astype(np.int64)
        good = _every((ends >= border) & (ends < self.size - border), 1, 2)
        reach, gap = _STEP * self.pixels * self.length, 2.5 * self.pixels
        good &= np.hypot(*(ends[:, 1] - ends[:, 3]).T) >= gap
        for a, b in _PAIRS[0] + _PAIRS[1]:
            distance = np.hypot(*(ends[:, a] - ends[:, b]).T)
            good &= (distance >= max(0.2 * reach, gap)) & (distance <= 0.95 * reach)
        return ends, good

    def _between(self, words: Words, start: Indices, stop: Indices) -> tuple[Points, Mask]:
        """Draw contours from start to stop: some to choose from, [N, choices, length + 1, 2], and which are good."""
        chains, reaches = _chains(self.length, self.turn)
        way = (stop - start).astype(np.float32) / np.float32(_STEP * self.pixels)
        distance = np.hypot(way[:, 0], way[:, 1])
        low, high = (np.searchsorted(reaches, distance + side * _STRETCH * self.length) for side in (-1, 1))
        drawn = mix(4, words[:, None], np.arange(_CANDIDATES))
        picked = low[:, None] + (drawn % np.maximum(high - low, 1).astype(np.uint64)[:, None]).astype(np.int64)
        picked = np.minimum(picked, len(chains) - 1)
        # a chain ends on the x axis: turn that towards the stop, mirror half of them, and make up what is missing
        x, y = chains[picked, :, 0], chains[picked, :, 1]
        y = np.where((drawn >> np.uint64(63) == 0)[..., None], y, -y)
        cos, sin = ((way[:, axis] / distance)[:, None, None] for axis in (0, 1))
        turned = np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)
        share = np.linspace(0, 1, self.length + 1, dtype=np.float32)[:, None]
        turned += share * (way[:, None, None] - turned[:, :, -1:])
        turned = turned * np.float32(_STEP * self.pixels) + start[:, None, None].astype(np.float32)
        fits = _every((turned >= 1) & (turned <= self.size - 2), 2, 3) & (high > low)[:, None]
        order = np.argsort(~fits, axis=1, kind="stable")[:, :_CHOICES]
        chosen = np.take_along_axis(turned, order[:, :, None, None], axis=1)
        return chosen, np.take_along_axis(fits, order, axis=1)

    def _paint(self, words: Words, contours: Points, marks: Indices) -> NDArray[np.uint8]:
        """Add the contours that mean nothing where there is room, and paint everything."""
        short = max(1, self.length // 3)
        taken = contours.reshape(len(words), -1, 2)
        strokes = [_strokes(contours[:, i]) for i in (0, 1)]
        for i in range(self.others):
            uniform = fraction(mix(8, words[:, None, None], i, np.arange(_PLACES)[:, None], np.arange(short + 3)))
            turns = _turns(uniform[..., 3:]) * (self.turn / 90)
            headings = np.cumsum(turns, axis=-1) + 2 * np.pi * uniform[..., 2:3]
            steps = np.stack([np.cos(headings), np.sin(headings)], axis=-1) * (_STEP * self.pixels)
            points = np.concatenate([np.zeros_like(steps[:, :, :1]), np.cumsum(steps, axis=2)], axis=2)
            points = (points + 1 + uniform[:, :, None, :2] * (self.size - 3)).astype(np.float32)
            good = _every((points >= 1) & (points <= self.size - 2), 2, 3)
            good &= _far(points, taken, _APART * self.pixels)
            pick = good.argmax(axis=1)
            chosen = points[np.arange(len(words)), pick]
            # an image that is full gets no further contour: far outside, it is not seen and in no way
            chosen = np.where(_every(~good, 1)[:, None, None], np.float32(-1e3), chosen)
            taken = np.concatenate([taken, chosen], axis=1)
            strokes.append(_strokes(chosen))
        return _render(np.concatenate(strokes, axis=1), marks, self.size, self.pixels)


@functools.lru_cache(maxsize=8)
def _chains(length: int, turn: int) -> tuple[Points, Points]:
    """Return many contours of steps of length 1 from the origin to the x axis, and how far they reach, in that order.

    A contour as a whole bends to one side, by up to two thirds of a circle, so that long ones find room in a small
    image; around that, turns have the density of a squared cosine.
    """
    uniform = fraction(mix(1, np.arange(_BANK)[:, None], np.arange(length)))
    drift = (2 * uniform[:, :1] - 1) * min(turn / 3, 240 / length) * (np.pi / 180)
    headings = np.cumsum(drift + _turns(uniform) * (turn / 90 - np.abs(drift) / (np.pi / 2)), axis=1)
    points = np.zeros((_BANK, length + 1, 2))
    points[:, 1:] = np.cumsum(np.stack([np.cos(headings), np.sin(headings)], axis=-1), axis=1)
    points = points[_clear(points.astype(np.float32), 1.08 * _APART / _STEP)]
    reach = np.hypot(points[:, -1, 0], points[:, -1, 1])
    cos, sin = points[:, -1:, 0] / reach[:, None], points[:, -1:, 1] / reach[:, None]
    x, y = points[..., 0], points[..., 1]
    level = np.stack([cos * x + sin * y, cos * y - sin * x], axis=-1).astype(np.float32)
    order = np.argsort(reach)
    return level[order], reach[order].astype(np.float32)


def _every(mask: Mask, *axes: int) -> Mask:
    every: Mask = np.logical_and.reduce(mask, axis=axes)
    return every


def _label(words: Words) -> Indices:
    return (mix(6, words) >> np.uint64(63)).astype(np.int64)


def _direction(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.cos(2 * np.pi * uniform), np.sin(2 * np.pi * uniform)], axis=-1)


# the distribution function of a squared cosine from -90 to 90 degrees
_ANGLES = np.linspace(-np.pi / 2, np.pi / 2, 257)
_CUMULATED = (_ANGLES + np.sin(2 * _ANGLES) / 2) / np.pi + 0.5


def _turns(uniform: NDArray[np.float64]) -> NDArray[np.float32]:
    """Turn uniform numbers into angles with the density of a squared cosine."""
    return np.interp(uniform, _CUMULATED, _ANGLES).astype(np.float32)


def _squared(a: Points, b: Points) -> Points:
    """Return the squared distances of points [N, A, 2] and [N, B, 2]."""
    cross = a @ b.swapaxes(-1, -2)
    squared: Points = (a * a).sum(-1)[..., :, None] + (b * b).sum(-1)[..., None, :] - 2 * cross
    return squared


def _clear(contours: Points, gap: float) -> Mask:
    """Tell which contours [N, P, 2] keep away from themselves."""
    n = contours.shape[1]
    near = np.abs(np.arange(n)[:, None] - np.arange(n)) <= 1
    pieces = np.array_split(contours, max(1, len(contours) * n * n >> 22))
    return np.concatenate([_every((_squared(piece, piece) >= gap * gap) | near, 1, 2) for piece in pieces])


def _far(contours: Points, taken: Points, gap: float) -> Mask:
    """Tell which contours [N, C, P, 2] keep away from the points [N, Q, 2]."""
    n, count, points = contours.shape[:3]
    squared = _squared(contours.reshape(n, count * points, 2), taken)
    return _every(squared.reshape(n, count, points * taken.shape[1]) >= gap * gap, 2)


def _apart(first: tuple[Points, Mask], second: tuple[Points, Mask], gap: float) -> tuple[Points, Mask]:
    """Choose one contour of each that keep away from each other: both, [N, 2, P, 2], and whether there are any."""
    (a, good_a), (b, good_b) = first, second
    n, count, points = a.shape[:3]
    squared = _squared(a.reshape(n, count * points, 2), b.reshape(n, count * points, 2))
    squared = squared.reshape(n, count, points, count, points)
    good = _every(squared >= gap * gap, 2, 4) & good_a[:, :, None] & good_b[:, None]
    pick = good.reshape(n, count * count).argmax(axis=1)
    rows = np.arange(n)
    return np.stack([a[rows, pick // count], b[rows, pick % count]], axis=1), ~_every(~good, 1, 2)


def _strokes(points: Points) -> Points:
    """Return the dashes of contours [N, P, 2]: the middle two thirds of every step, as two ends [N, S, 2, 2]."""
    start, stop = points[:, :-1], points[:, 1:]
    return np.stack([(5 * start + stop) / 6, (start + 5 * stop) / 6], axis=2)


def _render(strokes: Points, marks: Indices, size: int, pixels: int) -> NDArray[np.uint8]:
    """Paint strokes and marks with soft edges, the brightest of what covers a pixel."""
    image = np.zeros((len(strokes), size + 1, size + 1), np.float32)
    discs = np.repeat(marks[:, :, None].astype(np.float32), 2, axis=2)
    _paint(image, strokes, pixels / 4, STROKE_LIGHT)
    _paint(image, discs, 0.75 * pixels, MARK_LIGHT)
    return np.rint(image[:, :size, :size]).astype(np.uint8)


def _paint(image: Points, segments: Points, radius: float, light: int) -> None:
    """Brighten every pixel near the segments [N, S, 2, 2]; it is dark from half a pixel beyond the radius."""
    start, along = segments[:, :, 0, None], (segments[:, :, 1] - segments[:, :, 0])[:, :, None]
    longest = float(np.sqrt((along**2).sum(-1).max()))
    reach = int(np.ceil(longest / 2 + radius + 1))
    across = np.arange(-reach, reach + 1)
    window = np.stack(np.meshgrid(across, across), axis=-1).reshape(-1, 2)
    where = np.rint(segments.mean(axis=2)).astype(np.int64)[:, :, None] + window
    offset = where - start
    share = np.clip((offset * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-6), 0, 1)
    distance = np.sqrt(((offset - share[..., None] * along) ** 2).sum(-1))
    value = light * np.clip(radius + 0.5 - distance, 0, 1)
    # what lies outside goes to a last row, which is thrown away
    size = image.shape[1] - 1
    inside = ((where >= 0) & (where < size)).all(axis=-1)
    x, y = (np.where(inside, where[..., axis], size) for axis in (0, 1))
    rows = np.arange(len(image))[:, None, None]
    np.maximum.at(image, (np.broadcast_to(rows, x.shape), y, x), value)
