"""Lines of a part of a file, in bounded memory, whatever is in the file."""

from collections.abc import Iterator

from kinfolk.core.errors import DataError
from kinfolk.data.files.sources import BROKEN_GZIP, Bytes, open_bytes

_BLOCK = 1 << 20


class RowError(Exception):
    """What is wrong with a row: a reason that can be counted, and what was found. Its reader knows the line."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def count_lines(path: str, stop: int) -> int:
    """Count the lines that end before a place in a file, compressed or not."""
    count = 0
    with open_bytes(path) as file:
        stop -= file.tell()
        while stop > 0 and (block := file.read(min(_BLOCK, stop))):
            count += block.count(b"\n")
            stop -= len(block)
    return count


def next_line(file: Bytes, start: int) -> int:
    """Move a file to the first line that begins at or after `start`, and return where that is."""
    if start == 0:
        return file.tell()
    file.seek(start - 1)
    while (part := file.readline(_BLOCK)) and not part.endswith(b"\n"):
        pass
    return file.tell()


def lines(file: Bytes, place: int, stop: int | None, longest: int) -> Iterator[bytes | None]:
    """Yield the lines that begin before `stop`, without their ends; None replaces one of more than `longest` bytes.

    `place` is the position in the file. A line too long is passed over in pieces and never held.
    """
    while stop is None or place < stop:
        line = file.readline(longest + 2)
        if not line:
            return
        place += len(line)
        body = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(body) <= longest:
            yield body
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_BLOCK)
            place += len(line)
        yield None


def numbered(path: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a small file with their numbers; what is no text is named with its line."""
    number = 0
    try:
        with open_bytes(path) as file:
            for number, raw in enumerate(file, 1):
                yield number, decode(raw).rstrip("\r\n")
    except RowError as error:
        raise DataError(f"{path}:{number}: {error.reason}: {error.detail}") from None
    except BROKEN_GZIP as error:
        raise DataError(f"{path}:{number + 1}: broken gzip: {error}") from None


def decode(raw: bytes) -> str:
    """Return a line as text, or raise `RowError` with what is wrong with it."""
    if b"\0" in raw:
        raise RowError("NUL byte", f"at column {raw.index(0) + 1}")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RowError("not valid UTF-8", f"byte 0x{raw[error.start]:02x} at column {error.start + 1}") from None
