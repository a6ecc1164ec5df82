"""The tokenizer of a checkpoint's folder: tokenizer.json as it is, or made of the older files of its family."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from kinfolk.core.errors import CheckpointError, DataError
from kinfolk.data.tokenizers.files import ROLES, add_specials, around, byte_pairs, letter_pairs, named, word_pieces
from kinfolk.data.tokenizers.sentencepiece import (
    SPACE,
    SentencePieces,
    add_symbols,
    model_of,
    plain_tokenizer,
    read_sentencepiece,
)
from kinfolk.data.tokenizers.tokenizer import Tokenizer, check_numbers
from kinfolk.runs.huggingface.config import read_json

WHOLE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
PIECES = ("spiece.model", "sentencepiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model")
SEGMENTED = ("bert", "electra", "albert", "funnel", "xlnet", "deberta", "deberta-v2", "big_bird")
"""Families whose models take the segment of each token."""
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def read_settings(folder: Path) -> dict[str, Any]:
    """Return what tokenizer_config.json says; {} if there is none."""
    found = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{folder / SETTINGS}: is not a table")
    return found


def read_tokenizer(folder: Path, model_type: str) -> tokenizers.Tokenizer | None:
    """Return the tokenizer of a folder; None if it has none."""
    if (folder / WHOLE).is_file():
        try:
            check_numbers((folder / WHOLE).read_text(encoding="utf-8", errors="replace"), str(folder / WHOLE))
            return tokenizers.Tokenizer.from_file(str(folder / WHOLE))
        except (DataError, OSError):
            raise
        # the library raises a plain Exception
        except Exception as error:
            raise DataError(f"{folder / WHOLE}: not a tokenizer.json: {error}") from None
    settings = read_settings(folder)
    if (folder / "vocab.txt").is_file():
        return word_pieces(folder / "vocab.txt", settings)
    for vocab, merges in PAIRS:
        if (folder / vocab).is_file() and (folder / merges).is_file():
            return _merged(folder / vocab, folder / merges, model_type, settings)
    for name in PIECES:
        if (folder / name).is_file():
            return sentence_pieces(folder / name, model_type, settings)
    return None


def tokenizer_settings(text: str, model_type: str) -> dict[str, Any]:
    """Return the tokenizer_config.json with which transformers takes a tokenizer.json of this text as it is.

    Without it, or with the name of a family's class, transformers keeps the vocabulary only and makes the rest anew.
    """
    own, raw = Tokenizer.from_json(text), tokenizers.Tokenizer.from_str(text)
    special = {i for i, token in raw.get_added_tokens_decoder().items() if token.special}
    named = {f"{role}_token": raw.id_to_token(i) for role in ROLES if (i := getattr(own, role)) in special}
    inputs = ["input_ids", *(["token_type_ids"] if model_type in SEGMENTED else []), "attention_mask"]
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, **named}


def _merged(vocab: Path, merges: Path, model_type: str, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    if model_type == "openai-gpt":
        return letter_pairs(vocab, merges, settings)
    tokenizer = byte_pairs(vocab, merges, settings)
    if model_type == "deberta":
        around(tokenizer, "[CLS] $A [SEP]", "[SEP] [SEP]")
    elif model_type != "gpt2":
        first, last = named(settings, "cls", "<s>"), named(settings, "sep", "</s>")
        around(tokenizer, f"{first} $A {last}", f"{last} {last}")
    return tokenizer


def sentence_pieces(file: Path, model_type: str = "", settings: dict[str, Any] | None = None) -> tokenizers.Tokenizer:
    """Return the tokenizer that a family makes of a SentencePiece file; of no family, that of SentencePiece itself."""
    model, settings = read_sentencepiece(file), settings or {}
    build = FAMILIES.get(model_type)
    return plain_tokenizer(model) if build is None else build(model, settings)


def _t5(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """T5 and Switch: sentinels behind the pieces, the end of the text at the end."""
    extra = [f"<extra_id_{i}>" for i in reversed(range(int(settings.get("extra_ids", 100))))]
    vocab = [*model.scored, *((name, 0.0) for name in extra)]
    tokenizer = tokenizers.Tokenizer(model_of(model, vocab, model.unk_id))
    steps = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    _finish(tokenizer, model, steps, words=True)
    add_specials(tokenizer, [*_present(tokenizer, ("<pad>", "</s>", "<unk>")), *extra])
    around(tokenizer, "$A </s>", "</s>")
    return tokenizer


def _cleaned(model: SentencePieces, settings: dict[str, Any], lower: bool, keeps: bool) -> tokenizers.Tokenizer:
    """ALBERT and XLNet: quotation marks made alike, accents and capitals removed where the settings say so."""
    tokenizer = tokenizers.Tokenizer(model_of(model, model.scored, model.unk_id))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if keeps and settings.get("keep_accents", False) else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if settings.get("do_lower_case", lower) else []
    steps += [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    _finish(tokenizer, model, steps, words=True)
    return tokenizer


def _albert(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = _cleaned(model, settings, lower=True, keeps=True)
    add_specials(tokenizer, _present(tokenizer, ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")))
    around(tokenizer, "[CLS] $A [SEP]", "[SEP]")
    return tokenizer


def _xlnet(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = _cleaned(model, settings, lower=False, keeps=False)
    names = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    add_specials(tokenizer, _present(tokenizer, names))
    around(tokenizer, "$A <sep> <cls>", "<sep>")
    return tokenizer


def _big_bird(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model_of(model, model.scored, model.unk_id))
    _finish(tokenizer, model, [normalizers.Replace(tokenizers.Regex(" {2,}"), SPACE)], words=False)
    names = ("<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    add_specials(tokenizer, _present(tokenizer, names))
    around(tokenizer, "[CLS] $A [SEP]", "[SEP]")
    return tokenizer


def _deberta_v2(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model_of(model, model.scored, model.unk_id))
    steps: list[Any] = [normalizers.Lowercase()] if settings.get("do_lower_case", False) else []
    steps += [normalizers.Replace(tokenizers.Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC()]
    _finish(tokenizer, model, [*steps, normalizers.Strip(left=False, right=True)], words=False)
    if settings.get("split_by_punct", False):
        split = pre_tokenizers.Punctuation(behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, tokenizer.pre_tokenizer])
    # the file of the release has no piece for what is masked; its id follows the pieces
    add_specials(tokenizer, [*_present(tokenizer, ("[PAD]", "[UNK]", "[CLS]", "[SEP]")), "[MASK]"])
    around(tokenizer, "[CLS] $A [SEP]", "[SEP]")
    return tokenizer


def _camembert(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """CamemBERT: five ids before the pieces, as in fairseq, and the mask behind them."""
    first = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
    vocab = [*first, *model.scored[1:], ("<mask>", 0.0)]
    tokenizer = tokenizers.Tokenizer(model_of(model, vocab, 3))
    steps = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    _finish(tokenizer, model, steps, words=True)
    names = ("<s>", "</s>", "<unk>", "<pad>", "<mask>", "<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
    add_specials(tokenizer, _present(tokenizer, names))
    around(tokenizer, "<s> $A </s>", "</s> </s>")
    return tokenizer


def _reformer(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model_of(model, model.scored, model.unk_id))
    collapse = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    steps = [normalizers.Precompiled(model.charsmap), collapse] if model.charsmap else []
    _finish(tokenizer, model, steps, words=False)
    add_specials(tokenizer, _present(tokenizer, ("</s>", "<unk>")))
    return tokenizer


FAMILIES = {
    "t5": _t5,
    "switch_transformers": _t5,
    "albert": _albert,
    "xlnet": _xlnet,
    "big_bird": _big_bird,
    "deberta-v2": _deberta_v2,
    "camembert": _camembert,
    "reformer": _reformer,
}


def _finish(tokenizer: tokenizers.Tokenizer, model: SentencePieces, steps: list[Any], words: bool) -> None:
    """Set normaliser, pre-tokenizer and decoder; `words`: any white space separates words, and none is a piece."""
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    metaspace = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    whole = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]) if words else metaspace
    tokenizer.pre_tokenizer = whole
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    add_symbols(tokenizer, model)


def _present(tokenizer: tokenizers.Tokenizer, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if tokenizer.token_to_id(name) is not None]
