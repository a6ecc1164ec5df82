"""How fast a folder of about 100 million parameters opens, and what it takes in memory.

    python docs/studies/loading.py                 BERT, GPT-2 and DeBERTa as large as their papers have them
    python docs/studies/loading.py --kinds bert --repeats 5

A folder is written once with weights drawn from a seed; each opening is a process of its own, the first of which is not
counted (it reads the file from the disk). Seconds are of `kf.from_hf` alone, after everything is imported; memory is
what the process holds more than before, after every weight has been read.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import json, sys, time
import torch
import kinfolk as kf
from kinfolk.bench.resident import forget_peak, resident
from kinfolk.core.memory import peak_memory
from kinfolk.runs.huggingface.folder import load_formats
torch.set_num_threads(1)
load_formats()
before = resident()
forget_peak()
start = time.perf_counter()
model = kf.from_hf(sys.argv[1])
seconds = time.perf_counter() - start
total = sum(float(p.detach().sum()) for p in model.parameters())
found = {"seconds": seconds, "resident": resident() - before, "peak": peak_memory() - before}
print(json.dumps(found | {"parameters": model.n_params, "finite": total == total}))
"""


def opened(folder: Path) -> dict[str, float]:
    """Open a folder in a process of its own."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write folders, open them, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", default="bert,gpt2,deberta", help="relatives that have a kind of checkpoint")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    import kinfolk as kf

    print("| kind | parameters | file | seconds, warm | memory, all read | most at once |\n|---|---|---|---|---|---|")
    for kind in args.kinds.split(","):
        with tempfile.TemporaryDirectory() as aside:
            folder = kf.to_hf(kf.build(kf.relative(kind, size="base")), Path(aside) / kind)
            size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            opened(folder)
            found = [opened(folder) for _ in range(args.repeats)]
            seconds, held, most = (statistics.median(f[key] for f in found) for key in ("seconds", "resident", "peak"))
            n = int(found[0]["parameters"])
            row = f"{n / 1e6:.0f} M | {size / 1e6:.0f} MB | {seconds:.2f} | {held / size:.2f} × | {most / size:.2f} ×"
            print(f"| {kind} | {row} |", flush=True)


if __name__ == "__main__":
    main()
