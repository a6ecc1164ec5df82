"""Wrappers of depth combine: each keeps its promise beside the others, with and without listeners."""

import contextlib
import functools

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context, Taps
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps, loads
from kinfolk.family.assembly import stack as stack_of
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.halting import HaltingUnit
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.module import Dims
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.positions.position import DepthTime, LearnedSteps, NoPosition
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block, BlockModule
from kinfolk.models.depth.depth import Depth
from kinfolk.models.depth.flat import Flat
from kinfolk.models.depth.funnel import Funnel
from kinfolk.models.depth.halting import Halting, Universal
from kinfolk.models.depth.layer_drop import DropLayers, LayerDrop
from kinfolk.models.depth.layer_mix import LayerMix
from kinfolk.models.depth.reversible import CoupleStreams, Reversible
from kinfolk.models.ends import Ends
from kinfolk.models.stack import Stack, StackModule, Wrapped
from kinfolk.models.transparent import Transparent

D = 12
DIMS = Dims(d_model=D, vocab_size=5, max_len=32, dropout=0.2, n_sublayers=4)
TAPS = {"quiet": lambda: None, "all": lambda: Taps(), "hidden": lambda: Taps(frozenset(["hidden"]))}
HALT = Halting(bias=-1.0)
WRAPS = {
    "halting": lambda depth: Universal.of(depth, HALT),
    "drop": lambda depth: LayerDrop.of(depth, 0.4, seed=1),
    "mix": LayerMix.of,
}


def plain(n=4, parts=2, position=None):
    parts = (Attention(n_heads=3), Dense(d_ff=16), Attention(n_heads=2))[:parts]
    return stack_of(Block(parts=parts, residual=PreNorm()), n).replace(
        norm=LayerNorm(), position=position or NoPosition()
    )


def built(spec, dtype=torch.float64, late=False):
    torch.manual_seed(0)
    module = spec.build(DIMS).to(dtype).train()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.3)
    for m in module.modules():
        if hasattr(m, "at_step"):
            m.at_step(2)
        if isinstance(m, HaltingUnit) and late:
            m.weight_1D.data.zero_()
            m.bias_1.data.fill_(-40.0)
    return module


def inputs(n=9, dtype=torch.float64):
    return torch.randn(2, n, D, generator=torch.Generator().manual_seed(n), dtype=dtype, requires_grad=True)


def gradients(module, run=None, taps=None):
    x, sides = inputs(), {}
    torch.manual_seed(3)
    y = (run or module)(x, Context(side_losses=sides, taps=taps), None)
    loss = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() + 10 * sum(sides.values())
    return y, torch.autograd.grad(loss, [x, *module.parameters()], allow_unused=True)


@contextlib.contextmanager
def ordinary(module):
    """Keep activations, under ordinary autograd."""
    walk = next(type(m.walk) for m in module.modules() if isinstance(m, StackModule))
    light, walk.__call__ = walk.__call__, lambda self, stack, x, *rest: self.plainly(stack, (x, x), *rest)
    try:
        yield
    finally:
        walk.__call__ = light


def plainly(module):
    def run(*arguments):
        with ordinary(module):
            return module(*arguments)

    return run


def kept(module, taps=None):
    """Bytes that the backward pass waits with, weights apart."""
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
    sizes = {}

    def note(t):
        if t.untyped_storage().data_ptr() not in weights:
            sizes[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        y = module(inputs(32), Context(side_losses={}, taps=taps), None)
    assert y.requires_grad
    return sum(t.untyped_storage().nbytes() for t in sizes.values())


@pytest.mark.parametrize("name", WRAPS)
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("position", [NoPosition(), DepthTime(), LearnedSteps(n=4)], ids=lambda p: p.kind)
def test_a_reversible_stack_under_any_wrapper_has_the_gradients_of_ordinary_autograd(name, parts, position):
    module = built(Reversible.of(WRAPS[name](plain(parts=parts, position=position))))
    want, want_grads = gradients(module, plainly(module))
    got, got_grads = gradients(module)
    assert torch.equal(got, want)
    assert [g is None for g in got_grads] == [g is None for g in want_grads]
    for g, w in zip(got_grads, want_grads, strict=True):
        if g is not None:
            torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-10)


def test_halted_positions_of_a_reversible_stack_stay_as_they_are():
    """Both streams of a position are what they were at the step after which it halted, whatever others go on doing."""
    module = built(Reversible.of(Universal.of(plain(n=5, parts=3, position=DepthTime()), HALT)))
    module.unit.weight_1D.data *= 4
    taps = Taps()
    module(inputs(), Context(taps=taps), None)
    steps = taps.found["steps"]
    assert len(steps.unique()) > 1
    for b, i in ((b, i) for b in range(2) for i in range(9)):
        last = taps.found[f"{int(steps[b, i]) - 1}.hidden"][b, i]
        for n in range(int(steps[b, i]), int(steps.max())):
            assert torch.equal(taps.found[f"{n}.hidden"][b, i], last)


@pytest.mark.parametrize("listen", ["quiet", "all"])
@pytest.mark.parametrize("name", WRAPS)
def test_memory_of_a_reversible_stack_is_flat_under_any_wrapper(name, listen):
    """Activations of a plain stack grow by hundreds of numbers per position and layer; here a carry of a few does."""
    small, large = (
        kept(built(Reversible.of(WRAPS[name](plain(n=n))).replace(norm=LayerNorm())), TAPS[listen]()) for n in (2, 16)
    )
    states = 2 * 32 * D * 8
    assert large - small < states / 2
    assert small < 12 * states
    deep = [kept(built(WRAPS[name](plain(n=n)))) for n in (2, 16)]
    assert name == "halting" or deep[1] - deep[0] > 5 * states


@pytest.mark.parametrize("listen", TAPS)
@pytest.mark.parametrize("spec", [*WRAPS, "reversible halting", "reversible drop", "reversible mix", "reversible"])
def test_listening_changes_nothing(spec, listen):
    *reversible, name = spec.split()
    depth = Reversible.of(plain()) if name == "reversible" else WRAPS[name](plain())
    module = built(Reversible.of(depth) if reversible else depth)
    want, want_grads = gradients(module)
    got, got_grads = gradients(module, taps=TAPS[listen]())
    assert torch.equal(got, want)
    for g, w in zip(got_grads, want_grads, strict=True):
        assert g is w is None or torch.equal(g, w)


def calls(module, taps=None):
    """The blocks that are called in a pass, or whose parts are."""
    seen = []
    for name, m in module.named_modules():
        if type(m).__name__ == "SelfAttentionModule":
            m.register_forward_hook(functools.partial(lambda name, *_: seen.append(name), name))
    with torch.no_grad():
        module(inputs(), Context(taps=taps), None)
    return seen


@pytest.mark.parametrize("listen", TAPS)
@pytest.mark.parametrize("over", ["funnel", "reversible", "halting", "mix"])
def test_dropped_layers_are_not_called(over, listen):
    levels = (plain(2), plain(3))
    depth = {
        "funnel": lambda: Funnel(levels=levels, top=plain(2)),
        "reversible": lambda: Reversible.of(plain(7)),
        "halting": lambda: Universal.of(plain(7), HALT),
        "mix": lambda: LayerMix.of(plain(7)),
    }[over]()
    module = built(LayerDrop.of(depth, 0.5, seed=3), late=True)
    stacks = [*module.levels, module.top] if over == "funnel" else [module]
    seen = {len(calls(built(LayerDrop.of(depth, 0.5, seed=3), late=True), TAPS[listen]())) for _ in range(2)}
    assert seen == {sum(len(stack.runs()) for stack in stacks)}
    assert 0 < seen.pop() < 7
    if over == "funnel":
        assert len({stack.layer_drop.spec.seed for stack in stacks}) == 3


def test_a_reversible_funnel_has_the_gradients_of_ordinary_autograd():
    """The first layer of a level attends to keys of the longer sequence, which have gradients of their own."""
    module = built(Reversible.of(Funnel(levels=(plain(2), plain(2)), top=plain(1))))
    want, want_grads = gradients(module, plainly(module))
    got, got_grads = gradients(module)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    for g, w in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-10)


NUMBERS = {"d_model": 16, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 40}


def bridged(n_layers, reversible=True):
    spec = kf.relative("transparent", size="tiny", n_layers=2, **NUMBERS).model
    encoder = stack_of(spec.encoder.blocks[0], n_layers).replace(norm=spec.encoder.norm)
    spec = spec.replace(encoder=Reversible.of(encoder) if reversible else encoder, bridge=Transparent())
    return kf.build(spec, seed=1).double().train()


@pytest.mark.parametrize("taps", [False, True])
def test_memory_of_a_reversible_encoder_under_a_transparent_bridge_is_flat(taps):
    def waiting(model):
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        sizes = {}

        def note(t):
            if t.untyped_storage().data_ptr() not in weights:
                sizes[t.untyped_storage().data_ptr()] = t
            return t

        source, target = torch.randint(7, 31, (2, 32)), torch.randint(7, 31, (2, 3))
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            out = model(source, target, taps=taps)
        assert out.logits.requires_grad
        return sum(t.untyped_storage().nbytes() for t in sizes.values())

    states = 2 * 32 * 16 * 8
    small, large = (waiting(bridged(n)) for n in (2, 12))
    assert large - small < states / 2
    small, large = (waiting(bridged(n, reversible=False)) for n in (2, 12))
    assert large - small > 50 * states


def test_a_reversible_encoder_under_a_transparent_bridge_has_the_gradients_of_ordinary_autograd():
    model = bridged(3)
    t = torch.randint(7, 31, (2, 9), generator=torch.Generator().manual_seed(0))
    grads = []
    for how in (contextlib.nullcontext(), ordinary(model.encoder)):
        with how:
            torch.manual_seed(2)
            out = model(t, t.flip(1)).logits
        grads.append((out, torch.autograd.grad(out.square().mean(), list(model.parameters()))))
    torch.testing.assert_close(grads[0][0], grads[1][0], rtol=1e-11, atol=1e-12)
    for g, w in zip(grads[0][1], grads[1][1], strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-11)


def test_combined_wrappers_survive_toml_and_decode_from_a_cache():
    spec = kf.relative("gpt2", size="tiny", n_layers=3, **NUMBERS).model
    depth = LayerDrop.of(Reversible.of(Universal.of(spec.decoder, HALT)), 0.3)
    spec = spec.replace(decoder=depth)
    assert isinstance(depth, Wrapped)
    assert [w.kind for w in depth.wraps] == ["halting", "reversible", "layer-drop"]
    assert loads(Depth, dumps(depth)) == depth
    model = kf.build(spec, seed=0).double().eval()
    assert model.n_params == kf.build(spec.replace(decoder=Universal.of(Stack(**depth.unwrapped), HALT))).n_params
    t = torch.randint(7, 31, (2, 8), generator=torch.Generator().manual_seed(0))
    state = model.new_state(2, 8)
    got = torch.cat([model(t[:, i : i + 1], state=state).logits for i in range(8)], 1)
    torch.testing.assert_close(got, model(t).logits, rtol=1e-9, atol=1e-11)


def test_what_does_not_combine_is_refused():
    with pytest.raises(SpecError, match="both say what the output is"):
        LayerMix.of(Universal.of(plain(), HALT))
    with pytest.raises(SpecError, match="join"):
        Reversible.of(LayerMix.of(plain()), join="concat")
    with pytest.raises(SpecError, match="blend"):
        Reversible.of(Universal.of(plain(), Halting(accumulate="blend")))
    with pytest.raises(SpecError, match="levels"):
        LayerMix.of(Funnel(levels=(plain(2), plain(2))))
    with pytest.raises(SpecError, match="no blocks"):
        Flat().wrap(DropLayers())


def test_a_new_wrapper_needs_no_change_of_the_stack():
    """Skips every second run, in evaluation too: one class of a user's own."""
    from kinfolk.models.depth.depth import DepthWrapper

    class Halved(DepthWrapper, kind="halved"):
        def wrap(self, module, stack, dims):
            module.skips = lambda n: n % 2 == 1

    module = built(Reversible.of(plain(6).wrap(Halved())))
    assert [n for n, _ in module.runs()] == [0, 2, 4]
    assert len(calls(module)) == 3
    assert isinstance(module.blocks[0], BlockModule)


@pytest.mark.parametrize("wrapper", [CoupleStreams(), DropLayers()], ids=lambda one: one.kind)
def test_the_final_states_of_an_encoder_that_keeps_none_are_refused_when_the_recipe_is_made(wrapper):
    """A reversible encoder runs its parts again, and a skipped layer has no final state."""
    model = kf.relative("seq2seq", size="tiny", n_layers=2).model
    assert isinstance(model.bridge, Ends)
    blocks = tuple(block.replace(residual=PreNorm(norm=LayerNorm())) for block in model.encoder.blocks)
    with pytest.raises(SpecError, match=f"'ends' takes the final state of every layer.*{wrapper.kind}"):
        model.replace(encoder=model.encoder.replace(blocks=blocks).wrap(wrapper))


def test_a_funnel_under_a_transparent_bridge_is_refused_when_the_recipe_is_made():
    model = kf.relative("vanilla", size="tiny", n_layers=2).model
    with pytest.raises(SpecError, match="different lengths"):
        model.replace(encoder=Funnel(levels=(model.encoder,)), bridge=Transparent())
