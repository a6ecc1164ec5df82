"""Changes of the rows of Narang et al. 2021: functions from the baseline's recipe to a row's.

Numbers that the paper gives for its base size are scaled with the model, so that a row means the same at any size.
"""

from collections.abc import Callable
from typing import Literal

from kinfolk.family.assembly import shared, with_depth, with_feed_forward, with_residual
from kinfolk.family.convolution import convolved
from kinfolk.family.evolved import evolved as cells_of
from kinfolk.family.experts import with_experts
from kinfolk.family.norms import fixed_up
from kinfolk.family.recipe import Recipe
from kinfolk.family.synthesizer import synthesized
from kinfolk.family.tables import Change, NotAtThisSizeError
from kinfolk.layers.embeddings.adaptive import Adaptive, AdaptiveSoftmax
from kinfolk.layers.embeddings.embedding import Factorised, Sides, Tokens
from kinfolk.layers.feed_forwards.experts import Router
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.feed_forwards.product_key import ProductKey
from kinfolk.layers.heads.head import LMHead, Tie
from kinfolk.layers.heads.mixture_of_softmaxes import MixtureHead
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.mixers.convolution import DynamicConv, LightConv
from kinfolk.layers.mixers.evolved import Branches
from kinfolk.layers.mixers.synthesizer import Form
from kinfolk.layers.norms.norm import NoNorm, Norm
from kinfolk.layers.part import FeedForward, Part
from kinfolk.layers.positions.position import LearnedSteps
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.layers.residuals.rezero import GatedResidual as GatedResidual
from kinfolk.layers.residuals.rezero import ReZero
from kinfolk.models.block import Block
from kinfolk.models.depth.funnel import Funnel, Narrowest
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.models.transparent import Transparent
from kinfolk.ops.activated_linear import Activation

BASE_LAYERS, BASE_WIDTH = 12, 768
CLUSTERS = (2500 / 32128, 8500 / 32128)
"""Where the paper cuts its vocabulary, as shares of it."""


def of_model(change: Callable[[Model], Model]) -> Change:
    """Return a change of the model as one of the recipe."""
    return lambda recipe: recipe.replace(model=change(recipe.model))


def same(recipe: Recipe) -> Recipe:
    """Change nothing."""
    return recipe


def activation(name: Activation) -> Change:
    """Change the activation of feed-forwards."""
    return of_model(lambda model: with_feed_forward(model, lambda think: think.replace(activation=name)))


def gated(name: Activation) -> Change:
    """Gate feed-forwards by this activation, at as many weights."""

    def change(think: FeedForward) -> FeedForward:
        assert isinstance(think, Dense)
        return Gated.at_equal_parameters(think, name)

    return of_model(lambda model: with_feed_forward(model, change))


def normed(norm: Norm) -> Change:
    """Change all norms."""
    return of_model(lambda model: with_residual(model, PreNorm(norm=norm), norm))


def rezero(norm: Norm | None = None) -> Change:
    """Multiply branches by a number that starts at zero, with or without norms."""
    norm = NoNorm() if norm is None else norm
    return of_model(lambda model: with_residual(model, ReZero(norm=norm), norm))


fixup = of_model(fixed_up)


def deep(n_layers: int) -> Change:
    """Trade depth for width as if the baseline had twelve layers: products with depth stay, heads stay as wide."""

    def change(recipe: Recipe) -> Recipe:
        model = recipe.model
        before, look, think = len(_stack(model.encoder).order), _look(model), _think(model)
        layers, rest = divmod(before * n_layers, BASE_LAYERS)
        if rest or layers < 1:
            raise NotAtThisSizeError(f"{n_layers} of {BASE_LAYERS} layers cannot be scaled to a model of {before}")
        n_heads = max(1, round(look.n_heads * before / layers))
        d_head, d_ff = model.d_model // look.n_heads, round(think.d_ff * before / layers)

        def part(old: Part) -> Part:
            if isinstance(old, Attention | CrossAttention):
                return old.replace(n_heads=n_heads, d_head=d_head)
            return old.replace(d_ff=d_ff) if isinstance(old, Dense) else old

        def stack(old: Stack) -> Stack:
            block = _with_parts(old.blocks[0], part)
            return old.replace(blocks=(block,) * layers, order=tuple(range(layers)))

        changed = model.replace(encoder=stack(_stack(model.encoder)), decoder=stack(_stack(model.decoder)))
        return recipe.replace(model=changed)

    return change


def sharing(*sides: str) -> Change:
    """Let the layers of some stacks share their weights, under an output layer of its own."""

    def change(model: Model) -> Model:
        stacks = {side: shared(_stack(getattr(model, side))) for side in sides}
        return model.replace(**stacks, head=LMHead(weights="untied"))

    return of_model(change)


def factorised(weights: Tie) -> Change:
    """Make the embedding of two factors, with a "tied" or "untied" output layer."""

    def change(model: Model) -> Model:
        d_inner = max(1, model.d_model * 128 // BASE_WIDTH)
        embedding = Factorised(position=_tokens(model).position, scale=_tokens(model).scale, d_inner=d_inner)
        return model.replace(embedding=embedding, head=LMHead(weights=weights))

    return of_model(change)


def embeddings(sides: Literal["tied", "apart"], weights: Tie) -> Change:
    """Have one table for both "tied" sides or one for each, and an output layer of its own or that of the decoder."""

    def change(model: Model) -> Model:
        one = _tokens(model)
        embedding = one if sides == "tied" else Sides(source=one, target=one)
        return model.replace(embedding=embedding, head=LMHead(weights=weights))

    return of_model(change)


def adaptive(inputs: bool, softmax: bool) -> Change:
    """Give rare words narrower embeddings, predict them in two steps, or both; the output shares the tables."""

    def change(model: Model) -> Model:
        cutoffs = tuple(max(i + 1, round(share * model.vocab_size)) for i, share in enumerate(CLUSTERS))
        d, old = model.d_model, _tokens(model)
        # two numbers would not tell a thousand words apart, so narrow models stop at sixteen
        widths = tuple(min(d, max(16, d // by)) for by in (1, 3, 12)) if inputs else (d, d, d)
        narrow = Adaptive(position=old.position, scale=old.scale, cutoffs=cutoffs, widths=widths)
        head = AdaptiveSoftmax(weights="tied", cutoffs=cutoffs, widths=widths) if softmax else model.head
        return model.replace(embedding=narrow if inputs else old, head=head)

    return of_model(change)


def mixture(n_components: int) -> Change:
    """Mix several softmaxes."""
    return of_model(lambda model: model.replace(head=MixtureHead(n_components=n_components)))


def convolution(kind: type[LightConv | DynamicConv]) -> Change:
    """Convolve nine positions where others attend."""
    return of_model(lambda model: convolved(model, kind, (9,)))


def synthesizer(form: Form) -> Change:
    """Make up the scores of self-attention; position biases stay beside them."""
    return of_model(lambda model: synthesized(model, form))


def transparent(model: Model) -> Model:
    """Let each layer of the decoder look at a mixture of all layers of the encoder."""
    return model.replace(bridge=Transparent())


def universal(model: Model) -> Model:
    """Run one gated block twice as often as there were layers, and a few times before and after, untold which.

    Their settings name a threshold of halting, and a kind of recurrence that never asks for it.
    """

    def again(stack: Stack) -> Stack:
        n = len(stack.order)
        around = max(1, n // 6)
        block = stack.blocks[0].replace(residual=GatedResidual())
        position = LearnedSteps(n=2 * n, skip=around)
        return stack.replace(blocks=(block,), order=(0,) * (2 * n + 2 * around), position=position)

    return with_depth(model, again).replace(head=LMHead(weights="untied"))


def funnel(model: Model) -> Model:
    """Halve the encoder's sequence twice, after the first attention of the second and of the last third of its layers.

    The decoder looks at what is left. Positions are counted anew at every level.
    """
    stack = _stack(model.encoder)
    n_levels = min(3, len(stack.order))
    if n_levels < 2:
        raise NotAtThisSizeError("one layer has no level to pool for")
    firsts = {len(stack.order) * i // n_levels for i in range(1, n_levels)}
    levels: list[list[Block]] = [[]]
    for n, i in enumerate(stack.order):
        block = stack.blocks[i]
        if n not in firsts:
            levels[-1].append(block)
            continue
        levels[-1].append(block.replace(parts=block.parts[:1]))
        levels.append([block.replace(parts=block.parts[1:])])
    pooled = [Stack(blocks=tuple(blocks), order=tuple(range(len(blocks)))) for blocks in levels]
    pooled[-1] = pooled[-1].replace(norm=stack.norm)
    return model.replace(encoder=Funnel(levels=tuple(pooled), apart=0, keys="pooled"), bridge=Narrowest())


def evolved(model: Model) -> Model:
    """Put the cells of the Evolved Transformer in the place of layers, one for two, with the baseline's attention."""
    n, look, think = len(_stack(model.encoder).order) // 2, _look(model), _think(model)
    if n < 1:
        raise NotAtThisSizeError("a cell replaces two layers, and there is one")
    numbers = {"d_model": model.d_model, "n_heads": look.n_heads, "d_ff": think.d_ff, "max_len": model.max_len}
    heads = {"n_first_heads": 2 * look.n_heads, "d_first_head": model.d_model // look.n_heads}
    cells = cells_of(n_layers=n, n_decoder_layers=n, vocab_size=model.vocab_size, **numbers, **heads).model

    def part(old: Part) -> Part:
        if isinstance(old, Branches):
            return old.replace(parts=tuple(each.replace(bias=False) for each in old.parts))
        if isinstance(old, Attention):
            return look.replace(pattern=old.pattern)
        return old.replace(bias=False) if isinstance(old, CrossAttention) else old

    cells = with_depth(cells, lambda stack: stack.replace(blocks=tuple(_with_parts(b, part) for b in stack.blocks)))
    return model.replace(encoder=cells.encoder, decoder=cells.decoder)


def experts(router: Router, capacity: float) -> Change:
    """Make every fourth feed-forward one of 32 experts; a model of fewer layers has them in its last."""

    def change(model: Model) -> Model:
        every = min(4, len(_stack(model.encoder).order))
        return with_experts(model, router, 32, capacity, every)

    return of_model(change)


def product_key(model: Model) -> Model:
    """Put a memory in the place of the decoder's last feed-forward but one."""
    stack = _stack(model.decoder)
    place, memory = max(0, len(stack.blocks) - 2), ProductKey(n_keys=max(8, model.d_model * 2 // 3))
    parts = tuple(memory if isinstance(part, Dense) else part for part in stack.blocks[place].parts)
    blocks = (*stack.blocks[:place], stack.blocks[place].replace(parts=parts), *stack.blocks[place + 1 :])
    return model.replace(decoder=stack.replace(blocks=blocks))


def both(first: Change, second: Change) -> Change:
    """Make one change after another."""
    return lambda recipe: second(first(recipe))


def _with_parts(block: Block, change: Callable[[Part], Part]) -> Block:
    return block.replace(parts=tuple(map(change, block.parts)))


def _stack(depth: object) -> Stack:
    assert isinstance(depth, Stack)
    return depth


def _look(model: Model) -> Attention:
    return next(part for part in _stack(model.encoder).blocks[0].parts if isinstance(part, Attention))


def _think(model: Model) -> Dense:
    return next(part for part in _stack(model.encoder).blocks[0].parts if isinstance(part, Dense))


def _tokens(model: Model) -> Tokens:
    assert isinstance(model.embedding, Tokens)
    return model.embedding
