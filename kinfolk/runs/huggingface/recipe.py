"""Fine-tuning recipe of an imported model: its objective, and a gentle training to go on with."""

from typing import TYPE_CHECKING, Literal

from kinfolk.family.recipe import Recipe
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.layers.heads.detection_head import DetectionHead
from kinfolk.layers.heads.head import Head
from kinfolk.layers.heads.paired_head import PairedHead
from kinfolk.layers.heads.tag_head import SpanHead, TagHead
from kinfolk.models.model import Model
from kinfolk.objectives.causal import CausalLM
from kinfolk.objectives.masked import MaskedLM
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.sentences import SentencePairs
from kinfolk.objectives.sequence import SequenceToSequence
from kinfolk.objectives.supervised import Classify, ClassifyMany, SpanAnswer, Tag
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import LinearDecay
from kinfolk.optim.training import Training

if TYPE_CHECKING:
    from kinfolk.runs.huggingface.folder import Imported

BY_HEAD: dict[type[Head], Objective] = {
    PairedHead: SentencePairs(),
    DetectionHead: Tag(),
}
BY_TOPOLOGY: dict[str, Objective] = {
    "encoder": MaskedLM(),
    "decoder": CausalLM(),
    "encoder-decoder": SequenceToSequence(),
}


SEVERAL = "multi_label_classification"


def recipe_of(model: Model, name: str, problem: str = "") -> Recipe:
    """Return a recipe that goes on with a model as Devlin et al. 2019, appendix A.3, advise for small data.

    problem: what a configuration calls its `problem_type`.
    """
    objective = _judging(model, problem) or BY_HEAD.get(type(model.head), BY_TOPOLOGY[model.topology])
    order: Literal["documents", "shuffled"] = "documents" if isinstance(objective, SentencePairs) else "shuffled"
    training = Training(
        steps=1000,
        batch_size=32,
        length=min(128, model.max_len),
        order=order,
        optimiser=AdamW(lr=5e-5, weight_decay=0.01),
        schedule=LinearDecay(warmup=0.1),
    )
    return Recipe(name=name, model=model, objective=objective, training=training)


def recipe_of_import(imported: "Imported") -> Recipe:
    """Return a recipe that goes on with what a folder held."""
    return recipe_of(imported.model.spec, imported.model_type, str(imported.also.get("problem_type", "")))


def _judging(model: Model, problem: str) -> Objective | None:
    """Return what a head that judges was taught with; texts of an encoder begin with a token, images do not."""
    head, opens = model.head, model.topology == "encoder" and not model.embedding.one_size
    opening: Literal["cls", "none"] = "cls" if opens else "none"
    if isinstance(head, ClassHead):
        kind = ClassifyMany if problem == SEVERAL else Classify
        return kind(opening=opening if head.pool == "first" else "none")
    if isinstance(head, TagHead):
        return Tag(opening=opening)
    return SpanAnswer() if isinstance(head, SpanHead) and opening == "cls" else None
