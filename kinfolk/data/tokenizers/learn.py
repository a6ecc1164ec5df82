"""Learn a tokenizer from a sample of text: characters, words, byte-level BPE or unigram pieces."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.preparing.preparation import TOKENIZERS, Preparation
from kinfolk.data.tokenizers.choice import read_tokenizer_file
from kinfolk.data.tokenizers.tokenizer import (
    N_SPECIALS,
    PART,
    SPECIALS,
    Tokenizer,
    byte_alphabet,
    cut,
    special_tokens,
    utf8,
)
from kinfolk.data.tokenizers.unigram import learn_unigram

USUAL_VOCAB = {"char": 4096, "word": 32768, "bpe": 8192, "unigram": 8192}

# what the library's byte-level splitting does, as far as Python's own expressions go
_WORD = re.compile(r"'(?:[stmd]|re|ve|ll)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
# far below any other way to write the same characters: a special is never read out of text
_NEVER = -1e4


def needs_sample(choices: Preparation) -> bool:
    """Tell whether the tokenizer has to be learned, after refusing one that cannot be."""
    name, vocab = choices.tokenizer, choices.vocab
    if name not in TOKENIZERS and not Path(name).is_file():
        raise DataError(f"tokenizer: {name!r} is neither a file nor a kind{suggest(name, TOKENIZERS)}")
    if name not in USUAL_VOCAB:
        if vocab is not None and vocab != _given(choices).vocab_size:
            raise DataError(
                f"vocab: the tokenizer {name!r} has {_given(choices).vocab_size} ids, so {vocab} cannot be had"
            )
        return False
    least = N_SPECIALS + (257 if name in ("bpe", "unigram") else 1)
    if vocab is not None and vocab < least:
        raise DataError(f"vocab: {name} needs at least {least} ids, not {vocab}")
    return True


def make_tokenizer(choices: Preparation, sample: Iterable[str]) -> Tokenizer:
    """Return the tokenizer chosen, learned from a sample if it has to be. The same sample gives the same tokenizer."""
    name = choices.tokenizer
    if not needs_sample(choices):
        return _given(choices)
    vocab = choices.vocab or USUAL_VOCAB[name]
    learn = {"char": _characters, "word": _words, "bpe": _bpe, "unigram": _unigram}[name]
    # no word of a sample is longer than this
    return learn((part for text in sample for part in cut(text, PART)), vocab)


def _given(choices: Preparation) -> Tokenizer:
    return Tokenizer.byte() if choices.tokenizer == "byte" else read_tokenizer_file(Path(choices.tokenizer))


def _characters(sample: Iterator[str], vocab: int) -> Tokenizer:
    counts: Counter[str] = Counter()
    for text in sample:
        counts.update(text)
    ranked = sorted(counts, key=lambda char: (-counts[char], char))
    return Tokenizer.characters(ranked[: vocab - N_SPECIALS])


def _words(sample: Iterator[str], vocab: int) -> Tokenizer:
    """Words and runs of punctuation, ids by decreasing frequency, ties in alphabetical order (the trainer's rule)."""
    inner = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=vocab, special_tokens=special_tokens(), show_progress=False)
    inner.train_from_iterator(sample, trainer)
    return Tokenizer(inner)


def _bpe(sample: Iterator[str], vocab: int) -> Tokenizer:
    inner = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=special_tokens(),
        initial_alphabet=byte_alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(sample, trainer)
    return Tokenizer(inner)


def _unigram(sample: Iterator[str], vocab: int) -> Tokenizer:
    counts: Counter[str] = Counter()
    for text in sample:
        counts.update(_WORD.findall(text))
    pieces = learn_unigram({utf8(word): count for word, count in counts.items()}, vocab - N_SPECIALS)
    letters = byte_alphabet()
    scored = [(name, _NEVER) for name in SPECIALS]
    scored += [("".join(letters[byte] for byte in piece), score) for piece, score in pieces]
    inner = _byte_level(models.Unigram(scored, unk_id=SPECIALS.index("<unk>"), byte_fallback=False))
    inner.add_special_tokens(special_tokens())
    return Tokenizer(inner)


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner
