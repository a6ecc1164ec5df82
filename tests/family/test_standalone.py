"""`kf.layer`: one part alone equals the same part inside its relative, in outputs, gradients and decoding."""

import dataclasses
import functools
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.spec import choices
from kinfolk.family.standalone import Added, Layer, LayerState
from kinfolk.layers.part import FeedForward, Mixer, Part, PartModule
from kinfolk.layers.positions.position import Position
from kinfolk.models.stack import StackModule
from kinfolk.ops.patterns.leaves import Pattern
from tests.cover import sampled
from tests.family.test_relatives import NAMES, TOY, model, recipe, run, tokens


@dataclasses.dataclass
class Call:
    """One call of a part inside a model."""

    x: torch.Tensor
    ctx: Context
    y: torch.Tensor


def parts(name, m):
    """Return the distinct parts of a model's stacks: path, spec, module and whether the stack is causal."""
    for side in ("encoder", "decoder"):
        stack, spec = getattr(m, side), getattr(m.spec, side)
        for path, inner in [] if stack is None else stack.named_modules():
            if isinstance(inner, StackModule):
                keys = path.split(".") if path else []
                own = functools.reduce(lambda at, key: at[int(key)] if key.isdigit() else getattr(at, key), keys, spec)
                for i, block in enumerate(own.blocks):
                    for j, part in enumerate(block.parts):
                        yield f"{side}.{i}.{j}", part, inner.blocks[i].parts[j], side == "decoder"


def listen(module, calls):
    def note(_, args, out):
        calls.append(Call(args[0].detach(), args[1], out[0]))

    return module.register_forward_hook(note)


def alone(spec, module, past, m):
    """Return the layer by itself, with the weights of the module, and of what it borrows from its stack."""
    layer = kf.layer(spec, d_model=TOY["d_model"], max_len=m.spec.max_len, causal=past).to(torch.float64).eval()
    assert layer.spec == spec
    layer.part.load_state_dict(module.state_dict())
    for mine, theirs in zip(layer.part.modules(), module.modules(), strict=True):
        for key, value in vars(theirs).items():
            if isinstance(value, nn.Module):
                getattr(mine, key).load_state_dict(value.state_dict())
    return layer


def looks_up_tokens(spec):
    """Tell whether a part has a table of the vocabulary, which a layer alone does not know."""
    return any(extra.kind == "value-embedding" for extra in getattr(spec, "extras", ()))


def through(layer, call):
    """Call the layer with what its context in the model was made of."""
    ctx, source = call.ctx, call.ctx.encoder_output
    if (source is not None and type(source).__name__ == "RecurrentOutput") or ctx.unit != 1 or ctx.start:
        return layer.part(call.x, ctx, None)[0]
    return layer(
        call.x,
        keep=None if ctx.padding is None else ctx.padding.keep_BL,
        source=None if source is None else source.states_BMD,
        source_keep=None if source is None else source.keep_BM,
        annotations=ctx.annotations,
    )


@pytest.mark.parametrize("name", sampled(NAMES, "standalone"))
def test_a_layer_alone_equals_the_layer_inside_its_relative(name):
    m = model(name)
    found = list(parts(name, m))
    assert found or name == "word2vec", "all but a table of vectors have parts"
    for path, spec, module, past in found:
        if looks_up_tokens(spec):
            continue
        calls = []
        handle = listen(module, calls)
        torch.manual_seed(1)
        run(m, tokens(2, 13))
        handle.remove()
        assert calls, path
        layer, call = alone(spec, module, past, m), calls[0]
        dy = torch.randn(call.y.shape, dtype=call.y.dtype, generator=torch.Generator().manual_seed(2))
        weights = list(module.parameters())
        for part in (module, layer):
            part.zero_grad()
        torch.manual_seed(1)
        inside = module(call.x.requires_grad_(), call.ctx, None)[0]
        torch.manual_seed(1)
        outside = through(layer, call)
        assert torch.equal(outside, inside), path
        want = torch.autograd.grad(inside, [call.x, *weights], dy, allow_unused=True)
        got = torch.autograd.grad(outside, [call.x, *layer.part.parameters()], dy, allow_unused=True)
        for a, b in zip(want, got, strict=True):
            assert (a is None and b is None) or torch.equal(a, b), path


def decodes(name):
    return kf.about(name).causal and recipe(name).model.decoder is not None


def reads_its_model(spec):
    """Tell whether a part reads what a layer alone does not have: values of the first layer, or ids of tokens."""
    takes = any(getattr(extra, "role", "") == "takes" for extra in getattr(spec, "extras", ()))
    return getattr(spec, "value_rank", 0) or takes or looks_up_tokens(spec)


@pytest.mark.parametrize("name", sampled([name for name in NAMES if decodes(name)], "standalone decoding"))
def test_a_layer_alone_decodes_as_inside_its_relative(name):
    """A prompt of three positions, then one at a time; states of both are made alike and fed the same inputs."""
    m, t = model(name), tokens(2, 8)
    for path, spec, module, past in parts(name, m):
        # the cache of a routed block hides positions that were not chosen, which the stack knows
        if not past or reads_its_model(spec) or hasattr(m.decoder.blocks[int(path.split(".")[1])], "router"):
            continue
        calls = []
        handle = listen(module, calls)
        state = m.new_state(2, 16)
        with torch.no_grad():
            for piece in t.split([3, 1, 1, 1, 1, 1], dim=1):
                torch.manual_seed(1)
                run(m, piece, state=state)
        handle.remove()
        assert len(calls) % 6 == 0, path
        again = len(calls) // 6  # runs of a block whose weights are shared between layers
        layer = alone(spec, module, past, m)
        output = calls[0].ctx.encoder_output
        mine = LayerState(layer.start(2, 16).part, encoder_output=output)
        for call in calls[::again]:
            torch.manual_seed(1)
            with torch.no_grad():
                y, mine = layer.step(call.x, mine)
            assert torch.equal(y, call.y), path
        assert mine.next_pos == 8


# what kinds ask for besides the width and the heads
ASKED = {
    "linformer": {"rank": 8},
    "light-conv": {"kernel": 3},
    "dynamic-conv": {"kernel": 3},
    "conv": {"kernel": 3},
    "separable-conv": {"kernel": 3},
    "synthesizer": {"form": "dense"},
    "experts": {"n_experts": 4},
    "gated-experts": {"n_experts": 4},
    "knowledge-attention": {"n_entities": 5},
    "branched": {"look": {"kind": "attention", "n_heads": 4}, "think": {"kind": "dense", "d_ff": 8}},
    "branches": {"parts": [{"kind": "attention", "n_heads": 4}, {"kind": "dense", "d_ff": 8}]},
    "conv-branches": {side: {"kind": "conv", "kernel": 3, "d_out": 32} for side in ("left", "right", "last")},
    "canon-conv": {"part": {"kind": "dense", "d_ff": 8}},
    "channel-mix": {"d_ff": 8},
    "normed": {"part": {"kind": "dense", "d_ff": 8}},
    "chunked": {"part": {"kind": "dense", "d_ff": 8}},
    "token-gated": {"part": {"kind": "dense", "d_ff": 8}},
    "low-rank": {"part": {"kind": "dense", "d_ff": 8}, "ranks": []},
    "int8": {"part": {"kind": "dense", "d_ff": 8}},
    "lora": {"part": {"kind": "attention", "n_heads": 4}},
    "pruned": {"part": {"kind": "dense", "d_ff": 8}, "share": 0.5},
    "adapted": {"part": {"kind": "dense", "d_ff": 8}},
    "learned-steps": {"n": 3},
    "learned-at-depth": {"n_layers": 2},
    "grid": {"grid": {"columns": 4}},
    "and": {"a": {"kind": "window", "left": 3}, "b": {"kind": "causal"}},
    "or": {"a": {"kind": "window", "left": 3}, "b": {"kind": "global", "n": 1}},
    "except": {"a": {"kind": "full"}, "b": {"kind": "strided", "stride": 3}},
    "per-head": {"patterns": [{"kind": "window", "left": n} for n in (1, 2, 3, 4)]},
    "random": {"block": 2, "n": 1},
    "window": {"left": 3},
    "strided": {"stride": 2},
    "same-block": {"size": 3},
    "summary": {"block": 3, "width": 1},
    "block-window": {"block": 2},
    "global": {"n": 1},
    "prefix": {"n": 2},
    "axial": {"width": 3},
    "local-1d": {"block": 3, "memory": 2},
    "local-2d": {"width": 4, "block_height": 2, "block_width": 2, "above": 1, "beside": 1},
    "latent-attention": {"kv_rank": 8, "d_nope": 4, "d_rope": 4, "d_value": 8},
    "both-ways": {"of": {"kind": "causal"}},
}
NEVER_CAUSAL = {"linformer", "two-stream-attention"}
ALWAYS_CAUSAL = {
    "segment-attention",
    "linear-recurrence",
    "pondering-rnn",
    "searching-rnn",
    "feeding-rnn",
    "mamba",
    "mamba2",
    "rg-lru",
    "canon-conv",
    "channel-mix",
    "rwkv6",
    "rwkv7",
    "mlstm",
    "slstm",
    "hyena",
    "canon-gated",
}
kf.axes()  # imports every kind


def ours(axis):
    """Return the kinds of an axis; other tests define some of their own."""
    return {kind: cls for kind, cls in choices(axis).items() if cls.__module__.startswith("kinfolk.")}


KINDS = {kind: axis for axis in (Position, Pattern, FeedForward, Mixer, Part) for kind in sorted(ours(axis))}


def one(kind, causal, **more):
    axis = KINDS[kind]
    heads = (
        {"n_heads": 4} if axis in (Pattern, Position) or "n_heads" in choices(axis)[kind].__dataclass_fields__ else {}
    )
    return kf.layer(kind, d_model=32, max_len=64, causal=causal, **heads, **ASKED.get(kind, {}), **more).eval()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_makes_a_layer_that_keeps_its_word_about_the_future(kind):
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = torch.cat([x[:, :5], -x[:, 5:]], 1)
    source = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for causal in (True, False):
        if kind in (NEVER_CAUSAL if causal else ALWAYS_CAUSAL):
            with pytest.raises(SpecError):
                one(kind, causal)
            continue
        layer = one(kind, causal).double()
        with torch.no_grad():
            y, changed = (layer(z, source=source) for z in (x, other))
        assert y.shape == x.shape
        if causal:
            torch.testing.assert_close(changed[:, :5], y[:, :5], rtol=1e-12, atol=1e-12)
            state, steps = layer.start(2, source=source), []
            for position in x.split(1, 1):
                out, state = layer.step(position, state)
                steps.append(out)
            torch.testing.assert_close(torch.cat(steps, 1), y, rtol=1e-9, atol=1e-9)


def test_a_relative_gives_the_mixer_of_its_own_stack():
    for name, causal in (("gla", True), ("longformer", False), ("gpt2+rotary", True)):
        layer = kf.layer(name, d_model=64, n_heads=4, max_len=128)
        stack = kf.relative(name, size="tiny", d_model=64, n_heads=4, max_len=128, n_layers=1).model
        assert layer.spec == (stack.decoder or stack.encoder).blocks[0].parts[0]
        assert (layer.dims.direction == "past") == causal
        assert layer(torch.randn(1, 6, 64)).shape == (1, 6, 64)


def test_seed_padding_training_and_saving():
    a, b, c = (kf.layer("attention", d_model=32, n_heads=4, seed=n) for n in (1, 1, 2))
    x, keep = torch.randn(2, 6, 32), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    assert torch.equal(a(x), b(x))
    assert not torch.equal(a(x), c(x))
    c.load_state_dict(a.state_dict())
    assert torch.equal(a(x), c(x))
    both = kf.layer("attention", d_model=32, n_heads=4, causal=False)
    torch.testing.assert_close(both(x, keep=keep)[1:, :4], both(x[1:, :4]))
    both(x).sum().backward()
    assert all(p.grad is not None for p in both.parameters())


def test_side_losses_of_experts_are_given_out():
    layer = kf.layer("experts", d_model=32, n_experts=4, d_ff=16)
    layer(torch.randn(2, 6, 32))
    assert layer.side_losses
    assert all(loss.requires_grad for loss in layer.side_losses.values())


def test_mistakes_are_named():
    with pytest.raises(SpecError, match="did you mean 'performer'"):
        kf.layer("perfromer", d_model=32)
    with pytest.raises(SpecError, match="n_heads: missing"):
        kf.layer("attention", d_model=32)
    with pytest.raises(SpecError, match="does not decode"):
        kf.layer("attention", d_model=32, n_heads=4, causal=False).start(1)
    with pytest.raises(ShapeError, match=r"takes \[B, L, 32\], got \[2, 16\]"):
        kf.layer("dense", d_model=32)(torch.randn(2, 16))
    with pytest.raises(SpecError, match="unknown field 'left'"):
        kf.layer("sinusoid", d_model=32, left=3)


def test_a_layer_inside_somebody_elses_module():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mix = nn.LayerNorm(32), kf.layer("performer", d_model=32, n_heads=4)

        def forward(self, x):
            return x + self.mix(self.norm(x))

    own = Own()
    assert isinstance(own.mix, Layer)
    assert isinstance(own.mix.part, PartModule)
    assert own(torch.randn(2, 5, 32)).shape == (2, 5, 32)


def test_the_table_of_the_guide_lists_every_kind():
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    rows = {
        row[0]: set(re.findall(r"`([\w-]+)`", row[1]))
        for row in re.findall(r"^\| ([\w ,:-]+?) \| (.+) \|$", text, re.M)
    }
    mixers, positions = set(ours(Mixer)), set(ours(Position))
    asked = {kind: {} if kind in ours(Pattern) else ASKED.get(kind, {}) for kind in positions}
    layers = {kind: kf.layer(kind, d_model=32, max_len=64, n_heads=4, **asked[kind]) for kind in positions}
    added = {kind for kind, layer in layers.items() if isinstance(layer.part, Added)}
    assert rows["mixers, causal or not"] == mixers - NEVER_CAUSAL - ALWAYS_CAUSAL
    assert rows["mixers, causal only"] == ALWAYS_CAUSAL & mixers
    assert rows["feed-forwards"] == set(ours(FeedForward))
    assert rows["position encodings, added to x"] == added
    assert rows["position encodings, inside attention"] == positions - added
    assert rows["attention patterns, inside attention"] == set(ours(Pattern))
