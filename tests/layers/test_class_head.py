"""Heads that judge, each against plain loops in float64 with all gradients."""

import math

import pytest
import torch

from kinfolk.core.cost import Cost
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.heads.class_head import ClassHead, RegressionHead
from kinfolk.layers.heads.head import Head
from kinfolk.layers.heads.reconstruction_head import ReconstructionHead
from kinfolk.layers.heads.tag_head import SpanHead, TagHead
from kinfolk.layers.heads.two_tower_head import PairHead
from kinfolk.layers.module import Dims
from kinfolk.layers.norms.norm import NoNorm
from kinfolk.ops.activated_linear import ACTIVATIONS
from kinfolk.ops.pooled_vector import POOLS
from tests.exact import assert_exact

D, B, L = 6, 4, 5
DIMS = Dims(d_model=D, vocab_size=11, max_len=16, dropout=0.0, n_sublayers=2)
KEEP = torch.arange(L) < torch.tensor([[5], [3], [1], [4]])


def built(spec, dims=DIMS):
    head = spec.build(dims, None).double()
    torch.manual_seed(1)
    for p in head.parameters():
        torch.nn.init.normal_(p)
    return head


def states():
    return torch.randn(B, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()


def line(x, layer):
    """A linear map, output by output."""
    return torch.stack([(layer.weight[i] * x).sum() + layer.bias[i] for i in range(len(layer.bias))])


def pooled(x, keep, pool):
    if pool == "three":
        return torch.cat([pooled(x, keep, one) for one in ("last", "max", "mean")])
    real = [x[i] for i in range(L) if keep is None or keep[i]]
    if pool in ("first", "last"):
        return real[0 if pool == "first" else -1]
    return torch.stack(real).mean(0) if pool == "mean" else torch.stack(real).max(0).values


def assert_same_with_gradients(head, x, got, want):
    """Compare outputs, and the gradients of states and of every weight."""
    assert_exact(got, want)
    upstream = torch.randn(got.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    finite = got.isfinite()
    leaves = [x, *head.parameters()]
    ours, theirs = (torch.autograd.grad((y * upstream)[finite].sum(), leaves, retain_graph=True) for y in (got, want))
    for a, b in zip(ours, theirs, strict=True):
        assert_exact(a, b)
        assert a.abs().sum() > 0


@pytest.mark.parametrize("keep", [None, KEEP], ids=["whole", "padded"])
@pytest.mark.parametrize("pool", [*POOLS, "three"])
@pytest.mark.parametrize(("activation", "d_hidden"), [("none", 0), ("tanh", 0), ("relu", 7)])
def test_the_class_head(keep, pool, activation, d_hidden):
    spec = ClassHead(n_classes=3, pool=pool, activation=activation, d_hidden=d_hidden)
    head, x = built(spec), states()
    rows = []
    for b in range(B):
        one = pooled(x[b], None if keep is None else keep[b], pool)
        if activation != "none":
            one = ACTIVATIONS[activation](line(one, head.hidden))
        rows.append(line(one, head.output))
    assert_same_with_gradients(head, x, head.answer(x, keep), torch.stack(rows))


def test_the_regression_head():
    head, x = built(RegressionHead(pool="mean", activation="gelu")), states()
    want = [
        line(ACTIVATIONS["gelu"](line(pooled(x[b], KEEP[b], "mean"), head.hidden)), head.output)[0] for b in range(B)
    ]
    got = head.answer(x, KEEP)
    assert got.shape == (B,)
    assert_same_with_gradients(head, x, got, torch.stack(want))


def test_the_tag_head_and_its_loss():
    head, x = built(TagHead(n_tags=3)), states()
    want = torch.stack([torch.stack([head.weight @ x[b, i] + head.bias for i in range(L)]) for b in range(B)])
    assert_same_with_gradients(head, x, head.answer(x, KEEP), want)
    targets = torch.where(KEEP, torch.arange(L) % 3, -100)
    loss = -sum(want[b, i].log_softmax(0)[targets[b, i]] for b in range(B) for i in range(L) if KEEP[b, i])
    assert_same_with_gradients(head, x, head.loss(x, targets), loss)


def test_the_span_head():
    head, x = built(SpanHead()), states()
    rows = [
        [line(x[b, i], head.output) if KEEP[b, i] else torch.full((2,), -torch.inf).double() for i in range(L)]
        for b in range(B)
    ]
    want = torch.stack([torch.stack(row) for row in rows])
    assert_same_with_gradients(head, x, head.answer(x, KEEP), want)
    assert head.answer(x, None).isfinite().all()


def test_the_reconstruction_head():
    head, x = built(ReconstructionHead(n_classes=3)), states()

    def normed(y, norm):
        return norm.weight * y / (y.square().mean() + norm.eps).sqrt()

    rows = []
    for b in range(B):
        last = x[b, int(KEEP[b].sum()) - 1]
        for i in range(L):
            angles = [i / 10000 ** (2 * (d // 2) / D) for d in range(D)]
            place = [math.sin(a) if d % 2 == 0 else math.cos(a) for d, a in enumerate(angles)]
            y = last + torch.tensor(place, dtype=torch.float64)
            for norm, layer in zip(head.norms, head.layers, strict=False):
                y = torch.nn.functional.gelu(line(normed(y, norm), layer))
            rows.append(line(normed(y, head.norms[2]), head.output))
    assert_same_with_gradients(head, x, head.answer(x, KEEP), torch.stack(rows).view(B, L, 3))


@pytest.mark.parametrize("features", ["both", "all"])
@pytest.mark.parametrize("pool", ["mean", "last"])
def test_two_towers(features, pool):
    head, x = built(PairHead(n_classes=3, pool=pool, features=features, d_hidden=8)), states()
    rows = []
    for b in range(B // 2):
        one, two = pooled(x[b], KEEP[b], pool), pooled(x[b + B // 2], KEEP[b + B // 2], pool)
        found = torch.cat([one, two] + ([one * two, one - two] if features == "all" else []))
        for layer in head.layers[:-1]:
            found = line(found, layer).relu()
        rows.append(line(found, head.layers[-1]))
    assert [layer.out_features for layer in head.layers] == [8, 4, 3]
    assert_same_with_gradients(head, x, head.answer(x, KEEP), torch.stack(rows))


EVERY = [
    ClassHead(n_classes=3),
    ClassHead(n_classes=3, activation="tanh"),
    ClassHead(n_classes=3, pool="three"),
    ClassHead(n_classes=3, activation="relu", d_hidden=9),
    RegressionHead(),
    RegressionHead(activation="tanh", d_hidden=5),
    TagHead(n_tags=4),
    SpanHead(),
    PairHead(n_classes=2),
    PairHead(n_classes=2, features="both", d_hidden=7),
    ReconstructionHead(n_classes=4, norm=NoNorm()),
]


@pytest.mark.parametrize("spec", EVERY, ids=lambda s: f"{s.kind} {getattr(s, 'activation', '')}")
def test_costs_count_parameters_and_products(spec: Head):
    from torch.utils.flop_counter import FlopCounterMode

    head = built(spec)
    found = spec.cost(DIMS)
    assert isinstance(found, Cost)
    assert found.params == sum(p.numel() for p in head.parameters())
    with FlopCounterMode(display=False) as counter:
        out = head.answer(states().detach(), None)
    answers = out.shape[0] * (out.shape[1] if isinstance(spec, TagHead | SpanHead | ReconstructionHead) else 1)
    assert found.flops * answers == pytest.approx(counter.get_total_flops(), rel=0.2)


@pytest.mark.parametrize("spec", EVERY[:5] + EVERY[6:-1], ids=lambda s: s.kind)
def test_dropout_is_the_models(spec: Head):
    wet = Dims(d_model=D, vocab_size=11, max_len=16, dropout=0.5, n_sublayers=2)
    head, x = built(spec, wet), states()
    dry = built(spec)
    assert torch.equal(head.eval().answer(x, KEEP), dry.answer(x, KEEP))
    drawn = {tuple(head.train().answer(x, None).flatten().tolist()) for _ in range(3)}
    assert len(drawn) == (1 if isinstance(spec, SpanHead) else 3)


def test_what_is_refused():
    with pytest.raises(SpecError, match=r"pool: unknown 'frist'.*first"):
        ClassHead(n_classes=2, pool="frist")
    with pytest.raises(SpecError, match="activation: unknown"):
        RegressionHead(activation="tahn")
    with pytest.raises(SpecError, match="n_classes: 0"):
        ClassHead(n_classes=0)
    with pytest.raises(SpecError, match="n_tags: 0"):
        TagHead(n_tags=0)
    with pytest.raises(SpecError, match="d_hidden: -1"):
        ClassHead(n_classes=2, d_hidden=-1)
    with pytest.raises(SpecError, match="features: unknown 'al'"):
        PairHead(n_classes=2, features="al")
    with pytest.raises(SpecError, match="activation: unknown 'none'"):
        PairHead(n_classes=2, activation="none")
    with pytest.raises(ShapeError, match="3 sequences are no pairs"):
        built(PairHead(n_classes=2)).answer(states()[:3], None)


def test_a_judge_predicts_no_tokens():
    head = built(ClassHead(n_classes=2))
    for ask in (lambda: head.logits(states()), lambda: head.loss(states(), None), lambda: head.losses(states(), None)):
        with pytest.raises(SpecError, match="judges what it reads and predicts no tokens"):
            ask()
