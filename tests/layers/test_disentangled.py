"""Content and distance apart, against a loop over pairs; and what is refused."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context, Padding
from kinfolk.core.errors import SpecError
from kinfolk.layers.adapters import AddedMap, Lora
from kinfolk.layers.mixers.disentangled import Disentangled, DisentangledAttention
from kinfolk.layers.module import Dims
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.ops.naive.relative_position import log_bucket
from tests.exact import assert_same_with_gradients

N_HEADS, WIDTH, LENGTH = 3, 12, 7


def dims():
    return Dims(WIDTH, 20, LENGTH, 0.0, 1)


def built(spec):
    torch.manual_seed(0)
    module = spec.build(dims()).double().eval()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    distances = getattr(module.position, "distances", None)
    if distances is not None:
        # the stack's, and only borrowed here
        for p in distances.double().parameters():
            torch.nn.init.normal_(p, std=0.5)
    return module


def row(spec, distance):
    n = spec.buckets or spec.farthest or LENGTH
    if spec.buckets:
        distance = log_bucket(distance, spec.buckets, spec.farthest or LENGTH)
    return min(max(distance + n, 0), 2 * n - 1)


def naive(module, x, keep):
    """He et al. 2021, equations 2 to 4, one pair and one head at a time."""
    spec, d = module.spec.position, WIDTH // N_HEADS
    q, k, v = (y.unflatten(-1, (N_HEADS, d)) for y in module.qkv(x).chunk(3, -1))
    table = module.position.distances(torch.arange(2 * module.position.rows)) if spec.terms else None
    if spec.maps == "own":
        keys, queries = (getattr(module.position, name, None) for name in ("keys", "queries"))
        keys, queries = (None if m is None else m(table).unflatten(-1, (N_HEADS, d)) for m in (keys, queries))
    else:
        queries, keys, _ = (y.unflatten(-1, (N_HEADS, d)) for y in module.qkv(table).chunk(3, -1))
    scale = ((1 + len(spec.terms)) * d) ** -0.5
    out = []
    for b in range(len(x)):
        rows = []
        for i in range(x.shape[1]):
            heads = []
            for h in range(N_HEADS):
                scores = []
                for j in range(x.shape[1]):
                    s = q[b, i, h] @ k[b, j, h]
                    if "c2p" in spec.terms:
                        s = s + q[b, i, h] @ keys[row(spec, i - j), h]
                    if "p2c" in spec.terms:
                        s = s + k[b, j, h] @ queries[row(spec, i - j), h]
                    scores.append(s * scale if keep[b, j] else s * 0 - torch.inf)
                heads.append(torch.stack(scores).softmax(0) @ v[b, :, h])
            rows.append(torch.cat(heads))
        out.append(torch.stack(rows))
    return module.out(torch.stack(out))


@pytest.mark.parametrize(
    "spec",
    [
        Disentangled(),
        Disentangled(terms=("c2p",), key_bias=False, farthest=3),
        Disentangled(terms=("p2c",), farthest=2),
        Disentangled(buckets=4, maps="attention", norm=LayerNorm()),
        Disentangled(buckets=4, farthest=5, terms=("p2c",), maps="attention"),
    ],
    ids=str,
)
@pytest.mark.parametrize("key_bias", [True, False])
def test_attention_equals_naive_with_gradients(spec, key_bias):
    module = built(DisentangledAttention(n_heads=N_HEADS, position=spec, key_bias=key_bias))
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    keep = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4]])
    learnt = {**dict(module.named_parameters()), **dict(module.position.distances.named_parameters()), "x": x}
    got = module(x, Context(padding=Padding.of(keep)), None)[0]
    assert_same_with_gradients(got[keep], naive(module, x, keep)[keep], *learnt.values())


def test_without_terms_it_is_plain_attention():
    module = built(DisentangledAttention(n_heads=N_HEADS, position=Disentangled(terms=())))
    x, keep = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64), torch.ones(2, LENGTH, dtype=torch.bool)
    torch.testing.assert_close(module(x, Context(), None)[0], naive(module, x, keep))


def test_other_attention_takes_it_too_but_lends_no_maps():
    look = {"kind": "disentangled", "farthest": 5}
    path = "model.encoder.blocks[*].parts[*].position"
    numbers = {"size": "tiny", "d_model": 12, "n_heads": 3, "vocab_size": 20, "max_len": 8}
    model = kf.build(kf.relative("bert", **numbers, **{path: look}))
    tokens = torch.arange(8)[None]
    assert model(tokens).logits.isfinite().all()
    model = kf.build(kf.relative("bert", **numbers, **{path: look | {"maps": "attention"}}))
    with pytest.raises(SpecError, match="only disentangled-attention lends"):
        model(tokens)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Disentangled(terms=("c2c",)), r"terms\[0\]: unknown 'c2c'"),
        (lambda: Disentangled(maps="other"), "maps: unknown 'other'"),
        (lambda: Disentangled(buckets=1), "buckets: 1"),
        (lambda: Disentangled(buckets=20).build(dims(), (1, 1)), "farthest: 7 leaves nothing to 20 buckets"),
        (lambda: Disentangled().build(dims()), "not to an embedding"),
        (lambda: DisentangledAttention(n_heads=2, n_kv_heads=1), "n_kv_heads: 1"),
        (
            lambda: DisentangledAttention(
                n_heads=2, position=kf.relative("bert", size="base").model.embedding.position
            ),
            "'learned'",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(SpecError, match=words):
        make()


@pytest.mark.parametrize("key_bias", [True, False])
def test_distances_go_through_what_takes_the_place_of_a_map(key_bias):
    """An addition of low rank to the maps of content changes what distances say, too."""
    plain = DisentangledAttention(
        n_heads=N_HEADS, position=Disentangled(buckets=4, maps="attention"), key_bias=key_bias, bias=True
    )
    spec = Lora(part=plain, rank=2)
    module = spec.build(dims()).double().eval()
    assert any(isinstance(m, AddedMap) for m in module.qkv.modules())
    table = torch.randn(3, WIDTH, dtype=torch.float64)
    before = module.position._mapped(table)
    for name, p in module.named_parameters():
        if "qkv" in name and p.ndim == 2:
            torch.nn.init.normal_(p)
    after = module.position._mapped(table)
    queries, keys, _ = module.qkv(table).chunk(3, -1)
    assert not torch.allclose(before[0], after[0])
    torch.testing.assert_close(after[0].transpose(0, 1).flatten(1), keys)
    torch.testing.assert_close(after[1].transpose(0, 1).flatten(1), queries)
