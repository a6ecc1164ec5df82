"""Extractive question answering: the span of a text that answers a question, or none (SQuAD)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from kinfolk.data.files.questions import Question, is_questions
from kinfolk.data.files.reader import FileRow
from kinfolk.data.splits.answering import AnswerSplit
from kinfolk.data.splits.asking import named
from kinfolk.data.splits.split import Split
from kinfolk.layers.heads.head import Head
from kinfolk.layers.heads.tag_head import SpanHead
from kinfolk.models.model import Model
from kinfolk.objectives.measures.answers import Answers, WindowAnswers
from kinfolk.objectives.measures.tallies import Tally
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.supervised import SpanAnswer
from kinfolk.objectives.tasks.answering import Answering, How, PredictionCounts, answered
from kinfolk.objectives.tasks.pooling import of_tokens
from kinfolk.objectives.tasks.task import Example, Task


class QuestionAnswering(Task, kind="answer"):
    """The span of a context that answers a question; long contexts are read in overlapping windows."""

    labels: ClassVar[str] = "span"
    objectives: ClassVar[tuple[type[Objective], ...]] = (SpanAnswer,)
    decides: ClassVar[str] = "answer-f1"
    windows: ClassVar[bool] = True

    @classmethod
    def in_file(cls, path: Path) -> bool:
        return is_questions(path)

    def data(self, path: Path, window: int = 0) -> str:
        windows = {"window": str(window), "stride": str(max(1, window // 3))} if window else {}
        return named("labelled", windows | {"labels": self.labels}, path)

    def asking(self, model: Model, n_classes: int, *, apart: bool = False) -> tuple[Head, Objective]:
        return SpanHead(), SpanAnswer(reads=of_tokens(model))

    def tally(self, objective: Objective, split: Split) -> Tally | None:
        assert isinstance(objective, SpanAnswer)
        # generated questions have token ids and no text to compare answers by
        return Answers(split, objective.longest, objective.threshold) if isinstance(split, AnswerSplit) else None

    def reads(self, run: Answering) -> tuple[str, ...]:
        return run.columns.question, run.columns.context

    def ask(self, run: Answering, row: FileRow) -> Question:
        question, context = row.text(run.columns.question), row.text(run.columns.context)
        return Question(str(row.values.get("id", row.line)), question.strip(), context, (), row.where)

    def answers(self, run: Answering, asked: list[Any], how: How, counts: PredictionCounts) -> list[dict[str, Any]]:
        objective = run.objective
        assert isinstance(objective, SpanAnswer)
        split = AnswerSplit("rows", run.tokenizer, asked, run.reading, always=run.always, labelled=False)
        counts.cut += split.questions_cut
        windows = WindowAnswers(split, objective.longest)
        for which, logits in answered(run, split, how, None):
            windows.add(logits, which)
        always = run.always and how.margin is None
        margin = objective.threshold if how.margin is None else how.margin
        answers = []
        for i in range(len(asked)):
            best = windows.answer(i, margin, always=always)
            place = {"start": best.start, "stop": best.stop} if best.text else {"start": None, "stop": None}
            answers.append({"answer": best.text, **place, "score": best.score, "margin": best.margin})
        return answers

    def worst(self, tally: Tally, losses: Mapping[int, float], most: int) -> list[Example]:
        """Return the questions that were answered worst: by their overlap, then by their loss."""
        assert isinstance(tally, Answers)
        ranked = sorted((tally.scores(i)[1], -losses.get(i, 0.0), i) for i in tally.read())
        examples = []
        for overlap, loss, i in ranked[:most]:
            question, answer = tally.split.questions[i], tally.answer(i)
            right = " | ".join(dict.fromkeys(text for _, text in question.answers)) or "(no answer)"
            said = f"{answer.text or '(no answer)'} ({answer.score:.2f})"
            text = f"{question.question}\n{question.context}"
            examples.append(Example(text, right, said, -loss, f"F1 {overlap:.2f}"))
        return examples
