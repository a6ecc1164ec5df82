"""Training steps: the same GPT by ours and three others, and an encoder-decoder by ours and PyTorch's own."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.bench import peers
from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work
from kinfolk.bench.lean import LeanGPT
from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng
from kinfolk.family.building import build
from kinfolk.family.making import make
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import cost
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.optim import AdamW, Constant, Training
from kinfolk.train.parallel import Team
from kinfolk.train.repeatable import repeatable
from kinfolk.train.step import Stepper

ENGINE = True
CLIP, SMOOTHING, LR = 1.0, 0.1, 1e-3
GPT = {
    "relative": "gpt2",
    "d_model": 384,
    "n_layers": 6,
    "n_heads": 6,
    "d_ff": 1536,
    "vocab_size": 4096,
    "max_len": 256,
    "length": 256,
    "batch_size": 16,
}
VANILLA = {
    "relative": "vanilla",
    "d_model": 256,
    "n_layers": 4,
    "n_heads": 4,
    "d_ff": 1024,
    "vocab_size": 4096,
    "max_len": 64,
    "length": 64,
    "batch_size": 32,
}
NUMBERS = ("d_model", "n_layers", "n_heads", "d_ff", "vocab_size", "max_len")
LEAN = "lean GPT, by hand"


def contests(long: bool = False) -> list[Contest]:
    """Return the contests of this subject."""
    gpt = (
        BenchContestant(OURS),
        BenchContestant(LEAN, "lean"),
        BenchContestant("Hugging Face GPT-2", "hugging-face", package="transformers"),
        BenchContestant("x-transformers", "x-transformers", package="x_transformers"),
    )
    pair = (BenchContestant(OURS), BenchContestant("torch.nn.Transformer", "torch"))
    return [
        Contest("train", _title("train a GPT", GPT), GPT, gpt, LEAN),
        Contest("train", _title("train an encoder-decoder", VANILLA), VANILLA, pair, "torch.nn.Transformer"),
    ]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return a contestant's training step."""
    recipe = recipe_of(sizes)
    if contestant.how == OURS:
        step, parameters = our_step(recipe, data(sizes), contestant.settings)
    else:
        step, parameters = peer_step(contestant.how, sizes, contestant.settings)
    read = sizes["batch_size"] * sizes["length"]
    found = cost(recipe.model, sizes["length"])
    # tokens that are read: an encoder-decoder reads two sequences, and its cost counts the second
    units = read * (2 if recipe.model.topology == "encoder-decoder" else 1)
    return Work(step, units, read * found.train_flops_per_token, parameters, steps=sizes.get("steps", 5))


def recipe_of(sizes: Mapping[str, Any]) -> Recipe:
    """Return the relative at these sizes, without dropout, trained as everybody trains here."""
    recipe = make(sizes["relative"], size="small", dropout=0.0, **{name: sizes[name] for name in NUMBERS})
    training = Training(
        batch_size=sizes["batch_size"],
        length=sizes["length"],
        clip=CLIP,
        optimiser=AdamW(lr=LR),
        schedule=Constant(),
        precision="fp32",
        compile="off",
    )
    return recipe.replace(training=training)


def data(sizes: Mapping[str, Any]) -> Batch:
    """Return one batch of random tokens as it would be read: `length` positions and the one after."""
    draw = torch.Generator().manual_seed(1)
    shape = (sizes["batch_size"], sizes["length"] + 1)
    tokens = torch.randint(7, sizes["vocab_size"], shape, generator=draw)
    index = torch.arange(len(tokens))
    if sizes["relative"] != "vanilla":
        return Batch(index=index, tokens=tokens)
    return Batch(index=index, tokens=tokens, source=torch.randint(7, sizes["vocab_size"], (shape[0], shape[1] - 1)))


def our_step(recipe: Recipe, batch: Batch, settings: Mapping[str, Any]) -> tuple[Callable[[], float], int]:
    """Return the update that `kin train` makes, preparing the batch included, and the number of parameters."""
    model = build(recipe, seed=0)
    model.set_recompute(settings.get("recompute", "none"))
    learner = Learner(model, recipe.objective, Vocabulary(size=recipe.model.vocab_size - recipe.objective.extra_ids))
    optimiser = recipe.training.optimiser.build(learner)
    stepper = Stepper(learner, optimiser, recipe.training, 0, Team())
    count = 0
    # as the loop does, from the first step to the last
    contextlib.ExitStack().enter_context(repeatable())

    def step() -> float:
        nonlocal count
        count += 1
        return stepper.update(learner.prepare(batch, Rng(0)), count, recipe.training.steps).loss

    return step, model.n_params


def peer_step(how: str, sizes: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Callable[[], float], int]:
    """Return the usual few lines around a peer: fused AdamW, clipped gradients."""
    torch.manual_seed(0)
    model, loss_of = peer(how, sizes, settings)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    batch = data(sizes)
    tokens, targets = batch.tokens[:, :-1].contiguous(), batch.tokens[:, 1:].contiguous()
    parameters = list(model.parameters())

    def step() -> float:
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(tokens, targets) if batch.source is None else loss_of(batch.source, tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimiser.step()
        return loss.item()

    return step, sum(p.numel() for p in parameters)


def peer(how: str, sizes: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[nn.Module, Callable[..., Tensor]]:
    """Return a peer's model and its loss."""
    if how == "lean":
        lean = LeanGPT(**{name: sizes[name] for name in NUMBERS})
        return lean, lean
    if how == "torch":
        body = peers.TorchTransformer(sizes)
        return body, lambda source, tokens, targets: peers.mean_loss(body(source, tokens), targets, SMOOTHING)
    if how == "x-transformers":
        wrapped = peers.x_transformers(sizes)
        return wrapped, lambda tokens, targets: peers.mean_loss(wrapped(tokens), targets)
    hub: Any = peers.hugging_face(sizes)
    if settings.get("recompute") == "blocks":
        hub.gradient_checkpointing_enable()
    hub.train()
    # it shifts by itself, and so scores one position less
    return hub, lambda tokens, targets: hub(tokens, labels=tokens, use_cache=False).loss


def _title(what: str, sizes: Mapping[str, Any]) -> str:
    layers = f"{sizes['n_layers']}+{sizes['n_layers']}" if sizes["relative"] == "vanilla" else f"{sizes['n_layers']}"
    return (
        f"{what}: {layers} layers, d={sizes['d_model']}, {sizes['n_heads']} heads, length {sizes['length']}, "
        f"batch {sizes['batch_size']}, vocabulary {sizes['vocab_size']:,}, fp32, fused AdamW, clipped"
    )
