"""Texts in, texts out: how a run encodes prompts, and the public function `kf.generate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.data.tokenizers.unknown import warn_of_unknown
from kinfolk.decoding import generate as continue_ids
from kinfolk.decoding.spelling import Spelling
from kinfolk.objectives.corruption import Corruption
from kinfolk.runs.run import Run


def generate(model: Any, prompt: Any, max_new: int = 16, **options: Any) -> Any:
    """Continue a prompt by up to `max_new` tokens: texts of a run, or token ids of a model.

    With a run (a path or a `kf.Run`), a string gives a string and a list of strings a list of strings: the prompt with
    its continuation, or what an encoder-decoder writes for it. With a model, token ids give token ids, see
    `kinfolk.decoding.generate`. options: greedy, temperature, top_k, top_p, beams, seed … (`Decoding`).
    """
    if not isinstance(model, str | Path | Run):
        return continue_ids(model, prompt, max_new, **options)
    run = Run.open(model)
    network = run.model()
    rows, spelling = encoded(run, [prompt] if isinstance(prompt, str) else prompt, network.generation.start_id)
    texts = [spelling.decode(ids) for ids in continue_ids(network, rows, max_new, **options)]
    return texts[0] if isinstance(prompt, str) else texts


def encoded(run: Run, prompts: Sequence[str], start_id: int) -> tuple[list[list[int]], Spelling]:
    """Return the token ids of prompts as a run was trained to read them, and what decodes its answers."""
    tokenizer, recipe = run.tokenizer, run.recipe
    spelling = Spelling(tokenizer, recipe.objective.extra_ids)
    before: list[int] = []
    behind: list[int] = []
    if recipe.model.topology == "encoder-decoder":
        # sources of pairs and of corrupted texts end with EOS
        ends = isinstance(recipe.objective, Corruption) or run.data_kind == "pairs"
        before, behind = tokenizer.source_frame or ([], [tokenizer.eos] if ends else [])
    rows = [[*before, *spelling.encode(prompt), *behind] or [start_id] for prompt in prompts]
    warn_of_unknown(tokenizer, [np.array(row) for row in rows], "the prompt")
    return rows, spelling
