"""Plain text to documents: where a long text may be cut.

A text file has no marks between documents, and one file must give both a training and a validation part, so it is
cut: at the first blank line after `piece` bytes, else at the first line end, else, at twice that size, between two
characters. A file shorter than that stays whole. The longest line therefore never needs to fit in memory.
"""

from collections.abc import Iterator

from kinfolk.data.files.sources import Bytes

_BLOCK = 1 << 20
_NEAR = 1 << 16
_CUTS = (b"\n\n", b"\n\r\n", b"\n")


def pieces(file: Bytes, left: int | None, piece: int) -> Iterator[bytes]:
    """Yield the next `left` bytes of a file (None: all) in documents; nothing is lost or changed."""
    buffer, start, at_end = b"", 0, False
    while True:
        while not at_end and len(buffer) - start < 2 * piece + 4:
            block = file.read(_BLOCK if left is None else min(_BLOCK, left))
            left = None if left is None else left - len(block)
            at_end = not block
            buffer, start = buffer[start:] + block, 0
        if start == len(buffer):
            return
        stop = _cut(buffer, start, piece)
        yield buffer[start:stop]
        start = stop


def text_start(file: Bytes, at: int) -> int:
    """Move a file to the first place from `at` on where a part of the text may begin, and return that place.

    That is the next line, or, when none begins nearby, the next character.
    """
    if at > 0:
        file.seek(at - 1)
        near = file.read(_NEAR)
        newline = near.find(b"\n")
        at = at + newline if newline >= 0 else at - 1 + _character(near, 1)
        file.seek(at)
    return file.tell()


def _cut(buffer: bytes, start: int, piece: int) -> int:
    most = start + 2 * piece
    if len(buffer) <= start + piece:
        return len(buffer)
    for mark in _CUTS:
        place = buffer.find(mark, start + piece, most)
        if place >= 0:
            return place + len(mark)
    return len(buffer) if len(buffer) <= most else _character(buffer, most)


def _character(buffer: bytes, place: int) -> int:
    """Return the place of the first character that begins at or after `place`; what is no UTF-8 is cut anywhere."""
    for i in range(place, place + 4):
        if i >= len(buffer) or buffer[i] & 0xC0 != 0x80:
            return min(i, len(buffer))
    return place
