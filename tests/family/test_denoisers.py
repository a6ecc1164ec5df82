"""T5 and BART against Hugging Face with copied weights: states, loss and what is learnt from it, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kinfolk as kf
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import cost
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary

transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs kinfolk[bench]")

D, H, FF, V, LAYERS = 24, 3, 42, 37, 2
NUMBERS = {"d_model": D, "n_layers": LAYERS, "n_heads": H, "d_ff": FF, "vocab_size": V, "max_len": 64, "dropout": 0.0}


def built(name, **numbers):
    """Return a learner away from its beginning, where norms are the identity."""
    recipe = kf.relative(name, size="base", **(NUMBERS | numbers))
    model, g = kf.build(recipe, seed=1).double().eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return Learner(model, recipe.objective, Vocabulary(V))


def prepared(learner):
    """Return corrupted windows of text, of unequal lengths."""
    tokens = torch.randint(7, V, (3, 41), generator=torch.Generator().manual_seed(3))
    keep = torch.arange(41) < torch.tensor([41, 30, 18])[:, None]
    return learner.prepare(Batch(index=torch.arange(3), tokens=tokens, keep=keep), Rng(0))


def copy(theirs, ours):
    """Put weights of ours into linear maps of theirs, several of which one of ours may pack."""
    for linear, weight in zip(theirs, ours.weight.chunk(len(theirs)), strict=True):
        linear.weight.data = weight.data.clone()
    if ours.bias is not None:
        for linear, bias in zip(theirs, ours.bias.chunk(len(theirs)), strict=True):
            linear.bias.data = bias.data.clone()


def t5(model, gated):
    config = transformers.T5Config(
        vocab_size=V + 100,
        d_model=D,
        d_kv=D // H,
        d_ff=model.encoder.blocks[0].parts[1].narrow.in_features,
        num_layers=LAYERS,
        num_heads=H,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
    )
    theirs = transformers.T5ForConditionalGeneration(config).double().eval()
    theirs.shared.weight.data = model.embedding.weight.data.clone()
    if gated:
        # this version ties it in any case, and leaves only the factor away
        theirs.lm_head.weight = nn.Parameter(model.head.weight.data.clone())
    for mine, other in ((model.encoder, theirs.encoder), (model.decoder, theirs.decoder)):
        other.final_layer_norm.weight.data = mine.norm.weight.data.clone()
        table = mine.blocks[0].parts[0].position.table.weight.data.clone()
        other.block[0].layer[0].SelfAttention.relative_attention_bias.weight.data = table
        for block, layers in zip(mine.blocks, other.block, strict=True):
            for residual, layer in zip(block.residuals, layers.layer, strict=True):
                layer.layer_norm.weight.data = residual.norm.weight.data.clone()
            attend(block.parts[0], layers.layer[0].SelfAttention)
            if len(block.parts) == 3:
                across(block.parts[1], layers.layer[1].EncDecAttention)
            think, dense = block.parts[-1], layers.layer[-1].DenseReluDense
            copy((dense.wi_0, dense.wi_1) if gated else (dense.wi,), think.widen)
            copy((dense.wo,), think.narrow)
    return theirs


def attend(mine, other):
    copy((other.q, other.k, other.v), mine.qkv)
    copy((other.o,), mine.out)


def across(mine, other):
    copy((other.q,), mine.q)
    copy((other.k, other.v), mine.kv)
    copy((other.o,), mine.out)


def assert_same_loss(learner, theirs, batch):
    """Compare logits, the mean loss, and the gradient of the table that both sides and, where tied, the head share."""
    ours = learner(batch)
    (ours.total / ours.count).backward()
    want = theirs(
        input_ids=batch.source,
        attention_mask=batch.source_keep.long(),
        decoder_input_ids=batch.tokens,
        decoder_attention_mask=batch.keep.long(),
        labels=batch.targets,
    )
    want.loss.backward()
    scored = batch.targets != IGNORE
    torch.testing.assert_close(ours.total / ours.count, want.loss, rtol=0, atol=1e-9)
    logits = learner.model.run(batch).logits
    torch.testing.assert_close(logits[scored], want.logits[scored], rtol=0, atol=1e-9)
    table = theirs.get_input_embeddings().weight.grad
    torch.testing.assert_close(learner.model.embedding.weight.grad, table, rtol=0, atol=1e-9)


def root_mean_square(self, x):
    """Theirs takes the mean square in float32, whatever comes in."""
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))


@pytest.mark.parametrize("name", ["t5", "t5-v1-1"])
def test_the_loss_of_t5(name, monkeypatch):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    monkeypatch.setattr(modeling.T5LayerNorm, "forward", root_mean_square)
    learner = built(name)
    batch = prepared(learner)
    # sentinels are among what is read and predicted
    assert (batch.source >= V).any()
    assert (batch.targets >= V).any()
    assert_same_loss(learner, t5(learner.model, gated=name != "t5"), batch)


def bart(model):
    config = transformers.BartConfig(
        vocab_size=V,
        d_model=D,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=H,
        decoder_attention_heads=H,
        encoder_ffn_dim=FF,
        decoder_ffn_dim=FF,
        max_position_embeddings=64,
        dropout=0.0,
        activation_function="gelu",
        pad_token_id=0,
    )
    theirs = transformers.BartForConditionalGeneration(config).double().eval()
    theirs.model.shared.weight.data = model.embedding.weight.data.clone()
    sides = (
        (model.encoder, model.embedding.source, theirs.model.encoder),
        (
            model.decoder,
            model.embedding.target,
            theirs.model.decoder,
        ),
    )
    for mine, embedding, other in sides:
        # two rows of theirs stand for nothing
        other.embed_positions.weight.data[2:] = embedding.position.table.weight.data
        other.layernorm_embedding.load_state_dict(embedding.norm.state_dict())
        for block, layer in zip(mine.blocks, other.layers, strict=True):
            look, think = block.parts[0], block.parts[-1]
            own = layer.self_attn
            copy((own.q_proj, own.k_proj, own.v_proj), look.qkv)
            copy((own.out_proj,), look.out)
            copy((layer.fc1,), think.widen)
            copy((layer.fc2,), think.narrow)
            norms = [layer.self_attn_layer_norm, layer.final_layer_norm]
            if len(block.parts) == 3:
                their = layer.encoder_attn
                copy((their.q_proj,), block.parts[1].q)
                copy((their.k_proj, their.v_proj), block.parts[1].kv)
                copy((their.out_proj,), block.parts[1].out)
                norms.insert(1, layer.encoder_attn_layer_norm)
            for residual, norm in zip(block.residuals, norms, strict=True):
                norm.load_state_dict(residual.norm.state_dict())
    return theirs


def test_the_loss_of_bart():
    learner = built("bart")
    assert_same_loss(learner, bart(learner.model), prepared(learner))


def test_a_fragment_stands_where_it_stood():
    """MASS: the decoder reads the fragment alone, yet at the positions of the text."""
    learner = built("mass")
    batch = prepared(learner)
    assert batch.positions is not None
    moved = learner.model.run(batch.replace(positions=batch.positions + 1)).logits
    assert (learner.model.run(batch).logits - moved).abs().max() > 1e-3
    row = int(batch.positions[:, 0].argmax())
    first, n = int(batch.positions[row, 0]), int(batch.keep[row].sum())
    assert n == round(0.5 * (int(batch.source_keep[row].sum()) - 1))
    # a fragment of a text with a made-up beginning: its positions say how long that was
    alone = batch.rows(slice(row, row + 1))
    table = learner.model.embedding.target.position.table.weight
    with torch.no_grad():
        used = torch.zeros(len(table), dtype=torch.bool)
        used[first : first + n] = True
        table[~used] += 100
        after = learner.model.run(alone).logits
        table[~used] -= 100
    kept = alone.keep[0]
    torch.testing.assert_close(after[0][kept], learner.model.run(alone).logits[0][kept], rtol=0, atol=1e-9)


def spread(weight):
    return float(weight.detach().std())


def test_undivided_scores_begin_as_large_as_divided_ones():
    model = kf.build(kf.relative("t5", size="base", **(NUMBERS | {"d_model": 240, "n_heads": 3})))
    q, k, _ = model.encoder.blocks[0].parts[0].qkv.weight.chunk(3)
    assert spread(k) == pytest.approx(240**-0.5, rel=0.05)
    assert spread(q) == pytest.approx(240**-0.5 * 80**-0.5, rel=0.05)
    across = model.decoder.blocks[0].parts[1]
    assert spread(across.q.weight) == pytest.approx(240**-0.5 * 80**-0.5, rel=0.05)
    assert spread(model.embedding.weight) == pytest.approx(1.0, rel=0.05)
    assert spread(model.encoder.blocks[0].parts[0].position.table.weight) == pytest.approx(240**-0.5, rel=0.3)


PAPER = {"t5": 220e6, "t5-v1-1": 248e6, "bart": 140e6}


@pytest.mark.parametrize("name", PAPER)
def test_base_has_the_parameters_of_the_paper(name):
    assert cost(kf.relative(name, size="base").model, 16).params == pytest.approx(PAPER[name], rel=0.015)


def test_a_recipe_grows_by_what_its_objective_adds():
    recipe: Recipe = kf.relative("vanilla", size="tiny", vocab_size=40)
    spans = recipe.assigned(["objective={kind = 'span-corruption', n_sentinels = 7}"])
    assert (recipe.model.vocab_size, spans.model.vocab_size) == (40, 47)
    assert spans.fitted(50).model.vocab_size == 57
    wide = recipe.assigned(["objective={kind = 'span-corruption', n_sentinels = 7}", "model.vocab_size=100"])
    assert wide.model.vocab_size == 100
    assert recipe.assigned(["training.steps=3"]).model == recipe.model


def test_pairs_are_learnt_as_pairs():
    for name in ("t5", "bart", "mass"):
        recipe = kf.relative(name, size="tiny")
        assert recipe.learning_from("pairs").objective.kind == "sequence-to-sequence"
        assert recipe.learning_from("text") == recipe
    assert kf.relative("gpt2", size="base").learning_from("pairs") == kf.relative("gpt2", size="base")


def test_another_objective_of_the_table_by_name():
    assert kf.relative("t5", size="base", corruption="deshuffling").objective.noise[0].kind == "shuffle"
    assert kf.relative("t5", size="base", corruption="deshuffling").model == kf.relative("t5", size="base").model
    with pytest.raises(SpecError, match="did you mean 'deshuffling'"):
        kf.relative("t5", size="base", corruption="deshufling")


def test_sides_share_the_table_and_nothing_else():
    model = kf.build(kf.relative("bart", size="base", **NUMBERS))
    source, target = model.embedding.source, model.embedding.target
    assert source.table is target.table
    assert source.position.table is not target.position.table
    names = [name for name, _ in model.named_parameters() if name.startswith("embedding.")]
    assert len([name for name in names if name.endswith("table.weight") and "position" not in name]) == 1
    assert isinstance(source.norm, nn.Module)
    x = torch.tensor([[9, 10]])
    loss = F.cross_entropy(model(x, x).logits.flatten(0, 1), x.flatten())
    loss.backward()
    assert target.position.table.weight.grad[:2].abs().sum() > 0
