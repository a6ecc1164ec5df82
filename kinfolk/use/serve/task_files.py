"""Task files of lm-evaluation-harness as data: what would run Python code is refused unless it is asked for.

The harness imports what a file names by `!function`, hands the name of an unknown metric to a library that downloads
and imports scripts, and reads pickles where a file asks for a loader that does. Templates are Jinja, which reaches
Python's internals without a sandbox. None of that is needed to score a model.
"""

from pathlib import Path
from typing import Any

import yaml
from lm_eval.api.registry import metric_registry

from kinfolk.core.errors import DataError, suggest

OPTION = "--trust-tasks"
LOADERS = ("arrow", "csv", "json", "parquet", "text")
"""Loaders of `datasets` that read files and run nothing."""
PYTHON = ("class", "custom_dataset", "use_prompt")
"""Keys whose values are code, or are looked up in other packages."""


class _Loader(yaml.SafeLoader):
    """Plain YAML; a tag of the harness is an error with its line."""


def _refuse(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> None:
    about = f"!{suffix} {node.value if isinstance(node, yaml.ScalarNode) else ''}".strip()
    raise yaml.constructor.ConstructorError(None, None, f"{about!r} would run Python code", node.start_mark)


_Loader.add_multi_constructor("!", _refuse)


def read_task(file: Path) -> dict[str, Any]:
    """Read a task and the files that it includes, as plain data that runs nothing; anything else is refused."""
    return _checked(file, _merged(file, ()))


def _merged(file: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if file.resolve() in above:
        raise DataError(f"{file}: includes itself")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None
    try:
        task = yaml.load(text, _Loader)
    except yaml.constructor.ConstructorError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DataError(f"{file}:{line}: {error.problem}; {OPTION} allows it") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise DataError(f"{file}: no YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(task, dict):
        raise DataError(f"{file}: a task is a table, got {type(task).__name__}")
    includes = task.pop("include", None) or []
    whole: dict[str, Any] = {}
    for name in includes if isinstance(includes, list) else [includes]:
        whole |= _merged(file.parent / str(name), (*above, file.resolve()))
    return whole | task


def _checked(file: Path, task: dict[str, Any]) -> dict[str, Any]:
    name = task.get("task")
    if not isinstance(name, str):
        kind = "a group names other files" if task.get("group") or name else "it does not say `task: NAME`"
        raise DataError(f"{file}: {kind}; name the tasks themselves, or allow all of their folder with {OPTION}")
    code = [key for key in PYTHON if task.get(key) is not None]
    if code:
        raise DataError(f"{file}: {code[0]}: would run Python code; {OPTION} allows it")
    loader = task.get("dataset_path")
    if loader not in LOADERS:
        raise DataError(f"{file}: dataset_path: {loader!r} is none of {', '.join(LOADERS)}; {OPTION} allows it")
    known = list(metric_registry)
    for entry in task.get("metric_list") or []:
        metric = entry.get("metric") if isinstance(entry, dict) else entry
        if metric not in known or (isinstance(entry, dict) and entry.get("hf_evaluate")):
            hint = suggest(str(metric), known)
            raise DataError(f"{file}: metric: {metric!r} is not one of the harness's own{hint}; {OPTION} allows it")
    return task
