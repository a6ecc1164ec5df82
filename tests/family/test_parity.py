"""Relatives against Hugging Face with copied weights; where the two do not agree, the reason is said here."""

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.lsh_attention import Hashed, Hashing
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.relative import T5Buckets
from kinfolk.ops.attention import attend as executor
from kinfolk.ops.lsh_attention import Chunks
from kinfolk.ops.patterns.leaves import BlockWindow, Causal, Full, Global, Pattern, PerHead, Window

transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs kinfolk[bench]")

D, H, K, F, V = 24, 3, 8, 40, 37


def randomise(module):
    torch.manual_seed(0)
    for p in module.parameters():
        nn.init.normal_(p, std=0.3)


def built(spec, max_len=64):
    dims = Dims(d_model=D, vocab_size=V, max_len=max_len, dropout=0.0, n_sublayers=2)
    module = spec.build(dims).double()
    for one in (module, *dims.shared.modules.values()):
        randomise(one.double())
    return module


def bare(module):
    """Make the closing map of an attention of ours the identity: theirs stands in another module."""
    module.out.weight.data.copy_(torch.eye(D, dtype=torch.float64))
    module.out.bias.data.zero_()


def copy_qkv(ours, *theirs):
    weights, biases = ours.qkv.weight.chunk(3), ours.qkv.bias.chunk(3)
    for linear, weight, bias in zip(theirs, weights * 2, biases * 2, strict=False):
        linear.weight.data, linear.bias.data = weight.data.clone(), bias.data.clone()


def x(n, batch=2):
    return torch.randn(batch, n, D, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


# Transformer-XL: XLNet reading in one direction is the same, its tables of distances are made in float32


def xlnet(n_layers, memory):
    config = transformers.XLNetConfig(
        vocab_size=V,
        d_model=D,
        n_layer=n_layers,
        n_head=H,
        d_inner=F,
        ff_activation="relu",
        attn_type="uni",
        layer_norm_eps=1e-5,
        dropout=0.0,
        mem_len=memory,
        use_mems_eval=True,
        use_mems_train=True,
    )
    return transformers.XLNetModel(config).double().eval()


def copy_layer(block, theirs, biases):
    look, think = block.parts
    for name, weight in zip("qkv", look.qkv.weight.chunk(3), strict=True):
        getattr(theirs.rel_attn, name).data = weight.data.T.reshape(D, H, K).clone()
    theirs.rel_attn.r.data = look.position.distance.weight.data.T.reshape(D, H, K).clone()
    theirs.rel_attn.o.data = look.out.weight.data.reshape(D, H, K).clone()
    theirs.rel_attn.r_w_bias.data, theirs.rel_attn.r_r_bias.data = biases.weight.data.view(2, H, K).clone()
    linears = think.modules()
    up, down = (m for m in linears if isinstance(m, nn.Linear))
    theirs.ff.layer_1.load_state_dict(up.state_dict())
    theirs.ff.layer_2.load_state_dict(down.state_dict())
    theirs.rel_attn.layer_norm.load_state_dict(block.residuals[0].norm.state_dict())
    theirs.ff.layer_norm.load_state_dict(block.residuals[1].norm.state_dict())


@pytest.mark.parametrize("memory", [4, 7, 20])
def test_transformer_xl_is_xlnet_in_one_direction(memory):
    numbers = {"d_model": D, "n_layers": 2, "n_heads": H, "d_ff": F, "vocab_size": V, "max_len": 64, "dropout": 0.0}
    ours = kf.build(kf.relative("transformer-xl", size="base", segment=5, memory=memory, **numbers)).double().eval()
    randomise(ours)
    # theirs has no bias behind the closing map
    for block in ours.decoder.blocks:
        assert block.parts[0].out.bias is None
    theirs = xlnet(2, memory)
    theirs.word_embedding.weight.data = ours.embedding.weight.data * D**0.5
    for block, layer in zip(ours.decoder.blocks, theirs.layer, strict=True):
        copy_layer(block, layer, block.parts[0].position.biases)
    tokens = torch.randint(V, (2, 20), generator=torch.Generator().manual_seed(1))
    mine, their_memory = ours.new_memory(), None
    decoding = ours.new_state(2, 20)
    for at in range(0, 20, 5):
        segment = tokens[:, at : at + 5]
        want = theirs(segment, mems=their_memory, use_mems=True)
        their_memory = want.mems
        got = ours(segment, state=mine).hidden
        mine.settle()
        torch.testing.assert_close(got, want.last_hidden_state, rtol=0, atol=3e-6)
        torch.testing.assert_close(ours(segment, state=decoding).hidden, want.last_hidden_state, rtol=0, atol=3e-6)
        for name, part in mine.parts.items():
            their_BMD = their_memory[int(name.split(".")[0])].transpose(0, 1)
            n = min(memory, at + 5)
            torch.testing.assert_close(part.x_BMD[:, -n:], their_BMD[:, -n:], rtol=0, atol=3e-6)


# T5: the same, scores unscaled


@pytest.mark.parametrize("causal", [True, False])
def test_t5_buckets_are_t5(causal):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    spec = Attention(
        n_heads=H,
        pattern=Causal() if causal else Full(),
        position=T5Buckets(n_buckets=8, farthest=20),
        bias=False,
        scale=1.0,
    )
    ours = built(spec)
    config = transformers.T5Config(
        d_model=D,
        d_kv=K,
        num_heads=H,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        dropout_rate=0.0,
        is_decoder=causal,
        attn_implementation="eager",
    )
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double().eval()
    for name, weight in zip("qkv", ours.qkv.weight.chunk(3), strict=True):
        getattr(theirs, name).weight.data = weight.data.clone()
    theirs.o.weight.data = ours.out.weight.data.clone()
    theirs.relative_attention_bias.weight.data = ours.position.table.weight.data.clone()
    mask = torch.zeros(1, 1, 50, 50, dtype=torch.float64)
    if causal:
        mask = mask.masked_fill(torch.ones(50, 50).triu(1).bool(), torch.finfo(torch.float64).min)
    want = theirs(x(50), mask=mask)[0]
    torch.testing.assert_close(ours(x(50), Context(), None)[0], want, rtol=1e-9, atol=1e-10)


# BigBird: in training, with the plan that it drew. In evaluation theirs draws block 0 for everyone, which then counts
# once more for each draw; ours draws the same blocks in training and evaluation, one plan for all heads


class Drawn(Pattern, kind="drawn-in-a-test"):
    """Blocks of keys for each block of queries, as a table."""

    block: int
    table: tuple[tuple[int, ...], ...]

    def allows(self, q, k):
        at, size = torch.tensor(self.table), self.block
        return (at[(q // size).clamp(max=len(at) - 1)] == (k // size).unsqueeze(-1)).any(-1)


def big_bird(ours, n_blocks, block, seed):
    modeling = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    config = transformers.BigBirdConfig(
        hidden_size=D,
        num_attention_heads=H,
        block_size=block,
        num_random_blocks=2,
        max_position_embeddings=n_blocks * block,
        attention_probs_dropout_prob=0.0,
    )
    theirs = modeling.BigBirdBlockSparseAttention(config, seed=seed).double()
    copy_qkv(ours, theirs.query, theirs.key, theirs.value)
    draw, drawn = theirs._bigbird_block_rand_mask_with_head, []
    theirs._bigbird_block_rand_mask_with_head = lambda **kw: (drawn.append(draw(**kw)), drawn[-1])[1]
    ones = torch.ones(2, n_blocks * block, dtype=torch.float64)
    masks = modeling.BigBirdModel.create_masks_for_block_sparse_attn(ones, block)

    def run(states):
        blocked, band, from_mask, to_mask = masks
        return theirs(states, band, from_mask, to_mask, blocked, blocked)[0]

    return theirs, run, drawn


@pytest.mark.parametrize("gathered", [False, True])
def test_big_bird_is_the_pattern_of_its_plan(gathered, monkeypatch):
    if gathered:
        for name, value in (("BLOCK", 4), ("DENSE_PAIRS", 0), ("DENSE_SHARE", 2.0)):
            monkeypatch.setattr(executor, name, value)
    n_blocks, block = 14, 4
    ours = built(Attention(n_heads=H))
    bare(ours)
    theirs, run, drawn = big_bird(ours, n_blocks, block, seed=3)
    want = run(x(n_blocks * block))
    own = BlockWindow(block=block) | Global(n=block) | Global(n=block, start=(n_blocks - 1) * block)
    per_head = []
    for plan in drawn[0]:
        # the first and the last block draw none: they see all
        rows = ((-1, -1), *(tuple(map(int, row)) for row in plan), (-1, -1))
        assert all(
            len(set(row) | {i - 1, i, i + 1, 0, n_blocks - 1}) == len(row) + len({i - 1, i, i + 1, 0, n_blocks - 1})
            for i, row in enumerate(rows)
            if row[0] >= 0
        )
        per_head.append(own | Drawn(block=block, table=rows))
    assert len(set(per_head)) == H
    ours.spec = ours.spec.replace(pattern=PerHead(patterns=tuple(per_head)))
    torch.testing.assert_close(ours(x(n_blocks * block), Context(), None)[0], want, rtol=1e-9, atol=1e-10)
    theirs.eval()
    assert (run(x(n_blocks * block)) - want).abs().max() > 0.01


def test_big_birds_own_plan_is_that_of_the_paper():
    """Ours counts as many blocks as theirs at most, and the same window and global blocks."""
    recipe = kf.relative(
        "bigbird", size="base", d_model=D, n_layers=1, n_heads=H, d_ff=F, vocab_size=V, max_len=80, block=4, n_random=3
    )
    pattern = recipe.model.encoder.blocks[0].parts[0].pattern
    seen = pattern.allows(torch.arange(80)[:, None], torch.arange(80)[None]).unflatten(0, (20, 4)).unflatten(2, (20, 4))
    blocks = seen.any(3).any(1)
    assert torch.equal(seen.all(3).all(1), blocks)
    assert blocks[0].all()
    assert blocks[-1].all()
    assert blocks[:, 0].all()
    assert blocks[:, -1].all()
    middle = blocks[2:-2].sum(1)
    assert (middle <= 5 + 3).all()
    assert (middle >= 5).all()
    assert middle.max() == 8


# Longformer: theirs has other maps for what global tokens ask and answer; with the same weights in both they agree.
# Its softmax is taken in float32


@pytest.mark.parametrize("n_global", [0, 1, 3])
def test_longformer_with_equal_maps_is_a_window_and_global_tokens(n_global):
    modeling = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    config = transformers.LongformerConfig(
        hidden_size=D,
        num_attention_heads=H,
        attention_window=[8],
        attention_probs_dropout_prob=0.0,
        num_hidden_layers=1,
    )
    near = Window(left=4, right=4)
    ours = built(Attention(n_heads=H, pattern=near | Global(n=n_global) if n_global else near))
    bare(ours)
    theirs = modeling.LongformerSelfAttention(config, 0).double().eval()
    locally, everywhere = (
        (theirs.query, theirs.key, theirs.value),
        (
            theirs.query_global,
            theirs.key_global,
            theirs.value_global,
        ),
    )
    copy_qkv(ours, *locally, *everywhere)
    n = 32
    mask = torch.zeros(2, n, dtype=torch.float64)
    mask[:, :n_global] = 10000.0
    want = theirs(
        x(n),
        attention_mask=mask,
        is_index_masked=mask < 0,
        is_index_global_attn=mask > 0,
        is_global_attn=bool(n_global),
    )[0]
    torch.testing.assert_close(ours(x(n), Context(), None)[0], want, rtol=0, atol=1e-6)
    recipe = kf.relative(
        "longformer", size="base", d_model=D, n_layers=1, n_heads=H, d_ff=F, vocab_size=V, window=8, n_global=1
    )
    if n_global == 1:
        assert recipe.model.encoder.blocks[0].parts[0].pattern == near | Global(n=1)


# Reformer: in one round, chunks without a mask of buckets, repeats counted. With several rounds a first chunk of theirs
# looks into the round before (`tests/ops/test_lsh.py`), and the bucket of padding is another


@pytest.mark.parametrize("causal", [True, False])
def test_hashed_attention_is_the_reformers(causal):
    reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    spec = Hashed(
        n_heads=H,
        direction="past" if causal else "both",
        sight=Chunks(size=8, within="chunk"),
        hashing=Hashing(n_rounds=1, buckets=(4,)),
        repeats="each",
        bias=False,
    )
    ours = built(spec)
    config = transformers.ReformerConfig(
        attention_head_size=K,
        num_attention_heads=H,
        hidden_size=D,
        lsh_attn_chunk_length=8,
        num_hashes=1,
        num_buckets=4,
        is_decoder=causal,
        hash_seed=5,
        lsh_attention_probs_dropout_prob=0.0,
    )
    theirs = reformer.LSHSelfAttention(config).double().eval()
    for linear, weight in zip((theirs.query_key, theirs.value), ours.qv.weight.chunk(2), strict=True):
        linear.weight.data = weight.data.clone()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        ours.rotations_HKrj = torch.randn(H, K, 1, 2, dtype=torch.float64)
        want = theirs(x(48)).hidden_states
    ours.out.weight.data.copy_(torch.eye(D))
    torch.testing.assert_close(ours(x(48), Context(), None)[0], want, rtol=1e-7, atol=1e-9)
