"""Trained models are opened by `Run` alone: calls that read weights, specs or run.toml elsewhere are listed here."""

import ast
from collections.abc import Sequence
from pathlib import Path

import kinfolk
from tests.each import over

HOME = Path(kinfolk.__file__).parent
READING = {
    "load_weights": "fills a model from a file",
    "load_file": "reads safetensors",
    "safe_open": "reads safetensors",
    "open_folder": "reads a Hugging Face folder",
    "weights_file": "finds the weights of a run",
    "load_learner": "opened a run, once",
}
ALLOWED = {
    # what Run is made of
    "models/folder.py": {"safe_open"},
    # the header alone, before memory is allocated
    "models/room.py": {"safe_open"},
    # initial weights of a run that begins or resumes
    "train/run.py": {"load_weights"},
}
FILES = [file for file in sorted(HOME.rglob("*.py")) if file.relative_to(HOME).parts[0] != "runs"]


def called(found: Sequence[ast.AST]) -> set[str]:
    """Return the names of functions that are called, whatever they are attributes of."""
    calls = [node.func for node in found if isinstance(node, ast.Call)]
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}


def specs_read(found: Sequence[ast.AST]) -> bool:
    """Tell whether `load`, `read_recipe` or `read_toml` is called on a path that ends in spec.toml or run.toml."""
    reading = {"load", "read_recipe", "read_toml"}
    for node in found if called(found) & reading else ():
        if isinstance(node, ast.Call) and called(tuple(ast.walk(node))) & reading:
            text = " ".join(ast.unparse(argument) for argument in node.args)
            if "spec.toml" in text or "run.toml" in text or ".SPEC" in text:
                return True
    return False


@over(FILES)
def test_only_run_opens_a_trained_model(file: Path) -> None:
    name, found = str(file.relative_to(HOME)), tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    others = (called(found) & set(READING)) - ALLOWED.get(name, set())
    assert not others, f"{name}: {sorted(others)}; open it with Run.open"
    # a run that resumes reads its own spec after its files were checked
    assert not specs_read(found) or name == "train/run.py"
