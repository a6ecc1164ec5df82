"""word2vec: static word embeddings, the baseline of contextual models."""

from typing import Any

from kinfolk.family.bert import bert, masked_only
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.heads.head import LMHead
from kinfolk.models.depth.flat import Flat
from kinfolk.objectives.skipgram import SkipGram
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import LinearDecay


@relative(
    "word2vec",
    parent="bert",
    paper="Mikolov et al. 2013, Distributed Representations of Words and Phrases, arXiv:1310.4546",
    changes="no layers: a word has one static vector, learnt from the words around it",
)
def word2vec(
    *,
    d_model: int = 300,
    n_layers: int = 0,
    n_heads: int = 1,
    window: int = 5,
    n_negative: int = 5,
    threshold: float = 1e-5,
    dropout: float = 0.0,
    **numbers: Any,
) -> Recipe:
    """Sections 2.2 and 2.3, skip-gram with negative sampling; layers, heads and d_ff mean nothing here.

    Batches are learnt from by Adam, where the paper goes pair by pair at 0.025.
    """
    recipe = masked_only(bert(d_model=d_model, n_layers=1, n_heads=1, dropout=dropout, **numbers))
    model = recipe.model.replace(embedding=Tokens(), encoder=Flat(), head=LMHead(weights="untied"))
    training = recipe.training.replace(
        steps=100_000, optimiser=AdamW(lr=1e-3, weight_decay=0.0), schedule=LinearDecay(warmup=0)
    )
    objective = SkipGram(window=window, n_negative=n_negative, threshold=threshold)
    return recipe.replace(name="word2vec", model=model, objective=objective, training=training)
