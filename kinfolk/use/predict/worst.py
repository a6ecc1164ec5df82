"""The examples with the highest losses, kept during an evaluation."""

import heapq

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.data import Split
from kinfolk.models.model import Output
from kinfolk.objectives.measures.tallies import Tally
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.supervised import Labels
from kinfolk.objectives.tasks.registry import of_objective
from kinfolk.objectives.tasks.task import Example


class Keeping(Tally):
    """A tally that also keeps the `most` examples with the highest losses; of tags the mean over words."""

    def __init__(self, inner: Tally, objective: Objective, most: int) -> None:
        task, learnt = of_objective(objective), objective.inner
        if task is None or not isinstance(learnt, Labels):
            raise SpecError(f"objective {objective.kind!r}: has no labels, so no examples can be ranked by their loss")
        self.inner, self.objective, self.task, self.most = inner, learnt, task, most
        self.split: Split | None = None
        self._heap: list[tuple[float, int, Example]] = []
        self._losses: dict[int, float] = {}
        self._count = 0

    def add(self, output: Output, batch: Batch) -> None:
        """Tally a batch, and keep what is worst in it."""
        assert self.split is not None
        self.inner.add(output, batch)
        logits = output.logits.detach().double().cpu()
        batch = batch.map(lambda x: x.cpu())
        losses = self.objective.example_losses(logits, batch).tolist()
        for row, (i, loss) in enumerate(zip(batch.index.tolist(), losses, strict=True)):
            if self.task.windows:
                whole = self.split.whole_of(i)
                self._losses[whole] = max(loss, self._losses.get(whole, 0.0))
            elif len(self._heap) < self.most or loss > self._heap[0][0]:
                example = self.task.in_words(self.split, i, loss, logits[row], batch.rows(slice(row, row + 1)))
                self._keep(loss, example)

    def worst(self) -> list[Example]:
        """Return what was kept, the worst first."""
        if self.task.windows:
            return self.task.worst(self.inner, self._losses, self.most)
        return [example for _, _, example in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))]

    def _keep(self, loss: float, example: Example) -> None:
        # the number keeps examples themselves from being compared
        self._count += 1
        entry = (loss, -self._count, example)
        if len(self._heap) < self.most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heapreplace(self._heap, entry)
