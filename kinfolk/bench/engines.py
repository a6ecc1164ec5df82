"""The same GPT decoded by several engines: Hugging Face, CTranslate2, onnxruntime and torch, fp32, int8 and int4.

Graphs and converted models are written once, under a name that says what they were made from, and read by every
process.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.bench import peers
from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work
from kinfolk.bench.generate import HUGGING_FACE, NEW, PROMPT
from kinfolk.bench.train import GPT, recipe_of
from kinfolk.core.errors import MissingExtraError
from kinfolk.decoding import generate
from kinfolk.decoding.engines.torch_engine import TORCH
from kinfolk.family.building import build
from kinfolk.models.cost import cost
from kinfolk.runs import durable

ENGINE = True
GPT2_BASE = GPT | {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072, "vocab_size": 50257, "max_len": 1024}
MODELS = {"6 layers, d=384": GPT, "GPT-2 base": GPT2_BASE}
CT2, CT2_INT8 = "CTranslate2", "CTranslate2 int8"
WHO = (
    BenchContestant(HUGGING_FACE, "hugging-face", package="transformers"),
    BenchContestant(CT2, "ctranslate2", {"precision": "fp32"}, package="ctranslate2"),
    BenchContestant(CT2_INT8, "ctranslate2", {"precision": "int8"}, package="ctranslate2"),
    BenchContestant("kinfolk, torch", settings={"engine": "torch"}, rival=HUGGING_FACE),
    BenchContestant("kinfolk, torch-bf16", settings={"engine": "torch-bf16"}, rival=HUGGING_FACE),
    BenchContestant("kinfolk, onnxruntime", OURS, {"engine": "fp32"}, "onnxruntime", "onnx", rival=CT2),
    BenchContestant("kinfolk, onnxruntime int8", OURS, {"engine": "int8"}, "onnxruntime", "onnx", rival=CT2_INT8),
    BenchContestant("kinfolk, onnxruntime int4", OURS, {"engine": "int4"}, "onnxruntime", "onnx"),
)


def contests(long: bool = False) -> list[Contest]:
    """Return one contest for each model and batch size."""
    return [
        Contest(
            "engines",
            f"generate greedily by several engines: {name}, batch {rows}, prompt {PROMPT}, {NEW} new tokens",
            sizes | {"batch_size": rows, "prompt": PROMPT, "new": NEW, "steps": 3},
            WHO,
            HUGGING_FACE,
        )
        for name, sizes in MODELS.items()
        for rows in (1, 8)
    ]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return the generation of one batch."""
    draw = torch.Generator().manual_seed(1)
    rows, n_prompt, n_new = sizes["batch_size"], sizes["prompt"], sizes["new"]
    prompt = torch.randint(7, sizes["vocab_size"], (rows, n_prompt), generator=draw)
    makers = {"hugging-face": _hugging_face, "ctranslate2": _ctranslate2, OURS: _ours}
    step = makers[contestant.how](contestant, sizes, prompt)
    found = cost(recipe_of(sizes).model, n_prompt + n_new)
    flops = found.flops_per_token * rows * (n_prompt + n_new - 1)
    return Work(step, rows * n_new, flops, found.params, steps=sizes.get("steps", 3), warm_up=1)


def _ours(contestant: BenchContestant, sizes: Mapping[str, Any], prompt: Tensor) -> Callable[[], int]:
    n_new, engine = sizes["new"], contestant.settings["engine"]
    if engine in TORCH:
        model: Any = TORCH[engine].laid_out(build(recipe_of(sizes), seed=0), len(prompt))
    else:
        model = _graphs(sizes, engine)

    def step() -> int:
        return int(generate(model, prompt, max_new=n_new, greedy=True).numel())

    return step


def _graphs(sizes: Mapping[str, Any], precision: str) -> Any:
    """Return the engine of graphs, made the first time."""
    from kinfolk.decoding.engines.onnx.engine import OnnxEngine
    from kinfolk.decoding.engines.onnx.exported import ExportedModel
    from kinfolk.use.onnx.export import to_int4, to_int8, to_onnx

    folder = _kept("onnx", sizes, Path(__file__).parent.parent / "use" / "onnx")
    if not (folder / "fp32").exists():
        to_onnx(build(recipe_of(sizes), seed=0), folder / "fp32")
    for name, quantise in (("int8", to_int8), ("int4", to_int4)):
        if not (folder / name).exists():
            quantise(folder / "fp32", folder / name)
    return OnnxEngine(ExportedModel(folder / precision, torch.get_num_threads()))


def _hugging_face(contestant: BenchContestant, sizes: Mapping[str, Any], prompt: Tensor) -> Callable[[], int]:
    n_new, mask = sizes["new"], torch.ones_like(prompt)
    torch.manual_seed(0)
    model: Any = peers.hugging_face(sizes).eval()
    options = {"max_new_tokens": n_new, "min_new_tokens": n_new, "do_sample": False, "use_cache": True}

    def step() -> int:
        return int(model.generate(prompt, attention_mask=mask, pad_token_id=0, **options).numel())

    return step


def _ctranslate2(contestant: BenchContestant, sizes: Mapping[str, Any], prompt: Tensor) -> Callable[[], int]:
    try:
        import ctranslate2
    except ImportError:
        raise MissingExtraError("bench", "the contestant CTranslate2") from None
    int8, n_new = contestant.settings["precision"] == "int8", sizes["new"]
    folder = _kept("ctranslate2", sizes) / ("int8" if int8 else "fp32")
    if not folder.exists():
        torch.manual_seed(0)
        with durable.folder(folder) as aside:
            convert(peers.hugging_face(sizes).eval(), aside, "int8" if int8 else None)
    kind = "int8" if int8 else "float32"
    engine = ctranslate2.Generator(str(folder), compute_type=kind, intra_threads=torch.get_num_threads())
    words = [[str(token) for token in row] for row in prompt.tolist()]

    def step() -> int:
        found = engine.generate_batch(
            words, max_length=n_new, min_length=n_new, sampling_topk=1, include_prompt_in_result=False
        )
        return sum(len(one.sequences_ids[0]) for one in found)

    return step


def convert(model: Any, out: Path, quantization: str | None) -> None:
    """Write Hugging Face's GPT-2 as CTranslate2 reads it, its tokens being their numbers."""
    from ctranslate2.converters import transformers as loaders
    from ctranslate2.converters.converter import Converter

    class Conversion(Converter):
        def _load(self) -> Any:
            spec = loaders.GPT2Loader().get_model_spec(model)
            spec.register_vocabulary([str(i) for i in range(model.config.vocab_size)])
            # it must have one that ends a text; asked for a least length, it leaves that one out
            last = str(model.config.vocab_size - 1)
            spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = last
            return spec

    with torch.no_grad():
        Conversion().convert(str(out), quantization=quantization, force=True)


def _kept(kind: str, sizes: Mapping[str, Any], sources: Path | None = None) -> Path:
    """Return the folder of what is made once for a model, by these versions of everything that makes it."""
    numbers = {name: sizes[name] for name in GPT if name not in ("batch_size", "length")}
    said = json.dumps([kind, numbers, torch.__version__], sort_keys=True)
    for file in sorted(sources.glob("*.py")) if sources else ():
        said += durable.digest(file)
    name = hashlib.sha256(said.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"kinfolk-engines-{os.getuid()}" / f"{kind}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
