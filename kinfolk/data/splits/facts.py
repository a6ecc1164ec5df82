"""Knowledge-graph triples and entity mentions of a tab-separated file, as token ids."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from kinfolk.core.errors import DataError
from kinfolk.core.knowledge import Branches, Name, Names
from kinfolk.data.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")


def read_rows(file: Path, columns: tuple[str, ...], more: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of every line and its columns; `more` of them may be missing at the end.

    Lines that are empty are passed over. One of another number of columns, or with an empty one, is refused.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as UTF-8 text: {error}") from None
    # not splitlines: other marks than the end of a line may be in a name
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        values = [column.strip() for column in line.rstrip("\r").split("\t")]
        wanted = " TAB ".join(columns)
        if not len(columns) - more <= len(values) <= len(columns):
            raise DataError(f"{file}:{number}: has {len(values)} columns, and {wanted} are expected: {line[:80]!r}")
        if not all(values):
            empty = columns[values.index("")]
            raise DataError(f"{file}:{number}: the {empty} is empty ({wanted} are expected): {line[:80]!r}")
        yield number, values


def read_triples(file: str | Path, tokenizer: Tokenizer, relation: bool = True) -> Names[Branches]:
    """Read `subject TAB relation TAB object` lines: what hangs on each subject, in the order of the file.

    A subject that the tokenizer cannot spell is left out: it would be found wherever something cannot be spelt.
    """
    facts: dict[str, list[str]] = {}
    for _, (subject, verb, what) in read_rows(Path(file), ("subject", "relation", "object")):
        text = f"{verb} {what}" if relation else what
        texts = facts.setdefault(subject, [])
        if text not in texts:
            texts.append(text)
    subjects = list(facts)
    ids = iter(spelt(tokenizer, [text for subject in subjects for text in facts[subject]]))
    branches = [tuple(next(ids) for _ in facts[subject]) for subject in subjects]
    return Names(named(tokenizer, dict(zip(subjects, branches, strict=True))))


def read_entities(file: str | Path, tokenizer: Tokenizer) -> tuple[Names[tuple[tuple[int, float], ...]], list[str]]:
    """Read `mention TAB entity TAB prior` lines: the candidates of each mention, the likeliest first, and all entities.

    Priors are above 0, and of each mention divided by their sum; a line without one counts 1.
    """
    numbers: dict[str, int] = {}
    counts: dict[str, dict[int, float]] = {}
    for line, (mention, entity, *prior) in read_rows(Path(file), ("mention", "entity", "prior"), more=1):
        entry = counts.setdefault(mention, {})
        number = numbers.setdefault(entity, len(numbers))
        if number in entry:
            raise DataError(f"{file}:{line}: says once more that {mention!r} may mean {entity!r}")
        entry[number] = _prior(prior[0], f"{file}:{line}") if prior else 1.0
    candidates = {}
    for mention, entry in counts.items():
        total = sum(entry.values())
        likeliest = sorted(entry, key=lambda number: (-entry[number], number))
        candidates[mention] = tuple((number, entry[number] / total) for number in likeliest)
    return Names(named(tokenizer, candidates)), list(numbers)


def _prior(text: str, where: str) -> float:
    try:
        prior = float(text)
    except ValueError:
        prior = math.nan
    if not (math.isfinite(prior) and prior > 0):
        raise DataError(f"{where}: the prior {text!r} is not a number above 0")
    return prior


def spelt(tokenizer: Tokenizer, texts: list[str]) -> list[Name]:
    """Return texts as they are spelt in the middle of a line, behind a space."""
    return [tuple(ids.tolist()) for ids in tokenizer.encode_batch([f" {text}" for text in texts])]


def named(tokenizer: Tokenizer, known: Mapping[str, T]) -> dict[Name, T]:
    """Return the names of a dictionary as they are spelt at the beginning and in the middle of a line."""
    names: dict[Name, T] = {}
    first = [tuple(ids.tolist()) for ids in tokenizer.encode_batch(list(known))]
    for what, alone, inside in zip(known.values(), first, spelt(tokenizer, list(known)), strict=True):
        # where a space is a token of its own, it is no part of a name
        ways = [alone] if inside[-len(alone) :] == alone else [alone, inside]
        for ids in ways:
            if ids and tokenizer.unk not in ids:
                names.setdefault(ids, what)
    return names
