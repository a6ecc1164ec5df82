"""Attention heads and dependency relations: which head finds which (Clark et al. 2019, section 4)."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from kinfolk.core.errors import DataError
from kinfolk.data import Tokenizer
from kinfolk.data.files.treebank import ParsedSentence
from kinfolk.models.model import Transformer
from kinfolk.use.inspect.sight import see

FEWEST = 5
"""A relation that occurs less often than this is not reported."""


@dataclasses.dataclass(frozen=True)
class HeadRelation:
    """How well one relation is found: by the best head, and by the best fixed distance between words.

    direction: "to head" if the dependent looks at its head, "to dependent" the other way round.
    """

    relation: str
    count: int
    path: str
    head: int
    direction: str
    accuracy: float
    offset: int
    baseline: float


def by_words(weights_HLL: Tensor, word_L: Sequence[int], n_words: int) -> Tensor:
    """Return attention between words: summed over the pieces of a word seen, averaged over those of a word looking."""
    member_LW = torch.zeros(len(word_L), n_words, dtype=torch.float64)
    for piece, word in enumerate(word_L):
        if word >= 0:
            member_LW[piece, word] = 1.0
    seen_HLW = weights_HLL.double() @ member_LW
    return (member_LW / member_LW.sum(0).clamp(min=1)).mT @ seen_HLW


def predict(words_HWW: Tensor) -> Tensor:
    """Return the word that each word looks at most, itself left out: [H, W]."""
    return words_HWW.masked_fill(torch.eye(words_HWW.shape[-1], dtype=torch.bool), -1.0).argmax(-1)


def relations(
    model: Transformer,
    tokenizer: Tokenizer,
    sentences: Sequence[ParsedSentence],
    tell: Callable[[int], None] | None = None,
) -> list[HeadRelation]:
    """Score every head of an encoder or decoder on every relation of parsed sentences; the best of each is returned."""
    right: dict[tuple[str, str, int, str], int] = defaultdict(int)
    counts: Counter[str] = Counter()
    offsets: dict[str, Counter[int]] = defaultdict(Counter)
    for done, sentence in enumerate(sentences):
        if len(sentence.words) < 2 or not sentence.relations:
            continue
        _score(model, tokenizer, sentence, right)
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head >= 0:
                counts[relation] += 1
                offsets[relation][head - word] += 1
        if tell is not None:
            tell(done + 1)
    if not counts:
        raise DataError("no sentence of two words or more, so there is nothing that heads could find")
    return [_best(relation, n, right, offsets[relation]) for relation, n in counts.most_common() if n >= FEWEST]


def _score(
    model: Transformer, tokenizer: Tokenizer, sentence: ParsedSentence, right: dict[tuple[str, str, int, str], int]
) -> None:
    pieces = tokenizer.encode_batch([" " * (i > 0) + w for i, w in enumerate(sentence.words)])
    ids = np.concatenate(pieces).tolist()
    word_L = np.repeat(np.arange(len(pieces)), [len(p) for p in pieces]).tolist()
    if model.spec.topology == "decoder":
        ids, word_L = [tokenizer.bos, *ids], [-1, *word_L]
    limit = model.limit
    if limit is not None and len(ids) > limit:
        return
    sight = see(model, tokenizer, ids, ids if model.spec.topology == "encoder-decoder" else ())
    side = "source" if model.spec.topology == "encoder-decoder" else "tokens"
    heads = torch.tensor(sentence.heads)
    tied = [w for w in range(len(heads)) if heads[w] >= 0]
    for one in sight.maps:
        if one.keys != "same" or one.side != side:
            continue
        looked_HW = predict(by_words(one.weights_HLM, word_L, len(pieces)))
        for w in tied:
            up, down = looked_HW[:, w] == heads[w], looked_HW[:, heads[w]] == w
            for direction, hits in (("to head", up), ("to dependent", down)):
                for h in torch.nonzero(hits).flatten().tolist():
                    right[sentence.relations[w], one.path, h, direction] += 1


def _best(relation: str, n: int, right: dict[tuple[str, str, int, str], int], offsets: Counter[int]) -> HeadRelation:
    mine = {key: hits for key, hits in right.items() if key[0] == relation}
    offset, hits = offsets.most_common(1)[0]
    if not mine:
        return HeadRelation(relation, n, "", 0, "", 0.0, offset, hits / n)
    best = max(mine, key=lambda key: mine[key])
    return HeadRelation(relation, n, best[1], best[2], best[3], mine[best] / n, offset, hits / n)
