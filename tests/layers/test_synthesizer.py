"""Synthesizers: scores against their dense definition, what depends on what, and what each form reduces to."""

from typing import get_args

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.synthesizer import Form, Synthesizer
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import XL, T5Buckets
from kinfolk.layers.states.kv_cache import Ring
from kinfolk.ops.attention import attend as executor
from kinfolk.ops.patterns.leaves import Causal, Full, Window
from tests.exact import assert_exact

DIMS = Dims(d_model=12, vocab_size=5, max_len=20, dropout=0.0, n_sublayers=2)
FORMS = get_args(Form)
PLUS = [form for form in FORMS if "plus" in form]
ALPHA = [form for form in FORMS if "alpha" in form]


def layer(form, pattern=None, **options):
    torch.manual_seed(0)
    module = Synthesizer(n_heads=3, form=form, pattern=pattern or Causal(), **options).build(DIMS).double()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return module


def x(n, batch=2):
    return torch.randn(batch, n, 12, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def weights_of(module, inputs, **context):
    taps = Taps()
    module(inputs, Context(taps=taps, **context), None)
    return taps.found["weights"]


def made_up(module, inputs):
    """Write the made-up scores [B, H, L, M] out from the definition."""
    spec, n = module.spec, inputs.shape[1]
    scores = torch.zeros(len(inputs), 3, n, n, dtype=torch.float64)
    q = module.inputs(inputs)[..., :12].unflatten(-1, (3, 4))
    for h in range(3):
        for i in range(n):
            for j in range(n):
                if spec.source == "dense":
                    scores[:, h, i, j] = q[:, i, h].clamp(min=0) @ module.of_key.weight[j]
                elif spec.source == "factorized":
                    r = slice(h * spec.rank, (h + 1) * spec.rank)
                    scores[:, h, i, j] = module.of_query.weight[i, r] @ module.of_key.weight[j, r]
                else:
                    scores[:, h, i, j] = module.of_pair.weight[i, h * 20 + j]
    return scores


def dense(module, inputs, visible):
    """Attend with explicit scores, softmax over what is visible only."""
    maps = [m.unflatten(-1, (3, 4)).transpose(1, 2) for m in module.inputs(inputs).split(12, -1)]
    scores = made_up(module, inputs)
    if module.spec.compares:
        share = module.alpha.sigmoid() if module.spec.weighs else None
        compared = maps[0] @ maps[1].mT / 2
        scores = compared + scores if share is None else (1 - share) * compared + share * scores
    y = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ maps[-1]
    return module.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("form", "rank"), [*((form, 2) for form in FORMS), ("factorized", 7)])
@pytest.mark.parametrize("length", [1, 2, 13])
def test_equals_its_dense_definition_with_all_gradients(form, length, rank):
    for pattern in (Causal(), Full(), Window(left=2)):
        module, inputs = layer(form, pattern, rank=rank), x(length).requires_grad_()
        at = torch.arange(length)
        visible = pattern.allows(at[:, None], at[None, :])
        ours, theirs = module(inputs, Context(), None)[0], dense(module, inputs, visible)
        assert_exact(ours, theirs)
        leaves, g = [inputs, *module.parameters()], torch.randn(ours.shape, dtype=torch.float64)
        pairs = [torch.autograd.grad((out * g).sum(), leaves, allow_unused=True) for out in (ours, theirs)]
        for name, a, b in zip(["x", *dict(module.named_parameters())], *pairs, strict=True):
            a, b = (torch.zeros(()) if t is None else t for t in (a, b))
            torch.testing.assert_close(a + b * 0, b + a * 0, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("form", ["factorized", "random"])
def test_a_table_does_not_depend_on_the_text(form):
    module = layer(form)
    assert torch.equal(weights_of(module, x(9)), weights_of(module, x(9) * 3 + 1))


def test_a_dense_row_depends_on_its_own_token_only():
    module, full = layer("dense", Full()), x(9)
    before = weights_of(module, full)
    full[:, 4] += 1
    moved = (weights_of(module, full) != before).any(-1).any(1)
    assert moved.tolist() == [[i == 4 for i in range(9)]] * 2


@pytest.mark.parametrize("form", ["random", "factorized"])
def test_a_table_of_zeros_averages_what_is_allowed(form):
    module = layer(form)
    for table in (module.of_pair, module.of_key):
        if table is not None:
            table.weight.data.zero_()
    want = torch.ones(6, 6, dtype=torch.float64).tril() / torch.arange(1, 7)[:, None]
    assert_exact(weights_of(module, x(6)), want.expand(2, 3, 6, 6))


def test_a_factorized_table_has_its_rank():
    module = layer("factorized", rank=2)
    table = made_up(module, x(13))[0]
    assert torch.linalg.matrix_rank(table).tolist() == [2, 2, 2]


def test_a_factorized_table_of_full_rank_is_any_table():
    random, whole = layer("random"), layer("factorized", rank=20)
    random.inputs.load_state_dict(whole.inputs.state_dict())
    random.out.load_state_dict(whole.out.state_dict())
    table_HMM = random.of_pair.weight.data.unflatten(1, (3, 20)).transpose(0, 1)
    # R = R I
    whole.of_query.weight.data = table_HMM.transpose(0, 1).flatten(1)
    whole.of_key.weight.data = torch.eye(20, dtype=torch.float64).repeat(1, 3)
    assert_exact(whole(x(17), Context(), None)[0], random(x(17), Context(), None)[0])
    whole.of_key.weight.data[3] = 0
    assert not torch.allclose(whole(x(17), Context(), None)[0], random(x(17), Context(), None)[0])


def attention_with(module):
    theirs = Attention(n_heads=3, pattern=module.spec.pattern).build(DIMS).double()
    for name in ("weight", "bias"):
        getattr(theirs.qkv, name).data = getattr(module.inputs, name).data.clone()
        getattr(theirs.out, name).data = getattr(module.out, name).data.clone()
    return theirs


@pytest.mark.parametrize("form", PLUS)
def test_plus_nothing_is_attention(form):
    module = layer(form)
    (module.of_key or module.of_pair).weight.data.zero_()
    if module.alpha is not None:
        module.alpha.data.fill_(-torch.inf)
    assert_exact(module(x(11), Context(), None)[0], attention_with(module)(x(11), Context(), None)[0])


@pytest.mark.parametrize("form", ALPHA)
def test_alpha_at_its_ends_is_one_of_the_two(form):
    module = layer(form)
    module.alpha.data.fill_(-torch.inf)
    assert_exact(module(x(11), Context(), None)[0], attention_with(module)(x(11), Context(), None)[0])
    module.alpha.data.fill_(torch.inf)
    alone = layer(form.removesuffix("-plus-alpha"))
    own = module.state_dict()
    kept = [0, 2] if form.startswith("dense") else [2]
    for name in ("inputs.weight", "inputs.bias"):
        own[name] = torch.cat([own[name].chunk(3)[i] for i in kept])
    alone.load_state_dict({name: own[name] for name in alone.state_dict()})
    assert_exact(module(x(11), Context(), None)[0], alone(x(11), Context(), None)[0])
    assert kf.build(kf.relative(f"synthesizer-{form}", size="tiny")).decoder.blocks[0].parts[0].alpha.item() == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pattern", [Causal(), Window(left=3)], ids=repr)
@pytest.mark.parametrize("chunks", [(1,) * 17, (7, 1, 1, 5, 3)], ids=str)
def test_decoding_in_any_chunks_equals_one_pass(form, pattern, chunks):
    module, full = layer(form, pattern), x(17)
    want, _ = module(full, Context(), None)
    state, at, got = module.new_state(2, 17), 0, []
    assert isinstance(state, Ring) == (pattern != Causal())
    for n in chunks:
        y, state = module(full[:, at : at + n], Context(start=at), state)
        got.append(y)
        at += n
    assert_exact(torch.cat(got, 1), want)


@pytest.mark.parametrize("form", FORMS)
def test_gathered_blocks_equal_the_dense_definition(form, monkeypatch):
    for name, value in (("BLOCK", 4), ("DENSE_PAIRS", 0), ("DENSE_SHARE", 2.0)):
        monkeypatch.setattr(executor, name, value)
    module, at = layer(form, Window(left=5)), torch.arange(19)
    visible = Window(left=5).allows(at[:, None], at[None, :])
    assert_exact(module(x(19), Context(), None)[0], dense(module, x(19), visible))


@pytest.mark.parametrize("form", FORMS)
def test_packed_documents_and_padding(form):
    for pattern in (Causal(), Full()):
        module, lengths = layer(form, pattern), [5, 1, 9]
        documents = [x(n, batch=1) for n in lengths]
        group = torch.tensor([[i for i, n in enumerate(lengths) for _ in range(n)]])
        position = torch.tensor([[p for n in lengths for p in range(n)]])
        got, _ = module(torch.cat(documents, 1), Context(group_BL=group, pos_BL=position), None)
        assert_exact(got, torch.cat([module(one, Context(), None)[0] for one in documents], 1))
        keep = torch.arange(11).expand(2, 11) < 7
        padded = torch.cat([x(7), x(4) * 100], 1)
        got, _ = module(padded, Context(padding=Padding(keep, right=True)), None)
        assert_exact(got[:, :7], module(x(7), Context(), None)[0])


def test_dropout_falls_on_weights_while_training_only():
    module = layer("dense", dropout=0.5).eval()
    still = module(x(9), Context(), None)[0]
    assert torch.equal(still, module(x(9), Context(), None)[0])
    module.train()
    assert not torch.equal(still, module(x(9), Context(), None)[0])


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match=r"form: unknown 'dens'; did you mean 'dense'"):
        Synthesizer(n_heads=3, form="dens")
    with pytest.raises(SpecError, match="rank: 0 is not allowed"):
        Synthesizer(n_heads=3, form="factorized", rank=0)
    with pytest.raises(SpecError, match="d_model 12 is not a multiple of n_heads 5"):
        Synthesizer(n_heads=5, form="dense").build(DIMS)
    with pytest.raises(SpecError, match="cannot decode step by step"):
        layer("dense", Full()).new_state(1, 4)
    for form in FORMS:
        with pytest.raises(ShapeError, match="position 20 is beyond the 20"):
            layer(form)(x(21), Context(), None)


@pytest.mark.parametrize("form", ["dense", "random-plus-alpha"])
def test_what_a_distance_says_is_added_to_the_scores(form):
    """In any chunks; and with equal numbers for all distances nothing changes."""
    plain, told = (
        Synthesizer(n_heads=2, form=form, pattern=Causal(), position=position).build(
            Dims(d_model=8, vocab_size=5, max_len=16, dropout=0.0, n_sublayers=2)
        )
        for position in (NoPosition(), T5Buckets(n_buckets=4, farthest=8))
    )
    torch.manual_seed(0)
    for p in plain.parameters():
        torch.nn.init.normal_(p)
    told.load_state_dict(plain.state_dict())
    x = torch.randn(2, 9, 8)
    torch.nn.init.constant_(told.position.table.weight, 0.7)
    want = plain(x, Context(), None)[0]
    torch.testing.assert_close(told(x, Context(), None)[0], want)
    torch.nn.init.normal_(told.position.table.weight)
    moved = told(x, Context(), None)[0]
    assert (moved - want).abs().max() > 0.1
    state = told.new_state(2, 9)
    pieces = [told(x[:, at : at + 3], Context(start=at), state)[0] for at in (0, 3, 6)]
    torch.testing.assert_close(torch.cat(pieces, 1), moved)
    with pytest.raises(SpecError, match="more than a distance"):
        Synthesizer(n_heads=2, form=form, position=XL())
