"""Names that are spelt by chance and belong to one of two classes: what is known of new ones only knowledge tells."""

import numpy as np
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.supervised import Classify


def kinds():
    """Return 225 names of two tokens, and a class for each."""
    draw = np.random.default_rng(0)
    return {(a, b): int(draw.integers(2)) for a in range(10, 25) for b in range(10, 25)}


def learnt(recipe, known, *, lr, steps):
    """Return how much of 75 new names is right after a model has learnt the other 150."""
    names = kinds()
    rows, labels = torch.tensor([[5, *name] for name in names]), torch.tensor(list(names.values()))
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(rows)))
    recipe = recipe.replace(model=recipe.model.replace(head=ClassHead(n_classes=2)), objective=Classify())
    learner = Learner(kf.build(recipe, seed=0), recipe.objective, Vocabulary(40, known=known))
    optimiser = torch.optim.AdamW(learner.parameters(), lr=lr)
    read = [Batch(index=some, tokens=rows[some], labels=labels[some]) for some in (order[:150], order[150:])]
    seen = [learner.prepare(part, Rng(0)) for part in read]
    for _ in range(steps):
        loss = learner.train()(seen[0])
        optimiser.zero_grad()
        (loss.total / loss.count).backward()
        optimiser.step()
    with torch.no_grad():
        total, count = learner.eval().measure(seen[1])["accuracy"]
    return float(total / count)
