"""Kinfolk: the whole Transformer family in one grammar.

    import kinfolk as kf
    recipe = kf.relative("gpt2", size="tiny")
    model = kf.build(recipe, seed=0)
    logits = model(tokens).logits

Names are looked up when they are asked for, so that `import kinfolk` is instant and imports no tensor library.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "relatives": ("kinfolk.family.registry", "relatives"),
    "relative": ("kinfolk.family.making", "make"),
    "axes": ("kinfolk.family.grammar", "axes"),
    "choices": ("kinfolk.family.grammar", "choices"),
    "about": ("kinfolk.family.making", "about"),
    "build": ("kinfolk.family.building", "build"),
    "layer": ("kinfolk.family.standalone", "layer"),
    "save": ("kinfolk.family.building", "save"),
    "load": ("kinfolk.runs.run", "load_model"),
    "Run": ("kinfolk.use.onnx.opening", "Run"),  # which registers the engines of `Run.engine`
    "fit": ("kinfolk.runs.fit", "fit"),
    "train": ("kinfolk.train", ""),
    "evaluate": ("kinfolk.use.evaluation", "evaluate"),
    "predict": ("kinfolk.use.functions", "predict"),
    "finetune": ("kinfolk.use.functions", "finetune"),
    "embed": ("kinfolk.use.functions", "embed"),
    "from_hf": ("kinfolk.runs.huggingface.folder", "from_hf"),
    "to_hf": ("kinfolk.runs.huggingface.folder", "to_hf"),
    "attend": ("kinfolk.ops.attention.attend", "attend"),
    "patterns": ("kinfolk.ops.patterns.leaves", ""),
    "generate": ("kinfolk.use.generating", "generate"),
    "compare": ("kinfolk.contests", "compare"),
    "KinfolkError": ("kinfolk.core.errors", "KinfolkError"),
}

if TYPE_CHECKING:
    from kinfolk.contests import compare
    from kinfolk.core.errors import KinfolkError
    from kinfolk.family.building import build, save
    from kinfolk.family.grammar import axes, choices
    from kinfolk.family.making import about
    from kinfolk.family.making import make as relative
    from kinfolk.family.registry import relatives
    from kinfolk.family.standalone import layer
    from kinfolk.ops.attention.attend import attend
    from kinfolk.ops.patterns import leaves as patterns
    from kinfolk.runs.fit import fit
    from kinfolk.runs.huggingface.folder import from_hf, to_hf
    from kinfolk.runs.run import Run
    from kinfolk.runs.run import load_model as load
    from kinfolk.train.public import train
    from kinfolk.use.evaluation import evaluate
    from kinfolk.use.functions import embed, finetune, predict
    from kinfolk.use.generating import generate

__all__ = [
    "KinfolkError",
    "Run",
    "about",
    "attend",
    "axes",
    "build",
    "choices",
    "compare",
    "embed",
    "evaluate",
    "finetune",
    "fit",
    "from_hf",
    "generate",
    "layer",
    "load",
    "patterns",
    "predict",
    "relative",
    "relatives",
    "save",
    "to_hf",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    found = importlib.import_module(module)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
