"""Budgets and sizes: the finished loss at shares of the budget, effective speed-up, and the order at each size."""

from collections.abc import Mapping, Sequence

from kinfolk.contests.comparison import Comparison
from kinfolk.contests.evidence import Sizes
from kinfolk.contests.results import ResultRow
from kinfolk.objectives.measures.measure import measure_of
from kinfolk.report.axes import Axis
from kinfolk.report.charts import Chart, ChartDot, ChartLine, Rule, forest
from kinfolk.report.figures import bullets, figure, section
from kinfolk.report.html import Html, tag
from kinfolk.report.numbers import amount
from kinfolk.report.tables import table

SPEEDUP = (
    "1.2 means: as good as 1.2 times the baseline's budget, by the baseline's own fitted law, times the ratio of "
    "tokens per second. The bar is the interval; a contestant without a point is beyond what the law can say."
)
BRANCHES = (
    "A constant rate with branches that cool down: each point is a finished training at that share of the budget."
)


def branches(rows: Sequence[ResultRow], colour: Mapping[str, int]) -> Html:
    """Return the finished loss at several budgets, or nothing where none was measured."""
    chart = branch_chart(rows, colour)
    names = {row.name: colour.get(row.name, 7) for row in rows if row.branches}
    drawn = figure(chart, BRANCHES, names) if chart else None
    return section("Finished loss at smaller budgets", drawn, key="branches")


def branch_chart(rows: Sequence[ResultRow], colour: Mapping[str, int]) -> Chart | None:
    """Return losses against tokens of finished trainings."""
    marks = []
    for row in rows:
        finished = [(branch.tokens, branch.mean, branch.share) for branch in row.branches if branch.mean is not None]
        points = [(tokens, mean) for tokens, mean, _ in finished]
        tips = [f"{row.name}\n{mean:.4f} at {share:g} of the budget" for _, mean, share in finished]
        if points:
            marks.append(ChartLine(points=points, colour=colour.get(row.name, 7), name=row.name, tips=tips))
    x = Axis(label="tokens of a finished training", scale="log")
    title = "Finished loss against the budget"
    return Chart(title=title, x=x, y=Axis(label="loss"), marks=marks) if marks else None


def speedups(rows: Sequence[ResultRow], colour: Mapping[str, int]) -> Html:
    """Return the effective speed-up against the baseline, or nothing where there is none."""
    chart = speedup_chart(rows, colour)
    laws = dict.fromkeys(f"Law of {row.speedup.baseline}: {row.speedup.law}" for row in rows if row.speedup)
    drawn = figure(chart, SPEEDUP) if chart else None
    return section("Effective speed-up", drawn, bullets(list(laws)) if drawn else None, key="speedup")


def speedup_chart(rows: Sequence[ResultRow], colour: Mapping[str, int]) -> Chart | None:
    """Return the speed-ups with their intervals, one line each."""
    known = [(row.name, row.speedup) for row in rows if row.speedup is not None and row.speedup.value is not None]
    if not known:
        return None
    dots = [
        ChartDot(
            x=speedup.value or 1.0,
            low=speedup.low,
            high=speedup.high,
            colour=colour.get(name, 7),
            name=name,
            tip=f"{name}\n{speedup.value:.2f} (speed {speedup.speed_ratio:.2f})",
        )
        for name, speedup in known
    ]
    baseline = known[0][1].baseline
    x = Axis(label=f"times the budget of {baseline}", scale="log", include=(1.0,))
    return forest(f"Effective speed-up against {baseline}", x, dots, Rule(x=1.0, label=baseline))


def sizes(comparison: Comparison, colour: Mapping[str, int]) -> Html:
    """Return the losses and ranks at each size, how far the orders agree, and where laws cross."""
    found = comparison.sizes
    if found is None or not found.losses:
        return Html("")
    names = [name for name in colour if any(name in losses for losses in found.losses.values())]
    head = ["contestant", *(f"{size}: loss (rank)" for size in found.losses)]
    lines = [[name, *(_loss(found, size, name) for size in found.losses)] for name in names]
    lines_below = [
        f"Kendall's tau of the ranks at {pair.replace(',', ' and ')}: {'not defined' if tau is None else f'{tau:+.2f}'}"
        for pair, tau in found.tau.items()
    ]
    lines_below += [f"{crossing.first} and {crossing.second}: {crossing.says}" for crossing in found.crossings]
    chart = size_chart(found, colour, next((row.measure for row in comparison.rows if row.measure), "loss"))
    drawn = figure(chart, names={name: colour[name] for name in names})
    return section("Sizes", drawn, table(head, lines), bullets(lines_below), key="sizes")


def size_chart(found: Sizes, colour: Mapping[str, int], measure: str) -> Chart:
    """Return losses over sizes, in the order in which they were asked for."""
    order = list(found.losses)
    marks = []
    for name in dict.fromkeys(name for losses in found.losses.values() for name in losses):
        points = [(float(i), found.losses[size][name]) for i, size in enumerate(order) if name in found.losses[size]]
        tips = [f"{name}\n{order[int(i)]}: {loss:.4f}" for i, loss in points]
        marks.append(ChartLine(points=points, colour=colour.get(name, 7), name=name, tips=tips))
    return Chart(
        title=f"{measure_of(measure).title} at each size",
        x=Axis(label="size", write=lambda value: order[int(value)] if value in range(len(order)) else ""),
        y=Axis(label=measure_of(measure).title),
        marks=marks,
    )


def _loss(found: Sizes, size: str, name: str) -> str:
    if name not in found.losses[size]:
        return "-"
    rank = found.ranks.get(size, {}).get(name)
    return f"{found.losses[size][name]:.4f}{f' ({rank})' if rank else ''}"


def costs(comparison: Comparison) -> Html:
    """Return what each part of the comparison used."""
    parts = comparison.protocol.costs
    total = sum(cost.flops for cost in parts.values())
    lines = [
        [
            part,
            f"{cost.trials:,}",
            amount(cost.tokens, 3),
            f"{cost.seconds:,.0f}",
            f"{cost.flops:.2e}",
            f"{cost.flops / total:.0%}" if total else "-",
        ]
        for part, cost in parts.items()
    ]
    heads = ("part", "trials", "tokens", "seconds", "FLOPs", "share")
    note = tag("p", "All trials together, failed ones included.", class_="dim")
    return section("What it cost", table(heads, lines) if lines else None, note if lines else None, key="costs")
