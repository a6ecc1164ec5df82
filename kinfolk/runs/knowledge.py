"""Knowledge files of a recipe, read for a tokenizer; a run keeps a copy, so that they can be read again."""

from pathlib import Path

from kinfolk.core.errors import DataError, SpecError
from kinfolk.data import Tokenizer
from kinfolk.data.splits.facts import read_entities, read_rows, read_triples
from kinfolk.family.recipe import Recipe
from kinfolk.models.stack import Stack
from kinfolk.objectives.knowledge import Entities, Facts, Lexicon, Triples, attentions
from kinfolk.objectives.objective import Known
from kinfolk.runs import folder


def known_by(recipe: Recipe, tokenizer: Tokenizer) -> Known | None:
    """Read what a recipe knows; None if it knows nothing. A model that cannot be told is refused."""
    knowledge = recipe.knowledge
    if knowledge is None or not knowledge.file:
        return None
    knowledge.fits(recipe.model)
    if not Path(knowledge.file).is_file():
        raise DataError(f"knowledge.file: {knowledge.file}: no such file")
    if isinstance(knowledge, Triples):
        return Facts(read_triples(knowledge.file, tokenizer, knowledge.relation), knowledge.most)
    if isinstance(knowledge, Entities):
        names, entities = read_entities(knowledge.file, tokenizer)
        for at, part in attentions(recipe.model):
            if part.n_entities < len(entities):
                where = f"model.encoder.blocks[{at}].parts[0].n_entities"
                raise SpecError(f"{where}: {part.n_entities} is less than the {len(entities)} of {knowledge.file}")
        return Lexicon(names, tuple(entities), knowledge.most)
    raise SpecError(f"knowledge: kind {knowledge.kind!r} cannot be read")


def fitted(recipe: Recipe) -> Recipe:
    """Return a recipe whose model has a vector for each entity of its file."""
    knowledge, depth = recipe.knowledge, recipe.model.encoder
    if not isinstance(knowledge, Entities) or not knowledge.file or not isinstance(depth, Stack):
        return recipe
    n = n_entities(Path(knowledge.file))
    blocks = list(depth.blocks)
    for at, part in attentions(recipe.model):
        parts = tuple(part.replace(n_entities=n) if other is part else other for other in blocks[at].parts)
        blocks[at] = blocks[at].replace(parts=parts)
    return recipe.replace(model=recipe.model.replace(encoder=depth.replace(blocks=tuple(blocks))))


def n_entities(file: Path) -> int:
    """Return how many entities a file names."""
    return len({entity for _, (_, entity, *_) in read_rows(file, ("mention", "entity", "prior"), more=1)})


def file_of(recipe: Recipe) -> Path | None:
    """Return the file that a run of a recipe keeps a copy of."""
    return Path(recipe.knowledge.file) if recipe.knowledge is not None and recipe.knowledge.file else None


def own(recipe: Recipe, out: Path) -> Recipe:
    """Return the recipe of a run with the file that the run kept."""
    kept = out / folder.KNOWLEDGE
    if recipe.knowledge is None or not kept.is_file():
        return recipe
    return recipe.replace(knowledge=recipe.knowledge.replace(file=str(kept)))
