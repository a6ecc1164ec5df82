"""Tokenizers from the files of other tools: WordPiece `vocab.txt`, BPE `vocab.json` with `merges.txt`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from kinfolk.core.errors import DataError
from kinfolk.core.lines import read_lines

ROLES = ("pad", "bos", "eos", "unk", "sep", "cls", "mask")
BYTE_LEVEL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]")


def token_name(value: Any) -> str | None:
    """Return the text of a special token in a `tokenizer_config.json`: a string, or a table with its `content`."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def named(settings: Mapping[str, Any], role: str, default: str) -> str:
    """Return the name of the special token of a role, `bos` for example."""
    return token_name(settings.get(f"{role}_token")) or default


def word_pieces(file: Path, settings: Mapping[str, Any] | None = None) -> tokenizers.Tokenizer:
    """Return BERT's tokenizer from its `vocab.txt`: one token per line, its id the number of the line from 0."""
    settings = settings or {}
    vocab = {word: i for i, word in enumerate(read_lines(file))}
    special = {role: named(settings, role, f"[{role.upper()}]") for role in ("unk", "sep", "pad", "cls", "mask")}
    missing = [special[role] for role in ("unk", "sep", "cls") if special[role] not in vocab]
    if missing:
        raise DataError(f"{file}: has no {', '.join(missing)}")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=special["unk"], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=bool(settings.get("do_lower_case", True)),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=settings.get("strip_accents"),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    around(tokenizer, f"{special['cls']} $A {special['sep']}", f"{special['sep']}")
    add_specials(tokenizer, [name for name in special.values() if name in vocab])
    return tokenizer


def byte_pairs(vocab: Path, merges: Path, settings: Mapping[str, Any] | None = None) -> tokenizers.Tokenizer:
    """Return a tokenizer of merged pairs of bytes, as of GPT-2 and RoBERTa."""
    settings = settings or {}
    ids, pairs = _table(vocab), _pairs(merges)
    tokenizer = tokenizers.Tokenizer(_bpe(ids, pairs, merges))
    prefix = bool(settings.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    roles = [token_name(settings.get(f"{role}_token")) for role in ROLES]
    add_specials(tokenizer, [name for name in dict.fromkeys([*BYTE_LEVEL, *roles]) if name in ids])
    return tokenizer


def letter_pairs(vocab: Path, merges: Path, settings: Mapping[str, Any] | None = None) -> tokenizers.Tokenizer:
    """Return a tokenizer of merged letters of lower-cased words, the last one with `</w>`, as of GPT."""
    unknown = named(settings or {}, "unk", "<unk>")
    ids = _table(vocab)
    options = {"unk_token": unknown, "end_of_word_suffix": "</w>", "fuse_unk": False}
    tokenizer = tokenizers.Tokenizer(_bpe(ids, _pairs(merges), merges, **options))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    add_specials(tokenizer, [unknown])
    return tokenizer


def around(tokenizer: tokenizers.Tokenizer, single: str, between: str) -> None:
    """Set the special tokens around a text (`[CLS] $A [SEP]`), and those between two (the second ends as the first)."""
    start, _, end = single.partition("$A")
    pair = f"{start}$A {between} $B{end}" if between else f"{start}$A $B{end}"
    names = dict.fromkeys(part for part in pair.split() if not part.startswith("$"))
    ids = [(name, tokenizer.token_to_id(name)) for name in names]
    if all(i is not None for _, i in ids):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single.split(), pair=_typed(pair.split()), special_tokens=ids
        )


def _typed(parts: list[str]) -> list[str]:
    """Number the two texts of a pair: what belongs to the second has segment 1."""
    second = parts.index("$B")
    return [f"{part}:{int(i >= second)}" for i, part in enumerate(parts)]


def add_specials(tokenizer: tokenizers.Tokenizer, names: list[str]) -> None:
    """Mark tokens as special."""
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])


def _table(file: Path) -> dict[str, int]:
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(table, dict) or not all(isinstance(i, int) and i >= 0 for i in table.values()):
        raise DataError(f"{file}: is not a table of tokens and their ids")
    return table


def _pairs(file: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.rstrip(" ").partition(" ")
        if not left or not right or " " in right:
            raise DataError(f"{file}:{number}: expected two tokens with a space between them, got {line[:80]!r}")
        pairs.append((left, right))
    return pairs


def _bpe(ids: dict[str, int], pairs: list[tuple[str, str]], where: Path, **options: Any) -> models.BPE:
    try:
        return models.BPE(ids, pairs, **options)
    # the library raises a plain Exception
    except Exception as error:
        raise DataError(f"{where}: does not fit its vocabulary: {error}") from None
