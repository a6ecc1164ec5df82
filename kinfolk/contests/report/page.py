"""The HTML report of a comparison: the answer, the evidence, the protocol, and what a reviewer asks for."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from kinfolk.contests.comparison import Card, Comparison
from kinfolk.contests.inference import BETTER, LEVEL, OPEN, WORSE
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.report.answer import answer, protocol
from kinfolk.contests.report.battery import battery
from kinfolk.contests.report.budgets import branches, costs, sizes, speedups
from kinfolk.contests.report.chooser import chooser
from kinfolk.contests.report.evidence import colours, curves, intervals, result, trade
from kinfolk.contests.report.published import published
from kinfolk.contests.report.rates import rates
from kinfolk.contests.report.reviewers import card
from kinfolk.contests.results import MARKS, ResultRow
from kinfolk.objectives.measures.measure import measures
from kinfolk.report.figures import facts, method, scripts, section, swatch
from kinfolk.report.html import Html, asset, join, page, tag
from kinfolk.report.tables import Column, table
from kinfolk.train import special
from kinfolk.train.report import TextSample

RANKS = (
    "Within a metric, contestants are ordered by the mean over seeds of the score that is judged. All contestants see "
    "the same batches under the same seed, so seeds are blocks and their common part cancels in every difference. "
    "Spreads are estimated per contestant and shrunk towards each other (moderated variances, Smyth 2004). The "
    f"intervals of the differences are simultaneous: the chance that any of them misses is {LEVEL:g}. To the best, "
    "which was picked by looking, they use the studentized range, to a named baseline Dunnett's test; both quantiles "
    f"are simulated with the same estimator. {MARKS[WORSE]}, {MARKS[BETTER]}: the interval excludes 0. {MARKS[OPEN]}: "
    "these seeds cannot tell the two apart, which is not the same as equal. With one seed there is no test. The chance "
    "of being best is the share of samples of the estimated means in which a contestant comes first."
)
LOSSES = "Losses are nats per scored token on held-out data, after the last step of the budget."
MEMORY = (
    "Peak memory is the most resident memory of the trial's own process, interpreter and libraries included; "
    "point at it to see how much came on top after start-up: weights, gradients, optimiser and activations."
)


def render(comparison: Comparison, texts: Mapping[str, Sequence[TextSample]] = MappingProxyType({})) -> str:
    """Return the whole page. Sections appear where the comparison has figures for them.

    texts: samples of trained contestants by name.
    """
    rows, colour = comparison.rows, colours(comparison)
    choices = chooser(rows)
    body = tag(
        "main",
        _head(comparison, rows),
        result(rows, colour),
        intervals(rows, colour),
        published(comparison.beside),
        curves(comparison),
        section("Protocol", tag("pre", "\n".join(protocol(comparison)), class_="command", id="protocol"), key="how"),
        choices,
        rates(rows, colour),
        branches(rows, colour),
        sizes(comparison, colour),
        battery(rows, colour),
        trade(comparison, rows),
        speedups(rows, colour),
        costs(comparison),
        _texts(texts),
        section("What failed", *_failed(comparison), key="failures"),
        _changes(comparison),
        _specs(comparison.cards),
        card(comparison),
        _method(comparison),
    )
    script = tag("script", asset("chooser.js", __package__)) if choices else Html("")
    return page(comparison.title, asset("page.css"), body, scripts(script))


def _head(comparison: Comparison, rows: Sequence[ResultRow]) -> Html:
    entries, advice = comparison.facts, answer(rows, comparison.protocol.against)
    line = (entries.get(name, "") for name in ("budget", "match", "seeds", "made"))
    return tag(
        "header",
        tag("p", "Kinfolk · comparison", class_="eyebrow"),
        tag("h1", comparison.title),
        tag("p", _emphasised(advice.sentence, advice.name), class_="verdict"),
        tag("ul", *(tag("li", reason) for reason in advice.reasons), class_="reasons") if advice.reasons else None,
        tag("p", " · ".join(filter(None, line)), class_="dim"),
    )


def _emphasised(sentence: str, name: str) -> Html:
    # gpt is not the beginning of gpt2
    place = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", sentence) if name else None
    if place is None:
        return join(sentence)
    return join(sentence[: place.start()], tag("strong", name), sentence[place.end() :])


def _texts(texts: Mapping[str, Sequence[TextSample]]) -> Html:
    parts = [
        join(tag("h3", name), *(tag("pre", sample.text, class_="command") for sample in found))
        for name, found in texts.items()
        if found
    ]
    note = "Sampled from the start of a text with temperature 0.8, by the first trial of each contestant."
    return section("Sample texts", tag("p", note, class_="dim") if parts else None, *parts, key="texts")


def _failed(comparison: Comparison) -> Iterator[Html]:
    for contestant in comparison.cards:
        if contestant.problem:
            summary = tag("summary", f"{contestant.name}: not run")
            yield tag("details", summary, tag("pre", contestant.problem), open=True)
        for trial in comparison.outcomes.get(contestant.name, ()):
            if not trial.done:
                where = f" after {trial.steps} steps" if trial.steps else ""
                summary = tag("summary", f"{trial.name}, seed {trial.seed}: {trial.status}{where}")
                yield tag("details", summary, tag("pre", trial.reason), open=True)


def _changes(comparison: Comparison) -> Html:
    colour = colours(comparison)
    articles = (_change(one, colour[one.name], comparison.outcomes.get(one.name, ())) for one in comparison.cards)
    return section("What each contestant changes", *articles, key="changes")


def _change(contestant: Card, colour: int, trials: Sequence[Outcome]) -> Html:
    own, parent = contestant.changes, contestant.parent
    what = f"{own} (parent: {parent})" if parent else own
    parts = [tag("h3", swatch(colour), contestant.name)]
    lines = ((what, None), (contestant.paper, "dim"), (contestant.matched, "dim"))
    parts += [tag("p", text, class_=kind) for text, kind in lines if text]
    measured = next((trial.special for trial in trials if trial.special), {})
    parts += [tag("p", f"Measured after training: {text}") for text in special.sentences(measured)]
    if contestant.differences:
        heads = [Column(name, text=True) for name in ("where", parent or "before", contestant.name)]
        count = len(contestant.differences)
        summary = f"{count} difference{'s' * (count > 1)} from {parent or 'its parent'}"
        parts.append(tag("details", tag("summary", summary), table(heads, contestant.differences, small=True)))
    return tag("article", *parts)


def _specs(cards: Sequence[Card]) -> Html:
    entries = [tag("details", tag("summary", one.name), tag("pre", one.spec)) for one in cards if one.spec]
    note = "Complete and re-runnable: save one as a file and give it to kin train or kin compare."
    return section("Resolved specs", tag("p", note, class_="dim") if entries else None, *entries, key="specs")


def _method(comparison: Comparison) -> Html:
    return method(
        comparison.facts.get("command", ""),
        {name: value for name, value in comparison.facts.items() if name != "command"},
        tag("h3", "Ranks"),
        tag("p", RANKS),
        tag("h3", "Metrics"),
        tag("p", LOSSES),
        facts({m.name: m.meaning for m in measures().values()}),
        tag("p", MEMORY),
    )
