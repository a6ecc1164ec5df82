"""Images that are generated: Pathfinder cannot be told from its marks, shapes cannot be told from their shade."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kinfolk.data import open_data
from kinfolk.data.generated import pathfinder
from kinfolk.data.generated.pathfinder import Drawing, Pathfinder
from kinfolk.data.generated.shapes import Shapes


def drawn(n: int, **numbers: int) -> Drawing:
    return Pathfinder(**numbers).pictures(1, np.arange(n), valid=False)


def auc(features: NDArray[Any], labels: NDArray[Any]) -> float:
    """Fit a ridge regression to one half, and return how well it orders the other half: 0.5 is chance."""
    x = (features - features.mean(0)) / (features.std(0) + 1e-9)
    half = len(x) // 2
    weights = np.linalg.solve(x[:half].T @ x[:half] + np.eye(x.shape[1]), x[:half].T @ (2 * labels[:half] - 1))
    scores, answers = x[half:] @ weights, labels[half:]
    better = scores[answers == 1][:, None] - scores[answers == 0]
    return float(((better > 0) + 0.5 * (better == 0)).mean())


@pytest.mark.parametrize("numbers", [{}, {"length": 6}, {"size": 64, "turn": 45}])
def test_marks_are_on_one_contour_where_the_class_says_so(numbers: dict[str, int]) -> None:
    found = drawn(24, **numbers)
    for marks, contours, label in zip(found.marks, found.contours, found.labels, strict=True):
        ends = contours[:, [0, -1]].reshape(4, 2)
        near = [int(np.hypot(*(ends - mark).T).argmin()) for mark in marks]
        assert all(np.allclose(ends[at], mark, atol=1e-3) for at, mark in zip(near, marks, strict=True))
        assert (near[0] // 2 == near[1] // 2) == (label == 1)


@pytest.mark.parametrize("numbers", [{}, {"length": 9, "turn": 60}])
def test_contours_are_what_was_asked_for(numbers: dict[str, int]) -> None:
    task, found = Pathfinder(**numbers), drawn(24, **numbers)
    assert found.contours.shape == (24, 2, task.length + 1, 2)
    steps = np.diff(found.contours, axis=2)
    sizes = np.hypot(steps[..., 0], steps[..., 1])
    assert sizes.min() > 2
    assert sizes.max() < 4
    headings = np.unwrap(np.arctan2(steps[..., 1], steps[..., 0]), axis=2)
    # stretching a contour to its end bends it a little further
    assert np.abs(np.diff(headings, axis=2)).max() < np.radians(task.turn + 10)
    assert found.contours.min() >= 0
    assert found.contours.max() <= task.size - 1
    for one, other in found.contours:
        apart = np.hypot(*np.moveaxis(one[:, None] - other, 2, 0))
        assert apart.min() >= 2.49
        itself = np.hypot(*np.moveaxis(one[:, None] - one, 2, 0))
        assert itself[np.triu_indices(len(one), 2)].min() >= 2.4


def test_pictures_show_strokes_marks_and_other_contours() -> None:
    found = drawn(24)
    assert found.images.shape == (24, 32, 32)
    assert found.images.dtype == np.uint8
    assert {int(image.max()) for image in found.images} == {255}
    for image, marks, contours in zip(found.images, found.marks, found.contours, strict=True):
        assert all(image[y, x] == 255 for x, y in marks)
        middles = np.rint((contours[:, 1:] + contours[:, :-1]) / 2).astype(int).reshape(-1, 2)
        assert min(image[y, x] for x, y in middles) > 50
    alone = drawn(24, distractors=0)
    assert (alone.marks == found.marks).all()
    lit = [(images > 50).sum(axis=(1, 2)) for images in (alone.images, found.images)]
    assert (lit[1] - lit[0]).mean() > 25
    # what was there without them is there with them, and nothing crosses it
    assert (found.images >= alone.images).all()
    assert (found.images == alone.images)[alone.images > 100].all()


def test_classes_are_balanced_and_marks_tell_nothing() -> None:
    found = drawn(1000, length=6, distractors=0)
    assert found.labels.mean() == pytest.approx(0.5, abs=0.05)
    marks = found.marks.reshape(-1, 4).astype(float)
    way = marks[:, :2] - marks[:, 2:]
    centred = marks - 15.5
    distance = np.hypot(*way.T)
    seen = np.column_stack([marks, centred**2, distance, distance**2, way**2, centred[:, :2] * centred[:, 2:]])
    assert auc(seen, found.labels) == pytest.approx(0.5, abs=0.08)
    # the same regression does find what is there
    contours = np.hypot(*(found.contours[:, 0, -1] - found.contours[:, 0, 0]).T)
    assert auc(np.column_stack([np.abs(contours - distance) < 0.01]), found.labels) > 0.95


def test_the_marks_of_a_picture_do_not_depend_on_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathfinder, "_label", lambda words: np.zeros(len(words), np.int64))
    apart = drawn(16)
    monkeypatch.setattr(pathfinder, "_label", lambda words: np.ones(len(words), np.int64))
    joined = drawn(16)
    assert (apart.marks == joined.marks).all()
    assert (apart.images != joined.images).any(axis=(1, 2)).all()
    assert apart.contours.shape == joined.contours.shape


@pytest.mark.parametrize("name", ["pathfinder:size=24,length=4", "shapes:size=24"])
def test_pictures_are_rows_of_pixels_with_their_sizes(name: str) -> None:
    split: Any = open_data(name).split("train")
    assert (split.height, split.width, split.channels, split.ends) == (24, 24, 1, False)
    ids, _ = split.examples(np.arange(1))[0]
    assert ids.shape == (24 * 24,)
    assert ids.min() >= 7
    assert ids.max() < 7 + 256
    assert split.n_tokens == len(split) * 576


def test_shapes_differ_in_form_alone() -> None:
    task = Shapes()
    made = task.draw(1, np.arange(2000), valid=False)
    images = made.sides[0].flat.reshape(-1, 32, 32).astype(float)
    counts = np.bincount(made.labels, minlength=10)
    assert counts.min() > 150
    # the background's shade is drawn alike for all
    corners = images[:, [0, 0, -1, -1], [0, -1, 0, -1]].mean(axis=1)
    means = np.array([corners[made.labels == k].mean() for k in range(10)])
    assert means.max() - means.min() < 30
    # without noise a disc is round: no different when turned by a right angle about its middle
    still = Shapes(noise=0, kinds=2)
    discs = still.draw(1, np.arange(60), valid=False)
    for image, label in zip(discs.sides[0].flat.reshape(-1, 32, 32).astype(float), discs.labels, strict=True):
        figure = np.abs(image - image[0, 0]) > 24
        y, x = np.nonzero(figure)
        middle = round(y.mean()), round(x.mean())
        assert figure[middle] == (label == 0), "a disc has a middle and a ring has none"
