"""Student model for distillation: any relative, initialised with layers of its teacher where they fit."""

from collections.abc import Sequence
from typing import Any

import torch

from kinfolk.core import paths
from kinfolk.core.errors import SpecError
from kinfolk.family import registry
from kinfolk.family.building import build
from kinfolk.family.making import make, numbers_of
from kinfolk.layers.linear_maps import bare
from kinfolk.models.model import Model, Transformer
from kinfolk.use.compress.exchanging import Tell
from kinfolk.use.compress.opening import CompressibleRun
from kinfolk.use.compress.surgery import STACKS, block_weights, weights_of


def student_of(
    opened: CompressibleRun,
    name: str,
    tell: Tell,
    *,
    size: str = "tiny",
    assignments: Sequence[str] = (),
    seed: int = 0,
) -> Transformer:
    """Build a student of a relative.

    It has the teacher's widths and head, and reads what the teacher reads, where nothing else is assigned: numbers of
    the relative (`n_layers=3`) or paths into its recipe (`model.dropout=0`).
    """
    teacher = opened.recipe.model
    known = numbers_of(registry.entry(name).function)
    pairs = [paths.split(text) for text in assignments]
    own = {key: paths.Written(text).read() for key, text in pairs if key in known}
    given = {key: value for key, value in widths(teacher).items() if key in known}
    recipe = make(name, size=size, **(given | own))
    model = recipe.model.replace(head=teacher.head, vocab_size=teacher.vocab_size)
    if model.topology != teacher.topology:
        raise SpecError(
            f"--student: {name} is a {model.topology!r} and its teacher a {teacher.topology!r}; they read other things"
        )
    recipe = recipe.replace(model=model).assigned([f"{key}={text}" for key, text in pairs if key not in known])
    student = build(recipe, seed)
    taken, n = begin(student, opened.learner.model)
    said = "; ".join(f"{stack} from layers {', '.join(map(str, layers))}" for stack, layers in taken.items())
    tell(f"student: {student.n_params:,} parameters, {n} tensors of the teacher's{': ' * bool(said)}{said}")
    return student


def widths(model: Model) -> dict[str, Any]:
    """Return the numbers of a model that a student has too by default."""
    found: dict[str, Any] = {key: getattr(model, key) for key in ("d_model", "vocab_size", "max_len", "dropout")}
    for stack in (model.encoder, model.decoder):
        for block in getattr(stack, "blocks", ()):
            for part in map(bare, block.parts):
                found |= {key: getattr(part, key) for key in ("n_heads", "d_ff") if hasattr(part, key)}
    return found


def layers_for(n_student: int, n_teacher: int) -> list[int]:
    """Return the layers of a teacher that a student begins with, from the first to the last (Sanh et al. 2019)."""
    if n_student == 1:
        return [0]
    return [round(m * (n_teacher - 1) / (n_student - 1)) for m in range(n_student)]


@torch.no_grad()
def begin(student: Transformer, teacher: Transformer) -> tuple[dict[str, list[int]], int]:
    """Give a student the teacher's weights wherever names and shapes agree; return which layers, and how many tensors.

    A layer is taken over if all of it fits. The rest keeps what was drawn.
    """
    own, its = student.state_dict(), weights_of(teacher)
    outside = [name for name in own if not _inside(name) and name in its and own[name].shape == its[name].shape]
    moved = {name: its[name] for name in outside}
    taken: dict[str, list[int]] = {}
    for stack in STACKS:
        mine, theirs = getattr(student.spec, stack), getattr(teacher.spec, stack)
        if not (hasattr(mine, "order") and hasattr(theirs, "order")):
            continue
        for m, g in enumerate(layers_for(len(mine.order), len(theirs.order))):
            new, old = (block_weights(w, stack, i) for w, i in ((own, mine.order[m]), (its, theirs.order[g])))
            fits = new.keys() == old.keys() and all(new[name].shape == old[name].shape for name in new)
            # layers that share a block begin with the first of their teachers
            if fits and mine.order[m] not in mine.order[:m]:
                moved |= {f"{stack}.blocks.{mine.order[m]}.{name}": x for name, x in old.items()}
                taken.setdefault(stack, []).append(g)
    for name, x in moved.items():
        own[name].copy_(x)
    return taken, len(moved)


def _inside(name: str) -> bool:
    stack, _, rest = name.partition(".")
    return stack in STACKS and rest.startswith("blocks.")
