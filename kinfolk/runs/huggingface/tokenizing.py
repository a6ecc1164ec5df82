"""Tokenizer of a Hugging Face folder: tokenizer.json as it is, or built from the older files of its family."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from kinfolk.core.errors import CheckpointError, DataError
from kinfolk.data.tokenizers.choice import PAIRS
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
BERT_FRAME = ("[CLS] $A [SEP]", "[SEP]")
"""What is put around a text, and between two."""


def read_settings(folder: Path) -> dict[str, Any]:
    """Return what tokenizer_config.json says; {} if there is none."""
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    if not isinstance(settings, dict):
        raise CheckpointError(f"{folder / SETTINGS}: is not a table")
    return settings


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


def _built(
    model: SentencePieces,
    steps: list[Any],
    specials: tuple[str, ...],
    frame: tuple[str, str] | None = None,
    *,
    words: bool = False,
    more: list[str] | None = None,
    vocab: list[tuple[str, float]] | None = None,
    unk_id: int | None = None,
) -> tokenizers.Tokenizer:
    """Return the tokenizer that a family makes of a SentencePiece model.

    steps: normalisers. specials: tokens that are special where the vocabulary has them; `more` are added to it.
    frame: what is put around a text, and between two. words: any white space separates words, and none is a piece.
    vocab, unk_id: the vocabulary and its unknown token, where they are not those of the file.
    """
    unk_id = model.unk_id if unk_id is None else unk_id
    tokenizer = tokenizers.Tokenizer(model_of(model, vocab or model.scored, unk_id))
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    metaspace = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    whole = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]) if words else metaspace
    tokenizer.pre_tokenizer = whole
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    add_symbols(tokenizer, model)
    present = [name for name in specials if tokenizer.token_to_id(name) is not None]
    add_specials(tokenizer, [*present, *(more or [])])
    if frame:
        around(tokenizer, *frame)
    return tokenizer


def _charsmap(model: SentencePieces) -> list[Any]:
    return [normalizers.Precompiled(model.charsmap)] if model.charsmap else []


def _cleaned(model: SentencePieces, settings: dict[str, Any], lower: bool, keeps: bool) -> list[Any]:
    """ALBERT and XLNet: quotation marks made alike, accents and capitals removed where the settings say so."""
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if keeps and settings.get("keep_accents", False) else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if settings.get("do_lower_case", lower) else []
    return steps + _charsmap(model)


def _t5(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """T5 and Switch: sentinels behind the pieces, the end of the text at the end."""
    extra = [f"<extra_id_{i}>" for i in reversed(range(int(settings.get("extra_ids", 100))))]
    vocab = [*model.scored, *((name, 0.0) for name in extra)]
    specials, frame = ("<pad>", "</s>", "<unk>"), ("$A </s>", "</s>")
    return _built(model, _charsmap(model), specials, frame, words=True, more=extra, vocab=vocab)


def _albert(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    specials = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    return _built(model, _cleaned(model, settings, lower=True, keeps=True), specials, BERT_FRAME, words=True)


def _xlnet(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    steps = _cleaned(model, settings, lower=False, keeps=False)
    specials = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    return _built(model, steps, specials, ("$A <sep> <cls>", "<sep>"), words=True)


def _big_bird(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    steps = [normalizers.Replace(tokenizers.Regex(" {2,}"), SPACE)]
    return _built(model, steps, ("<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), BERT_FRAME)


def _deberta_v2(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    steps: list[Any] = [normalizers.Lowercase()] if settings.get("do_lower_case", False) else []
    steps += [normalizers.Replace(tokenizers.Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC()]
    steps += [normalizers.Strip(left=False, right=True)]
    # the file of the release has no piece for what is masked; its id follows the pieces
    tokenizer = _built(model, steps, ("[PAD]", "[UNK]", "[CLS]", "[SEP]"), BERT_FRAME, more=["[MASK]"])
    if settings.get("split_by_punct", False):
        split = pre_tokenizers.Punctuation(behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, tokenizer.pre_tokenizer])
    return tokenizer


def _camembert(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """CamemBERT: five ids before the pieces, as in fairseq, and the mask behind them."""
    first = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
    vocab = [*first, *model.scored[1:], ("<mask>", 0.0)]
    specials = ("<s>", "</s>", "<unk>", "<pad>", "<mask>", "<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
    frame = ("<s> $A </s>", "</s> </s>")
    return _built(model, _charsmap(model), specials, frame, words=True, vocab=vocab, unk_id=3)


def _reformer(model: SentencePieces, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    collapse = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    return _built(model, [*_charsmap(model), collapse] if model.charsmap else [], ("</s>", "<unk>"))


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
