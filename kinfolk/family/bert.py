"""BERT, RoBERTa, ALBERT and the shape of DistilBERT: encoders pre-trained by masked language modelling."""

from typing import Any

from kinfolk.family.assembly import self_block, shared, stack, with_depth, with_feed_forward
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Projected, Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.head import MaskedLMHead
from kinfolk.layers.heads.paired_head import PairedHead
from kinfolk.layers.init import Normal
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.positions.position import Learned
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.model import Model
from kinfolk.objectives.masked import MaskedLM
from kinfolk.objectives.sentences import SentencePairs
from kinfolk.optim.lamb import LAMB
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import LinearDecay
from kinfolk.optim.training import Training


@relative(
    "bert",
    parent="vanilla",
    year=2018,
    paper="Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers, arXiv:1810.04805",
    topology="encoder",
    causal=False,
    changes="the encoder alone, filling in masked tokens and judging which passage comes next; learned positions, GELU",
)
def bert(
    *,
    d_model: int = 768,
    n_layers: int = 12,
    n_heads: int = 12,
    d_ff: int = 3072,
    vocab_size: int = 30522,
    max_len: int = 512,
    dropout: float = 0.1,
) -> Recipe:
    """Section 3 and appendix A.2: post-norm, exact GELU, a norm after the summed embeddings, Adam at 1e-4."""
    norm = LayerNorm(eps=1e-12)
    look, think = Attention(n_heads=n_heads, dropout=dropout), Dense(d_ff=d_ff, activation="gelu")
    model = Model(
        d_model=d_model,
        vocab_size=vocab_size,
        max_len=max_len,
        dropout=dropout,
        embedding=Tokens(position=Learned(), norm=norm, n_segments=2),
        encoder=stack(self_block(look, think, PostNorm(norm=norm)), n_layers),
        head=PairedHead(norm=norm),
        init=Normal(),
    )
    training = Training(
        steps=1_000_000,
        batch_size=256,
        length=512,
        order="documents",
        optimiser=AdamW(lr=1e-4, weight_decay=0.01),
        schedule=LinearDecay(warmup=10_000),
    )
    return Recipe(name="bert", model=model, objective=SentencePairs(), training=training)


def masked_only(recipe: Recipe) -> Recipe:
    """Leave out the question about pairs: windows of text with hidden tokens, as most of BERT's children have it."""
    head = recipe.model.head
    assert isinstance(head, PairedHead)
    model = recipe.model.replace(head=MaskedLMHead(activation=head.activation, norm=head.norm, to=head.to))
    return recipe.replace(model=model, objective=MaskedLM(), training=recipe.training.replace(order="shuffled"))


@relative(
    "roberta",
    parent="bert",
    paper="Liu et al. 2019, RoBERTa: A Robustly Optimized BERT Pretraining Approach, arXiv:1907.11692",
    changes="no question about the next passage, full windows, other masks each time, a larger vocabulary and batch",
)
def roberta(*, vocab_size: int = 50265, **numbers: Any) -> Recipe:
    """Sections 4 and 5: batches of 8,192 for 500,000 steps, Adam with beta2 0.98 and epsilon 1e-6 at 6e-4."""
    recipe = masked_only(bert(vocab_size=vocab_size, **numbers))
    embedding = Tokens(position=Learned(), norm=LayerNorm(eps=1e-12))
    optimiser = AdamW(lr=6e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01)
    training = recipe.training.replace(
        steps=500_000, batch_size=8192, optimiser=optimiser, schedule=LinearDecay(warmup=24_000)
    )
    return recipe.replace(name="roberta", model=recipe.model.replace(embedding=embedding), training=training)


@relative(
    "albert",
    parent="bert",
    paper="Lan et al. 2019, ALBERT: A Lite BERT for Self-supervised Learning, arXiv:1909.11942",
    changes="all layers share their weights, the table of words is narrow, and passages may have changed places",
)
def albert(*, vocab_size: int = 30000, d_inner: int = 0, n_groups: int = 1, **numbers: Any) -> Recipe:
    """Sections 3.1 and 4.1; `d_inner` 0 means 128, or as wide as the model if that is narrower."""
    recipe = bert(vocab_size=vocab_size, **numbers)
    norm = LayerNorm(eps=1e-12)
    inner = Tokens(position=Learned(), norm=norm, n_segments=2)
    model = with_depth(recipe.model, lambda depth: shared(depth, n_groups)).replace(
        embedding=Projected(of=inner, d_inner=d_inner or min(128, recipe.model.d_model)),
        head=PairedHead(activation="gelu-tanh", norm=norm, to="table"),
    )
    model = with_feed_forward(model, lambda think: think.replace(activation="gelu-tanh"))
    training = recipe.training.replace(
        steps=125_000,
        batch_size=4096,
        order="documents",
        optimiser=LAMB(lr=1.76e-3, weight_decay=0.01),
        schedule=LinearDecay(warmup=3125),
    )
    objective = SentencePairs(question="order", unit="word", longest=3)
    return recipe.replace(name="albert", model=model, objective=objective, training=training)


@relative(
    "distilbert",
    parent="bert",
    paper="Sanh et al. 2019, DistilBERT, a distilled version of BERT, arXiv:1910.01108",
    changes="half of the layers, no segments and no pooler; taught here by masked tokens alone, without a teacher",
)
def distilbert(*, n_layers: int = 6, **numbers: Any) -> Recipe:
    """Section 3: the shape of the student, which is pre-trained with whole batches of 4,000 and other masks."""
    recipe = masked_only(bert(n_layers=n_layers, **numbers))
    embedding = Tokens(position=Learned(), norm=LayerNorm(eps=1e-12))
    training = recipe.training.replace(batch_size=4000)
    return recipe.replace(name="distilbert", model=recipe.model.replace(embedding=embedding), training=training)
