"""Encoders that are told what is known about the names in a text: K-BERT."""

from typing import Any

from kinfolk.family.bert import bert
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.objectives.knowledge import Triples


@relative(
    "k-bert",
    parent="bert",
    year=2020,
    paper="Liu et al. 2020, K-BERT: Enabling Language Representation with Knowledge Graph, arXiv:1909.07606",
    topology="encoder",
    causal=False,
    changes="facts about the names in a text are read as branches that only those names see; without facts it is BERT",
)
def k_bert(**numbers: Any) -> Recipe:
    """Section 3; the facts are those of `knowledge.file`, and at most two about one name are read."""
    return bert(**numbers).replace(name="k-bert", knowledge=Triples())


def informed(recipe: Recipe, file: str) -> Recipe:
    """Let a recipe know the triples of a file; one that knows something already knows them in its own way."""
    knowledge = recipe.knowledge or Triples()
    made = recipe.replace(knowledge=knowledge.replace(file=file))
    knowledge.fits(made.model)
    return made
