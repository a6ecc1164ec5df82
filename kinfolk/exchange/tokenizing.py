"""The tokenizer of a folder: tokenizer.json as it is, or made of the older vocab.txt, merges.txt, spiece.model."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from kinfolk.core.errors import DataError
from kinfolk.exchange.config import read_json

WHOLE = "tokenizer.json"
PIECES = ("spiece.model", "sentencepiece.model", "tokenizer.model")


def read_tokenizer(folder: Path, model_type: str) -> tokenizers.Tokenizer | None:
    """Return the tokenizer of a folder; None if it has none."""
    if (folder / WHOLE).is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(folder / WHOLE))
        # the library raises a plain Exception
        except Exception as error:
            raise DataError(f"{folder / WHOLE}: not a tokenizer.json: {error}") from None
    settings_file = folder / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    if (folder / "vocab.txt").is_file():
        return word_pieces(folder / "vocab.txt", settings)
    if (folder / "merges.txt").is_file() and (folder / "vocab.json").is_file():
        return merged(folder, model_type)
    for name in PIECES:
        if (folder / name).is_file():
            return sentence_pieces(folder / name, model_type, settings)
    return None


def word_pieces(file: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Return BERT's tokenizer from a list of its words."""
    try:
        words = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None
    vocab = {word: i for i, word in enumerate(words)}
    special = {
        key: str(settings.get(f"{key}_token", f"[{key.upper()}]")) for key in ("unk", "sep", "pad", "cls", "mask")
    }
    missing = [name for name in (special["unk"], special["sep"], special["cls"]) if name not in vocab]
    if missing:
        raise DataError(f"{file}: has no {', '.join(missing)}")
    made = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=special["unk"], max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    first, last = special["cls"], special["sep"]
    made.post_processor = processors.BertProcessing((last, vocab[last]), (first, vocab[first]))
    _add_specials(made, [name for name in special.values() if name in vocab])
    return made


def merged(folder: Path, model_type: str) -> tokenizers.Tokenizer:
    """Return a tokenizer of merged pairs: of bytes (GPT-2 and after), or of letters of words (GPT)."""
    vocab = read_json(folder / "vocab.json")
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    split = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    pairs = [(pair[0], pair[1]) for pair in split if len(pair) == 2]
    if not isinstance(vocab, dict) or len(pairs) < len(split):
        raise DataError(f"{folder / 'merges.txt'}: a line is no pair, or vocab.json is no table")
    try:
        if model_type == "openai-gpt":
            model = models.BPE(vocab, pairs, unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False)
        else:
            model = models.BPE(vocab, pairs)
    # the library raises a plain Exception
    except Exception as error:
        raise DataError(f"{folder / 'merges.txt'}: does not fit vocab.json: {error}") from None
    made = tokenizers.Tokenizer(model)
    if model_type == "openai-gpt":
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.BPEDecoder(suffix="</w>")
        _add_specials(made, ["<unk>"])
        return made
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    specials = [name for name in ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>") if name in vocab]
    _add_specials(made, specials)
    if "</s>" in vocab and "<s>" in vocab:
        made.post_processor = processors.RobertaProcessing(
            ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]), add_prefix_space=False
        )
    return made


def sentence_pieces(file: Path, model_type: str, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Return a tokenizer of SentencePiece's unigram pieces."""
    try:
        pieces, trainer, normalizer = _protocol(file.read_bytes())
    except (OSError, ValueError, IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as a SentencePiece model: {error}") from None
    if trainer.get(3, 1) != 1 or model_type == "camembert":
        raise DataError(f"{file}: is not one of unigram pieces in their own order; save a {WHOLE} beside it")
    extra = []
    if model_type in ("t5", "switch_transformers"):
        extra = [f"<extra_id_{i}>" for i in reversed(range(int(settings.get("extra_ids", 100))))]
    unknown = int(trainer.get(40, 0))
    made = tokenizers.Tokenizer(models.Unigram([*pieces, *((name, 0.0) for name in extra)], unknown, False))
    steps: list[Any] = []
    if model_type in ("albert", "xlnet"):
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        steps += [] if settings.get("keep_accents", False) else [normalizers.NFKD(), normalizers.StripAccents()]
        steps += [normalizers.Lowercase()] if settings.get("do_lower_case", model_type == "albert") else []
    if normalizer.get(2):
        steps.append(normalizers.Precompiled(normalizer[2]))
    steps += [normalizers.Strip(left=False, right=True), normalizers.Replace(tokenizers.Regex(" {2,}"), "▁")]
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    names = [name for name, _ in pieces]
    specials = ("<pad>", "<unk>", "<s>", "</s>", "<cls>", "<sep>", "<mask>", "[CLS]", "[SEP]", "[MASK]", "[PAD]")
    _add_specials(made, [*(name for name in specials if name in names), *extra])
    if extra:
        made.post_processor = processors.TemplateProcessing(
            single=["$A", "</s>"],
            pair=["$A", "</s>", "$B", "</s>"],
            special_tokens=[("</s>", names.index("</s>"))],
        )
    return made


def _add_specials(made: tokenizers.Tokenizer, names: list[str]) -> None:
    made.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])


def _protocol(raw: bytes) -> tuple[list[tuple[str, float]], dict[int, Any], dict[int, Any]]:
    """Read what is needed of a SentencePiece model: pieces with scores, settings of the trainer, of the normaliser.

    Its format is Protocol Buffers: numbered fields, each a number, four or eight bytes, or bytes of a stated length.
    """
    pieces: list[tuple[str, float]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(raw):
        if number == 1:
            piece = dict(_fields(value))
            score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
            pieces.append((piece[1].decode(), score))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    return pieces, trainer, normalizer


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(raw, at)
            yield key >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"field of unknown kind {kind}")
        n, at = _varint(raw, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + n > len(raw):
            raise ValueError("it ends in the middle of a field")
        yield key >> 3, raw[at : at + n]
        at += n


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
