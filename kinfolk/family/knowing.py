"""K-BERT and KnowBERT: encoders that read facts of a knowledge base."""

from typing import Any

import torch

from kinfolk.core.errors import SpecError
from kinfolk.family.bert import bert
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.mixers.knowledge_attention import KnowledgeAttention, WhereKnown
from kinfolk.models.block import Block
from kinfolk.models.model import Model, Transformer, build_model
from kinfolk.models.stack import Stack
from kinfolk.objectives.knowledge import Entities, Triples


@relative(
    "k-bert",
    parent="bert",
    paper="Liu et al. 2020, K-BERT: Enabling Language Representation with Knowledge Graph, arXiv:1909.07606",
    changes="facts about the names in a text are read as branches that only those names see; without facts it is BERT",
)
def k_bert(**numbers: Any) -> Recipe:
    """Section 3; the facts are those of `knowledge.file`, and at most two about one name are read."""
    return bert(**numbers).replace(name="k-bert", knowledge=Triples())


@relative(
    "knowbert",
    parent="bert",
    paper="Peters et al. 2019, Knowledge Enhanced Contextual Word Representations, arXiv:1909.04164",
    changes="between two layers mentions are linked to entities, and words look at what they mean; unnamed, it is BERT",
)
def knowbert(*, n_entities: int = 1024, d_entity: int = 0, after: int = 0, **numbers: Any) -> Recipe:
    """Section 3.3 and 4.1; `d_entity` 0 means 200, or half of a narrower model, `after` 0 ten layers of twelve."""
    recipe = bert(**numbers)
    model = with_entities(recipe.model, n_entities=n_entities, d_entity=d_entity, after=after)
    return recipe.replace(name="knowbert", model=model, knowledge=Entities())


def with_entities(model: Model, *, n_entities: int, d_entity: int = 0, after: int = 0, **more: Any) -> Model:
    """Let the words of any encoder of blocks look at what mentions mean, behind `after` of its layers.

    The block is the last of the list and runs among the others, so that all of them keep their names. `d_entity` and
    `after` as in `knowbert`; `more` are other numbers of `KnowledgeAttention`.
    """
    depth = model.encoder
    if model.topology != "encoder" or not isinstance(depth, Stack):
        raise SpecError(f"knowledge: words that look at entities are those of an encoder, not of {model.topology!r}")
    after = after or max(1, 10 * len(depth.order) // 12)
    if not 1 <= after <= len(depth.order):
        raise SpecError(f"after: {after} is not one of the {len(depth.order)} layers")
    width = d_entity or min(200, max(1, model.d_model // 8) * 4)
    look = {"n_entities": n_entities, "d_entity": width, "d_ff": 1024 if width == 200 else 4 * width, **more}
    norm = getattr(depth.blocks[0].residual, "norm", WhereKnown().norm)
    block = Block(parts=(KnowledgeAttention(**look),), residual=WhereKnown(norm=norm))
    order = (*depth.order[:after], len(depth.blocks), *depth.order[after:])
    return model.replace(encoder=depth.replace(blocks=(*depth.blocks, block), order=order))


def knowledgeable(model: Transformer, *, seed: int = 0, **numbers: Any) -> Transformer:
    """Return a model that looks at entities and has all the weights of another, an imported BERT for example.

    numbers: those of `with_entities`. What is new is drawn from the seed.
    """
    other = build_model(with_entities(model.spec, **numbers), seed)
    own = model.state_dict()
    missing, unknown = other.load_state_dict(own, strict=False)
    last = len(other.spec.encoder.blocks) - 1  # type: ignore[union-attr]
    assert not unknown
    assert all(name.startswith(f"encoder.blocks.{last}.") for name in missing)
    return other.to(next(model.parameters()).dtype if own else torch.float32)


def informed(recipe: Recipe, file: str) -> Recipe:
    """Let a recipe know the triples of a file; one that knows something already knows them in its own way."""
    knowledge = recipe.knowledge or Triples()
    made = recipe.replace(knowledge=knowledge.replace(file=file))
    knowledge.fits(made.model)
    return made
