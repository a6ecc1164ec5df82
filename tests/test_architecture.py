"""The rules of the house, as tests."""

import ast
import dataclasses
import functools
import graphlib
import importlib
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType

import pytest

from tests.each import HOUSE, calls, dotted, forget, name_of, nodes, over, parse

PACKAGE = HOUSE / "kinfolk"
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((HOUSE / "tests").rglob("test_*.py"))

# imports point down; what is not named here may not be imported
MAY_IMPORT: dict[str, set[str]] = {"core": set()}
MAY_IMPORT["ops"] = {"core"}
MAY_IMPORT["optim"] = {"core"}
MAY_IMPORT["data"] = {"core"}
MAY_IMPORT["report"] = {"core"}
MAY_IMPORT["layers"] = {"core", "ops"}
MAY_IMPORT["models"] = {"layers", *MAY_IMPORT["layers"]}
MAY_IMPORT["objectives"] = {"models", "data", *MAY_IMPORT["models"]}
MAY_IMPORT["family"] = {"objectives", "optim", *MAY_IMPORT["objectives"]}
MAY_IMPORT["runs"] = {"family", "data", *MAY_IMPORT["family"]}
MAY_IMPORT["train"] = {"runs", "report", *MAY_IMPORT["runs"]}
MAY_IMPORT["decoding"] = {"train", *MAY_IMPORT["train"]}
MAY_IMPORT["contests"] = {"decoding", "report", *MAY_IMPORT["decoding"]}
MAY_IMPORT["use"] = {"contests", *MAY_IMPORT["contests"]}
MAY_IMPORT["bench"] = {"use", *MAY_IMPORT["use"]}
MAY_IMPORT["cli"] = {"bench", "kinfolk", *MAY_IMPORT["bench"]}


# operators are held to a naive reference of the same name; these are no operators of their own
NO_REFERENCE = {
    "leaves": "data: each pattern is held to a picture",
    "algebra": "data: combinations are held to pictures, and to brute force",
    "random_blocks": "data: a pattern, held to brute force",
    "both_ways": "data: held to pictures, and to brute force",
    "plan": "which blocks the executor visits; held by the reference of attend",
    "scores": "what the paths of the executor share; held by the reference of attend",
    "blocks": "a path of the executor; held by the reference of attend",
    "lsh_plan": "which tokens a tile holds; held by the reference of lsh_attention",
    "chunk_scan": "runs a step chunk by chunk; held by the references of the recurrences that it runs",
    "flex": "a path of the executor; its mask is held to the pattern's predicate",
}

# what a reader needs to follow one token through GPT-2; docs/built.md names them
SPINE = [
    "core/spec.py",
    "ops/patterns/algebra.py",
    "ops/patterns/leaves.py",
    "ops/attention/attend.py",
    "ops/attention/scores.py",
    "layers/mixers/attention.py",
    "layers/residuals/residual.py",
    "models/block.py",
    "models/stack.py",
    "models/model_spec.py",
    "models/model.py",
    "train/loop.py",
    "train/step.py",
]
EXTRAS = {
    "PIL",
    "pyarrow",
    "plotly",
    "scipy",
    "tensorboard",
    "transformers",
    "x_transformers",
    "matplotlib",
    "gymnasium",
    "sacrebleu",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "ctranslate2",
    "uvicorn",
    "starlette",
    "lm_eval",
    "ray",
    "submitit",
    "pydantic",
    "prometheus_client",
}
CHECKS = {
    "assert_exact",
    "assert_same",
    "assert_same_with_gradients",
    "raises",
    "warns",
    "assert_close",
    "assert_array_equal",
    "assert_allclose",
    "fail",
}


@pytest.fixture(autouse=True, scope="module")
def _trees_are_forgotten() -> Iterator[None]:
    yield
    forget()


@functools.cache
def rooms() -> frozenset[str]:
    return frozenset(p.name for p in PACKAGE.iterdir() if p.is_dir())


def imported(path: Path) -> set[str]:
    """Return which packages of the house a file imports; `kinfolk` itself stands for the public surface."""
    packages, found = rooms(), set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for parts in (module.split(".") for module in modules):
            if parts[0] == "kinfolk":
                found.add(parts[1] if len(parts) > 1 and parts[1] in packages else "kinfolk")
    return found


@over(FILES)
def test_imports_point_down(path):
    layer = path.relative_to(PACKAGE).parts[0]
    if path.parent == PACKAGE:
        return
    assert layer in MAY_IMPORT, f"{layer} has no place in the order of imports"
    upward = imported(path) - MAY_IMPORT[layer] - {layer}
    assert not upward, f"{name_of(path)} may not import {', '.join(sorted(upward))}"


def test_no_modules_import_each_other():
    """Imports inside functions count: they hide a cycle, they do not remove it."""
    paths = {".".join(f.relative_to(HOUSE).with_suffix("").parts).removesuffix(".__init__"): f for f in FILES}
    below: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for node in nodes(path):
            if isinstance(node, ast.Import):
                below[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                inside = ((f"{node.module}.{alias.name}", str(node.module)) for alias in node.names)
                below[name] |= {whole if whole in paths else module for whole, module in inside}
        below[name] = (below[name] & paths.keys()) - {name}
    # raises CycleError, which names the modules
    assert len(list(graphlib.TopologicalSorter(below).static_order())) == len(paths)


def test_the_order_of_imports_has_no_ring():
    for layer, below in MAY_IMPORT.items():
        for lower in below & set(MAY_IMPORT):
            assert layer not in MAY_IMPORT[lower], f"{layer} and {lower} import each other"


@over([*FILES, *sorted((HOUSE / "tests").rglob("*.py"))])
def test_files_are_short_and_named_after_an_idea(path):
    length = len(path.read_text(encoding="utf-8").splitlines())
    assert length <= 500, f"{name_of(path)} has {length} lines: split it by idea"
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc"}, name_of(path)


def test_every_operator_has_a_reference_and_a_test():
    operators = {p.stem: p for p in sorted((PACKAGE / "ops").rglob("*.py")) if p.parent.name != "naive"}
    beside = [test.read_text(encoding="utf-8") for test in TESTS if test.parent.name == "ops"]
    for path in operators.values():
        if path.stem == "__init__":
            continue
        if path.stem not in NO_REFERENCE:
            assert (PACKAGE / "ops" / "naive" / path.name).exists(), f"ops/{path.name} has no naive reference"
        assert any(re.search(rf"\b{path.stem}\b", text) for text in beside), f"ops/{path.name} has no test"
    assert [name for name in NO_REFERENCE if name not in operators] == []


def asserting(found: Sequence[ast.AST]) -> set[str]:
    """Return the functions of a test file that check something, themselves or through one that does."""
    inside = {
        function.name: tuple(ast.walk(function))
        for function in found
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    through = {name: {called.split(".")[-1] for _, called in calls(parts)} for name, parts in inside.items()}
    checking = {name for name, parts in inside.items() if any(isinstance(part, ast.Assert) for part in parts)}
    while more := {name for name in through if name not in checking and through[name] & (CHECKS | checking)}:
        checking |= more
    return checking


@over(TESTS)
def test_every_test_can_fail(path):
    tests = {n.name for n in nodes(path) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}
    assert tests, f"{name_of(path)} has no test"
    assert sorted(tests - asserting(nodes(path))) == [], f"{name_of(path)}: tests that assert nothing"


def test_a_batch_and_a_context_stay_small():
    """Fewer than twelve fields, those of nested records counted; what one relative needs is an annotation."""
    from kinfolk.core.batch import Batch
    from kinfolk.core.context import Context

    def leaves(hint: object) -> int:
        inner = [leaves(arg) for arg in typing.get_args(hint)]
        if dataclasses.is_dataclass(hint):
            return sum(map(leaves, typing.get_type_hints(hint).values()))
        return max(inner, default=1)

    assert leaves(Batch) < 12
    assert leaves(Context) < 12


@over(FILES)
def test_nothing_is_pickled_and_only_the_command_line_prints(path):
    modules = {a.name.split(".")[0] for n in nodes(path) if isinstance(n, ast.Import) for a in n.names}
    modules |= {(n.module or "").split(".")[0] for n in nodes(path) if isinstance(n, ast.ImportFrom)}
    assert not modules & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}, name_of(path)
    for call, called in calls(nodes(path)):
        where = f"{name_of(path)}:{call.lineno}"
        assert called not in {"torch.save", "eval", "exec"}, f"{where}: {called}"
        weights_only = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)
        assert called != "torch.load" or weights_only, f"{where}: torch.load may only build tensors"
        assert all(k.arg != "allow_pickle" or ast.unparse(k.value) == "False" for k in call.keywords), where
        if path.relative_to(PACKAGE).parts[0] != "cli":
            assert called != "print", f"{where}: only the command line prints"


@over(FILES)
def test_a_private_name_stays_in_its_module(path):
    imports = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
    private = [alias.name for node in imports for alias in node.names if re.match("_[^_]", alias.name)]
    assert private == [], f"{name_of(path)}: give it a public name where it is defined"


OF_DATA = re.compile(r"\b(datas?|datasets?|splits?|batch|batches|examples?|sentences?|labelling|job)\b")
"""Expressions that name data."""


@over(FILES)
def test_data_is_asked_by_its_members_and_never_probed(path):
    """What a split or a batch has is in its base class, with a default, so that nobody looks whether it is there."""
    probes = [
        f"{node.lineno}: {ast.unparse(node)}"
        for node, name in calls(nodes(path))
        if name in ("hasattr", "getattr") and OF_DATA.search(ast.unparse(node.args[0]))
    ]
    assert not probes, f"{name_of(path)}: {probes}"


def test_importing_the_package_imports_no_extra():
    code = f"import sys, kinfolk as kf; kf.relatives(); print(sorted({EXTRAS!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_spine_is_what_the_readme_says():
    """The sentence of docs/built.md names these files and their lines, to the nearest hundred."""
    sentence = re.search(
        r"The spine is .*?counts exactly these", (HOUSE / "docs" / "built.md").read_text("utf-8"), re.DOTALL
    )
    assert sentence is not None
    assert re.findall(r"`([\w/]+\.py)`", sentence[0]) == SPINE
    lines = {name: len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in SPINE}
    count = re.search(r"([\d,]+) lines together", sentence[0])
    assert count is not None
    assert round(sum(lines.values()), -2) == int(count[1].replace(",", "")) <= 2500, lines


def specs() -> list[type[typing.Any]]:
    """Return every spec class of the package."""
    from kinfolk.core.spec import Spec
    from kinfolk.family import registry

    def below(cls: type[Spec]) -> Iterator[type[Spec]]:
        for sub in cls.__subclasses__():
            yield sub
            yield from below(sub)

    registry.load()
    # all of them, so that the answer does not depend on what other tests have imported
    for path in FILES:
        module = ".".join(path.relative_to(HOUSE).with_suffix("").parts)
        if not {"bench", "cli", "__main__"} & set(module.split(".")):
            importlib.import_module(module.removesuffix(".__init__"))
    found = [cls for cls in below(Spec) if cls.__module__.startswith("kinfolk.")]
    assert len(found) > 200
    return found


def test_what_may_be_none_is_none_by_default():
    """None is written by leaving a key out, so a reader must find None where the key is missing."""
    from kinfolk.core.spec import field_types

    for cls in specs():
        types = field_types(cls)
        for field in dataclasses.fields(cls):
            if type(None) in getattr(types[field.name], "__args__", ()):
                assert field.default in (None, dataclasses.MISSING), f"{cls.__name__}.{field.name}"


FREE_TEXT = {
    "Recipe.name": "names a run, chosen by its user",
    "Training.metric": "any measure that the task reports; checked against them before training",
    "RunOptions.device": "any device that torch knows; checked when it is opened",
    "Distil.teacher": "a folder",
    "Knowledge.file": "a file",
    "SomeWeights.names": "patterns of parameter names",
    "Lora.maps": "names of a part's maps, which a plugin's part may add to",
    "Rank.map": "the name of a map",
    "Named.name": "a task's name, which a plugin may add; checked against those that are known",
    "Task.text": "the name of a column",
    "Task.second": "the name of a column",
    "Task.label": "the name of a column",
}


def test_choices_of_specs_are_literals_and_their_numbers_have_bounds():
    """What a field allows is in its type, where mypy and the one check of `Spec` see it."""
    from kinfolk.core.bounds import Bounds
    from kinfolk.core.spec import field_types

    def leaves(hint: object) -> Iterator[object]:
        if typing.get_origin(hint) in (tuple, typing.Union, UnionType):
            for inner in typing.get_args(hint):
                yield from leaves(inner)
        else:
            yield hint

    free, loose, n = set(), [], 0
    # run.toml records what happened, not what a user chooses
    for cls in (cls for cls in specs() if cls.__module__ != "kinfolk.runs.metadata"):
        for name, hint in field_types(cls).items():
            for leaf in leaves(hint):
                n += 1
                if leaf is str:
                    owner = next(c for c in cls.__mro__ if name in inspect.get_annotations(c))
                    free.add(f"{owner.__name__}.{name}")
                elif leaf in (int, float):
                    loose.append(f"{cls.__name__}.{name}: {hint}")
                elif typing.get_origin(leaf) is typing.Annotated:
                    assert any(isinstance(note, Bounds) for note in typing.get_args(leaf)[1:]), f"{cls}.{name}"
    assert n > 500
    assert free == set(FREE_TEXT)
    assert loose == []


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=HOUSE, capture_output=True, text=True)
    if listed.returncode:
        return [p for p in HOUSE.rglob("*") if p.is_file() and not any(q.startswith(".") for q in p.parts)]
    return [path for name in listed.stdout.split("\0") if name and (path := HOUSE / name).is_file()]


def test_no_file_names_one_machine():
    places = "|".join(["work", "farm", "root", "home", "Users"])
    # split, so that this line is not what it looks for
    wrong = re.compile(rf"/({places})/[a-z.]|index" + r"[-_]url|\bpy" + r"pi\b", re.IGNORECASE)
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{name_of(path)}:{n}: {line.strip()}" for n, line in enumerate(text.splitlines(), 1) if wrong.search(line)
        ]
    assert found == []


# cases that a test leaves out, and why
LEFT_OUT = {
    "test_every_layer_runs_forward_and_backward": "a library that is not installed",
    "test_the_fused_loss_is_the_cross_entropy_of_the_logits": "relatives that score labels; see tests/objectives",
    "test_learns_its_toy_task": "relatives that take longer, which docs/studies/pretraining.py has",
}


@over(TESTS)
def test_no_list_of_cases_can_lose_any(file: Path) -> None:
    """A case that skips itself, or a list that keeps only names that exist, goes on passing when nothing is tested."""
    for function in (node for node in nodes(file) if isinstance(node, ast.FunctionDef)):
        many = any("parametrize" in ast.unparse(decorator) for decorator in function.decorator_list)
        skips = many and any(called == "pytest.skip" for _, called in calls(tuple(ast.walk(function))))
        assert not skips or function.name in LEFT_OUT, f"{function.name}: list the cases that it has"
    for node in (node for node in nodes(file) if isinstance(node, ast.Compare)):
        known = [dotted(right) for right in node.comparators if isinstance(node.ops[0], ast.In | ast.NotIn)]
        assert "kf.relatives()" not in known, f"line {node.lineno}: a name that does not exist must fail"


# classes of one name that are meant to be: none so far
PAIRS: dict[str, str] = {}


def test_public_classes_have_names_of_their_own():
    """A reader who searches for a class finds one."""
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    twice = {name: where for name, where in homes.items() if len(where) > 1 and name not in PAIRS}
    assert twice == {}


# what a reader of the field searches for; a first line without any of these, or an author and a year, hides its file
TERMS = """
    activation, adapters, adaptive computation time, advantage estimation, answer span, attention, autograd,
    backward pass, beam search, BERT, block-sparse, checkpoints, classification, continuous batching, convolution,
    cross entropy, cross-attention, cross-entropy, decoder, decoding, delta rule, dependency tree, distillation,
    dropout, embedding, encoder, experts, feature map, feed-forward, FlexAttention, FLOPs, gate, gated, GELU, GLU,
    GRU, hidden states, initialisation, int8 quantization, keys and values, KV cache, language model, LayerNorm,
    likelihood, linear layer, linear recurrence, logistics, logits, LoRA, low-rank, LSH, LSTM, mask, mixture of
    softmaxes, MLP, nn.Module, norm, patches, pixel, policy, pooling, position encoding, PPO, pre-norm, product-key
    memory, pruning, query-key, RAM, recurrent state, residual, reversible, RMSNorm, RNN, rotary, routing, self-
    attention, softmax, state-space, stochastic depth, tagging, Transformer, value head, weights
"""
CITATION = re.compile(r"[A-Z][\w'-]+(?: et al\.| and [A-Z]\w+)? (?:19|20)\d\d")


def field_terms() -> re.Pattern[str]:
    """Any term, in one or several."""
    terms = (re.escape(term.strip()) for term in TERMS.split(","))
    return re.compile(rf"\b(?:{'|'.join(terms)})s?\b", re.IGNORECASE)


def first_line(path: Path) -> str:
    return (ast.get_docstring(parse(path)) or "").split("\n")[0]


LOWER = [p for p in FILES if p.relative_to(PACKAGE).parts[0] in ("layers", "ops", "models", "objectives", "optim")]


def test_first_lines_name_the_term_of_the_field():
    """Who searches for LoRA, a KV cache or a residual connection finds the file."""
    rooms = [path for path in LOWER if path.relative_to(PACKAGE).parts[0] in ("layers", "ops", "models")]
    terms = field_terms()
    lines = {path.relative_to(PACKAGE).as_posix(): first_line(path) for path in rooms}
    assert len(lines) > 120
    assert {path: line for path, line in lines.items() if not terms.search(line) and not CITATION.search(line)} == {}
    assert not terms.search("What is put beside a trained part so that little has to be learnt")
    assert not terms.search("Rows that come and go while others go on: states put together and taken apart.")


# STYLE 8: paraphrases that hide what happens
PARAPHRASES = re.compile(
    r"\b(?:stands?|whoever|nobody|made again|begins? anew|so many|is told|are told|who may look)\b"
)


def test_first_lines_use_plain_words():
    lines = {path.relative_to(PACKAGE).as_posix(): first_line(path) for path in LOWER}
    assert {path: line for path, line in lines.items() if PARAPHRASES.search(line)} == {}
