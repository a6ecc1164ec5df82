"""`open_data`: one door to generated tasks, embedded text, prepared folders and raw files."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kinfolk.core.durable import digest
from kinfolk.core.errors import DataError, suggest
from kinfolk.data.files.names import split_name
from kinfolk.data.files.readers import find_sources
from kinfolk.data.files.treebank import is_treebank, open_treebank
from kinfolk.data.generated import GENERATED, is_generated, open_generated
from kinfolk.data.generated.stdlib import stdlib_files
from kinfolk.data.preparing.job import WORK
from kinfolk.data.preparing.manifest import MANIFEST, VERSION, open_prepared
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.preparing.prepare import prepare
from kinfolk.data.splits.answering import AnswerSpans as AnswerSpans
from kinfolk.data.splits.asking import DataRequest, asked, columns_of, is_columns, is_labelled
from kinfolk.data.splits.beside import open_beside
from kinfolk.data.splits.images import is_images, open_images
from kinfolk.data.splits.several import PREFIX as SEVERAL
from kinfolk.data.splits.several import joined, names_in
from kinfolk.data.splits.split import Data
from kinfolk.data.splits.tagged import Tags, is_tagged
from kinfolk.data.splits.text_labels import labels_of, text_labels
from kinfolk.data.tokenizers.unknown import warn_of_data


def open_data(
    name: str | Path,
    *,
    cache: str | Path | None = None,
    seed: int = 0,
    tokenizer: str = "byte",
    vocab: int | None = None,
    choices: Preparation | None = None,
    workers: int | None = None,
    valid: str | Path | None = None,
) -> Data:
    """Open data by its name or path, preparing it first if need be.

    name: a task (`copy`, `reverse`, `sort`, `addition`, with numbers as in `copy:length=16,symbols=20`), or one with
        labels (`parity`, see `kinfolk.data.generated`); `stdlib`, or a part of it as `stdlib:megabytes=4`; a folder
        made by `prepare`; or any file or folder that `prepare` reads, which is then prepared once and kept in the
        cache. `labelled:PATH` reads the columns `text` and `label` of a table or of JSON lines,
        `labelled:text=review,label=stars:PATH` others; of a CoNLL file, or of JSON lines with `tokens` and `tags`, it
        reads a tag of each word, and of SQuAD's JSON, questions with their answers, through windows of
        `labelled:window=384,stride=128:PATH` tokens. `pairs:source=en,target=de:PATH` reads two columns as sources and
        targets, `corpus:text=review:PATH` one as running text. A treebank (`.conllu`, `.conllu.gz`) is read as it is:
        sentences with their parses, as sources of pairs; `tags:PATH` asks for the part of speech of every word.
        Images are read from MNIST's and CIFAR's own files and from folders of image files, one sub-folder per
        class; `images:PATH` leaves out the classes, and `images:side=32,channels=1:PATH` scales image files.
    cache: where to keep it; None is $KINFOLK_CACHE, or else ~/.cache/kinfolk.
    seed, tokenizer, vocab: as in `Preparation`. A prepared folder and a task have their own tokenizer.
    choices: everything else that can be chosen when preparing; it replaces those three.
    valid: another file, of the same form, to validate on; without it a share of the one file is held out. A name may
        say so too: `labelled:valid=dev.csv:train.csv`.
    """
    text = str(name)
    if text.startswith(SEVERAL):
        arguments = {"cache": cache, "seed": seed, "tokenizer": tokenizer, "vocab": vocab, "choices": choices}
        first, *others = names_in(text)
        parts = [open_data(first, valid=valid, **arguments), *(open_data(other, **arguments) for other in others)]  # type: ignore[arg-type]
        return joined(text, parts)
    is_stdlib = text.partition(":")[0] == "stdlib"
    if valid is not None and (is_stdlib or is_generated(text)):
        raise DataError(f"valid: {text!r} has its own validation part")
    if is_generated(text):
        return open_generated(text, seed)
    choices = choices or Preparation(seed=seed, tokenizer=tokenizer, vocab=vocab)
    door = _Door(choices, cache_folder(cache), workers)
    if is_stdlib:
        numbers = split_name(text, ["megabytes"])[1]
        files = stdlib_files(numbers.get("megabytes"))
        # some of its files are empty, and a few are not UTF-8
        return door.opened(text, files, replace(choices, on_bad="skip"))
    return warn_of_data(_open(text, door, valid))


def _open(text: str, door: "_Door", valid: str | Path | None) -> Data:
    """Open files, whatever they hold."""
    if is_tagged(text) or is_labelled(text) or is_columns(text):
        return _open_labelled(text, door, valid)
    if valid is not None:
        return open_beside(text, Path(text), Path(valid), door.choices, door.prepared)
    return _open_path(Path(text), door)


@dataclasses.dataclass(frozen=True)
class _Door:
    """How files are prepared, and the cache where prepared data is kept."""

    choices: Preparation
    cache: Path
    workers: int | None

    def opened(self, name: str, inputs: Sequence[Path], choices: Preparation) -> Data:
        """Open what was prepared from these very files in this very way, or prepare it now."""
        return replace(open_prepared(self.folder(name, inputs, choices)), name=name)

    def prepared(self, path: Path, choices: Preparation) -> Path:
        """Return the folder of a file that was prepared, now or before."""
        return self.folder(str(path), [path], choices)

    def folder(self, name: str, inputs: Sequence[Path], choices: Preparation) -> Path:
        """Return the folder of files that were prepared, now or before."""
        sources = find_sources(inputs, pairs=choices.pairs)
        seen = [VERSION, choices.plain(), [[os.path.abspath(s.path), s.size, s.mtime] for s in sources]]  # noqa: PTH100
        file = Path(choices.tokenizer)
        seen.append(digest(file) if file.is_file() else "")
        key = hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]
        folder = self.cache / f"{inputs[0].stem if len(inputs) == 1 else name.partition(':')[0]}-{key}"
        if not (folder / MANIFEST).is_file():
            prepare(inputs, folder, choices, workers=self.workers)
        return folder


def _open_labelled(name: str, door: _Door, valid: str | Path | None) -> Data:
    """Open a file with labels, of rows, of words, or of questions; or columns of one that has none."""
    what = asked(name)
    file = valid or what.valid
    beside = None if file is None else Path(file)
    inside = text_labels(Tags.kind) if is_tagged(name) else None if is_columns(name) else labels_of(what)
    data = inside.open(name, what, door.choices, beside) if inside else _open_rows(name, what, door, beside)
    return replace(data, task=what.task)


def _open_rows(name: str, what: DataRequest, door: _Door, beside: Path | None) -> Data:
    """Open a file with labels of rows, or columns without labels."""
    choices = door.choices
    choices = columns_of(name, what, choices) if is_columns(name) else what.choices(choices)
    if beside is not None:
        return open_beside(name, what.path, beside, choices, door.prepared, add=what.adds_unknown)
    return door.opened(name, [what.path], choices)


def _open_path(path: Path, door: _Door) -> Data:
    """Open what lies on disk: prepared, or to be prepared now."""
    if (path / MANIFEST).is_file():
        return open_prepared(path)
    if (path / WORK).is_dir():
        raise DataError(f"{path}: not finished being prepared; run the same `kin prepare` again to go on")
    if is_images(path):
        return open_images(path, door.cache, door.choices)
    if path.is_file() and is_treebank(path):
        return open_treebank(path, door.choices)
    if path.exists():
        return door.opened(str(path), [path], door.choices)
    nearest = suggest(str(path), [*GENERATED, "stdlib"])
    raise DataError(f"{path}: no such file or folder, and no data of that name{nearest}")


def cache_folder(given: str | Path | None = None) -> Path:
    """Return where prepared data is kept."""
    chosen = given or os.environ.get("KINFOLK_CACHE") or "~/.cache/kinfolk"
    return Path(chosen).expanduser()
