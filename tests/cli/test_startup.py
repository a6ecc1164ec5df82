"""What a verb does not need it does not import: torch's compiler alone takes three seconds."""

import json
import subprocess
import sys

VERBS = [
    "train gpt2 --data stdlib:megabytes=1 --steps 2 --out run --quiet --no-tensorboard"
    " --set n_layers=1 --set d_model=16 --set n_heads=2 --set d_ff=16"
    " --set training.batch_size=2 --set training.length=16 --set training.eval_batches=1",
    "eval run --json",
    "generate run --prompt so --max-new 2",
    "embed run --input lines.txt --out vectors.npy",
    "inspect run --text so",
    "export run --to hf --out theirs",
    "import theirs --out again",
    "runs .",
]
CODE = """
import json, sys
from kinfolk.cli.main import main
for line in json.loads(sys.argv[1]):
    code = main(line.split())
    assert code == 0, (line, code)
    assert "torch._dynamo" not in sys.modules, line
"""


def test_no_everyday_verb_imports_the_compiler(tmp_path):
    (tmp_path / "lines.txt").write_text("so it is\n")
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(VERBS)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
