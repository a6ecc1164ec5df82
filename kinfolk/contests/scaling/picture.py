"""Charts of a scaling law: losses as points, the law through them, and where it leads, in both variables."""

from collections.abc import Sequence

from kinfolk.contests.scaling.law import Law, Measured
from kinfolk.report.axes import Axis
from kinfolk.report.charts import Band, Chart, ChartDot, ChartLine, Mark
from kinfolk.report.numbers import amount

BEYOND = 10.0
"""The law is drawn as far as this many times the largest that was trained."""

LABELS = {"params": "parameters without embedding and output layer", "tokens": "training tokens"}
OTHER = {"params": "tokens", "tokens": "params"}


def charts(points: Sequence[Measured], law: Law) -> list[Chart]:
    """Return one chart for each variable of the law, the other variable as colours."""
    return [_chart(variable, points, law) for variable in law.variables]


def groups(points: Sequence[Measured], variable: str) -> dict[str, int]:
    """Return the colours of a chart: one for each value of the other variable."""
    values = sorted({_value(point, OTHER[variable]) for point in points})
    return {f"{amount(value, 3)} {OTHER[variable]}": i for i, value in enumerate(values)}


def _chart(variable: str, points: Sequence[Measured], law: Law) -> Chart:
    other, last = OTHER[variable], max(_value(point, variable) for point in points)
    low = min(_value(point, variable) for point in points) / 1.3
    marks: list[Mark] = []
    for name, colour in groups(points, variable).items():
        group = sorted({_value(point, other) for point in points})[colour]
        own = [point for point in points if _value(point, other) == group]
        curve = [(x, law.at(**{variable: x, other: group})) for x in _steps(low, last * BEYOND)]
        marks.append(Band(points=[(x, r.low, r.high) for x, r in curve], colour=colour, name=name))
        trained = [(x, r.value) for x, r in curve if x <= last]
        beyond = [(x, r.value) for x, r in curve if x >= last]
        marks += [ChartLine(points=trained, colour=colour, name=name)] if len(trained) > 1 else []
        marks += [ChartLine(points=beyond, colour=colour, name=name, dashed=True)] if len(beyond) > 1 else []
        # the name of a group is beside its largest point
        named = max(own, key=lambda point: _value(point, variable))
        marks += [_dot(point, variable, colour, name, name if point is named else "") for point in own]
    return Chart(
        title=f"Loss against {LABELS[variable]}, and the law",
        x=Axis(label=LABELS[variable], scale="log"),
        y=Axis(label="loss in nats", scale="log"),
        marks=marks,
        width=520,
    )


def _dot(point: Measured, variable: str, colour: int, name: str, label: str) -> ChartDot:
    value = _value(point, variable)
    tip = f"{amount(value, 3)} {variable}\n{name}\nloss {point.loss:.4f}"
    return ChartDot(x=value, y=point.loss, colour=colour, name=name, tip=tip, label=label)


def _value(point: Measured, variable: str) -> float:
    return point.params if variable == "params" else point.tokens


def _steps(low: float, high: float, n: int = 48) -> list[float]:
    return [low * (high / low) ** (i / (n - 1)) for i in range(n)]
