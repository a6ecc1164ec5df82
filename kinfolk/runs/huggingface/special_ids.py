"""Special token ids of a checkpoint's folder, from generation_config.json, config.json and tokenizer_config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from kinfolk.core.errors import CheckpointError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.data.tokenizers.files import ROLES, token_name
from kinfolk.runs.huggingface.config import Config, read_json
from kinfolk.runs.huggingface.tokenizing import read_settings

GENERATION_CONFIG = "generation_config.json"
_BART = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_T5 = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
DEFAULTS: dict[str, dict[str, int]] = {
    **dict.fromkeys(("t5", "switch_transformers"), _T5),
    "bart": _BART | {"decoder_start_token_id": 2, "forced_eos_token_id": 2},
    "marian": {"pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0, "forced_eos_token_id": 0},
    "gpt2": {"bos_token_id": 50256, "eos_token_id": 50256},
    "reformer": {"eos_token_id": 2, "pad_token_id": 0},
    **dict.fromkeys(("roberta", "camembert", "longformer"), _BART),
}
"""What configurations leave out because it is the default of their class."""


def special_ids(
    folder: Path, config: Config, tokenizer: tokenizers.Tokenizer | None, topology: str
) -> tuple[dict[str, tuple[int, ...]], GenerationIds]:
    """Return the ids of a tokenizer's roles, and those of generation.

    generation_config.json goes before config.json, as for its own library, and names in tokenizer_config.json before
    ids, because they are what the tokenizer was made with; defaults of a class count where their token exists.
    """
    n_ids = int(config.values.get("vocab_size") or 0) or (tokenizer.get_vocab_size() if tokenizer else 0)
    stated = _ids(config.values, config.where)
    if (folder / GENERATION_CONFIG).is_file():
        stated |= _ids(read_json(folder / GENERATION_CONFIG), str(folder / GENERATION_CONFIG))
    usual = DEFAULTS.get(str(config.values.get("model_type")), {})
    stated = {key: (i,) for key, i in usual.items() if i < n_ids} | stated
    roles = {role: stated[f"{role}_token_id"] for role in ("pad", "bos", "eos") if f"{role}_token_id" in stated}
    roles |= _named(folder, tokenizer)
    stops = stated.get("eos_token_id") or roles.get("eos", ())
    start = stated.get("decoder_start_token_id") if topology == "encoder-decoder" else None
    start = start or stated.get("bos_token_id") or roles.get("bos") or stops or (1,)
    forced = {key: stated.get(f"forced_{key}_token_id", (None,))[0] for key in ("bos", "eos")}
    generation = GenerationIds(
        start_id=start[0],
        stop_ids=tuple(stops),
        pad_id=(stated.get("pad_token_id") or roles.get("pad") or stops or (0,))[0],
        forced_first_id=forced["bos"],
        forced_last_id=forced["eos"],
        suppressed_ids=stated.get("suppress_tokens", ()),
        suppressed_first_ids=stated.get("begin_suppress_tokens", ()),
    )
    if stops:
        # Llama has no token for padding: one of our own would have no row in its table, and padding is hidden anyway
        roles.setdefault("pad", (generation.pad_id,))
        roles["stop"] = tuple(stops)
        # what fine-tuning ends a text with must end generation
        roles["eos"] = roles["eos"] if roles.get("eos", (None,))[0] in stops else tuple(stops)
    if topology == "encoder-decoder":
        roles["start"] = (generation.start_id,)
    for role, i in (("forced-first", generation.forced_first_id), ("forced-last", generation.forced_last_id)):
        roles |= {} if i is None else {role: (i,)}
    return roles, generation


def written_ids(ids: GenerationIds, topology: str) -> dict[str, Any]:
    """Return what generation_config.json says of these ids."""
    stops: Any = list(ids.stop_ids) if len(ids.stop_ids) > 1 else next(iter(ids.stop_ids), None)
    values = {
        "eos_token_id": stops,
        "pad_token_id": ids.pad_id,
        "decoder_start_token_id" if topology == "encoder-decoder" else "bos_token_id": ids.start_id,
        "forced_bos_token_id": ids.forced_first_id,
        "forced_eos_token_id": ids.forced_last_id,
        "suppress_tokens": list(ids.suppressed_ids) or None,
        "begin_suppress_tokens": list(ids.suppressed_first_ids) or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _ids(values: Any, where: str) -> dict[str, tuple[int, ...]]:
    """Return every id or list of ids by its key; other keys are of no account here."""
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where}: is not a table")
    ids_by_key = {}
    for key, value in values.items():
        if not (key.endswith("_token_id") or key in ("suppress_tokens", "begin_suppress_tokens")) or value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise CheckpointError(f"{where}: {key} = {str(value)[:80]} is not an id or a list of ids")
        # -1 is how some say that there is none
        ids_by_key[key] = tuple(i for i in ids if i >= 0)
    return {key: ids for key, ids in ids_by_key.items() if ids}


def _named(folder: Path, tokenizer: tokenizers.Tokenizer | None) -> dict[str, tuple[int, ...]]:
    """Return the ids of tokens that tokenizer_config.json, or the older special_tokens_map.json, names by role."""
    if tokenizer is None:
        return {}
    older = folder / "special_tokens_map.json"
    names = (read_json(older) if older.is_file() else {}) | read_settings(folder)
    ids = {role: tokenizer.token_to_id(token_name(names.get(f"{role}_token")) or "") for role in ROLES}
    return {role: (i,) for role, i in ids.items() if i is not None}
