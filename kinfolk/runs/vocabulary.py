"""The vocabulary that objectives see: size and special ids of a tokenizer, with token counts where they are needed."""

import dataclasses

from kinfolk.data import Data, Tokenizer
from kinfolk.data.tokenizers.pieces import pieces_of
from kinfolk.family.recipe import Recipe
from kinfolk.objectives.objective import Vocabulary
from kinfolk.runs import knowledge


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Return the ids that objectives need."""
    t = tokenizer
    ids = t.pad, t.bos, t.eos, t.sep, t.cls, t.mask, t.start
    return Vocabulary(t.vocab_size, *ids, specials=t.special_ids, between=t.between, pieces=pieces_of(t))


def knowing_vocabulary(recipe: Recipe, tokenizer: Tokenizer) -> Vocabulary:
    """Return the vocabulary of a recipe with what its file of knowledge says."""
    return dataclasses.replace(vocabulary_of(tokenizer), known=knowledge.known_by(recipe, tokenizer))


def counted(vocabulary: Vocabulary, data: Data) -> Vocabulary:
    """Add how often each id occurs in the training part, where its kind of data can tell."""
    counts = data.split("train").counts()
    return vocabulary if counts is None else dataclasses.replace(vocabulary, counts=counts)
