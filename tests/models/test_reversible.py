"""Reversible stacks: gradients of the two-stream equations, found without keeping activations."""

import copy
import functools

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.context import Context
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import SpecError
from kinfolk.family.assembly import with_depth, with_feed_forward, with_mixer
from kinfolk.layers.feed_forwards.experts import Experts
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.mixers.lsh_attention import Hashed, Hashing
from kinfolk.layers.module import Dims
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.positions.relative import Shaw, T5Buckets
from kinfolk.layers.residuals.residual import PostNorm, PreNorm
from kinfolk.layers.residuals.rezero import Fixup, GatedResidual, ReZero
from kinfolk.models.block import Block
from kinfolk.models.depth.reversible import Reversible
from kinfolk.models.reader import LayerReading
from kinfolk.ops.lsh_attention import Chunks
from kinfolk.ops.patterns.leaves import Causal

D = 12
LOOK = Attention(n_heads=3, pattern=Causal(), dropout=0.2)
THINK, EXPERTS = Dense(d_ff=20), Experts(d_ff=8, n_experts=3)
PARTS = {
    "two": (LOOK, THINK),
    "three": (LOOK, CrossAttention(n_heads=2, dropout=0.1), THINK),
    "one": (LOOK.replace(position=Shaw(clip=3)),),
    "experts": (LOOK, EXPERTS),
    "shared table": (LOOK.replace(position=T5Buckets()), THINK),
}


def dims(dropout=0.3):
    return Dims(d_model=D, vocab_size=5, max_len=32, dropout=dropout, n_sublayers=4)


def stack(parts="two", order=(0, 1, 0), residual=None, join="mean", dropout=0.3):
    block = Block(parts=PARTS[parts], residual=residual or PreNorm())
    spec = Reversible(blocks=(block, block), order=order, norm=LayerNorm(), join=join)
    torch.manual_seed(0)
    module = spec.build(dims(dropout)).double().train()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return module


def inputs(n=7, requires_grad=True):
    g = torch.Generator().manual_seed(n)
    x, m = (torch.randn(2, k, D, generator=g, dtype=torch.float64, requires_grad=requires_grad) for k in (n, 5))
    return x, m


def naive(module, x, ctx):
    """The equations of the paper, two parts at a time where there are two, under ordinary autograd."""
    a = b = x
    for i in module.order:
        block = module.blocks[i]
        for part, residual in zip(block.parts, block.residuals, strict=True):
            y, _ = residual.of.branch(b, part, ctx, None)
            a, b = b, a + y
    if module.walk.join == "mean":
        return module.norm((a + b) / 2)
    both = module.norm(torch.cat([a, b], -1))
    return both if module.walk.join == "wide" else module.join(both)


def gradients(module, run):
    x, m = inputs()
    ctx = Context(encoder_output=EncoderOutput(m), side_losses={})
    torch.manual_seed(3)
    y = run(x, ctx)
    drawn = torch.random.get_rng_state()
    loss = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() + sum(ctx.side_losses.values())
    leaves = [x, m, *module.parameters()]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    return y, [g for g in found if g is not None], drawn


def summed(run):
    def total(x, ctx):
        out, layers = run(x, ctx)
        # every layer weighs differently
        return sum(((i + 2) * layer for i, layer in enumerate(layers)), out)

    return total


def plainly(module):
    """The ordinary path, which keeps activations, in the place of the light one."""
    walk = copy.copy(module.walk)
    walk.__class__ = type(
        "Plainly", (type(walk),), {"__call__": lambda self, stack, x, *rest: self.plainly(stack, (x, x), *rest)}
    )
    return walk


def test_hidden_states_of_all_layers_have_gradients_and_activations_are_still_not_kept():
    """What a transparent bridge or a layer mix asks of a reversible stack, and without the ordinary path."""
    module = stack()
    plain = stack()
    plain.load_state_dict(module.state_dict())
    plain.walk = plainly(plain)
    module.walk.plainly = None
    got, got_grads, _ = gradients(module, summed(lambda x, ctx: module.layers(x, ctx, 3)))
    want, want_grads, _ = gradients(plain, summed(lambda x, ctx: plain.layers(x, ctx, 3)))
    assert torch.equal(got, want)
    assert len(got_grads) == len(want_grads) > 5
    for g, w in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("join", ["mean", "concat", "wide"])
def test_gradients_are_those_of_the_two_streams(parts, join):
    module = stack(parts, join=join)
    got, got_grads, drawn = gradients(module, lambda x, ctx: module(x, ctx, None))
    want, want_grads, drawn_too = gradients(module, functools.partial(naive, module))
    assert torch.equal(drawn, drawn_too)
    assert torch.equal(got, want)
    assert len(got_grads) == len(want_grads) > 5
    for g, w in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("residual", [ReZero(), ReZero(norm=LayerNorm()), Fixup()], ids=str)
def test_any_residual_that_adds_can_be_undone(residual):
    module = stack(residual=residual)
    _, got, _ = gradients(module, lambda x, ctx: module(x, ctx, None))
    _, want, _ = gradients(module, functools.partial(naive, module))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("residual", [PostNorm(), GatedResidual()], ids=str)
def test_residuals_that_do_not_add_are_refused(residual):
    with pytest.raises(SpecError, match="cannot be undone"):
        stack(residual=residual)


def test_what_it_cannot_do_is_refused():
    block = Block(parts=PARTS["two"], residual=PreNorm())
    with pytest.raises(SpecError, match="join"):
        Reversible(blocks=(block,), order=(0,), join="maen")


def kept(n_layers, recompute="none", reversible=True):
    """Bytes that the backward pass is waiting with."""
    block = Block(parts=PARTS["two"], residual=PreNorm())
    spec = Reversible(blocks=(block,) * n_layers, order=tuple(range(n_layers)), norm=LayerNorm())
    module = spec.build(dims()).train()
    module.recompute = recompute
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
    found = {}

    def note(t):
        if t.untyped_storage().data_ptr() not in weights:
            found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    x = torch.randn(2, 32, D, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        y = module(x, Context(), None) if reversible else naive(module, x, Context())
    assert y.requires_grad
    return sum(found.values())


def test_what_is_kept_does_not_grow_with_depth():
    assert kept(1) == kept(2) == kept(8) < 4 * 2 * 32 * D * 4
    assert kept(8, reversible=False) > 7 * kept(1, reversible=False)


def test_inputs_come_back_from_outputs():
    module, (x, _) = stack(dropout=0.0).eval(), inputs(requires_grad=False)
    p, q = module.walk.plainly(module, (x, x + 1), Context(), None, [LayerReading(module.reader)])
    assert not torch.allclose(p, x)
    for i in reversed(module.order):
        parts = list(zip(module.blocks[i].parts, module.blocks[i].residuals, strict=True))
        for part, residual in reversed(parts):
            p, q = q - residual.of.branch(p, part, Context(), None)[0], p
    torch.testing.assert_close(p, x, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(q, x + 1, rtol=1e-11, atol=1e-11)


def test_listeners_get_states_with_gradients():
    module, (x, _) = stack(dropout=0.0), inputs()
    from kinfolk.core.context import Taps

    taps = Taps(frozenset(["hidden"]))
    y = module(x, Context(taps=taps), None)
    assert list(taps.found) == ["0.hidden", "1.hidden", "2.hidden"]
    assert all(t.requires_grad for t in taps.found.values())
    torch.testing.assert_close(module.norm(taps.found["2.hidden"]), y)


def test_a_pass_in_half_precision_runs_again_in_half_precision():
    module = stack(dropout=0.2).float()
    x, _ = inputs()
    found = []
    for run in (lambda x, ctx: module(x, ctx, None), functools.partial(naive, module)):
        torch.manual_seed(1)
        leaf = x.detach().float().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            y = run(leaf, Context())
        found.append(torch.autograd.grad(y.float().square().sum(), [leaf, *module.parameters()]))
    for g, w in zip(*found, strict=True):
        torch.testing.assert_close(g, w, rtol=0.02, atol=0.02 * float(w.abs().max()))


def test_recomputed_with_experts_the_model_learns_the_same():
    """Through the whole model, with an encoder: side losses, cross-attention, dropout, a shared table."""
    numbers = {"d_model": 16, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 32, "dropout": 0.2}
    r = kf.relative("vanilla-pre", size="tiny", **numbers)
    r = r.replace(model=with_feed_forward(r.model, lambda think: EXPERTS))
    model = kf.build(r.replace(model=with_depth(r.model, Reversible.of))).double().train()
    t = torch.randint(7, 31, (2, 9), generator=torch.Generator().manual_seed(0))
    batch, found = Batch(index=torch.arange(2), tokens=t, source=t.flip(1)), []
    for taps in (False, ["hidden"]):
        torch.manual_seed(2)
        out = model.run(batch, taps=taps)
        loss = out.logits.square().mean() + sum(out.side_losses.values())
        assert out.side_losses
        found.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    assert torch.equal(found[0][0], found[1][0])
    for g, w in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-11)


def reformer_of_hugging_face(n_layers, n_heads, d_head):
    transformers = pytest.importorskip("transformers", reason="the identity with Hugging Face needs kinfolk[bench]")
    config = transformers.ReformerConfig(
        attn_layers=["lsh"] * n_layers,
        attention_head_size=d_head,
        num_attention_heads=n_heads,
        hidden_size=n_heads * d_head,
        feed_forward_size=20,
        hidden_act="relu",
        lsh_attn_chunk_length=8,
        num_hashes=1,
        num_buckets=4,
        is_decoder=True,
        hash_seed=5,
        lsh_attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
        axial_pos_embds=False,
        max_position_embeddings=32,
        vocab_size=31,
        layer_norm_eps=1e-5,
        use_cache=False,
        tie_word_embeddings=False,
    )
    return transformers.ReformerModelWithLMHead(config).double().train()


def test_the_stack_is_hugging_faces_reformer():
    """Logits and gradients; a head twice as wide is ours after the map that joins the streams."""
    theirs = reformer_of_hugging_face(3, 3, 4)
    numbers = {"d_model": D, "n_layers": 3, "n_heads": 3, "d_ff": 20, "vocab_size": 31, "max_len": 32}
    r = kf.relative("gpt2", size="tiny", **numbers)
    sight, hashing = Chunks(size=8, within="chunk"), Hashing(n_rounds=1, buckets=(4,))
    hashed = Hashed(n_heads=3, sight=sight, hashing=hashing, repeats="each", bias=False)
    model = with_feed_forward(with_mixer(r.model, lambda look: hashed), lambda think: THINK)
    model = with_depth(model, lambda depth: Reversible.of(depth, join="concat"))
    ours = kf.build(model.replace(**{"head": model.head.replace(weights="untied")})).double().train()
    torch.manual_seed(0)
    for p in ours.parameters():
        torch.nn.init.normal_(p, std=0.3)
    pairs = copy_reformer(ours, theirs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        rotations = torch.randn(3, 4, 1, 2, dtype=torch.float64)
        for block in ours.decoder.blocks:
            block.parts[0].rotations_HKrj = rotations
        t = torch.randint(31, (2, 24))
        want, got = theirs(t).logits, ours(t).logits
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-8)
        (got.square().mean()).backward()
        (want.square().mean()).backward()
    for mine, their in pairs:
        torch.testing.assert_close(mine.grad, their, rtol=1e-6, atol=1e-8)


class _Gradients(list):
    """Pairs of a weight of ours and the gradient of theirs, which is there only after the backward pass."""

    def __iter__(self):
        for mine, their, rows in super().__iter__():
            yield mine, their.grad if rows is None else torch.cat([t.grad for t in their])


def copy_reformer(ours, theirs):
    pairs = _Gradients()

    def copy(mine, their):
        their.data = mine.data.clone()
        pairs.append((mine, their, None))

    embeddings = theirs.reformer.embeddings
    copy(ours.embedding.table.weight, embeddings.word_embeddings.weight)
    copy(ours.embedding.position.table.weight, embeddings.position_embeddings.embedding.weight)
    for block, layer in zip(ours.decoder.blocks, theirs.reformer.encoder.layers, strict=True):
        attention, feed = layer.attention, layer.feed_forward
        hashed = (attention.self_attention.query_key.weight, attention.self_attention.value.weight)
        for their, mine in zip(hashed, block.parts[0].qv.weight.chunk(2), strict=True):
            their.data = mine.data.clone()
        pairs.append((block.parts[0].qv.weight, hashed, 2))
        copy(block.parts[0].out.weight, attention.output.dense.weight)
        for mine, their in (
            (block.residuals[0].of.norm, attention.layer_norm),
            (block.residuals[1].of.norm, feed.layer_norm),
            (block.parts[1].widen, feed.dense.dense),
            (block.parts[1].narrow, feed.output.dense),
        ):
            copy(mine.weight, their.weight)
            copy(mine.bias, their.bias)
    copy(ours.decoder.norm.weight, theirs.reformer.encoder.layer_norm.weight)
    copy(ours.decoder.norm.bias, theirs.reformer.encoder.layer_norm.bias)
    theirs.lm_head.decoder.weight.data = (ours.head.weight @ ours.decoder.join.weight).detach().clone()
    if theirs.lm_head.bias is not None:
        theirs.lm_head.bias.data.zero_()
    return pairs
