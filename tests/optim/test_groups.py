"""Which parameters move, how far, and from when on."""

import pytest

import kinfolk as kf
from kinfolk.core.errors import SpecError
from kinfolk.optim import AdamW, HeadFirst, LayerWise, SomeWeights, Together, Training
from kinfolk.optim.groups import depths, in_order, waits


@pytest.fixture(scope="module")
def model():
    numbers = {"vocab_size": 20, "n_layers": 3, "d_model": 8, "d_ff": 8, "n_heads": 2, "max_len": 8}
    return kf.build(kf.relative("bert", size="tiny", **numbers))


def rates(model, groups):
    """The share of the learning rate of each depth."""
    made = AdamW().build(model, groups)
    depth = depths(name for name, _ in model.named_parameters())
    return {depth[name]: group["lr_scale"] for group in made.param_groups for name in group["names"]}


def test_depths_count_from_the_embedding_to_the_head(model):
    depth = depths(name for name, _ in model.named_parameters())
    assert depth["embedding.table.weight"] == 0
    assert depth["encoder.blocks.0.parts.0.qkv.weight"] == 1
    assert depth["encoder.blocks.2.residuals.1.norm.bias"] == 3
    assert {d for name, d in depth.items() if name.startswith("head.")} == {4}
    # a learner holds a model, and a decoder stands above its encoder
    both = depths(["model.encoder.blocks.0.a", "model.decoder.blocks.0.a", "model.decoder.norm.weight", "model.head.b"])
    assert list(both.values()) == [1, 2, 2, 3]


def test_rates_fall_from_layer_to_layer_as_in_the_papers(model):
    sun = rates(model, LayerWise(factor=0.95))
    assert sun == pytest.approx({4: 1.0, 3: 1.0, 2: 0.95, 1: 0.95**2, 0: 0.95**3})
    ulmfit = rates(model, LayerWise(factor=1 / 2.6, gap=1))
    assert ulmfit == pytest.approx({depth: 2.6 ** (depth - 4) for depth in range(5)})
    # lr * decay ** (layers + 2 - depth), as in ELECTRA's code, where the head has depth layers + 2
    electra = rates(model, LayerWise(factor=0.8, gap=2))
    assert electra == pytest.approx({4: 1.0} | {depth: 0.8 ** (3 + 2 - depth) for depth in range(4)})


def test_some_move_and_the_rest_has_no_gradient(model):
    kept = {name for name, _ in model.named_parameters() if name.startswith("head.") or name.endswith("bias")}
    SomeWeights(names=("head.*", "*bias")).freeze(model)
    try:
        assert {name for name, p in model.named_parameters() if p.requires_grad} == kept
        moving = AdamW().build(model, SomeWeights(names=("head.*", "*bias")))
        assert {name for group in moving.param_groups for name in group["names"]} == kept
    finally:
        model.requires_grad_(True)
    with pytest.raises(SpecError, match="no parameter that moves"):
        SomeWeights(names=("tail.*",)).freeze(model)


def test_groups_wait_for_their_turn(model):
    made = AdamW().build(model, LayerWise(factor=1.0, turn=10))
    depth = depths(name for name, _ in model.named_parameters())

    def moving(step):
        return {depth[n] for g in made.param_groups if not waits(g, step, 100) for n in g["names"]}

    assert [len(moving(step)) for step in (1, 10, 11, 21, 31, 41)] == [1, 1, 2, 3, 4, 5]
    assert moving(1) == {4}
    share = AdamW().build(model, HeadFirst(alone=0.25))
    assert [sum(waits(g, step, 100) for g in share.param_groups) for step in (1, 25, 26)] == [2, 2, 0]


def test_the_order_of_sums_does_not_depend_on_groups(model):
    together, apart = (AdamW().build(model, groups) for groups in (Together(), LayerWise(factor=0.5)))
    assert len(apart.param_groups) > len(together.param_groups)
    assert [id(p) for p in in_order(together)] == [id(p) for p in in_order(apart)]
    assert [id(p) for p in in_order(together)] == [id(p) for g in together.param_groups for p in g["params"]]


def test_values_that_make_no_sense_are_refused(model):
    for make in (lambda: LayerWise(factor=0.0), lambda: LayerWise(gap=-1), lambda: LayerWise(turn=-1.0)):
        with pytest.raises(SpecError):
            make()
    made = Training(groups=LayerWise(factor=0.9)).build_optimiser(model)
    assert min(group["lr_scale"] for group in made.param_groups) == pytest.approx(0.9**3)
