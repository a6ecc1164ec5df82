"""Nearest neighbours of a word: in the embedding table, and of its occurrences in a text by their states.

A table has one vector for a word, whatever its context; states have one for each time it occurs. Vectors are
compared by the cosine of their angle after the mean over all words is taken away: states lie in a narrow cone, and
without that all of them would be alike (Ethayarajh 2019).
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError, suggest
from kinfolk.data import Tokenizer
from kinfolk.models.model import Transformer
from kinfolk.train.evaluate import scoring
from kinfolk.use.inspect.sight import MOST

LONGEST = 8192
"""Tokens of a text in which occurrences are looked for."""
AROUND = 4
"""Words on either side that are shown with an occurrence."""
CHUNK = re.compile(r"\s*\w+|\s*[^\w\s]+|\s+")


@dataclasses.dataclass(frozen=True)
class Near:
    """A neighbour: the word, how near it is, and of an occurrence, which word of the text it is and what is around."""

    word: str
    cosine: float
    place: int = -1
    around: str = ""


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """One time that the word occurs, and the occurrences whose states are nearest."""

    place: int
    around: str
    near: tuple[Near, ...]


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """Nearest neighbours of a word: by the embedding table once, by contextual states at each occurrence."""

    word: str
    layer: str
    static: tuple[Near, ...]
    contextual: tuple[Occurrence, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Words:
    """The words of a text with the ids of their pieces."""

    chunks: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]

    def word(self, place: int) -> str:
        return self.chunks[place].strip()

    def around(self, place: int) -> str:
        first = max(0, place - AROUND)
        before, after = self.chunks[first:place], self.chunks[place + 1 : place + 1 + AROUND]
        return " ".join(f"{''.join(before)} [{self.word(place)}]{''.join(after)}".split())


def neighbours(
    model: Transformer,
    tokenizer: Tokenizer,
    text: str,
    word: str,
    *,
    n: int = 8,
    layer: int | None = None,
    occurrences: int = 4,
) -> Neighbours:
    """Return the nearest neighbours of a word of a text, by the table and by the states of a layer (None: the last).

    Vectors of a word are means over its pieces. Candidates are the words of the text, its first 8,192 tokens, read in
    windows as long as the model can. At most `occurrences` of the word are looked at, and n neighbours of each.
    """
    words = _read(tokenizer, text)
    real = [i for i in range(len(words.chunks)) if re.search(r"\w", words.chunks[i])]
    mine = [i for i in real if words.word(i) == word]
    if not mine:
        known = sorted({words.word(i) for i in real})
        nearest = suggest(word, known).partition(" (known")[0]
        raise DataError(f"the word {word!r} does not occur in the first {LONGEST:,} tokens of the text{nearest}")
    states, name = _states(model, tokenizer, words, layer)
    at = {place: row for row, place in enumerate(real)}
    near_WW = _cosines(states[real], [at[place] for place in mine[:occurrences]])
    found = []
    for row, place in zip(near_WW, mine, strict=False):
        others = [(float(row[at[other]]), other) for other in real if other != place]
        best = sorted(others, key=lambda pair: (-pair[0], pair[1]))[:n]
        near = tuple(Near(words.word(o), cosine, o, words.around(o)) for cosine, o in best)
        found.append(Occurrence(place, words.around(place), near))
    return Neighbours(word, name, _static(model, words, real, word, n), tuple(found))


def _static(model: Transformer, words: _Words, real: Sequence[int], word: str, n: int) -> tuple[Near, ...]:
    try:
        table_VD = model.embedding.weight.detach()
    except NotImplementedError:
        raise DataError("this model has no one table of vectors, so words have none without a context") from None
    first: dict[str, int] = {}
    for place in real:
        first.setdefault(words.word(place), place)
    names = list(first)
    vectors = torch.stack([table_VD[list(words.ids[place])].double().mean(0) for place in first.values()])
    row = _cosines(vectors, [names.index(word)])[0]
    pairs = [(float(row[i]), name) for i, name in enumerate(names) if name != word]
    best = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:n]
    return tuple(Near(name, cosine) for cosine, name in best)


def _read(tokenizer: Tokenizer, text: str) -> _Words:
    chunks, ids, total = [], [], 0
    for match in CHUNK.finditer(text):
        pieces = [int(i) for i in tokenizer.encode(match[0])]
        total += len(pieces)
        if total > LONGEST:
            break
        if pieces:
            chunks.append(match[0])
            ids.append(tuple(pieces))
    return _Words(tuple(chunks), tuple(ids))


def _states(model: Transformer, tokenizer: Tokenizer, words: _Words, layer: int | None) -> tuple[Tensor, str]:
    """Return the mean state of the pieces of each word, and the name of the layer."""
    longest = min(MOST, model.limit or MOST)
    opening = [] if model.spec.topology == "encoder" else [tokenizer.bos]
    room = longest - len(opening)
    means, name = [], ""
    with scoring(model):
        for group in _windows(words, room):
            ids = [i for place in group for i in words.ids[place]][:room]
            states_LD, name = _run(model, ids, opening, layer)
            start = 0
            for place in group:
                stop = start + len(words.ids[place])
                means.append(states_LD[start:stop].double().mean(0))
                start = stop
    return torch.stack(means), name


def _run(model: Transformer, ids: list[int], opening: list[int], layer: int | None) -> tuple[Tensor, str]:
    """Return the states of tokens, those of the encoder where there are two sides."""
    both = model.spec.topology == "encoder-decoder"
    tokens = torch.tensor([opening if both else [*opening, *ids]])
    batch = Batch(index=torch.zeros(1, dtype=torch.long), tokens=tokens, source=torch.tensor([ids]) if both else None)
    side = "decoder" if model.spec.topology == "decoder" else "encoder"
    output = model.run(batch, taps=("hidden",))
    found = {path: x for path, x in output.taps.items() if path.startswith(f"{side}.") and path.endswith(".hidden")}
    if layer is None and not both:
        states, name = output.hidden[0], "last"
    else:
        names = list(found)
        number = len(names) - 1 if layer is None else layer
        if not 0 <= number < len(names):
            raise DataError(f"--layer: there is no layer {layer}; they are 0 to {len(names) - 1}")
        states, name = found[names[number]][0], names[number].removesuffix(".hidden")
    return states if both else states[len(opening) :], name


def _windows(words: _Words, room: int) -> Iterator[list[int]]:
    """Yield the words that fit a window, one after the other; a word that does not fit one is cut."""
    group: list[int] = []
    length = 0
    for place, ids in enumerate(words.ids):
        if group and length + len(ids) > room:
            yield group
            group, length = [], 0
        group.append(place)
        length += len(ids)
    if group:
        yield group


def _cosines(vectors_WD: Tensor, rows: Sequence[int]) -> Tensor:
    centred = vectors_WD - vectors_WD.mean(0)
    unit = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return unit[list(rows)] @ unit.mT
