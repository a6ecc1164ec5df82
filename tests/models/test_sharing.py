"""Layers that share their weights, and layers that are left out."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.family.assembly import shared, with_depth, with_stochastic_depth, without_every
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.residuals.residual import PostNorm, PreNorm
from kinfolk.layers.residuals.stochastic_depth import StochasticDepth
from kinfolk.models.cost import cost
from kinfolk.models.depth.layer_drop import LayerDrop
from kinfolk.objectives.learner import Learner
from kinfolk.train.step import Paced

NUMBERS = {"d_model": 16, "n_layers": 6, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 32}
TOKENS = torch.randint(7, 31, (2, 9), generator=torch.Generator().manual_seed(0))


def randomise(model, std=0.3):
    torch.manual_seed(1)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=std)
    return model


@pytest.mark.parametrize("n_groups", [1, 2, 4, 6])
def test_a_shared_weight_has_the_sum_of_the_gradients_of_its_copies(n_groups):
    plain = kf.relative("gpt2", size="tiny", **NUMBERS).model
    spec = with_depth(plain, lambda depth: shared(depth, n_groups))
    ours, clone = (kf.build(m).double() for m in (spec, plain))
    randomise(ours)
    clone.embedding.load_state_dict(ours.embedding.state_dict())
    clone.decoder.norm.load_state_dict(ours.decoder.norm.state_dict())
    order = spec.decoder.order
    assert len(order) == 6
    assert len(set(order)) == n_groups
    assert list(order) == sorted(order)
    for n, i in enumerate(order):
        clone.decoder.blocks[n].load_state_dict(ours.decoder.blocks[i].state_dict())
    got, want = ours(TOKENS).logits, clone(TOKENS).logits
    assert torch.equal(got, want)
    got.square().sum().backward()
    want.square().sum().backward()
    for i, block in enumerate(ours.decoder.blocks):
        copies = [dict(clone.decoder.blocks[n].named_parameters()) for n, at in enumerate(order) if at == i]
        for name, p in block.named_parameters():
            torch.testing.assert_close(p.grad, sum(copy[name].grad for copy in copies), rtol=1e-10, atol=1e-8)


def test_groups_are_those_of_albert():
    stack = kf.relative("gpt2", size="tiny", **NUMBERS).model.decoder
    for n_groups in range(1, 7):
        assert shared(stack, n_groups).order == tuple(int(i / (6 / n_groups)) for i in range(6))
    for wrong in (0, 7):
        with pytest.raises(SpecError, match="n_groups"):
            shared(stack, wrong)


def test_parameters_do_not_depend_on_depth_and_operations_do():
    a, b = (cost(kf.relative("shared", size="tiny", **{**NUMBERS, "n_layers": n}).model, 16) for n in (3, 12))
    assert a.params == b.params
    assert b.flops_per_token > 3 * a.flops_per_token
    sizes = {name: cost(kf.relative(name, size="tiny", **NUMBERS).model, 16).params for name in kf.relatives()}
    assert sizes["shared"] < sizes["shared-encoder"]
    assert sizes["shared"] < sizes["shared-decoder"]
    models = [kf.relative(f"shared-{side}", size="tiny", **NUMBERS).model for side in ("encoder", "decoder")]
    assert [len(m.encoder.blocks) for m in models] == [1, 6]
    assert [len(m.decoder.blocks) for m in models] == [6, 1]


def test_a_shared_encoder_is_hugging_faces_albert():
    transformers = pytest.importorskip("transformers", reason="the identity with Hugging Face needs kinfolk[bench]")
    d, h, n_groups = 16, 2, 2
    theirs = transformers.AlbertModel(
        transformers.AlbertConfig(
            embedding_size=d,
            hidden_size=d,
            num_hidden_layers=6,
            num_hidden_groups=n_groups,
            num_attention_heads=h,
            intermediate_size=24,
            vocab_size=31,
            max_position_embeddings=32,
            hidden_act="gelu",
        )
    )
    randomise(theirs.double().eval())
    theirs.encoder.embedding_hidden_mapping_in.weight.data = torch.eye(d, dtype=torch.float64)
    theirs.encoder.embedding_hidden_mapping_in.bias.data.zero_()
    spec = with_depth(kf.relative("bert", size="tiny", **NUMBERS).model, lambda depth: shared(depth, n_groups))
    ours = kf.build(spec).double().eval()
    e = theirs.embeddings
    ours.embedding.table.weight.data = e.word_embeddings.weight.data
    ours.embedding.position.table.weight.data = e.position_embeddings.weight.data
    ours.embedding.segments.weight.data = e.token_type_embeddings.weight.data
    ours.embedding.norm.load_state_dict(e.LayerNorm.state_dict())
    for block, group in zip(ours.encoder.blocks, theirs.encoder.albert_layer_groups, strict=True):
        layer, (look, think) = group.albert_layers[0], block.parts
        w = {k: v.clone() for k, v in layer.state_dict().items()}
        names = {
            look.out: "attention.dense",
            block.residuals[0].norm: "attention.LayerNorm",
            think.widen: "ffn",
            think.narrow: "ffn_output",
            block.residuals[1].norm: "full_layer_layer_norm",
        }
        for field in ("weight", "bias"):
            packed = [w[f"attention.{x}.{field}"] for x in query_names(w)]
            getattr(look.qkv, field).data = torch.cat(packed)
            for module, name in names.items():
                getattr(module, field).data = w[f"{name}.{field}"]
    got = ours(TOKENS).hidden
    torch.testing.assert_close(got, theirs(TOKENS).last_hidden_state, rtol=1e-9, atol=1e-9)


def query_names(weights):
    old = ("query", "key", "value")
    return old if "attention.query.weight" in weights else ("q_proj", "k_proj", "v_proj")


def dropped(rate=0.5, seed=0):
    spec = kf.relative("gpt2", size="tiny", **NUMBERS).model
    return with_depth(spec, lambda depth: LayerDrop.of(depth, rate, seed))


def runs_at(depth, step):
    depth.layer_drop.at_step(step)
    return depth.runs()


def test_layers_are_dropped_in_training_only():
    model = randomise(kf.build(dropped()).double())
    plain = kf.build(kf.relative("gpt2", size="tiny", **NUMBERS)).double()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(TOKENS).logits, plain.eval()(TOKENS).logits)
    assert len(model.decoder.runs()) == 6
    model.train()
    assert len(model.decoder.runs()) == 6
    seen = [runs_at(model.decoder, step) for step in range(1, 201)]
    share = sum(len(runs) for runs in seen) / 1200
    assert 0.4 < share < 0.6
    assert len(set(map(tuple, seen))) > 20


def test_a_dropped_layer_is_not_there():
    model = randomise(kf.build(dropped()).double().train())
    plain = kf.build(kf.relative("gpt2", size="tiny", **NUMBERS)).double()
    plain.load_state_dict(model.state_dict())
    for step in range(1, 5):
        kept = [n for n, _ in runs_at(model.decoder, step)]
        taps = model(TOKENS, taps=["hidden"])
        assert sorted(int(key.split(".")[1]) for key in taps.taps) == kept
        plain.decoder.order = tuple(kept)
        assert torch.equal(taps.logits, plain(TOKENS).logits)


def test_all_processes_drop_the_same_layers():
    model, twin = (kf.build(dropped()).train() for _ in range(2))
    assert isinstance(model.decoder.layer_drop, Paced)
    torch.manual_seed(0)
    first = [runs_at(model.decoder, 3), model.decoder.runs()]
    torch.manual_seed(1)
    assert first == [runs_at(twin.decoder, 3)] * 2
    one, two = (kf.build(dropped(seed=seed)).train().decoder for seed in (1, 2))
    assert any(runs_at(one, step) != runs_at(two, step) for step in range(1, 5))
    with pytest.raises(SpecError, match="rate"):
        dropped(1.0)


def test_layers_of_the_relative_are_dropped_and_without_a_rate_none():
    plain = kf.relative("vanilla-pre", size="tiny", **NUMBERS)
    never, often = (kf.relative("layer-drop", size="tiny", rate=rate, **NUMBERS) for rate in (0.0, 0.5))
    assert never.model.replace(encoder=plain.model.encoder, decoder=plain.model.decoder) == plain.model
    models = [kf.build(r, seed=3).double().train() for r in (plain, never, often)]
    for model in models[1:]:
        for depth in (model.encoder, model.decoder):
            depth.layer_drop.at_step(2)
    same, without, dropped_out = (model(TOKENS, TOKENS).logits for model in models)
    assert torch.equal(same, without)
    assert not torch.equal(same, dropped_out)
    encoder, decoder = models[2].encoder, models[2].decoder
    assert any(runs_at(encoder, step) != runs_at(decoder, step) for step in range(1, 9))
    assert torch.equal(models[2].eval()(TOKENS, TOKENS).logits, models[0].eval()(TOKENS, TOKENS).logits)


def test_a_model_can_be_cut_down_to_some_layers():
    spec = dropped()
    half = with_depth(spec, lambda depth: without_every(depth, 2))
    assert half.decoder.order == (1, 3, 5)
    model, smaller = randomise(kf.build(spec)).eval(), kf.build(half).eval()
    smaller.load_state_dict(model.state_dict())
    assert not torch.equal(model(TOKENS).logits, smaller(TOKENS).logits)
    model.decoder.order = (1, 3, 5)
    assert torch.equal(model(TOKENS).logits, smaller(TOKENS).logits)


def test_branches_are_dropped_by_example_and_scaled():
    spec = kf.relative("gpt2", size="tiny", **NUMBERS).model
    rates = [b.residual.rate for b in with_stochastic_depth(spec, 0.6).decoder.blocks]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    residual = StochasticDepth(of=PreNorm(norm=LayerNorm()), rate=0.25).build(spec.dims).double()
    part = spec.decoder.blocks[0].parts[1].build(spec.dims).double()
    x = torch.randn(400, 3, 16, dtype=torch.float64)
    torch.manual_seed(0)
    added = residual(x, part, Context(), None)[0] - x
    want = residual.eval()(x, part, Context(), None)[0] - x
    absent = (added == 0).all(-1).all(-1)
    assert 0.15 < absent.double().mean() < 0.35
    torch.testing.assert_close(added[~absent], want[~absent] / 0.75)
    with pytest.raises(SpecError, match="there is none to drop"):
        StochasticDepth(of=PostNorm(), rate=0.1)


def test_stochastic_depth_trains_through_the_model():
    spec = with_stochastic_depth(kf.relative("gpt2", size="tiny", **NUMBERS).model, 0.3)
    recipe = kf.relative("gpt2", size="tiny", **NUMBERS)
    from kinfolk.core.rng import Rng
    from kinfolk.objectives.objective import Vocabulary

    learn = Learner(kf.build(spec).train(), recipe.objective, Vocabulary(31))
    batch = learn.prepare(Batch(index=torch.arange(2), tokens=TOKENS), Rng(0))
    totals = {float(learn(batch).total.detach()) for _ in range(5)}
    assert len(totals) > 1
    learn.eval()
    assert float(learn(batch).total.detach()) == float(learn(batch).total.detach())
