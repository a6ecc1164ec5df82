"""What a model writes for the sources of pairs, beside what is written there: BLEU, ROUGE-L, exact answers."""

import dataclasses
from typing import Any

from kinfolk.core.errors import DataError, MissingExtraError, SpecError, suggest
from kinfolk.data import Batches, Data
from kinfolk.data.tokenizers.tokenizer import Tokenizer
from kinfolk.decoding.decode import generate
from kinfolk.decoding.rouge import rouge_l
from kinfolk.models.model import Transformer
from kinfolk.train.evaluate import MeanScore

MEASURES = ("bleu", "rouge", "exact")
LONGER = 50
"""Tokens that a target may have more than its source (Vaswani et al. 2017, section 6.1)."""


@dataclasses.dataclass(frozen=True)
class WrittenTargets:
    """Texts beside their references."""

    texts: tuple[str, ...]
    references: tuple[str, ...]

    def scores(self, measures: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """Return every measure asked for: its value, and how it was made."""
        for name in measures:
            if name not in MEASURES:
                raise SpecError(f"measure: unknown {name!r}{suggest(name, MEASURES)}")
        found = {"bleu": self.bleu, "rouge": self.rouge, "exact": self.exact}
        return {name: found[name]() for name in measures}

    def bleu(self) -> dict[str, Any]:
        """Return BLEU of the texts as sacrebleu splits them, and of the texts split at spaces only."""
        try:
            from sacrebleu.metrics import BLEU
        except ImportError:
            raise MissingExtraError("translate", "BLEU") from None
        found: dict[str, Any] = {}
        for name, metric in (("", BLEU()), ("tokenised ", BLEU(tokenize="none"))):
            score = metric.corpus_score(list(self.texts), [list(self.references)]).score
            found |= {f"{name}BLEU": score, f"{name}signature": str(metric.get_signature())}
        return found

    def rouge(self) -> dict[str, Any]:
        """Return the mean F-measure of ROUGE-L."""
        pairs = zip(self.texts, self.references, strict=True)
        return {"ROUGE-L": 100 * sum(rouge_l(a, b) for a, b in pairs) / max(len(self.texts), 1)}

    def exact(self) -> dict[str, Any]:
        """Return the share of texts that are their reference."""
        pairs = zip(self.texts, self.references, strict=True)
        return {"exact": sum(a == b for a, b in pairs) / max(len(self.texts), 1)}


def write(model: Transformer, batches: Batches, limit: int = 0, **decoding: Any) -> WrittenTargets:
    """Let a model write the targets of the first `limit` pairs (0: all); `decoding` as in `Decoding`."""
    if batches.split.kind != "pairs":
        raise DataError(f"{batches.split.name}: texts are written for pairs of a source and a target, and this is text")
    tokenizer = batches.split.tokenizer
    texts: list[str] = []
    references: list[str] = []
    for step in range(batches.steps_per_epoch):
        if limit and len(texts) >= limit:
            break
        batch = batches.at(step)
        assert batch.source is not None
        sources, targets = _rows(batch.source, batch.source_keep), _rows(batch.tokens, batch.keep)
        texts += [_text(tokenizer, ids) for ids in targets_of(model, sources, tokenizer, **decoding)]
        references += [_text(tokenizer, ids) for ids in targets]
    end = limit or len(texts)
    return WrittenTargets(tuple(texts[:end]), tuple(references[:end]))


def targets_of(model: Transformer, sources: list[list[int]], tokenizer: Tokenizer, **decoding: Any) -> list[list[int]]:
    """Return what a model writes for sources of token ids; a decoder reads source and separator in one row."""
    alone = model.spec.topology == "decoder"
    rows = [[*row, tokenizer.sep] for row in sources] if alone else sources
    new = max(map(len, sources)) + LONGER
    if model.limit is not None:
        new = max(1, min(new, model.limit - (max(map(len, rows)) if alone else 1)))
    # of a device that decodes many rows at once; a row alone gives the same text
    how: dict[str, Any] = {"greedy": True, "ids": tokenizer.generation} | decoding
    out: list[list[int]] = generate(model, rows, new, **how)
    return [ids[len(row) :] for ids, row in zip(out, rows, strict=True)] if alone else out


def judge(data: Data, n: int, batch_size: int, length: int) -> Any:
    """Return what a run calls at each validation: BLEU and ROUGE-L of greedy texts for the first n pairs held out."""
    batches = Batches(split=data.split("valid"), shuffle=False, batch_size=batch_size, length=length)

    def scores(model: Transformer) -> dict[str, MeanScore]:
        made = write(model, batches, n)
        return {"bleu": MeanScore(made.bleu()["BLEU"], 1.0), "rouge-l": MeanScore(made.rouge()["ROUGE-L"], 1.0)}

    return scores


def _rows(ids: Any, keep: Any) -> list[list[int]]:
    return [(row if keep is None else row[keep[i]]).tolist() for i, row in enumerate(ids)]


def _text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return the text of ids up to the end; what is no token of the data's has none."""
    ids = ids[: ids.index(tokenizer.eos)] if tokenizer.eos in ids else ids
    return tokenizer.decode([i for i in ids if i < tokenizer.vocab_size])
