"""`config.json`, read key by key: a key that is neither read nor declared harmless is refused by name."""

import fnmatch
import json
import reprlib
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kinfolk.core.errors import CheckpointError, brief, suggest

# what says nothing about the function of the network: names, versions, ids of specials, how to generate; and what is
# dropped in training at places where nothing is dropped here
_NAMES = """
    _attn_implementation _commit_hash _name_or_path _num_labels activation_dropout architectures attn_implementation
    auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward classifier_dropout
    classifier_dropout_prob cls_token_id decoder_layerdrop decoder_start_token_id directionality diversity_penalty
    do_sample dtype early_stopping encoder_layerdrop encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing
    id2label initializer_factor keys_to_ignore_at_inference label2id language layerdrop length_penalty max_length
    min_length model_max_length model_type name_or_path no_repeat_ngram_size num_beam_groups num_beams num_labels
    num_return_sequences output_attentions output_hidden_states output_past output_scores pad_token_id
    pooler_dropout pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    prefix problem_type qa_dropout remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    save_step sep_token_id seq_classif_dropout summary_activation summary_first_dropout summary_last_dropout
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params temperature
    tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16
    use_cache vocab_file
"""
HARMLESS = frozenset(_NAMES.split())

LAYERS, LARGEST = 10_000, 10_000_000
"""Numbers beyond these are damage, or meant to fill the memory."""

SHOWN, LONGEST = 5, 60
"""Unknown keys that a message names, and how long a name is at most."""

_ABSENT = object()


class Config:
    """The values of one configuration, and which of them have been read."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json", ignore: Iterable[str] = ()) -> None:
        self.values, self.where = dict(values), where
        self._read: set[str] = set(ignore)
        self.beside: dict[str, Any] = {}  # other JSON files of the folder, by name
        self.tensors: frozenset[str] = frozenset()  # names, where what there is decides

    def has(self, pattern: str) -> bool:
        """Tell whether the folder has a tensor of such a name."""
        return any(fnmatch.fnmatchcase(name, pattern) for name in self.tensors)

    @classmethod
    def load(cls, file: Path, ignore: Iterable[str] = ()) -> "Config":
        """Read a file."""
        values = read_json(file)
        if not isinstance(values, dict):
            raise CheckpointError(f"{file}: expected an object with the values of a model, got {brief(values)}")
        return cls(values, str(file), ignore)

    def get(self, key: str, default: Any = _ABSENT) -> Any:
        """Return the value of a key; one without a default must be there, and with one it must be of the same type."""
        self._read.add(key)
        value = self.values.get(key)
        if value is None:
            if default is _ABSENT:
                raise CheckpointError(f"{self.where}: {key} is missing")
            return default
        kind = type(default)
        if default is _ABSENT or default is None or isinstance(value, kind):
            return value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        raise CheckpointError(f"{self.where}: {key} = {reprlib.repr(value)} is not a {kind.__name__}")

    def number(self, key: str, default: int | None = None) -> int:
        """Return an integer above zero."""
        value = self.get(key) if default is None else self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{self.where}: {key} = {reprlib.repr(value)} is not a number above zero")
        most = LAYERS if "layer" in key else LARGEST
        if value > most:
            raise CheckpointError(
                f"{self.where}: {key} = {reprlib.repr(value)} is more than any model has (at most {most:,})"
            )
        return value

    def only(self, key: str, *allowed: Any) -> Any:
        """Return a value that must be one of these; the first is the default."""
        value = self.get(key, None)
        value = allowed[0] if value is None else value
        if value not in allowed:
            raise self.refusal(key, value, allowed)
        return value

    def fixed(self, **values: Any) -> None:
        """Refuse a key that is there and has another value than the only one that can be expressed."""
        for key, value in values.items():
            self.only(key, value)

    def idle(self, *keys: str) -> None:
        """Take keys for read that change nothing here, whatever they say."""
        self._read.update(keys)

    def choice(self, key: str, table: Mapping[str, Any], default: str) -> Any:
        """Return the value that a word names."""
        value = self.get(key, default)
        if value not in table:
            raise self.refusal(key, value, table)
        return table[value]

    def besides(self) -> dict[str, Any]:
        """Return what is said of other things than the network: ids of specials, names of classes, how to generate."""
        own = {"architectures", "dtype", "torch_dtype", "model_type", "transformers_version", "_name_or_path"}
        return {key: self.values[key] for key in sorted((HARMLESS - own) & self.values.keys())}

    def refusal(self, key: str, value: Any, allowed: Iterable[Any]) -> CheckpointError:
        """Return the error that names a key and a value that cannot be expressed."""
        names = ", ".join(map(repr, allowed))
        return CheckpointError(f"{self.where}: {key} = {reprlib.repr(value)} cannot be expressed (allowed: {names})")

    def finish(self, known: Iterable[str] = ()) -> None:
        """Refuse what was not read: it may change what the network does. What is switched off changes nothing."""
        rest = self.values.keys() - self._read - HARMLESS
        off: tuple[object, ...] = (None, False, 0, "", [], {})
        wrong = sorted(key for key in rest if not any(self.values[key] is x or self.values[key] == x for x in off))
        if wrong:
            named = ", ".join(f"{reprlib.repr(key)[1:-1]} = {reprlib.repr(self.values[key])}" for key in wrong[:SHOWN])
            others = f" and {len(wrong) - SHOWN} more keys" if len(wrong) > SHOWN else ""
            hint = suggest(wrong[0], {*self._read, *known}).partition(" (known")[0] if len(wrong[0]) < LONGEST else ""
            options = " ".join(f"--ignore {shlex.quote(key)}" for key in wrong[:SHOWN] if len(key) < LONGEST)
            raise CheckpointError(
                f"{self.where}: {named}{others}: not known for this kind of model, which may be another one than its "
                f"weights mean{hint} (if it says nothing about the network: {options}; in Python ignore=[...])"
            )


def read_json(file: Path) -> Any:
    """Read a JSON file, or say why it cannot be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON: {error}") from None
