"""Sample texts of a trained decoder, for reports: what it writes from the start of a text."""

from pathlib import Path

from kinfolk.core.errors import KinfolkError
from kinfolk.decoding import generate
from kinfolk.decoding.spelling import Spelling
from kinfolk.objectives.causal import CausalLM
from kinfolk.runs.run import Run
from kinfolk.train.report import TextSample

LENGTH = 100
LARGEST = 30_000_000
"""Parameters above which no text is sampled: a report must not take longer than a moment."""


def samples(path: Path, count: int = 1, length: int = LENGTH) -> list[TextSample]:
    """Return texts of a run that predicts the next token of a text; none of any other run, and of one that is damaged.

    The same run gives the same texts.
    """
    try:
        run = Run.open(path)
        recipe = run.recipe
        if recipe.model.topology != "decoder" or not isinstance(recipe.objective, CausalLM) or run.data_kind != "text":
            return []
        model = run.model()
        if model.n_params > LARGEST:
            return []
        room = length if run.limit is None else min(length, run.limit - 1)
        rows = generate(model, [[run.start_id]] * count, room, temperature=0.8, seed=0)
        spelling = Spelling(run.tokenizer, recipe.objective.extra_ids)
        return [TextSample("", spelling.decode(ids)) for ids in rows]
    except KinfolkError:
        return []
