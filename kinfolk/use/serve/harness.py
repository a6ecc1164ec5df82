"""lm-evaluation-harness over runs, in the same process: any relative that writes is scored as its own models are.

`import kinfolk.use.serve.harness` makes the model `kinfolk` known to it: `lm_eval.simple_evaluate(model="kinfolk",
model_args={"run": "runs/a"}, …)`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval

# the harness reads its own models only as long as none is known
import lm_eval.models
import lm_eval.utils
import torch
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from kinfolk.core.errors import DataError, SpecError
from kinfolk.decoding.detokenize import Text
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.padding import batch_of
from kinfolk.decoding.running import RunningBatch, write
from kinfolk.decoding.sequence import RunningSequence
from kinfolk.use.serve.served import Served
from kinfolk.use.serve.task_files import read_task

Pair = tuple[Any, list[int], list[int]]
MAX_NEW = 256
"""New tokens of a text where a task does not say."""


@register_model("kinfolk")
class KinfolkLM(TemplateLM):
    """A run as the harness sees a model: it scores continuations, whole texts, and writes until a stop.

    rows: texts at once; context: positions of a text, where the model itself has no bound.
    """

    def __init__(self, run: str | Path | Served, rows: int = 16, context: int = 2048, **_: Any) -> None:
        super().__init__()
        self.served = run if isinstance(run, Served) else Served.open(run)
        if not self.served.writes:
            raise SpecError(f"{self.served.name}: the harness scores what a model writes, and this one does not write")
        self.rows, self.max_length = int(rows), self.served.limit(int(context))
        self.pairs = self.served.spec.topology == "encoder-decoder"
        self.backend = "seq2seq" if self.pairs else "causal"

    @property
    def eot_token_id(self) -> int:
        """What ends a text."""
        return self.served.tokenizer.eos

    @property
    def prefix_token_id(self) -> int:
        """What a text without anything before it begins with."""
        return self.served.tokenizer.bos

    @property
    def tokenizer_name(self) -> str:
        """The name under which requests are cached."""
        return self.served.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the ids of a text."""
        return self.served.spelling.encode(string)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the logarithmic probability of whole texts, in windows as long as the model can see."""
        found = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            found.append(sum(log_p for log_p, _ in self._loglikelihood_tokens(pairs)))
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Write texts until a stop; rows share a running batch."""
        rows, texts = [], []
        for context, options in (request.args for request in requests):
            row, stops = self._row(context, options)
            rows.append(row)
            texts.append(Text(self.served.decode, stops, () if self.pairs else row.prompt))
        return write(RunningBatch(self.served.engine(self.max_length, self.rows)), rows, texts, self.rows)

    def _row(self, context: str, options: Mapping[str, Any]) -> tuple[RunningSequence, list[str]]:
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        most = min(int(options.get("max_gen_toks") or options.get("max_tokens") or MAX_NEW), self.max_length - 1)
        ids = self.served.encode(context)
        ids = ids if self.pairs else ids[-(self.max_length - most) :]
        temperature = float(options.get("temperature") or 0.0)
        greedy = temperature == 0.0 or not options.get("do_sample", temperature > 0.0)
        how = Decoding(
            greedy=greedy,
            temperature=1.0 if greedy else temperature,
            top_p=float(options.get("top_p", 1.0)),
            top_k=int(options.get("top_k", 0)),
            ids=self.served.generation,
        )
        return RunningSequence(prompt=ids, max_new=most, how=how), stops

    @torch.inference_mode()
    def _loglikelihood_tokens(self, requests: Iterable[Pair], **_: Any) -> list[tuple[float, bool]]:
        # longest first: what does not fit into memory fails at once, and rows of a batch are alike
        asked = list(requests)
        order = sorted(range(len(asked)), key=lambda i: -len(asked[i][1]) - len(asked[i][2]))
        found: list[tuple[float, bool]] = [(math.nan, False)] * len(asked)
        for at in range(0, len(order), self.rows):
            some = order[at : at + self.rows]
            for i, score in zip(some, self._scores([asked[i] for i in some]), strict=True):
                found[i] = score
        return found

    def _scores(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        model, device = self.served.model, self.served.device
        if self.pairs:
            source = batch_of([self.served.source(context[-self.max_length :]) for _, context, _ in pairs], device)
            rows = [[self.served.generation.start_id, *continuation] for _, _, continuation in pairs]
            target = batch_of([row[:-1] for row in rows], device)
            batch = target.replace(source=source.tokens, source_keep=source.keep)
        else:
            rows = [[*context, *continuation][-self.max_length - 1 :] for _, context, continuation in pairs]
            batch = batch_of([row[:-1] for row in rows], device)
        hidden_BLD = model.run(batch).hidden
        return [
            _score(model.head.logits, hidden_BLD[i], row, min(len(pair[2]), len(row) - 1))
            for i, (pair, row) in enumerate(zip(pairs, rows, strict=True))
        ]


def _score(logits: Callable[[Tensor], Tensor], hidden_LD: Tensor, row: list[int], n: int) -> tuple[float, bool]:
    """Return the logarithmic probability of the last `n` tokens of a row, and whether each is the likeliest."""
    if n == 0:
        return 0.0, True
    log_p_nV = logits(hidden_LD[None, len(row) - 1 - n : len(row) - 1])[0].log_softmax(-1)
    ids_n = torch.tensor(row[-n:], device=log_p_nV.device)
    own_n = log_p_nV.gather(1, ids_n[:, None])[:, 0]
    return float(own_n.double().sum()), bool((own_n == log_p_nV.amax(-1)).all())


def run_tasks(
    run: str | Path | Served,
    files: Sequence[Path],
    limit: int | None = None,
    shots: int | None = None,
    rows: int = 16,
    *,
    trusted: bool = False,
) -> dict[str, Any]:
    """Score a run on tasks described in files; return the harness's results by task.

    trusted: files may name Python code, which is then run, and groups of the tasks in their folder.
    """
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: there is no such file; a task is described in YAML")
    folders = [str(file.resolve().parent) for file in files] if trusted else []
    manager = TaskManager(include_path=folders or None, include_defaults=False)
    tasks = [_name(file) if trusted else read_task(file) for file in files]
    how = {"num_fewshot": shots, "limit": limit, "bootstrap_iters": 0, "log_samples": False}
    try:
        found = lm_eval.simple_evaluate(model=KinfolkLM(run, rows=rows), tasks=tasks, task_manager=manager, **how)
    except TemplateError as error:
        raise DataError(f"{', '.join(map(str, files))}: a template cannot be filled: {error}") from None
    return {name: _plain(scores) for name, scores in found["results"].items()}


def _sandbox() -> None:
    """Let the harness fill its templates without a way to Python's internals."""
    free = lm_eval.utils.env
    boxed = ImmutableSandboxedEnvironment(
        loader=free.loader, undefined=free.undefined, keep_trailing_newline=free.keep_trailing_newline
    )
    boxed.filters |= free.filters
    lm_eval.utils.env = boxed


_sandbox()


def _name(file: Path) -> str:
    for line in file.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key in ("task", "group") and value.strip():
            return value.strip().strip("'\"")
    raise DataError(f"{file}: does not say `task: NAME`")


def _plain(scores: Mapping[str, Any]) -> dict[str, float]:
    """Keep what was measured; no filter is how it is called."""
    measured = {name.removesuffix(",none"): value for name, value in scores.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in measured.items() if "_stderr" not in name and name != "sample_len"}
