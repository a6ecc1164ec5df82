"""Which relatives can be exported to ONNX: tries every one as a toy and writes the table of docs/onnx.md.

    python docs/studies/onnx_table.py                 all relatives, a quarter of an hour on one core
    python docs/studies/onnx_table.py gpt2 t5 moe     these rows only

A toy has one layer and weights away from where they begin. Its graphs are held to torch by `kin export` itself, at
batches and lengths that were not traced and token by token; then int8 is made of them.
"""

import re
import sys
import tempfile
import time
from pathlib import Path

import torch

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))
PAGE = HOUSE / "docs" / "onnx.md"
MARKS = re.compile(r"(<!-- relatives -->\n).*?(<!-- /relatives -->)", re.DOTALL)
HEAD = "| relative | graphs | largest difference | int8 differs by | |\n|---|---|---|---|---|\n"


def main() -> None:
    """Try the relatives that are named, or all, and write their rows."""
    import kinfolk as kf

    torch.set_num_threads(1)
    known, n_tried = rows(), 0
    asked = sys.argv[1:] or kf.relatives()
    for name in asked:
        start = time.perf_counter()
        known[name], n_tried = row(name), n_tried + 1
        print(f"{n_tried}: {known[name]}  {time.perf_counter() - start:.0f} s", flush=True)
        write({name: known[name] for name in kf.relatives() if name in known})


def row(name: str) -> str:
    """Return the row of one relative."""
    from kinfolk.core.errors import KinfolkError
    from kinfolk.use.onnx.export import to_int8, to_onnx
    from tests.use.onnx.toys import toy

    with tempfile.TemporaryDirectory() as aside:
        try:
            about = to_onnx(toy(name), Path(aside) / "fp32")
        except KinfolkError as error:
            why = str(error).replace("|", "/").replace("\n", " ")
            return f"| {name} | no | | | {why[:160]} |"
        worst = max(about.differences.values())
        small = to_int8(Path(aside) / "fp32", Path(aside) / "int8")
        less = max(small.differences.values())
    how = {"encoder": "model", "decoder": "model", "encoder-decoder": "encoder, decoder"}[about.topology]
    state = "fused" if about.fused else "single" if about.single else ""
    notes = [state, "" if about.padded else "rows of one length"]
    return f"| {name} | {how} | {worst:.1e} | {less:.3f} | {', '.join(note for note in notes if note)} |"


def rows() -> dict[str, str]:
    """Return the rows of the page by relative."""
    found = MARKS.search(PAGE.read_text(encoding="utf-8"))
    lines = found[0].splitlines() if found else []
    return {line.split("|")[1].strip(): line for line in lines if line.startswith("| ") and "relative |" not in line}


def write(found: dict[str, str]) -> None:
    """Put rows into the page."""
    text = PAGE.read_text(encoding="utf-8")
    table = HEAD + "\n".join(found.values()) + "\n"
    PAGE.write_text(MARKS.sub(lambda match: f"{match[1]}{table}{match[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
