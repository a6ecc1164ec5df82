"""A served run: text to ids and back, its engine, and the verbs that it can be asked for."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import kinfolk.use.onnx.opening  # noqa: F401 - registers the engine
from kinfolk.core.errors import SpecError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.data import Tokenizer
from kinfolk.data.files.reader import FileRow
from kinfolk.decoding.engines.engine import Engine
from kinfolk.decoding.engines.prefix_cache import PrefixCache
from kinfolk.decoding.engines.torch_engine import TORCH
from kinfolk.decoding.spelling import Spelling
from kinfolk.family.recipe import Recipe
from kinfolk.layers.heads.class_head import JudgingHead
from kinfolk.models.model import Model, Transformer
from kinfolk.objectives.image import ImageObjective
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.tasks.registry import has_labels
from kinfolk.runs.chat_template import ChatTemplate
from kinfolk.runs.engines import AUTO, automatic, opener_of
from kinfolk.runs.run import ExportedRun, Run
from kinfolk.use.generating import special_tokens
from kinfolk.use.predict.embedding import Embedder, open_embedder
from kinfolk.use.predict.opening import AnsweringRun, open_run
from kinfolk.use.predict.predicting import predict


@dataclasses.dataclass(eq=False)
class Served:
    """A run, or an export, which has graphs and no weights of its own: then there is no learner.

    engine_kind: what runs the model; threads: of that engine, 0: one for each core.
    """

    run: Run
    engine_kind: str = "torch"
    threads: int = 0
    learner: Learner | None = None

    @classmethod
    def open(cls, path: str | Path, engine: str = "torch", threads: int = 0) -> "Served":
        """Open a run of any layout; it goes by the name of its folder."""
        run = Run.open(path)
        engine = automatic(run.path)[0] if engine == AUTO else engine
        opener_of(engine)
        if not isinstance(run, ExportedRun):
            return cls(run, engine, threads, run.learner().eval())
        if engine in TORCH:
            raise SpecError(f"{path} is an export for onnxruntime: add --engine onnx")
        return cls(run, engine, threads)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.run.name

    @property
    def recipe(self) -> Recipe:
        """Model, objective and training."""
        return self.run.recipe

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self.run.tokenizer

    @cached_property
    def created(self) -> int:
        """When it was written, in seconds since 1970."""
        return int((self.run.path / self.run.mark).stat().st_mtime)

    @property
    def spec(self) -> Model:
        """The network's spec."""
        return self.recipe.model

    @property
    def model(self) -> Transformer:
        """The network; an export has none."""
        if self.learner is None:
            raise self._only_graphs()
        return self.learner.model

    def _only_graphs(self) -> SpecError:
        return SpecError(f"{self.name}: an export has graphs to write with, and nothing to look into; serve the run")

    @cached_property
    def spelling(self) -> Spelling:
        """Text to ids and back, sentinels included."""
        return Spelling(self.tokenizer, self.recipe.objective.extra_ids)

    @property
    def writes(self) -> bool:
        """Whether it continues texts."""
        if isinstance(self.run, ExportedRun):
            return self.run.about.decodes
        judging = isinstance(self.model.head, JudgingHead) or has_labels(self.recipe.objective)
        return self.spec.decoder is not None and not judging and not isinstance(self.recipe.objective, ImageObjective)

    @cached_property
    def opened(self) -> AnsweringRun | None:
        """What answers about the labels it was taught; None if it was taught none."""
        if not has_labels(self.recipe.objective):
            return None
        opened = open_run(self.run)
        if opened.picture is not None:
            raise SpecError(f"{self.run.path}: classifies images, and requests are texts; kin predict reads images")
        return opened

    @property
    def classifies(self) -> bool:
        """Whether it tells classes apart."""
        return self.opened is not None and self.opened.task.labels in ("class", "classes")

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """What turns a conversation into a prompt; None if the run has no template."""
        return self.run.chat_template if self.writes and self.spec.topology == "decoder" else None

    @cached_property
    def verbs(self) -> tuple[str, ...]:
        """What it can be asked for."""
        has = {
            "complete": self.writes,
            "chat": self.chat_template is not None,
            "classify": self.classifies,
            "predict": self.opened is not None,
            # the graph of a decoder says what follows, and gives no states
            "embed": self.learner is not None or not self.writes,
            "inspect": self.learner is not None,
        }
        return tuple(verb for verb, able in has.items() if able)

    @cached_property
    def embedder(self) -> Embedder:
        """What gives the vectors of texts."""
        if "embed" not in self.verbs:
            raise self._only_graphs()
        return open_embedder(self.run)

    def limit(self, context: int) -> int:
        """Return how many positions a text may have."""
        own = self.run.limit if self.learner is None else self.model.limit
        return min(context, own or context)

    @property
    def generation(self) -> GenerationIds:
        """What it begins, ends and pads with."""
        return self.run.generation if self.learner is None else self.model.generation

    def source(self, ids: list[int]) -> list[int]:
        """Return a source with the special tokens around it; the prompt of a decoder has at most one before it."""
        before, behind = special_tokens(self.run)
        return [*before, *ids, *behind]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt; an empty one is the beginning of a text."""
        return self.source(self.spelling.encode(text)) or [self.generation.start_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; what is no token of the tokenizer's has none."""
        return self.spelling.decode([i for i in ids if i < self.spelling.end])

    @cached_property
    def names(self) -> list[str]:
        """How each token is written, no two alike: its text where that is its own, else its name in the vocabulary."""
        names: list[str] = []
        taken: set[str] = set()
        for i in range(self.spec.vocab_size):
            text = "" if i in self.tokenizer.special_ids else self.decode([i])
            if not text or "\ufffd" in text or text in taken:
                text = self.tokenizer.inner.id_to_token(i) or f"<{i}>"
                text = f"<{i}>" if text in taken else text
            taken.add(text)
            names.append(text)
        return names

    def embed(self, texts: Sequence[Any]) -> tuple[list[list[float]], int]:
        """Return a vector for each text, as `kin embed` does, and how many texts were too long."""
        ids = [one for one in texts if not isinstance(one, str)]
        if ids:
            return self.embedder.of_rows([list(one) for one in ids]).tolist(), 0
        vectors, n_cut = self.embedder.vectors(list(texts))
        return vectors.tolist(), n_cut

    def classify(self, texts: Sequence[Any]) -> list[dict[str, Any]]:
        """Return what it says of each text or pair of texts, as `kin predict` does."""
        rows = []
        for i, one in enumerate(texts):
            given = [one] if isinstance(one, str) else list(one)
            if len(given) != len(self.columns):
                raise SpecError(f"input[{i}]: {self.name} judges {len(self.columns)} text(s) at once, got {len(given)}")
            rows.append(dict(zip(self.columns, given, strict=True)))
        return self.predict(rows)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row that it judges; none if it was taught no labels."""
        return () if self.opened is None else self.opened.task.reads(self.opened)

    def predict(self, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        """Return what it says of each row, as `kin predict` does."""
        opened = self.opened
        assert opened is not None
        named = dataclasses.replace(opened.columns, second=opened.columns.second or "second")
        read = [FileRow("input", i, dict(row)) for i, row in enumerate(rows)]
        said = predict(dataclasses.replace(opened, columns=named), read)
        return [{key: value for key, value in one.items() if key != "line"} for one in said]

    def engine(self, context: int, rows: int = 1, prefixes: int = 0) -> Engine:
        """Return what runs the model for up to `rows` sequences at once, each of up to `context` positions.

        prefixes: bytes of a prefix cache, which torch alone has.
        """
        if self.engine_kind in TORCH:
            torch_engine = TORCH[self.engine_kind]
            here = torch_engine(torch_engine.laid_out(self.model, rows)).within(context)
            here.prefixes = PrefixCache(prefixes) if prefixes else None
            return here
        return self.run.engine(self.engine_kind, self.threads).within(context)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device
