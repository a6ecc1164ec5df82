"""The layout of weights for decoding changes how memory is read, and nothing else."""

import mmap

import pytest
import torch

import kinfolk as kf
from kinfolk.core.huge_pages import PAGE
from kinfolk.core.machine import AMD
from kinfolk.decoding.engines import weight_layout
from kinfolk.decoding.engines.torch_engine import Bf16Engine
from kinfolk.decoding.engines.weight_layout import (
    LONG,
    OneRowMap,
    PackedMap,
    RoundedMap,
    bf16_available,
    blocks_available,
    for_decoding,
    laid_out,
)
from kinfolk.ops import one_row_linear
from kinfolk.ops.one_row_linear import ColumnPieces, WholeMatrix, apart, keeps_columns_apart, reads_columns_fast

RELATIVES = [
    "gpt2",
    "llama",
    "vanilla",
    "mixture-of-softmaxes",
    "adaptive-softmax",
    "mamba",
    "transformer-xl",
    "deepseek-v3",
]
blocks = pytest.mark.skipif(not blocks_available(), reason="no oneDNN")


def pair(name, **numbers):
    return (kf.build(kf.relative(name, size="tiny", **numbers), seed=0).eval() for _ in range(2))


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", RELATIVES)
def test_outputs_and_greedy_tokens_stay(name, rows):
    plain, laid = pair(name)
    tokens = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    inputs = (tokens, tokens) if plain.spec.topology == "encoder-decoder" else (tokens,)
    with torch.inference_mode():
        expected = plain(*inputs).logits
        for _ in range(2):
            # once more changes nothing
            for_decoding(laid, rows)
            torch.testing.assert_close(laid(*inputs).logits, expected, rtol=1e-4, atol=1e-4)
    how = {"max_new": 6, "greedy": True, "stop": ()}
    assert kf.generate(laid, tokens.tolist(), **how) == kf.generate(plain, tokens.tolist(), **how)


@pytest.fixture
def capability(request, monkeypatch):
    """Pretend another processor: its instructions and its maker."""
    instructions, maker = request.param
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    monkeypatch.setattr(one_row_linear, "cpu_field", {"vendor_id": maker}.get)
    forget = (reads_columns_fast.cache_clear, keeps_columns_apart.cache_clear)
    for one in forget:
        one()
    yield request.param
    for one in forget:
        one()


PROCESSORS = [("AVX2", AMD), ("AVX512", AMD), ("AVX2", "GenuineIntel"), ("AVX512", "GenuineIntel"), ("DEFAULT", AMD)]


@pytest.mark.parametrize("capability", PROCESSORS, indirect=True)
def test_one_row_reads_columns_in_pieces_on_amd_and_whole_elsewhere(capability):
    plain, model = pair("gpt2", d_model=96, n_heads=2, d_ff=384)
    for_decoding(model)
    attention, dense = model.decoder.blocks[0].parts
    maps = (attention.qkv, attention.out, dense.widen, dense.narrow)
    assert all(isinstance(m, OneRowMap) for m in maps)
    kind = ColumnPieces if capability in (("AVX512", AMD), ("AVX2", AMD)) else WholeMatrix
    assert all(isinstance(m.stored, kind) for m in maps)
    if kind is WholeMatrix:
        assert all(m.weight.t().is_contiguous() == (m.out_features >= m.in_features) for m in maps)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    if hasattr(mmap, "MADV_HUGEPAGE") and kind is ColumnPieces:
        areas = {m.stored.pieces_GIW.untyped_storage().data_ptr() for m in maps}
        assert len(areas) == 1
        assert model.head.weight.untyped_storage().nbytes() >= PAGE
    # the head's matrix is the embedding's, and both are the one stored by columns
    n_out = len(model.head.weight)
    assert model.head.weight.stride() == (1, apart(n_out) if capability == ("AVX2", AMD) else n_out)
    assert model.head.packed.stored.matrix.data_ptr() == model.head.weight.data_ptr()
    tokens = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        torch.testing.assert_close(model(tokens).logits, plain(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("capability", [("AVX512", AMD)], indirect=True)
def test_outputs_that_cannot_be_cut_stay_as_they_are(capability):
    model = for_decoding(kf.build(kf.relative("gpt2", size="tiny", d_model=96, n_heads=2, d_ff=449), seed=0))
    dense = model.decoder.blocks[0].parts[1]
    assert isinstance(dense.widen.stored, WholeMatrix)
    assert isinstance(dense.narrow.stored, ColumnPieces)


@blocks
def test_several_rows_have_blocks_where_maps_are_only_called():
    model = for_decoding(kf.build(kf.relative("gpt2", size="tiny", n_layers=1), seed=0), 8)
    attention, dense = model.decoder.blocks[0].parts
    assert all(isinstance(m, PackedMap) for m in (attention.qkv, attention.out, dense.widen, dense.narrow))
    assert isinstance(model.head.packed, PackedMap)
    # keys of earlier segments are projected by a slice of the matrix, so it stays
    segments = for_decoding(kf.build(kf.relative("transformer-xl", size="tiny"), seed=0), 8)
    assert not any(isinstance(m, PackedMap) for m in segments.decoder.blocks[0].parts[0].modules())


@blocks
@pytest.mark.parametrize("activation", ["relu", "gelu-tanh", "swish"])
def test_a_packed_map_is_the_map(activation):
    linear = kf.layers.module.Linear(24, 7)
    packed = PackedMap(linear.weight, linear.bias, 3)
    x = torch.randn(2, 3, 24)
    with torch.no_grad():
        for got, expected in (
            (packed(x), linear(x)),
            (packed.after(x, activation), linear.after(x, activation)),
            (packed.after_gate(x.repeat(1, 1, 2), activation), linear.after_gate(x.repeat(1, 1, 2), activation)),
        ):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(packed.weight, linear.weight)


@pytest.mark.parametrize("rows", [1, 8])
def test_a_saved_copy_is_stored_by_rows(tmp_path, rows):
    model = for_decoding(kf.build(kf.relative("gpt2", size="tiny"), seed=0), rows)
    kf.save(model, tmp_path / "m")
    plain, again = kf.build(kf.relative("gpt2", size="tiny"), seed=0), kf.load(tmp_path / "m")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), plain.parameters(), strict=True))


@blocks
@pytest.mark.skipif(not blocks_available() or not bf16_available(), reason="no instructions for bf16")
@pytest.mark.parametrize("rows", [1, 3])
def test_weights_in_bf16_are_read_in_blocks(rows):
    plain, model = (m.bfloat16() for m in pair("llama"))
    for_decoding(model, rows)
    assert isinstance(model.decoder.blocks[0].parts[0].qkv, PackedMap)
    tokens = torch.randint(5, 50, (rows, 7), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(model(tokens).logits, plain(tokens).logits, rtol=0.02, atol=0.02)


bf16 = pytest.mark.skipif(not blocks_available() or not bf16_available(), reason="no instructions for bf16")


@bf16
def test_a_rounded_map_multiplies_rounded_numbers_and_sums_in_single_precision():
    linear = kf.layers.module.Linear(768, 24)
    x = torch.randn(2, 3, 768, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = x.bfloat16().double() @ linear.weight.bfloat16().double().mT + linear.bias.bfloat16().double()
        got = RoundedMap(linear.weight, linear.bias, 3)(x)
    assert got.dtype == torch.float32
    # sums are rounded once, to eight bits
    torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=2e-5)


@bf16
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["gpt2", "llama", "vanilla", "transformer-xl", "mamba"])
def test_the_bf16_engine_rounds_matrices_and_nothing_else(name, rows):
    plain, model = pair(name)
    Bf16Engine.laid_out(model, rows)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(m.blocks.dtype == torch.bfloat16 for m in model.modules() if isinstance(m, PackedMap))
    tokens = torch.randint(5, 50, (rows, 7), generator=torch.Generator().manual_seed(0))
    inputs = (tokens, tokens) if plain.spec.topology == "encoder-decoder" else (tokens,)
    with torch.inference_mode():
        got, expected = model(*inputs).logits, plain(*inputs).logits
    assert got.dtype == torch.float32
    error = (got - expected).norm() / (expected - expected.mean()).norm()
    # heads and maps that something else reads stay whole, so an error of nothing is possible there
    assert error < 0.02
    if name in ("gpt2", "llama"):
        assert error > 1e-4
        assert isinstance(model.head.packed, RoundedMap)


@pytest.mark.parametrize("missing", ["bf16_available", "blocks_available"])
def test_the_bf16_engine_is_refused_without_instructions(missing, monkeypatch):
    monkeypatch.setattr(weight_layout, missing, lambda: False)
    (model, _) = pair("gpt2")
    with pytest.raises(kf.KinfolkError, match=r"torch-bf16.*bf16"):
        Bf16Engine.laid_out(model)


def attributes(model):
    return [(type(m), {name: id(value) for name, value in vars(m).items()}) for m in model.modules()]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", RELATIVES)
def test_a_model_in_memory_is_laid_out_for_one_call_and_then_as_before(name, rows):
    plain, model = pair(name)
    before, strides = attributes(model), [p.stride() for p in model.parameters()]
    tokens = [[5, 6, 7]] * rows
    with torch.inference_mode(), laid_out(model, rows, LONG):
        copied = [m for m in model.modules() for key in m._parameters if vars(m)[key] is not m._parameters[key]]
        packed = [m for m in model.modules() for key in m._modules if vars(m)[key] is not m._modules[key]]
        assert bool(copied) == (rows == 1)
        if blocks_available() and name in ("gpt2", "llama", "vanilla"):
            assert packed
        inputs = (torch.tensor(tokens),) * (2 if plain.spec.topology == "encoder-decoder" else 1)
        torch.testing.assert_close(model(*inputs).logits, plain(*inputs).logits, rtol=1e-4, atol=1e-4)
    assert attributes(model) == before
    assert [p.stride() for p in model.parameters()] == strides


def test_few_tokens_are_not_worth_a_layout():
    (model, _) = pair("gpt2")
    with laid_out(model, 1, LONG - 1):
        assert all(vars(m)[key] is p for m in model.modules() for key, p in m._parameters.items())


@blocks
def test_what_was_laid_out_for_good_stays_so():
    model = for_decoding(kf.build(kf.relative("gpt2", size="tiny", n_layers=1), seed=0), 8)
    kf.generate(model, [[5, 6]] * 2, max_new=2)
    assert isinstance(model.head.packed, PackedMap)
    assert isinstance(model.decoder.blocks[0].parts[0].qkv, PackedMap)


@blocks
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("rows", [1, 8])
def test_single_rows_read_the_table_itself_and_no_copy_of_it(name, rows):
    """The table is stored by columns late, and who kept it as it was before would keep it twice."""
    model = for_decoding(kf.build(kf.relative(name, size="tiny", vocab_size=263), seed=0), rows)
    stored = model.head.packed.stored if rows == 1 else model.head.packed.one_row.__self__.stored
    assert model.head.weight.stride(0) == 1
    assert stored.matrix.data_ptr() == model.head.weight.data_ptr()
