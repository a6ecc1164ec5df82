"""A decoder that looks at all layers of its encoder, against the sum written out, and against the plain bridge."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import SpecError
from kinfolk.family.assembly import with_depth
from kinfolk.layers.norms.norm import LayerNorm, NoNorm
from kinfolk.models.bridge import LastLayer
from kinfolk.models.depth.halting import Halting, Universal
from kinfolk.models.depth.layer_drop import LayerDrop
from kinfolk.models.depth.reversible import Reversible
from kinfolk.models.transparent import Transparent

NUMBERS = {"d_model": 16, "n_layers": 3, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 32}
SOURCE, TARGET = torch.randint(31, (2, 7)), torch.randint(31, (2, 5))


def built(change=lambda stack: stack, parent="transparent"):
    """Return a model in float64 away from its beginning."""
    spec = kf.relative(parent, size="tiny", **NUMBERS).model.replace(bridge=Transparent())
    model, g = kf.build(with_depth(spec, change), seed=1).double(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return model


def plain(model):
    """Return the model with the same weights that looks at the last layer."""
    other = kf.build(model.spec.replace(bridge=LastLayer())).double()
    other.load_state_dict({k: v for k, v in model.state_dict().items() if "bridge" not in k})
    return other.train(model.training)


def on_the_last(model):
    with torch.no_grad():
        model.bridge.logits_Nn[:-1] = -torch.inf
    return model


def gradients(model):
    model.zero_grad()
    model(SOURCE, TARGET).logits.square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if "bridge" not in name}


@pytest.mark.parametrize(
    "change",
    [lambda stack: stack, Reversible.of, lambda stack: LayerDrop.of(stack, 0.5)],
    ids=["stack", "reversible", "layer drop"],
)
def test_all_weight_on_the_last_layer_is_the_plain_model(change):
    model = on_the_last(built(change=change))
    other = plain(model)
    torch.testing.assert_close(model(SOURCE, TARGET).logits, other(SOURCE, TARGET).logits, rtol=1e-10, atol=1e-10)
    # what layers are dropped depends on the number of the pass, which is the same for both
    theirs, ours = gradients(other), gradients(model)
    for name, grad in ours.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-10, atol=1e-10)


def test_layers_without_a_closing_norm_are_mixed_as_they_are():
    model = on_the_last(built(parent="vanilla"))
    other = plain(model)
    torch.testing.assert_close(model(SOURCE, TARGET).logits, other(SOURCE, TARGET).logits, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", [LayerNorm(), NoNorm()], ids=lambda norm: norm.kind)
def test_each_layer_looks_at_its_own_mixture(norm):
    """The model with layers run by hand, each on its weighted sum, outputs and all gradients."""
    model = built(lambda stack: stack.replace(norm=norm))
    want = by_hand(model)
    got = model(SOURCE, TARGET).logits
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    names, weights = zip(*model.named_parameters(), strict=True)
    scale = torch.randn_like(got)
    pairs = [torch.autograd.grad((y * scale).sum(), weights) for y in (got, want)]
    for name, ours, theirs in zip(names, *pairs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, msg=name)


def by_hand(model):
    ctx = Context()
    x = model.embedding(SOURCE, ctx)
    states = [x]
    for block in model.encoder.blocks:
        states.append(block(states[-1], ctx, None))
    states = [model.encoder.norm(h) for h in states]
    y = model.embedding(TARGET, ctx)
    for j, block in enumerate(model.decoder.blocks):
        shares = [float(w.detach()) for w in model.bridge.logits_Nn[:, j].softmax(0)]
        assert sum(shares) == pytest.approx(1.0)
        memory = sum(model.bridge.logits_Nn[:, j].softmax(0)[i] * h for i, h in enumerate(states))
        y = block(y, Context(encoder_output=EncoderOutput(memory)), None)
    return model.decoder.norm(y) @ model.embedding.table.weight.T


def test_every_layer_of_the_encoder_is_reached_directly():
    model = built()
    taps = model(SOURCE, TARGET, taps=["hidden", "layers"]).taps
    assert {f"encoder.{i}.hidden" for i in range(3)} <= set(taps)
    torch.testing.assert_close(taps["encoder.layers"].sum(0), torch.ones(3, dtype=torch.float64))
    with torch.no_grad():
        # the last layers add nothing to the mixtures, and a gradient still comes to the first
        model.bridge.logits_Nn[2:] = -torch.inf
    grads = gradients(model)
    assert grads["encoder.blocks.0.parts.0.qkv.weight"].abs().sum() > 0
    assert grads["encoder.blocks.2.parts.0.qkv.weight"].abs().sum() == 0


def halting(stack):
    """Positions that go on to the last run."""
    fields = {name: getattr(stack, name) for name in ("blocks", "order", "norm", "position")}
    return Universal(**fields, halting=Halting(bias=-9.0))


@pytest.mark.parametrize("change", [Reversible.of, halting], ids=["reversible", "universal"])
def test_other_decoders_have_their_mixtures_too(change):
    model = built(change)
    with torch.no_grad():
        want = model(SOURCE, TARGET).logits
    got = model(SOURCE, TARGET).logits
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    got.square().sum().backward()
    assert (model.bridge.logits_Nn.grad.abs().sum(0) > 0).all()


def test_a_layer_that_did_not_run_left_the_stream_as_it_was():
    encoder = built(lambda stack: LayerDrop.of(stack, rate=0.5)).encoder.train()
    encoder.runs = lambda: [(1, 1)]
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    out, layers = encoder.layers(x, Context(), 3)
    assert len(layers) == 4
    assert torch.equal(layers[0], x)
    assert torch.equal(layers[1], x)
    assert torch.equal(layers[2], encoder.blocks[1](x, Context(), None))
    assert layers[3] is layers[2]
    assert torch.equal(out, encoder.norm(layers[2]))


def test_dropout_falls_on_the_logits():
    module = Transparent(dropout=0.5).build(built().spec.encoder, built().spec.decoder).double()
    module.logits_Nn.data.fill_(3.0)
    taps = Taps()
    encoder = built().encoder
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    keep = torch.arange(5) < torch.tensor([[5], [2]])
    torch.manual_seed(0)
    memory = module(encoder, x, Context(padding=Padding.of(keep), taps=taps))
    assert memory.keep_BM is keep
    assert memory.layers_NBMD.shape == (3, 2, 5, 16)
    # logits are 0 or 6 now: no share is that of equal logits unless all fell alike
    assert len(taps.found["layers"].unique()) > 1
    torch.testing.assert_close(taps.found["layers"].sum(0), torch.ones(3, dtype=torch.float64))
    module.eval()(encoder, x, Context(taps=taps))
    torch.testing.assert_close(taps.found["layers"], torch.full((4, 3), 0.25, dtype=torch.float64))


def test_rows_of_a_beam_take_their_mixtures_along():
    model = built().eval()
    state = model.new_state(2, 8)
    model(SOURCE, TARGET[:, :2], state=state)
    state.select(torch.tensor([1, 1]))
    fresh = state.encoder_output.layers_NBMD
    assert torch.equal(fresh[:, 0], fresh[:, 1])
    got = model(TARGET[:, 2:], state=state).logits
    mixed = torch.cat([TARGET[1:, :2].expand(2, -1), TARGET[:, 2:]], 1)
    torch.testing.assert_close(got, model(SOURCE[1:].expand(2, -1), mixed).logits[:, 2:], rtol=1e-9, atol=1e-11)


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="between an encoder and a decoder"):
        kf.relative("gpt2", size="tiny", **NUMBERS).model.replace(bridge=Transparent())
