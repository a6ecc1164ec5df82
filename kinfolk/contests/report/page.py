"""The sections of the report, each a function from a comparison to HTML."""

from collections.abc import Iterator, Sequence

from kinfolk.contests.budget import amount, duration
from kinfolk.contests.comparison import Card, Comparison
from kinfolk.contests.inference import LEVEL, OPEN, WORSE
from kinfolk.contests.measures import MEANINGS, called, higher_is_better
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.report.published import published
from kinfolk.contests.results import MARKS, Row
from kinfolk.contests.table import WORDS, cells, memory, notes
from kinfolk.report.html import Html, asset, embed, join, page, tag
from kinfolk.train import special

RANKS = (
    "Within a measure, contestants are ordered by the mean over seeds of their last validation. All contestants see "
    "the same batches under the same seed, so seeds are blocks and their common part cancels in every difference. "
    "Spreads are estimated per contestant and shrunk towards each other (moderated variances, Smyth 2004). The "
    f"interval of each difference to the best is simultaneous: the chance that any of them misses is {LEVEL:g}, "
    "although the best was picked by looking (studentized range, its quantile simulated with the same estimator). "
    f"{MARKS[WORSE]}: the interval excludes 0. {MARKS[OPEN]}: these seeds cannot tell it from the best, which is not "
    "the same as equal. With one seed there is no test. The chance of being best is the share of draws from the "
    "estimated means in which a contestant comes first."
)
LOSSES = "Losses are nats per scored token on held-out data, after the last step of the budget."
MEMORY = (
    "Peak memory is the most resident memory of the trial's own process, interpreter and libraries included; "
    "point at it to see how much came on top after start-up: weights, gradients, optimiser and activations."
)


def render(comparison: Comparison) -> str:
    """Return the whole page."""
    table = comparison.rows
    body = tag(
        "main",
        _head(comparison, table),
        _table(table),
        published(comparison.beside),
        _charts(comparison, table),
        _failures(comparison),
        _changes(comparison),
        _specs(comparison.cards),
        _method(comparison),
    )
    return page(comparison.title, asset("page.css"), body, _script(comparison, table))


def _head(comparison: Comparison, table: Sequence[Row]) -> Html:
    facts = comparison.facts
    line = [facts.get(name, "") for name in ("budget", "match", "seeds", "made")]
    return tag(
        "header",
        tag("p", "Kinfolk · comparison", class_="eyebrow"),
        tag("h1", comparison.title),
        tag("p", _verdict(table), class_="verdict"),
        tag("p", " · ".join(filter(None, line)), class_="dim"),
    )


def _verdict(table: Sequence[Row]) -> Html:
    """Say the result in one sentence."""
    first = next((row for row in table if row.rank == 1), None)
    if first is None or first.final is None:
        return join("No trial finished; see below why.")
    rivals = [row for row in table if row.measure == first.measure and row.rank != 1]
    alike = [row.name for row in rivals if row.mark == MARKS[OPEN]]
    spread = f" ± {first.spread:.4f}" if first.spread is not None else ""
    extreme = "highest" if higher_is_better(first.measure) else "lowest"
    score = f" has the {extreme} {called(first.measure)}, {first.final:.4f}{spread}"
    if not rivals:
        rest = "; nobody shares its measure."
    elif first.spread is None:
        rest = "; with one seed that may be chance."
    elif alike:
        rest = f"; these seeds cannot tell it from {_listed(alike)}."
    else:
        rest = ", and the difference to every other one is more than chance."
    return join(tag("strong", first.name), score, rest)


def _table(table: Sequence[Row]) -> Html:
    names = list(cells(table[0])) if table else []
    head = tag("tr", *(tag("th", name, scope="col", class_="text" if name in WORDS else None) for name in names))
    lines: list[Html] = []
    for i, row in enumerate(table):
        new_group = i > 0 and row.measure != table[i - 1].measure
        kind = " ".join(filter(None, ("best" if row.rank == 1 else "", "group" if new_group else "")))
        columns = (_cell(row, name, value, "text" if name in WORDS else None) for name, value in cells(row).items())
        lines.append(tag("tr", *columns, class_=kind or None))
    told = tag("ul", *(tag("li", line) for line in notes(table)), class_="notes")
    grid = tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), class_="scroll")
    return tag("section", tag("h2", "Result"), grid, told, id="result")


def _cell(row: Row, name: str, value: str, kind: str | None) -> Html:
    if name == "contestant":
        return tag("th", tag("span", class_="swatch", data_name=row.name), value, scope="row", class_="text")
    title = None
    if name == "rank" and row.p is not None:
        title = f"p = {row.p:.3g} against the best, corrected; chance of being best {row.chance or 0:.0%}"
    elif name == "peak memory" and row.growth_bytes:
        title = f"{memory(row.growth_bytes)} of it came after start-up"
    return tag("td", value, class_=kind, title=title)


def _charts(comparison: Comparison, table: Sequence[Row]) -> Html:
    if all(row.final is None for row in table):
        return Html("")
    return tag(
        "section",
        tag("h2", "Loss while training"),
        tag("div", class_="chart", id="curves"),
        tag("p", "Thick: mean over seeds; thin: each seed. Press a name to hide or show it.", class_="dim"),
        tag("h2", "Quality against cost"),
        tag("div", class_="chart", id="trade"),
        tag("p", "Lower losses and higher accuracies are better; the bar is the spread over seeds.", class_="dim"),
        tag("noscript", "The charts need scripts to be allowed; the table has the same results."),
        id="charts",
    )


def _failures(comparison: Comparison) -> Html:
    entries = list(_failed(comparison))
    if not entries:
        return Html("")
    return tag("section", tag("h2", "What failed"), *entries, id="failures")


def _failed(comparison: Comparison) -> Iterator[Html]:
    for card in comparison.cards:
        if card.problem:
            yield tag("details", tag("summary", f"{card.name}: not run"), tag("pre", card.problem), open=True)
        for trial in comparison.outcomes.get(card.name, ()):
            if not trial.done:
                where = f" after {trial.steps} steps" if trial.steps else ""
                said = f"{trial.name}, seed {trial.seed}: {trial.status}{where}"
                yield tag("details", tag("summary", said), tag("pre", trial.reason), open=True)


def _changes(comparison: Comparison) -> Html:
    articles = (_change(card, comparison.outcomes.get(card.name, ())) for card in comparison.cards)
    return tag("section", tag("h2", "What each contestant changes"), *articles, id="changes")


def _change(card: Card, trials: Sequence[Outcome]) -> Html:
    what = f"{card.changes} (parent: {card.parent})" if card.parent else card.changes
    parts = [tag("h3", tag("span", class_="swatch", data_name=card.name), card.name)]
    parts += [
        tag("p", text, class_=kind) for text, kind in ((what, None), (card.paper, "dim"), (card.matched, "dim")) if text
    ]
    measured = next((trial.special for trial in trials if trial.special), {})
    parts += [tag("p", f"Measured after training: {text}") for text in special.sentences(measured)]
    if card.differences:
        head = tag("tr", *(tag("th", name, class_="text") for name in ("where", card.parent or "before", card.name)))
        lines = (
            tag("tr", *(tag("td", tag("code", cell), class_="text") for cell in line)) for line in card.differences
        )
        grid = tag("table", tag("thead", head), tag("tbody", *lines), class_="small")
        count = (
            f"{len(card.differences)} difference{'s' * (len(card.differences) > 1)} from {card.parent or 'its parent'}"
        )
        parts.append(tag("details", tag("summary", count), tag("div", grid, class_="scroll")))
    return tag("article", *parts)


def _specs(cards: Sequence[Card]) -> Html:
    entries = (tag("details", tag("summary", card.name), tag("pre", card.spec)) for card in cards if card.spec)
    told = tag(
        "p", "Complete and re-runnable: save one as a file and give it to kin train or kin compare.", class_="dim"
    )
    return tag("section", tag("h2", "Resolved specs"), told, *entries, id="specs")


def _method(comparison: Comparison) -> Html:
    facts = [join(tag("dt", name), tag("dd", value)) for name, value in comparison.facts.items() if name != "command"]
    return tag(
        "section",
        tag("h2", "How this was made"),
        tag("p", "The same command goes on where it was stopped, or shows this again:"),
        tag("pre", comparison.facts.get("command", ""), class_="command"),
        tag("dl", *facts),
        tag("h3", "Trials"),
        _trials(comparison),
        tag("h3", "Ranks"),
        tag("p", RANKS),
        tag("h3", "Measures"),
        tag("p", LOSSES),
        tag("dl", *(join(tag("dt", name), tag("dd", text)) for name, text in MEANINGS.items())),
        tag("p", MEMORY),
        id="method",
    )


def _trials(comparison: Comparison) -> Html:
    names = ("contestant", "seed", "ended", "steps", "of", "tokens", "seconds", "FLOPs", "tokens/s", "peak", "beside")
    head = tag("tr", *(tag("th", name, class_="text" if name in ("contestant", "ended") else None) for name in names))
    lines = [
        tag("tr", *(tag("td", cell, class_="text" if i in (0, 2) else None) for i, cell in enumerate(_trial(trial))))
        for trials in comparison.outcomes.values()
        for trial in trials
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *lines), class_="small"), class_="scroll")


def _trial(trial: Outcome) -> list[str]:
    used = [amount(trial.tokens), duration(trial.seconds), f"{trial.flops:.2e}", amount(trial.tokens_per_second)]
    counts = [str(trial.steps), str(trial.planned_steps)]
    return [
        trial.name,
        str(trial.seed),
        f"{trial.status}, cut short by the clock" if trial.cut_short else trial.status,
        *counts,
        *used,
        memory(trial.most_bytes),
        f"{trial.neighbours:g}",
    ]


def _script(comparison: Comparison, table: Sequence[Row]) -> Html:
    """Hand the numbers to the charts. Positions in `names` are the colours, the same everywhere on the page."""
    names = [card.name for card in comparison.cards]
    trials = [trial for found in comparison.outcomes.values() for trial in found if trial.curve]
    data = {
        "names": names,
        "measures": list(dict.fromkeys(row.measure for row in table if row.measure)),
        "all": sorted({measure for trial in trials for point in trial.curve for measure in point.valid}),
        "rows": [
            {
                "name": row.name,
                "measure": row.measure,
                "final": row.final,
                "spread": row.spread,
                "speed": row.tokens_per_second,
                "memory": row.peak_bytes,
                "flops": row.flops_per_token,
                "params": row.params,
            }
            for row in table
            if row.final is not None
        ],
        "trials": [
            {
                "name": trial.name,
                "seed": trial.seed,
                "points": [[p.step, p.seconds, p.flops, p.tokens, p.valid] for p in trial.curve],
            }
            for trial in trials
        ],
    }
    return join(embed(data, "data"), tag("script", asset("charts.js")))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
