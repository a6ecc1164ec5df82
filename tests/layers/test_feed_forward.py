import pytest
import torch
import torch.nn.functional as F

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.core.paths import assign
from kinfolk.family.assembly import with_feed_forward
from kinfolk.layers.feed_forwards.experts import Experts
from kinfolk.layers.feed_forwards.feed_forward import Chunked, Dense, Gated
from kinfolk.layers.module import Dims
from kinfolk.models.cost import cost
from tests.exact import assert_exact

D = 12
DIMS = Dims(d_model=D, vocab_size=40, max_len=32, dropout=0.0, n_sublayers=4)
TORCH = {
    "relu": F.relu,
    "gelu": F.gelu,
    "swish": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
}
GLU = {"sigmoid": "GLU", "relu": "ReGLU", "gelu-tanh": "GEGLU", "swish": "SwiGLU", "identity": "bilinear"}


def x(length=7, batch=2):
    g = torch.Generator().manual_seed(length)
    return torch.randn(batch, length, D, generator=g, dtype=torch.float64, requires_grad=True)


def built(spec):
    torch.manual_seed(0)
    module = spec.build(DIMS).double()
    assert sum(p.numel() for p in module.parameters()) == spec.cost(DIMS, None).params
    return module


def run(module, value):
    return module(value, Context(), None)[0]


@pytest.mark.parametrize("activation", TORCH)
def test_every_activation_of_the_table_is_torchs(activation):
    ff = built(Dense(d_ff=20, activation=activation))
    assert_exact(run(ff, x()), ff.narrow(TORCH[activation](ff.widen(x()))))


@pytest.mark.parametrize("activation", GLU)
def test_a_gated_one_activates_its_first_map(activation):
    from kinfolk.ops.activated_linear import ACTIVATIONS

    ff = built(Gated(d_ff=20, activation=activation))
    first, second = ff.widen.weight.chunk(2)
    assert_exact(run(ff, x()), (ACTIVATIONS[activation](x() @ first.mT) * (x() @ second.mT)) @ ff.narrow.weight.mT)


@pytest.mark.parametrize(
    ("proj", "activation"), [("gated-gelu", "gelu-tanh"), ("gated-silu", "swish"), ("gated-relu", "relu")]
)
def test_a_gated_one_is_that_of_t5(proj, activation):
    t5 = pytest.importorskip("transformers", reason="needs transformers")
    from transformers.models.t5.modeling_t5 import T5DenseGatedActDense

    config = t5.T5Config(d_model=D, d_ff=20, feed_forward_proj=proj, dropout_rate=0.0)
    theirs, ours = T5DenseGatedActDense(config).double(), built(Gated(d_ff=20, activation=activation))
    theirs.wi_0.weight.data, theirs.wi_1.weight.data = (w.data.clone() for w in ours.widen.weight.chunk(2))
    theirs.wo.weight.data = ours.narrow.weight.data.clone()
    assert_exact(run(ours, x()), theirs(x()))


def test_the_bilinear_one_is_quadratic():
    ff = built(Gated(d_ff=20, activation="identity"))
    assert_exact(run(ff, 2 * x()), 4 * run(ff, x()))


def test_gates_at_equal_parameters():
    dims = Dims(d_model=768, vocab_size=40, max_len=32, dropout=0.0, n_sublayers=4)
    dense = Dense(d_ff=3072, bias=False)
    gated = Gated.at_equal_parameters(dense, "swish")
    assert gated.d_ff == 2048
    assert gated.cost(dims, None).params == dense.cost(dims, None).params == 2 * 768 * 3072
    base = kf.relative("geglu", size="base").model
    assert cost(base, 16).params < cost(kf.relative("vanilla-pre", size="base").model, 16).params


@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize("part", [Dense(d_ff=20, activation="gelu"), Gated(d_ff=9)])
def test_pieces_of_any_size_are_the_whole(part, size):
    plain, chunked = built(part), built(Chunked(part=part, size=size))
    chunked.part.load_state_dict(plain.state_dict())
    outs, grads = [], []
    for module in (plain, chunked):
        value = x(11)
        outs.append(run(module, value))
        grads.append(torch.autograd.grad(outs[-1].square().sum(), [value, *module.parameters()]))
    assert_exact(*outs)
    for a, b in zip(*grads, strict=True):
        assert_exact(a, b)
    with torch.no_grad():
        assert_exact(run(chunked, x(11)), outs[0])


def test_the_inside_of_pieces_is_never_whole():
    wide, biggest, kept = 64, 0, 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal biggest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.ndim == 3:
                biggest = max(biggest, out.numel())
            return out

    def note(t):
        nonlocal kept
        kept += t.numel() if t.ndim == 3 else 0
        return t

    ff, value = built(Chunked(part=Dense(d_ff=wide * D), size=2)), x(40)
    with Watch():
        # what a checkpoint keeps is its input
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            y = run(ff, value)
        y.sum().backward()
    assert biggest <= 2 * 2 * wide * D
    assert kept <= value.numel()


def test_pieces_in_a_whole_model():
    recipe = kf.relative("gpt2", size="tiny", d_model=32, n_layers=2, n_heads=4, d_ff=64, vocab_size=40, max_len=32)
    model = with_feed_forward(recipe.model, lambda think: Chunked(part=think, size=4))
    plain, chunked = (kf.build(m, seed=1).double().eval() for m in (recipe.model, model))
    assert cost(model, 16).params == chunked.n_params
    assert cost(model, 16).activation_bytes < 0.9 * cost(recipe.model, 16).activation_bytes
    tokens = torch.arange(13)[None] + 7
    assert_exact(chunked(tokens).logits, plain(tokens).logits)


def test_rows_of_the_table_are_set_by_paths():
    recipe = kf.relative("vanilla-pre", size="tiny")
    for text, kind in (
        ("model.decoder.blocks[*].parts[2].activation=selu", "dense"),
        ('model.decoder.blocks[*].parts[2]={kind="gated", d_ff=341, activation="swish"}', "gated"),
        ('model.decoder.blocks[1].parts[2]={kind="experts", n_experts=4, d_ff=64, router={kind="switch"}}', "experts"),
        ('model.decoder.blocks[*].residual={kind="re-zero", norm={kind="rms-norm", part=0.0675}}', "dense"),
        ('model.decoder.blocks[*].parts[2]={kind="chunked", size=64, part={kind="dense", d_ff=64}}', "chunked"),
    ):
        model = assign(recipe, [text]).model
        assert model.decoder.blocks[1].parts[2].kind == kind
        assert cost(model, 8).params == kf.build(model).n_params


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="unknown 'swihs'; did you mean 'swish'"):
        Gated(d_ff=3, activation="swihs")
    with pytest.raises(SpecError, match="size: 0 is not allowed; at least 1"):
        Chunked(part=Dense(d_ff=3), size=0)
    with pytest.raises(SpecError, match="'experts' compete"):
        Chunked(part=Experts(n_experts=2, d_ff=3))
