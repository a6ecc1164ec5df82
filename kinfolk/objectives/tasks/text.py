"""Tasks without labels: language modelling (next token, masked token), and text to text."""

from pathlib import Path
from typing import ClassVar

from kinfolk.data.splits.asking import named
from kinfolk.objectives.causal import CausalLM
from kinfolk.objectives.masked import MaskedLM
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.sequence import SequenceToSequence
from kinfolk.objectives.tasks.task import Task


class NextToken(Task, kind="lm"):
    """The next token of running text (of an encoder, `MaskedToken` takes its place)."""

    objectives: ClassVar[tuple[type[Objective], ...]] = (CausalLM,)

    def data(self, path: Path, window: int = 0) -> str:
        return named("corpus", {"text": self.text}, path) if self.text else str(path)


class MaskedToken(NextToken, kind="masked-lm"):
    """Hidden tokens of running text, from both sides."""

    objectives: ClassVar[tuple[type[Objective], ...]] = (MaskedLM,)


class TextToText(Task, kind="seq2seq"):
    """The target of a pair from its source: translation, summarisation."""

    objectives: ClassVar[tuple[type[Objective], ...]] = (SequenceToSequence,)

    def data(self, path: Path, window: int = 0) -> str:
        return named("pairs", {"source": self.text, "target": self.second or self.label}, path)
