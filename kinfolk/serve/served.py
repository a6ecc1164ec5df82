"""A run as a server has it: the model, its way from text to ids and back, and what it can be asked for."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.data import Tokenizer
from kinfolk.decoding.decode import BOS, batch_of
from kinfolk.decoding.spelling import Spelling
from kinfolk.family.recipe import Recipe
from kinfolk.layers.class_head import JudgingHead
from kinfolk.layers.vector_head import VectorHead
from kinfolk.models.model import Transformer
from kinfolk.objectives.corruption import Corruption
from kinfolk.objectives.image import Pictures
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.supervised import Classify
from kinfolk.ops.readout import readout
from kinfolk.serve.workers import TorchWorker, Worker
from kinfolk.train import folder
from kinfolk.train.run import load_learner


@dataclasses.dataclass(eq=False)
class Served:
    """An opened run."""

    name: str
    recipe: Recipe
    learner: Learner
    tokenizer: Tokenizer
    about: dict[str, Any]
    created: int = 0

    @classmethod
    def open(cls, path: str | Path, name: str = "") -> "Served":
        """Open a run folder; it goes by the name of the folder unless another is given."""
        path = Path(path)
        recipe, learner = load_learner(path)
        tokenizer = Tokenizer.load(path / folder.TOKENIZER)
        created = int((path / folder.RUN).stat().st_mtime)
        learner.eval()
        return cls(name or path.resolve().name, recipe, learner, tokenizer, folder.read(path), created)

    @property
    def model(self) -> Transformer:
        """The network."""
        return self.learner.model

    @cached_property
    def spelling(self) -> Spelling:
        """Text to ids and back, sentinels included."""
        return Spelling(self.tokenizer, self.recipe.objective.extra_ids)

    @property
    def writes(self) -> bool:
        """Whether it continues texts."""
        heads = isinstance(self.model.head, JudgingHead)
        return self.model.spec.decoder is not None and not heads and not isinstance(self.recipe.objective, Pictures)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that it tells apart; none if that is not its work."""
        if not isinstance(self.recipe.objective, Classify):
            return ()
        n = getattr(self.model.spec.head, "n_classes", 0)
        return tuple(map(str, self.about.get("classes") or range(n)))

    def limit(self, context: int) -> int:
        """Return how many positions a text may have."""
        return min(context, self.model.limit or context)

    @property
    def closing(self) -> list[int]:
        """What a source ends with, where sources of pairs and of corrupted texts end."""
        ends = isinstance(self.recipe.objective, Corruption) or self.about.get("kind") == "pairs"
        return [self.tokenizer.eos] if ends and self.model.spec.topology == "encoder-decoder" else []

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt; an empty one is the beginning of a text."""
        return (self.spelling.encode(text) + self.closing) or [self.tokenizer.bos]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; what is no token of the tokenizer's has none."""
        return self.spelling.decode([i for i in ids if i < self.spelling.end])

    @cached_property
    def names(self) -> list[str]:
        """How each token is written, no two alike: its text where that is its own, else its name in the vocabulary."""
        found: list[str] = []
        taken: set[str] = set()
        for i in range(self.model.spec.vocab_size):
            text = "" if i in self.tokenizer.special_ids else self.decode([i])
            if not text or "\ufffd" in text or text in taken:
                text = self.tokenizer.inner.id_to_token(i) or f"<{i}>"
                text = f"<{i}>" if text in taken else text
            taken.add(text)
            found.append(text)
        return found

    @torch.inference_mode()
    def embed(self, rows: list[list[int]]) -> list[list[float]]:
        """Return a vector for each text: what its head says, or else the mean of its last states."""
        batch = batch_of(rows, self.device)
        if self.model.spec.topology == "encoder-decoder":
            state = self.model.new_state(len(rows), 1)
            start = torch.full((len(rows), 1), BOS, device=self.device)
            self.model.run(Batch(index=batch.index, tokens=start, source=batch.tokens, source_keep=batch.keep), state)
            assert state.memory is not None
            states_BLD, keep_BL = state.memory.states_BMD, state.memory.keep_BM
        else:
            out = self.model.run(batch)
            if isinstance(self.model.spec.head, VectorHead):
                return _plain(out.logits)
            states_BLD, keep_BL = out.hidden, out.keep
        return _plain(readout(states_BLD, keep_BL, "mean"))

    @torch.inference_mode()
    def classify(self, rows: list[list[int]]) -> list[list[float]]:
        """Return the probability of each class for each text."""
        if not self.classes:
            raise SpecError(f"{self.name}: this run was not trained to tell classes apart")
        batch = batch_of(rows, self.device)
        batch = batch.replace(labels=torch.zeros(len(rows), dtype=torch.long, device=self.device))
        ready = self.learner.prepare(batch, Rng(0))
        return _plain(self.model.run(ready).logits.softmax(-1))

    def worker(self, context: int) -> Worker:
        """Return who runs the model."""
        return TorchWorker(self.model, context)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device


def _plain(x_BD: Tensor) -> list[list[float]]:
    found: list[list[float]] = x_BD.float().cpu().tolist()
    return found
