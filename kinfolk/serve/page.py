"""The live page: type a text, and see what every head of a run does with it."""

from collections.abc import Sequence
from typing import Any

from kinfolk.inspect.page import Findings, describe
from kinfolk.inspect.sight import look
from kinfolk.serve.served import Served


def seen(served: Served, text: str, target: str | None = None) -> dict[str, Any]:
    """Return what the page shows of a text."""
    sight = look(served.model, served.tokenizer, text, target)
    special = [i in served.tokenizer.special_ids for i in sight.tokens]
    facts = {"relative": served.recipe.name, "parameters": f"{served.model.n_params:,}"}
    return describe(sight, special, Findings(facts=facts))


def page(names: Sequence[str]) -> str:
    """Return the page of a server of these runs."""
    return "<!doctype html><title>Kinfolk</title>" + ", ".join(names)
