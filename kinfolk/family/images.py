"""Image Transformer: images generated pixel by pixel, unconditionally, by super-resolution or completion."""

from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.grid import Grid
from kinfolk.family.assembly import cross_block, self_block, stack
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.layers.embeddings.embedding import Sides
from kinfolk.layers.embeddings.pixels import GridPosition, Pixels
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.heads.logistic_head import LogisticMixture
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.part import FeedForward
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.objectives.image import Completion, ImageObjective, PixelByPixel, SuperResolution
from kinfolk.ops.patterns.leaves import Causal, Full, Local1D, Local2D, Pattern

LOCALS = ("1d", "2d")
CIFAR = {"n_layers": 12, "n_heads": 4, "dropout": 0.3}


@relative(
    "image-transformer",
    parent="vanilla",
    paper="Parmar et al. 2018, Image Transformer, arXiv:1802.05751",
    topology="decoder",
    input="image",
    changes="the decoder alone, making images value by value; a value attends to its block and what precedes it",
)
def image_transformer(
    *,
    image_width: int = 32,
    channels: int = 3,
    block: int = 256,
    memory: int = 256,
    vocab_size: int = 263,
    max_len: int = 32 * 32 * 3,
    **numbers: Any,
) -> Recipe:
    """Section 3.2.1, one-dimensional local attention, with the numbers for CIFAR-10.

    max_len: values of the largest image, which says how high it is.
    block, memory: a block of `block` values sees itself and `memory` values before it.
    """
    near = Causal() & Local1D(block=block, memory=memory)
    recipe = vanilla(vocab_size=vocab_size, max_len=max_len, **(CIFAR | numbers))
    return _made(recipe, "image-transformer", Grid(columns=image_width, channels=channels), near)


@relative(
    "image-transformer-2d",
    parent="image-transformer",
    paper="Parmar et al. 2018, Image Transformer, arXiv:1802.05751",
    input="image",
    changes="blocks are rectangles of the image, and it is made block by block",
)
def image_transformer_2d(
    *, block_height: int = 8, block_width: int = 16, above: int = 8, beside: int = 8, **numbers: Any
) -> Recipe:
    """Section 3.2.1, two-dimensional local attention; all four are counted in pixels.

    block_height, block_width: at most; the largest that fill the image are taken.
    above, beside: rows over a block and columns to its sides that it sees.
    """
    recipe = image_transformer(**numbers)
    line = _grid(recipe)
    grid = line.replace(
        block_height=_filling(line.rows(recipe.model.max_len), block_height),
        block_width=_filling(line.columns, block_width),
    )
    near = Local2D(
        width=grid.width,
        block_height=grid.block_height,
        block_width=grid.block_width * grid.channels,
        above=above,
        beside=beside * grid.channels,
    )
    return _made(recipe, "image-transformer-2d", grid, near)


@relative(
    "image-transformer-logistic",
    parent="image-transformer",
    paper="Parmar et al. 2018, Image Transformer, arXiv:1802.05751",
    input="image",
    changes="a value is drawn from a mixture of logistics: neighbouring values are known to be neighbours",
)
def image_transformer_logistic(*, n_components: int = 10, **numbers: Any) -> Recipe:
    """Section 3.3, DMOL, with its narrower numbers for CIFAR-10."""
    recipe = image_transformer(**({"d_model": 256, "d_ff": 512, "n_heads": 8} | numbers))
    model = recipe.model.replace(head=LogisticMixture(n_components=n_components))
    return recipe.replace(name="image-transformer-logistic", model=model)


@relative(
    "image-super-resolution",
    parent="image-transformer",
    paper="Parmar et al. 2018, Image Transformer, arXiv:1802.05751",
    topology="encoder-decoder",
    input="image",
    changes="an encoder reads the image made small, and the decoder makes it large again",
)
def image_super_resolution(*, factor: int = 4, local: str = "1d", **numbers: Any) -> Recipe:
    """Section 5.3: from 8 x 8 to 32 x 32 pixels; the encoder sees everything, the decoder is `local`: "1d" or "2d"."""
    recipe = _local(local, 1, numbers)
    grid = _grid(recipe)
    model = conditioned(recipe.model, Grid(columns=max(1, grid.columns // factor), channels=grid.channels))
    objective = SuperResolution(grid=grid, factor=factor)
    return recipe.replace(name="image-super-resolution", model=model, objective=objective)


@relative(
    "image-completion",
    parent="image-transformer",
    paper="Parmar et al. 2018, Image Transformer, arXiv:1802.05751",
    topology="encoder-decoder",
    input="image",
    changes="an encoder reads the upper half of the image, and the decoder makes the lower one",
)
def image_completion(*, given: float = 0.5, local: str = "1d", **numbers: Any) -> Recipe:
    """Section 5.1 completes images with the decoder alone; here what is given is read from both sides."""
    recipe = _local(local, 2, numbers)
    grid = _grid(recipe)
    model = conditioned(recipe.model, Grid(columns=grid.columns, channels=grid.channels))
    return recipe.replace(name="image-completion", model=model, objective=Completion(grid=grid, given=given))


def _made(recipe: Recipe, name: str, grid: Grid, near: Pattern) -> Recipe:
    """Let a decoder alone make images in the order of a grid, seeing what is near."""
    look, think, decoder = _layers(recipe.model)
    block = self_block(look.replace(pattern=near), think, decoder.blocks[0].residual)
    model = recipe.model.replace(
        embedding=_pixels(grid, shift=1),
        encoder=None,
        decoder=stack(block, decoder.n_layers),
        head=LMHead(weights="untied", bias=True),
    )
    training = recipe.training.replace(length=model.max_len, batch_size=32)
    return Recipe(name=name, model=model, objective=PixelByPixel(grid=grid), training=training)


def conditioned(model: Model, source: Grid) -> Model:
    """Give a decoder of images an encoder that sees all of another image."""
    look, think, decoder = _layers(model)
    residual = decoder.blocks[0].residual
    return model.replace(
        embedding=Sides(source=_pixels(source, shift=0), target=model.embedding),
        encoder=stack(self_block(look.replace(pattern=Full()), think, residual), decoder.n_layers),
        decoder=stack(cross_block(look, think, residual), decoder.n_layers),
    )


def _layers(model: Model) -> tuple[Attention, FeedForward, Stack]:
    """Return the attention and feed-forward of every layer of a decoder, and the decoder."""
    assert isinstance(model.decoder, Stack)
    parts = model.decoder.blocks[0].parts
    look, think = parts[0], parts[-1]
    assert isinstance(look, Attention)
    assert isinstance(think, FeedForward)
    return look, think, model.decoder


def _local(local: str, n_parts: int, numbers: dict[str, Any]) -> Recipe:
    """Return the decoder that sees blocks in a line, or in the image, of which every part has whole blocks."""
    if local not in LOCALS:
        raise SpecError(f"local: unknown {local!r}{suggest(local, LOCALS)}")
    line = image_transformer(**numbers)
    if local == "1d":
        return line
    rows = _grid(line).rows(line.model.max_len)
    return image_transformer_2d(block_height=max(1, min(8, rows // n_parts)), **numbers)


def _filling(n: int, most: int) -> int:
    """Return the largest number up to `most` that divides n."""
    return max(size for size in range(1, min(n, most) + 1) if n % size == 0)


def _grid(recipe: Recipe) -> Grid:
    assert isinstance(recipe.objective, ImageObjective)
    return recipe.objective.grid


def _pixels(grid: Grid, shift: int) -> Pixels:
    position = GridPosition(grid=grid, table="sinusoid")
    return Pixels(position=position, scale="sqrt", channels=grid.channels, shift=shift)
