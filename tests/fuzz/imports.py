"""Folders of Hugging Face's libraries with something wrong: configurations, weights, tokenizers."""

import functools
import json
import random
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

import kinfolk as kf
from kinfolk.data import Tokenizer
from tests.family.test_relatives import numbers
from tests.fuzz.command_lines import call, check
from tests.fuzz.specs import copied, leaves, wrong

RELATIVES = ["gpt2", "bert", "roberta", "t5", "bart", "albert", "electra", "xlnet", "reformer", "deberta"]


@functools.cache
def folders() -> list[Path]:
    """Return exports of some relatives, made once."""
    root, found = Path(tempfile.mkdtemp(prefix="fuzz")), []
    for name in RELATIVES:
        recipe = kf.relative(name, size="tiny", **(numbers(name) | {"vocab_size": Tokenizer.byte().vocab_size}))
        try:
            kf.to_hf(kf.build(recipe, seed=0), root / name)
        except kf.KinfolkError:
            # not every small one has a layout there
            continue
        Tokenizer.byte().save(root / name / "tokenizer.json")
        if call(["import", str(root / name), "--out", str(root / f"{name}-run")])[0] == 0:
            found.append(root / name)
    assert len(found) >= 4
    return found


def change_json(rng: random.Random, file: Path) -> None:
    """Change some values, or write something that is no such file at all."""
    data: Any = json.loads(file.read_text(encoding="utf-8"))
    if rng.random() < 0.1:
        file.write_text(rng.choice(["", "{", "[]", "3", '"x"', "null", "[" * 5000, "NaN", "{}"]))
        return
    for _ in range(rng.choice([1, 1, 2, 4])):
        *above, last = rng.choice(leaves(data))
        place = functools.reduce(lambda value, key: value[key], above, data)
        try:
            if rng.random() < 0.15:
                place.pop(last)
            else:
                place[last] = copied(wrong(rng, place[last]))
            file.write_text(json.dumps(data))
        # nested too deeply, or a number that JSON cannot hold
        except (RecursionError, ValueError):
            return


def change_weights(rng: random.Random, file: Path) -> bool:
    """Damage a safetensors file; return whether its weights hold NaN now."""
    raw = bytearray(file.read_bytes())
    size = struct.unpack("<Q", raw[:8])[0]
    kind = rng.choice(["header", "cut", "flip", "nan", "nan", "length"])
    if kind == "cut":
        file.write_bytes(raw[: rng.randrange(len(raw))])
    elif kind == "flip":
        for _ in range(rng.choice([1, 8])):
            raw[rng.randrange(8 + size)] ^= 1 << rng.randrange(8)
        file.write_bytes(raw)
    elif kind == "nan":
        at = 8 + size + 4 * rng.randrange((len(raw) - 8 - size) // 4)
        raw[at : at + 4] = struct.pack("<f", rng.choice([float("nan"), float("inf"), float("-inf")]))
        file.write_bytes(raw)
        return True
    elif kind == "length":
        raw[:8] = struct.pack("<Q", rng.choice([0, 1, size - 1, size + 1, 2**40, 2**63]))
        file.write_bytes(raw)
    else:
        header = json.loads(raw[8 : 8 + size])
        name = rng.choice([key for key in header if key != "__metadata__"])
        change = rng.choice(["drop", "rename", "shape", "dtype", "offsets"])
        if change in ("drop", "rename"):
            value = header.pop(name)
            header |= {rng.choice(["bogus", name + ".x", "../x", ""]): value} if change == "rename" else {}
        else:
            key = {"shape": "shape", "dtype": "dtype", "offsets": "data_offsets"}[change]
            header[name][key] = rng.choice(
                [[1], [2**40, 2**40], [-1], [], "F16", "I64", "BOOL", "X", [0, 4], [4, 0], None]
            )
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(raw[8 + size :]))
    return False


def import_case(rng: random.Random) -> None:
    """Damage a copy of a folder, and import it."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "theirs"
        shutil.copytree(rng.choice(folders()), folder)
        files = sorted(path for path in folder.iterdir() if path.is_file())
        file, poisoned = rng.choice([path for path in files if path.name != "generation_config.json"]), False
        if rng.random() < 0.05:
            file.unlink()
        elif file.suffix == ".json":
            change_json(rng, file)
        elif file.suffix == ".safetensors":
            poisoned = change_weights(rng, file)
        else:
            file.write_bytes(rng.randbytes(rng.choice([0, 100])))
        check(["import", str(folder), "--out", str(Path(root) / "run")])
        if poisoned:
            raise AssertionError("weights that are not finite were imported")


import_case.setup = folders  # type: ignore[attr-defined]
