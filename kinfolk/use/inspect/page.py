"""A sight as a page: every head of every layer, what is special to the relative, and what heads are for."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.report.axes import Axis
from kinfolk.report.charts import Chart, ChartDot, file
from kinfolk.report.html import Html, asset, embed, join, page, tag
from kinfolk.use.inspect.heads import Habit, distances, habits, places
from kinfolk.use.inspect.neighbours import Neighbours
from kinfolk.use.inspect.sight import AttentionMap, ModelSight
from kinfolk.use.inspect.syntax import HeadRelation

MEANINGS = {
    "approximation_error": "distance from exact attention, relative to its size",
    "buckets": "hash bucket of each token, by head and round",
    "experts": "experts that each token goes to",
    "gates": "how much each of them counts",
    "kernels": "weights of the convolution at each token",
    "layers": "how much of each encoder layer each decoder layer sees",
    "places": "slots of the memory that each token reads",
    "read": "how much each of them counts",
    "remainders": "what was left of the halting budget at the last step",
    "span": "how many positions back each head looks",
    "steps": "how many steps each token was thought about",
}
"""What taps are, for readers of the page."""


@dataclasses.dataclass(frozen=True)
class Findings:
    """What was found out besides the maps of one text.

    neighbours: of a word, without and with its context.
    worth: by the path of a part, how much the loss leans on each head and how much it rises without it; loss: as it is.
    """

    relations: tuple[HeadRelation, ...] = ()
    worth: Mapping[str, tuple[Sequence[float], Sequence[float]]] = dataclasses.field(default_factory=dict)
    loss: float | None = None
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    neighbours: Neighbours | None = None


def describe(sight: ModelSight, is_special: Sequence[bool], findings: Findings) -> dict[str, Any]:
    """Return everything that the page shows as plain data; weights as float32, exactly as they were reported."""
    own = [one for one in sight.maps if one.keys == "same" and one.side == "tokens"]
    special_L = torch.tensor(list(is_special), dtype=torch.bool)
    named: dict[str, list[Habit]] = {one.path: habits(one.weights_HLM, special_L) for one in own}
    return {
        "tokens": list(sight.labels),
        "source": list(sight.source_labels),
        "maps": [_map(one, named.get(one.path, [])) for one in sight.maps],
        "specials": [
            {"path": s.path, "name": s.name, "meaning": MEANINGS.get(s.name, s.name), **_packed(s.value)}
            for s in sight.specials
        ],
        "plane": _plane(own),
        "relations": [dataclasses.asdict(found) for found in findings.relations],
        "worth": {path: {"leans": list(a), "rises": list(b)} for path, (a, b) in findings.worth.items()},
        "loss": findings.loss,
        "neighbours": None if findings.neighbours is None else dataclasses.asdict(findings.neighbours),
        "facts": dict(findings.facts),
    }


def render(title: str, data: Mapping[str, Any]) -> str:
    """Return the page: one file, nothing loaded from elsewhere."""
    facts = " · ".join(f"{name} {value}" for name, value in data["facts"].items())
    body = tag(
        "main",
        tag("header", tag("p", "Kinfolk · inside", class_="eyebrow"), tag("h1", title), tag("p", facts, class_="dim")),
        tag("div", id="page"),
        tag("noscript", "The figures need scripts to be allowed."),
    )
    return document(title, body, embed(dict(data), "data"))


def document(title: str, body: Html, *scripts: Html) -> str:
    """Return a page that can draw what was seen; what the scripts need comes before the one that draws."""
    return page(title, styles(), body, join(*scripts, tag("script", asset("page.js", __package__))))


def styles() -> Html:
    """Return the styles of a page that draws what was seen."""
    return join(asset("page.css"), asset("page.css", __package__))


def _map(one: AttentionMap, named: Sequence[Habit]) -> dict[str, Any]:
    told = [dataclasses.asdict(habit) | {"name": habit.name} for habit in named]
    return {"path": one.path, "side": one.side, "keys": one.keys, "habits": told, **_packed(one.weights_HLM)}


def _plane(own: Sequence[AttentionMap]) -> str:
    """Draw all heads of maps of one size on a plane, those that attend alike together; "" where there are too few."""
    heads = [(i, one.path, h) for i, one in enumerate(own) for h in range(one.weights_HLM.shape[0])]
    if len(heads) < 3:
        return ""
    at = places(distances(torch.cat([one.weights_HLM for one in own])))
    marks = [
        ChartDot(x=float(x), y=float(y), colour=i, name=f"{path}/{h}", tip=f"{path} head {h}")
        for (i, path, h), (x, y) in zip(heads, at, strict=True)
    ]
    bare = Axis(label="", bare=True)
    return file("Heads that attend alike are close", [Chart(title="", x=bare, y=bare, marks=marks, width=480)])


def _packed(value: Tensor) -> dict[str, Any]:
    flat = value.detach().to(torch.float32).contiguous().numpy()
    return {"shape": list(value.shape), "data": base64.b64encode(flat.tobytes()).decode()}
