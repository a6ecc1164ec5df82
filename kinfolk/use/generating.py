"""Texts in, texts out: how a run encodes prompts, and the public function `kf.generate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.core.errors import SpecError
from kinfolk.data.tokenizers.unknown import warn_of_unknown
from kinfolk.decoding import generate as continue_ids
from kinfolk.decoding.engines.speculative import speculative
from kinfolk.decoding.engines.torch_engine import TORCH
from kinfolk.decoding.spelling import Spelling
from kinfolk.objectives.corruption import Corruption
from kinfolk.runs.engines import AUTO, automatic
from kinfolk.runs.run import Run


def generate(model: Any, prompt: Any, max_new: int = 16, **options: Any) -> Any:
    """Continue a prompt by up to `max_new` tokens: texts of a run, or token ids of a model.

    With a run (a path or a `kf.Run`), a string gives a string and a list of strings a list of strings: the prompt with
    its continuation, or what an encoder-decoder writes for it. With a model, token ids give token ids, see
    `kinfolk.decoding.generate`. options: greedy, temperature, top_k, top_p, beams, seed … (`Decoding`); of a run also
    those of `runner`: engine, draft, ahead, average.
    """
    if not isinstance(model, str | Path | Run):
        return continue_ids(model, prompt, max_new, **options)
    run = Run.open(model)
    how: dict[str, Any] = {
        name: options.pop(name) for name in ("engine", "draft", "ahead", "average") if name in options
    }
    how["rows"] = (1 if isinstance(prompt, str) else len(prompt)) * options.get("beams", 1)
    network = runner(run, **how)
    rows, spelling = encoded(run, [prompt] if isinstance(prompt, str) else prompt, network.generation.start_id)
    refuse_long(rows, network, max_new if run.recipe.model.topology == "decoder" else 0)
    texts = [spelling.decode(ids) for ids in continue_ids(network, rows, max_new, **options)]
    return texts[0] if isinstance(prompt, str) else texts


def runner(
    run: Run, engine: str | None = None, draft: str | None = None, ahead: int = 4, average: int = 0, rows: int = 1
) -> Any:
    """Return what generates: a model, or an engine.

    engine: "torch", "torch-bf16", "onnx", a plugin's, or "auto" (`kinfolk.runs.engines.automatic`); None: the run's.
    draft: speculative decoding with a smaller run, or "lookup", by which `ahead` tokens are guessed at once.
    average: the mean of the weights of the newest checkpoints.
    rows: how many sequences are decoded at once, for which weights are laid out.
    """
    name = automatic(run.path)[0] if engine == AUTO else engine or run.own_engine
    if name in TORCH:
        model = TORCH[name].laid_out(run.model(average), rows if draft is None else ahead + 1)
        return model if draft is None else speculative(model, draft, ahead)
    if draft is not None:
        raise SpecError(f"--draft: speculative decoding runs by torch, not by {name}")
    if average:
        raise SpecError("--average: graphs have the weights they were made of; average, then export")
    return run.engine(name)


def refuse_long(rows: Sequence[Sequence[int]], model: Any, max_new: int, what: str = "--prompt") -> None:
    """Refuse prompts that do not fit beside `max_new` tokens, before anything is generated."""
    n, limit = max(map(len, rows)), model.limit
    # the last of the new tokens is not read again
    if limit and n + max(0, max_new - 1) > limit:
        raise SpecError(
            f"{what}: {n:,} tokens and {max_new:,} new ones (--max-new) are more than the {limit:,} positions of the "
            "model"
        )


def encoded(run: Run, prompts: Sequence[str], start_id: int) -> tuple[list[list[int]], Spelling]:
    """Return the token ids of prompts as a run was trained to read them, and what decodes its answers."""
    spelling, (before, behind) = Spelling(run.tokenizer, run.recipe.objective.extra_ids), special_tokens(run)
    rows = [[*before, *spelling.encode(prompt), *behind] or [start_id] for prompt in prompts]
    warn_of_unknown(run.tokenizer, [np.array(row) for row in rows], "the prompt")
    return rows, spelling


def special_tokens(run: Run) -> tuple[list[int], list[int]]:
    """Return the special tokens before and behind a prompt of a decoder, or a source of an encoder-decoder."""
    tokenizer, topology = run.tokenizer, run.recipe.model.topology
    if topology != "encoder-decoder":
        return tokenizer.opening if topology == "decoder" else [], []
    # sources of pairs and of corrupted texts end with EOS
    ends = isinstance(run.recipe.objective, Corruption) or run.data_kind == "pairs"
    return tokenizer.source_frame or ([], [tokenizer.eos] if ends else [])
