import itertools

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.adaptive import Adaptive
from kinfolk.layers.embeddings.embedding import Factorised, Sides, Tokens
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.init import Normal, Xavier, seeded
from kinfolk.layers.module import Dims
from kinfolk.models.cost import cost
from tests.exact import assert_exact

D, V = 12, 40
DIMS = Dims(d_model=D, vocab_size=V, max_len=32, dropout=0.0, n_sublayers=4)
NUMBERS = {"d_model": 32, "n_layers": 1, "n_heads": 4, "d_ff": 64, "vocab_size": V, "max_len": 32}


def built(spec):
    module = spec.build(DIMS)
    seeded(Xavier(), module, DIMS, 0)
    module.double()
    assert sum(p.numel() for p in module.parameters()) == spec.cost(DIMS).params
    return module


def tokens(batch=3, length=11):
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(0))


def test_a_factorised_table_is_a_full_one_of_low_rank():
    module = built(Factorised(d_inner=5))
    full = module.table.inner.weight @ module.table.outer.weight.mT
    assert_exact(module(tokens(), Context()), full[tokens()])
    assert torch.linalg.matrix_rank(full) == 5


def test_a_tied_head_goes_back_through_the_factors():
    embedding = built(Factorised(d_inner=5))
    head = LMHead().build(DIMS, embedding).double()
    x = torch.randn(2, 3, D, dtype=torch.float64)
    full = embedding.table.inner.weight @ embedding.table.outer.weight.mT
    assert_exact(head.logits(x), x @ full.mT)
    assert list(head.parameters()) == []


def test_a_head_may_divide_states_by_the_root_of_their_width():
    embedding, x = built(Tokens()), torch.randn(2, 3, D, dtype=torch.float64)
    plain, scaled = (LMHead(scale=scale).build(DIMS, embedding) for scale in ("none", "rsqrt"))
    assert_exact(scaled.logits(x), plain.logits(x) * D**-0.5)
    targets = torch.randint(V, (2, 3))
    assert_exact(scaled.loss(x, targets), plain.loss(x * D**-0.5, targets))


@pytest.mark.parametrize("widths", [(), (12, 5, 3), (7, 5, 3)])
def test_adaptive_inputs_are_a_dense_table(widths):
    module = built(Adaptive(cutoffs=(3, 9), widths=widths))
    table = module.table
    assert [t.weight.shape[1] for t in table.tables] == list(widths or (12, 3, 1))
    maps = [torch.eye(D).double() if isinstance(m, torch.nn.Identity) else m.weight.mT for m in table.maps]
    dense = torch.cat([t.weight @ m for t, m in zip(table.tables, maps, strict=True)])
    assert_exact(module.weight, dense)
    assert_exact(module(tokens(), Context()), dense[tokens()])
    every = torch.tensor([[0, 2, 3, 8, 9, 39]])
    assert_exact(module(every, Context()), dense[every])
    params = list(module.parameters())
    grads = [torch.autograd.grad(y.square().sum(), params) for y in (module(tokens(), Context()), dense[tokens()])]
    for got, want in zip(*grads, strict=True):
        assert_exact(got, want)


def test_narrow_vectors_start_as_large_as_wide_ones():
    wide = Dims(d_model=256, vocab_size=2000, max_len=9, dropout=0.0, n_sublayers=4)
    for spec in (Factorised(d_inner=32), Adaptive(cutoffs=(500, 900))):
        module = spec.build(wide)
        seeded(Normal(), module, wide, 0)
        for words in (torch.arange(400), torch.arange(600, 800), torch.arange(1000, 2000)):
            assert float(module(words[None], Context()).detach().std()) == pytest.approx(0.02, rel=0.1)


def test_a_word_moves_its_own_cluster_only():
    module = built(Adaptive(cutoffs=(3, 9)))
    module(torch.tensor([[4, 8]]), Context()).sum().backward()
    moved = [table.weight.grad.abs().sum() > 0 for table in module.table.tables]
    assert moved == [False, True, False]


def test_one_cluster_is_a_plain_table():
    module, plain = built(Adaptive(cutoffs=())), built(Tokens())
    plain.table.weight.data = module.table.tables[0].weight.data.clone()
    assert torch.equal(module(tokens(), Context()), plain(tokens(), Context()))


def test_each_side_has_its_own_table():
    module = built(Sides(source=Tokens(), target=Factorised(d_inner=5)))
    assert_exact(module(tokens(), Context()), module.source(tokens(), Context()))
    memory = EncoderOutput(torch.zeros(3, 2, D, dtype=torch.float64))
    assert_exact(module(tokens(), Context(encoder_output=memory)), module.target(tokens(), Context()))
    assert module.weight is module.target.weight


@pytest.mark.parametrize(("sides", "weights"), list(itertools.product([False, True], ["tied", "untied"])))
def test_all_four_ways_of_tying(sides, weights, tmp_path):
    recipe = kf.relative("vanilla-pre", size="tiny", **NUMBERS)
    one = recipe.model.embedding
    model = recipe.model.replace(
        embedding=Sides(source=one, target=one) if sides else one, head=LMHead(weights=weights)
    )
    m = kf.build(model, seed=1).double()
    assert cost(model, 16).params == m.n_params
    assert m.n_params - kf.build(recipe.model).n_params == (sides + (weights == "untied")) * V * 32
    source, target = tokens(2, 5), tokens(2, 4)
    m(source, target).logits.logsumexp(-1).sum().backward()
    tables = [m.embedding.source.table, m.embedding.target.table] if sides else [m.embedding.table]
    assert all(table.weight.grad.abs().sum() > 0 for table in tables)
    if weights == "tied":
        # moved by both of its uses: words that never came in are moved by the output
        absent = [v for v in range(V) if v not in target]
        assert (tables[-1].weight.grad[absent].abs().sum(1) > 0).all()
    kf.save(m.float(), tmp_path / "m")
    again = kf.load(tmp_path / "m")
    assert again.n_params == m.n_params
    assert torch.equal(again(source, target).logits, m(source, target).logits)


@pytest.mark.parametrize("kind", ["factorised", "adaptive"])
@pytest.mark.parametrize("weights", ["tied", "untied"])
def test_other_tables_in_a_whole_model(kind, weights):
    recipe = kf.relative("gpt2", size="tiny", **NUMBERS)
    position = recipe.model.embedding.position
    one = (
        Factorised(d_inner=6, position=position)
        if kind == "factorised"
        else Adaptive(cutoffs=(5, 11), position=position)
    )
    model = recipe.model.replace(embedding=one, head=LMHead(weights=weights))
    m = kf.build(model, seed=1).double().eval()
    assert cost(model, 16).params == m.n_params
    text = tokens(1, 9)
    state = m.new_state(1, 9)
    assert_exact(torch.cat([m(text[:, i : i + 1], state=state).logits for i in range(9)], 1), m(text).logits)


def test_the_published_sizes():
    """Narang et al. 2021 at 32,128 words of width 768, positions left out; in millions."""
    dims = Dims(d_model=768, vocab_size=32128, max_len=512, dropout=0.0, n_sublayers=36)
    plain, table = 222.9e6, 32128 * 768

    def total(embedding, head):
        return plain - table + embedding.cost(dims).params + head.cost(dims).params

    one, tied, untied = Tokens(), LMHead(), LMHead(weights="untied")
    narrow, both = Factorised(), Sides(source=one, target=one)
    clusters = Adaptive(cutoffs=(2500, 8500), widths=(768, 256, 64))
    for embedding, head, want in (
        (one, tied, 222.9),
        (narrow, untied, 227.1),
        (narrow, tied, 202.4),
        (one, untied, 247.5),
        (both, tied, 247.5),
        (both, untied, 272.2),
        (clusters, tied, 203.4),
    ):
        assert total(embedding, head) / 1e6 == pytest.approx(want, abs=0.15)


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match=r"must rise, above 0 and below the vocabulary's 40"):
        Adaptive(cutoffs=(3, 40)).build(DIMS)
    with pytest.raises(SpecError, match="2 cutoffs make 3 clusters"):
        Adaptive(cutoffs=(3, 9), widths=(12, 3)).build(DIMS)
    with pytest.raises(SpecError, match="unknown 'rsqr'; did you mean 'rsqrt'"):
        LMHead(scale="rsqr")
    with pytest.raises(SpecError, match="did you mean 'tied'"):
        LMHead(weights="tid")
