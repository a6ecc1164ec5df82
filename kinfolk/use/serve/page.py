"""The live page: write, translate, chat, classify, answer, compare embeddings, and inspect every attention head."""

import math
from collections.abc import Mapping
from typing import Any

from kinfolk.report.html import Html, asset, embed, join, tag
from kinfolk.report.html import page as whole
from kinfolk.use.inspect.page import Findings, describe, styles
from kinfolk.use.inspect.sight import MOST, look
from kinfolk.use.serve.served import Served

WEIGHTS = 1 << 22
"""Numbers of all maps that one answer holds: 16 MB."""
HEADERS = {
    # what a text may hold is shown as text, and nothing is loaded from or sent to anywhere else
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
SCRIPTS = {"/live.js": "kinfolk.use.serve", "/page.js": "kinfolk.use.inspect"}
"""The scripts of the page, by address, and the package that has each; nothing inline runs."""


def script(path: str) -> bytes:
    """Return a script by its address."""
    return asset(path.removeprefix("/"), SCRIPTS[path]).encode()


def seen(served: Served, text: str, target: str | None = None) -> dict[str, Any]:
    """Return what the page shows of a text; `cut` says how many tokens at its end are left out."""
    ids, most = served.tokenizer.encode(text), _most(served)
    if len(ids) > most:
        text = served.tokenizer.decode(ids[:most])
    if target is not None:
        target = served.tokenizer.decode(served.tokenizer.encode(target)[:most])
    sight = look(served.model, served.tokenizer, text, target)
    special = [i in served.tokenizer.special_ids for i in sight.tokens]
    facts = {"relative": served.recipe.name, "parameters": f"{served.model.n_params:,}"}
    return describe(sight, special, Findings(facts=facts)) | {"cut": max(0, len(ids) - most)}


def _most(served: Served) -> int:
    """Return how many tokens can be looked at, by the heads that a short text has maps of."""
    short = look(served.model, served.tokenizer, "a", "a" if served.spec.topology == "encoder-decoder" else None)
    heads = sum(one.weights_HLM.shape[0] for one in short.maps)
    return max(8, min(MOST, math.isqrt(WEIGHTS // max(1, heads))))


SAMPLING = (
    ("max_tokens", "Max new tokens", "100", "0", "4096", "1"),
    ("temperature", "Temperature", "1", "0", "2", "0.05"),
    ("top_p", "Top-p", "1", "0", "1", "0.01"),
    ("top_k", "Top-k", "0", "0", "", "1"),
    ("seed", "Seed", "", "0", "", "1"),
)
"""Controls of generation: field, label, value, least, most and step."""


def _number(control: tuple[str, ...]) -> Html:
    name, label, value, least, most, step = control
    bounds = {"min": least, "step": step, **({"max": most} if most else {})}
    return tag("label", label, tag("input", id=name, type="number", value=value, autocomplete="off", **bounds))


def page(served: Mapping[str, Served]) -> str:
    """Return the page of a server of these runs; without any, it asks the server for them once it has a token."""
    kinds = {
        name: {"topology": one.spec.topology, "does": one.verbs, "columns": one.columns} for name, one in served.items()
    }
    options = [tag("option", name, value=name) for name in kinds]
    form = tag(
        "form",
        tag("label", "Run", tag("select", *options, id="run", name="run")),
        tag("label", "Task", tag("select", id="verb", name="verb")),
        tag(
            "label",
            "Text",
            tag("textarea", id="text", name="text", rows="3", spellcheck="false", autofocus=True),
            id="texted",
        ),
        tag("label", "Target", tag("input", id="target", autocomplete="off"), id="targeted", hidden=True),
        tag(
            "label",
            "Second text",
            tag("textarea", id="second", rows="2", spellcheck="false"),
            id="seconded",
            hidden=True,
        ),
        tag("fieldset", tag("legend", "Sampling"), *map(_number, SAMPLING), id="sampling", hidden=True),
        tag("label", "Token", tag("input", id="token", type="password", autocomplete="off"), id="guarded", hidden=True),
        tag("button", "Run", type="submit", title="or press Ctrl and Enter"),
        tag("p", "Type a text, then press Run or Ctrl and Enter.", id="said", class_="dim", aria_live="polite"),
        id="ask",
    )
    body = tag(
        "main",
        tag("header", tag("p", "Kinfolk · live", class_="eyebrow"), tag("h1", "Try a run")),
        form,
        tag("div", id="answer", role="log", aria_live="polite", aria_label="Answer", hidden=True),
        tag("div", id="page"),
        tag("noscript", "The figures need scripts to be allowed."),
        tag("style", asset("live.css", __package__)),
    )
    scripts = [tag("script", src=path.removeprefix("/")) for path in SCRIPTS]
    return whole("Kinfolk", styles(), join(body, embed(kinds, "runs")), *scripts)
