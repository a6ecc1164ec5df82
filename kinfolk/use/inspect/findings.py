"""What heads are for: the dependency relations that they find, and the loss without each of them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng, derive
from kinfolk.data import Batches, Tokenizer
from kinfolk.data.files.treebank import read_treebank
from kinfolk.models.model import Transformer
from kinfolk.objectives.learner import Learner
from kinfolk.runs.run import Run
from kinfolk.use.inspect.page import Findings
from kinfolk.use.inspect.removal import importance, removed
from kinfolk.use.inspect.syntax import relations

Progress = Callable[[int, int], None]
"""How many are done, of how many."""


def with_relations(
    findings: Findings, model: Transformer, tokenizer: Tokenizer, treebank: tuple[Path, int], tell: Progress
) -> Findings:
    """Add which head finds which relation in a CoNLL-U file, over its first sentences: (file, most)."""
    file, most = treebank
    sentences = read_treebank(file)[:most]
    found = relations(model, tokenizer, sentences, lambda done: tell(done, len(sentences)))
    return dataclasses.replace(findings, relations=tuple(found))


def with_worth(findings: Findings, run: Run, learner: Learner, n_batches: int, tell: Progress) -> Findings:
    """Add the loss on the run's validation data, what it is without each head, and each head's importance."""
    batches = _batches(run, learner, n_batches)
    learner.eval()
    loss, rises = removed(learner, batches, tell)
    leans = importance(learner, [batch.rows(slice(0, 8)) for batch in batches])
    worth = {path: (leans[path].tolist(), rises[path].tolist()) for path in rises}
    return dataclasses.replace(findings, worth=worth, loss=loss)


def _batches(run: Run, learner: Learner, most: int) -> list[Batch]:
    training = run.recipe.training
    valid = run.data().split("valid")
    batches = Batches(valid, shuffle=False, batch_size=training.batch_size, length=training.length)
    count = min(most, batches.steps_per_epoch)
    return [learner.prepare(batches.at(i), Rng(derive(0, "valid"))) for i in range(count)]
