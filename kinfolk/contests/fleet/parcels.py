"""Files sent to and from nodes that share no folder: shipped once by hash, returned in letters as a trial writes.

A letter is first written down whole (`incoming/`), then applied, so that a driver that is killed while it applies one
applies it again, and a trial's folder is never half of two states.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from kinfolk.contests.outcome import FILE as RESULT
from kinfolk.contests.trial import FILE as ORDER
from kinfolk.contests.trial import RUN, TRUNK
from kinfolk.core import durable
from kinfolk.core.errors import DataError
from kinfolk.data.location import moved
from kinfolk.runs.checkpoint import name as checkpoint_name

Files = dict[str, bytes]
INCOMING = "incoming"
SHIPPED = "shipped"


def pack(path: Path, prefix: str = "") -> tuple[str, Files]:
    """Read a file or a folder, below `prefix`, and return its hash and its content."""
    paths = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    files = {str(PurePosixPath(prefix) / p.relative_to(path.parent).as_posix()): p.read_bytes() for p in paths}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(json.dumps([name, hashlib.sha256(content).hexdigest()]).encode())
    return digest.hexdigest()[:32], files


def unpack(digest: str, files: Callable[[], Mapping[str, bytes]], cache: Path) -> Path:
    """Return the folder that holds files of this hash, written now or before."""
    place = cache / SHIPPED / digest
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f"{digest}.{os.getpid()}{durable.ASIDE}")
    for name, content in files().items():
        _inside(aside, name).parent.mkdir(parents=True, exist_ok=True)
        (aside / name).write_bytes(content)
    with contextlib.suppress(OSError):
        # another process of this node may have been faster, with the same content
        aside.rename(place)
    shutil.rmtree(aside, ignore_errors=True)
    return place


@dataclasses.dataclass(frozen=True)
class Shipment:
    """The files that an order names, and the order with `{hash}/path` in the place of their paths."""

    order: dict[str, Any]
    paths: dict[str, tuple[Path, str]]

    @classmethod
    def of(cls, order: Mapping[str, Any], digest_of: Callable[[Path, str], str]) -> "Shipment":
        """Find what an order names. digest_of: the hash of a path, packed below a prefix."""
        paths: dict[str, tuple[Path, str]] = {}

        def move(text: str) -> str:
            path = Path(text)
            if not path.is_absolute() or not path.exists():
                return text
            digest = digest_of(path, "")
            paths[digest] = (path, "")
            return f"{MARK}{digest}/{path.name}"

        data = {key: value for key, value in order["data"].items() if key != "cache"}
        data = data if "env" in data else moved(data, move)
        begins = dict(order.get("begins", {}))
        source = Path(begins.get("source", ""))
        if TRUNK in begins:
            inner = f"{source.name}/{RUN}/checkpoints"
            path = source / RUN / "checkpoints" / checkpoint_name(begins["step"])
            digest = digest_of(path, inner)
            paths[digest] = (path, inner)
            begins["source"] = f"{MARK}{digest}/{source.name}"
        elif source.is_absolute() and source.exists():
            begins["source"] = move(str(source))
        return cls(dict(order) | {"data": data, "begins": begins}, paths)


MARK = "kinfolk-shipped://"


def arrived(order: Mapping[str, Any], place_of: Callable[[str], Path]) -> dict[str, Any]:
    """Return an order with the paths that shipped files have on this node."""

    def put(value: Any) -> Any:
        if isinstance(value, str) and MARK in value:
            head, _, rest = value.partition(MARK)
            digest, _, inner = rest.partition("/")
            return put(f"{head}{place_of(digest)}/{inner}")
        if isinstance(value, dict):
            return {key: put(inner) for key, inner in value.items()}
        return value

    return {key: put(value) if key in ("data", "begins") else value for key, value in order.items()}


@dataclasses.dataclass
class Sender:
    """Finds what a trial has written since the last letter."""

    folder: Path
    seen: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    links: dict[str, str] = dataclasses.field(default_factory=dict)

    def letter(self) -> dict[str, Any] | None:
        """Return changed files, links, and the names of all there are; None where nothing has changed."""
        files: Files = {}
        links: dict[str, str] = {}
        stamps: dict[str, tuple[int, int]] = {}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if durable.ASIDE in name or name == ORDER:
                continue
            with contextlib.suppress(FileNotFoundError):
                if path.is_symlink():
                    links[name] = str(path.readlink())
                elif path.is_file():
                    stat = path.stat()
                    stamps[name] = (stat.st_size, stat.st_mtime_ns)
                    if self.seen.get(name) != stamps[name]:
                        files[name] = path.read_bytes()
        if not files and stamps.keys() == self.seen.keys() and links == self.links:
            return None
        self.seen, self.links = stamps, links
        return {"files": files, "links": links, "names": sorted({*stamps, *links})}


def receive(folder: Path, letter: Mapping[str, Any]) -> None:
    """Write a letter down, then apply it."""
    incoming = folder / INCOMING
    incoming.mkdir(exist_ok=True)
    number = len(list(incoming.iterdir()))
    with durable.folder(incoming / f"{number:06}") as aside:
        for i, (name, content) in enumerate(letter["files"].items()):
            _inside(folder, name)
            (aside / str(i)).write_bytes(content)
        index = {"files": list(letter["files"]), "links": letter["links"], "names": letter["names"]}
        (aside / "index.json").write_text(json.dumps(index), encoding="utf-8")
    apply(folder)


def apply(folder: Path) -> None:
    """Apply the letters that were written down, in order; doing so twice does no harm."""
    incoming = folder / INCOMING
    if not incoming.is_dir():
        return
    for letter in sorted(path for path in incoming.iterdir() if durable.ASIDE not in path.name):
        index = json.loads((letter / "index.json").read_text(encoding="utf-8"))
        # the result last: it says that everything else is there
        for i, name in sorted(enumerate(index["files"]), key=lambda pair: pair[1] == RESULT):
            target = _inside(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            durable.copy(letter / str(i), target)
        _prune(folder, set(index["names"]))
        for name, target in index["links"].items():
            link = _inside(folder, name)
            link.unlink(missing_ok=True)
            link.symlink_to(PurePosixPath(target).name)
        shutil.rmtree(letter)
    incoming.rmdir()


def _prune(folder: Path, names: set[str]) -> None:
    """Remove what the trial has removed."""
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder).as_posix()
        if name in names or name == ORDER or name.partition("/")[0] == INCOMING:
            continue
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.rmdir()
        else:
            path.unlink(missing_ok=True)


def _inside(folder: Path, name: str) -> Path:
    lexical = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
    # a folder on the way may be a link
    if not lexical or not (folder / name).parent.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{folder}: a node sent a file named {name!r}, which is outside of its trial")
    return folder / name
