"""Positions in a parse: against their definition, a chain is the sequence, and the encoder alone is told."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.annotations import DependencyTree, Parse, Segments
from kinfolk.core.batch import Batch
from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import sinusoids
from kinfolk.layers.positions.relative import Shaw
from kinfolk.layers.positions.syntax import Syntax, TreeShaw
from kinfolk.ops.attention import attend as executor
from kinfolk.ops.dependency_tree import grow
from kinfolk.ops.naive import dependency_tree as slow
from kinfolk.ops.patterns.leaves import Causal, Full, Window

D, H, K = 12, 2, 6
HEADS, WORDS = [1, 2, -1, 4, 2], [0, 1, 1, 2, 3, 4, -1]
DIMS = Dims(d_model=D, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)


def built(spec):
    torch.manual_seed(0)
    module = spec.build(DIMS).double()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return module


def tree(batch=1):
    return grow(torch.tensor([HEADS] * batch), torch.tensor([WORDS] * batch))


def x(n=7, batch=1):
    return torch.randn(batch, n, D, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def dense(attention, x_LD):
    """Attention of one example, one pair at a time."""
    q, k, v = (t.unflatten(-1, (H, K)).transpose(0, 1) for t in attention.qkv(x_LD).chunk(3, -1))
    position, clip, out, n = attention.position, attention.spec.position.clip, torch.zeros_like(v), len(x_LD)
    for h in range(H):
        for i in range(n):
            seen = [j for j in range(n) if attention.spec.pattern.allows(torch.tensor(i), torch.tensor(j))]
            scores, values = [], []
            for j in seen:
                a = max(-clip, min(clip, j - i)) + clip
                b = max(-clip, min(clip, slow.relation(HEADS, WORDS, i, j))) + clip
                key = k[h, j] + position.sequence.keys.weight[a] + position.structure.keys.weight[b]
                scores.append(q[h, i] @ key * K**-0.5)
                values.append(v[h, j] + position.sequence.values.weight[a] + position.structure.values.weight[b])
            for w, value in zip(torch.stack(scores).softmax(0), values, strict=True):
                out[h, i] = out[h, i] + w * value
    return attention.out(out.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("pattern", [Full(), Causal(), Window(left=2, right=3)], ids=repr)
@pytest.mark.parametrize("gathered", [False, True])
def test_relations_are_added_beside_distances(pattern, gathered, monkeypatch):
    if gathered:
        for name, value in (("BLOCK", 4), ("DENSE_PAIRS", 0), ("DENSE_SHARE", 2.0)):
            monkeypatch.setattr(executor, name, value)
    attention = built(Attention(n_heads=H, pattern=pattern, position=TreeShaw(clip=2)))
    got, want = attention(x(), Context(annotations=(tree(),)), None)[0][0], dense(attention, x()[0])
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    parameters = list(attention.parameters())
    a, b = (torch.autograd.grad((y * y).sum(), parameters) for y in (got, want))
    for mine, theirs in zip(a, b, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_without_a_parse_a_sentence_is_a_chain_and_a_zero_table_is_shaw():
    attention = built(Attention(n_heads=H, position=TreeShaw(clip=3)))
    chain = grow(torch.arange(7)[None] - 1, torch.arange(7)[None])
    none = attention(x(), Context(), None)[0]
    torch.testing.assert_close(attention(x(), Context(annotations=(chain,)), None)[0], none, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(attention(x(), Context(annotations=(tree(),)), None)[0], none)
    plain = built(Attention(n_heads=H, position=Shaw(clip=3)))
    plain.load_state_dict(
        {k.replace("sequence.", ""): v for k, v in attention.state_dict().items() if "structure" not in k}
    )
    for p in attention.position.structure.parameters():
        p.data.zero_()
    torch.testing.assert_close(attention(x(), Context(annotations=(tree(),)), None)[0], plain(x(), Context(), None)[0])


def test_depth_is_fused_with_the_position():
    position = built(Syntax())
    zero = torch.zeros(1, 7, D, dtype=torch.float64)
    got = position.add(zero, Context(annotations=(tree(),)))[0]
    for i, word in enumerate(WORDS):
        seq, deep = (sinusoids(torch.tensor(at), D) for at in (i, slow.depth(HEADS, word)))
        want = torch.tanh(position.sequence.weight @ seq + position.structure.weight @ deep)
        torch.testing.assert_close(got[i], want, rtol=1e-10, atol=1e-12)
    chain = grow(torch.arange(7)[None] - 1, torch.arange(7)[None])
    torch.testing.assert_close(position.add(zero, Context(annotations=(chain,))), position.add(zero, Context()))
    later = position.add(zero[:, 3:], Context(start=3))
    torch.testing.assert_close(later, position.add(zero, Context())[:, 3:])


def model(name="syntax"):
    toy = {"d_model": 24, "n_layers": 2, "n_heads": 2, "d_ff": 32, "vocab_size": 40, "max_len": 32, "dropout": 0.0}
    return kf.build(kf.relative(name, size="tiny", **toy), seed=1).double().eval()


def batch(heads=None, words=None, **more):
    source = torch.randint(7, 40, (2, 7), generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(7, 40, (2, 5), generator=torch.Generator().manual_seed(1))
    parse = () if heads is None else (Parse(heads, words),)
    return Batch(index=torch.arange(2), tokens=tokens, source=source, annotations=parse, **more)


def test_a_parse_reaches_the_encoder_and_its_examples_stay_apart():
    m = model()
    heads = torch.tensor([HEADS, [-1, 0, 1, 2, 3]])
    words = torch.tensor([WORDS, [0, 1, 2, 3, 4, 4, -1]])
    both = m.run(batch(heads, words)).logits
    assert not torch.allclose(both, m.run(batch()).logits)
    for row in range(2):
        alone = m.run(batch(heads, words).rows(slice(row, row + 1))).logits
        torch.testing.assert_close(alone[0], both[row], rtol=1e-9, atol=1e-11)
    wide = torch.cat([heads, torch.full((2, 3), -1)], 1)
    torch.testing.assert_close(m.run(batch(wide, words)).logits, both)


def test_a_parse_and_segments_reach_the_layers_together():
    m, seen = model("bert"), []
    m.encoder.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    heads, words = torch.tensor([HEADS] * 2), torch.tensor([WORDS] * 2)
    segments = (torch.arange(7) > 3).long().expand(2, -1)
    read = batch(heads, words)
    m.run(read.replace(tokens=read.source, source=None, segments=segments))
    assert torch.equal(seen[0].annotation(Segments).segments_BL, segments)
    assert torch.equal(seen[0].annotation(DependencyTree).depth_BL, grow(heads, words).depth_BL)


def test_padding_of_a_parsed_source_changes_nothing():
    m = model()
    heads, words = torch.tensor([HEADS] * 2), torch.tensor([WORDS] * 2)
    plain = batch(heads, words)
    want = m.run(plain).logits
    source = torch.cat([plain.source, torch.full((2, 3), 11)], 1)
    keep = torch.arange(10).expand(2, 10) < 7
    longer = torch.cat([words, torch.full((2, 3), -1)], 1)
    got = m.run(plain.replace(source=source, source_keep=keep).annotate(Parse(heads, longer))).logits
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


def test_decoding_keeps_the_parse_of_the_source():
    m, parsed = model(), batch(torch.tensor([HEADS] * 2), torch.tensor([WORDS] * 2))
    want, state, got = m.run(parsed).logits, m.new_state(2, 5), []
    for at in range(5):
        got.append(m.run(parsed.replace(tokens=parsed.tokens[:, at : at + 1]), state).logits)
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-9, atol=1e-11)


def test_an_encoder_alone_reads_a_parse_of_its_tokens():
    m = model("roformer")
    spec = m.spec
    blocks = tuple(
        b.replace(parts=(b.parts[0].replace(position=TreeShaw()), *b.parts[1:])) for b in spec.encoder.blocks
    )
    from kinfolk.models.model import build_model

    m = build_model(spec.replace(encoder=spec.encoder.replace(blocks=blocks)), 1).double().eval()
    tokens = torch.randint(7, 40, (1, 7), generator=torch.Generator().manual_seed(0))
    plain = Batch(index=torch.zeros(1), tokens=tokens)
    parsed = plain.annotate(Parse(torch.tensor([HEADS]), torch.tensor([WORDS])))
    assert not torch.allclose(m.run(parsed).logits, m.run(plain).logits)


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="values: unknown 'learnt'"):
        TreeShaw(values="learnt")
    with pytest.raises(SpecError, match="belongs to attention"):
        Tokens(position=TreeShaw()).build(DIMS)
