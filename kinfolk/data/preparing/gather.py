"""Manifest of prepared data, gathered from the records of finished jobs."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinfolk.core import durable
from kinfolk.data.files.reader import Bad
from kinfolk.data.preparing.job import PreparationWorkshop, bad_line
from kinfolk.data.preparing.manifest import BAD, TOKENIZER, PreparedManifest
from kinfolk.data.splits.labels import refuse_many

_COUNTS = ("documents", "tokens", "scored", "bytes", "unknown")


def records(shop: PreparationWorkshop) -> Iterator[dict[str, Any]]:
    """Yield what each job has recorded."""
    for job in range(len(shop.plan.jobs)):
        record: dict[str, Any] = json.loads(shop.record(job).read_bytes())
        yield record


def gather(shop: PreparationWorkshop) -> PreparedManifest:
    """Write the list of bad rows and then the manifest, whose presence says that all is done."""
    plan, tokenizer, folder = shop.plan, shop.tokenizer, shop.folder
    bad = Counter(reason for _, reason, _ in plan.bad)
    splits: dict[str, dict[str, Any]] = {
        name: dict.fromkeys(_COUNTS, 0) | {"shards": []} for name in ("train", "valid")
    }
    files: dict[str, dict[str, Any]] = {}
    for job, record in enumerate(records(shop)):
        bad.update(record["bad"])
        for name, split in record["splits"].items():
            for key in _COUNTS:
                splits[name][key] += split[key]
            if "labels" in split:
                splits[name]["labels"] = dict(Counter(splits[name].get("labels", {})) + Counter(split["labels"]))
                refuse_many(splits[name]["labels"], plan.choices)
            if split["files"]:
                splits[name]["shards"].append([f"{name}-{job:05d}", split["tokens"], split["sequences"]])
            files |= split["files"]
    if bad:
        _write_bad_rows(shop, folder / BAD)
    for name in (TOKENIZER, BAD) if bad else (TOKENIZER,):
        files[name] = {"bytes": (folder / name).stat().st_size, "sha256": durable.digest(folder / name)}
    manifest = PreparedManifest(
        kind="labelled" if plan.choices.label_column else "pairs" if plan.choices.pairs else "text",
        dtype=tokenizer.dtype.str,
        tokenizer={"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "sha256": files[TOKENIZER]["sha256"]},
        preparation=_choices(shop),
        inputs={"files": len(plan.sources), "bytes": plan.total},
        splits=splits,
        bad=dict(bad),
        files=files,
    )
    manifest.write(folder)
    return manifest


def _choices(shop: PreparationWorkshop) -> dict[str, Any]:
    """Return the choices that are in the data: not what a bad row did, nor where the tokenizer's file was."""
    choices = shop.plan.choices.plain() | {"tokenizer": Path(shop.plan.choices.tokenizer).name}
    del choices["on_bad"]
    return choices


def _write_bad_rows(shop: PreparationWorkshop, path: Path) -> None:
    """Join the lists of all jobs, in bounded memory."""
    with durable.appearing(path) as aside, aside.open("wb") as out:
        for name, reason, detail in shop.plan.bad:
            out.write(bad_line(name, Bad(1, reason, detail)))
        for job in range(len(shop.plan.jobs)):
            if shop.bad_rows(job).exists():
                with shop.bad_rows(job).open("rb") as part:
                    shutil.copyfileobj(part, out)
