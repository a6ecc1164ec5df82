"""What the tests of this folder share: input made on the spot, and a look at everything a folder holds."""

import hashlib
import random
from pathlib import Path


def prose(n_bytes: int, seed: int = 0) -> str:
    """Return about so much text: paragraphs of made-up words in several scripts."""
    chance = random.Random(seed)
    letters = ["abcdefghijklmnopqrstuvwxyz", "абвгдежзик", "äöüßéè", "東京大阪"]
    words = ["".join(chance.choices(chance.choice(letters), k=chance.randint(1, 9))) for _ in range(500)]
    lines: list[str] = []
    size = 0
    while size < n_bytes:
        line = " ".join(chance.choices(words, k=chance.randint(3, 15))) + ("\n\n" if chance.random() < 0.1 else "\n")
        size += len(line.encode())
        lines.append(line)
    return "".join(lines)


def contents(folder: Path) -> dict[str, str]:
    """Return the hash of every file in a folder, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
