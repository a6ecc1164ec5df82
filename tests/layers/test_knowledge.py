"""Knowledge attention against a loop over mentions and candidates; what happens where nothing is named."""

import math

import pytest
import torch
import torch.nn.functional as F

from kinfolk.core.annotations import Mentions
from kinfolk.core.batch import IGNORE
from kinfolk.core.context import Context
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.knowledge_attention import KnowledgeAttention, WhereKnown, span_means
from kinfolk.layers.module import Dims
from tests.exact import assert_same_with_gradients

E, HEADS, D, L = 8, 2, 12, 6
SPEC = KnowledgeAttention(n_entities=5, d_entity=E, n_heads=HEADS, d_ff=10, d_score=7)
DIMS = Dims(D, 20, 10, 0.0, 1)
# two mentions in the first row, one of a single candidate in the second, one without candidates in the third
SPANS = torch.tensor([[[0, 1], [3, 3]], [[2, 5], [-1, -1]], [[1, 2], [-1, -1]]])
ENTITIES = torch.tensor([[[0, 3, 4], [1, 2, -1]], [[2, -1, -1], [-1, -1, -1]], [[-1, -1, -1], [-1, -1, -1]]])
PRIORS = torch.tensor([[[0.5, 0.3, 0.2], [0.9, 0.1, 0]], [[1.0, 0, 0], [0, 0, 0]], [[0.0, 0, 0], [0, 0, 0]]])
LINKS = torch.tensor([[1, 0], [IGNORE, IGNORE], [IGNORE, IGNORE]])


def told(links=None):
    return Mentions(SPANS, ENTITIES, PRIORS, links)


def context(links=None):
    return Context(annotations=(told(links),), side_losses={})


def built(spec):
    torch.manual_seed(0)
    module = spec.build(DIMS).double().eval()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    if spec.linker == "margin":
        # brings the scores of candidates to both sides of 0
        module.score[1].bias.data -= 1
    return module


def states():
    return torch.randn(3, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)


def layer(module, x, seen):
    """One post-norm layer of attention from some vectors to others, head by head; nobody to look at adds nothing."""
    if len(seen):
        q, (k, v) = module.q(x), module.kv(seen).chunk(2, -1)
        heads = [
            ((a @ b.T) / math.sqrt(E // HEADS)).softmax(-1) @ c
            for a, b, c in zip(*(y.chunk(HEADS, -1) for y in (q, k, v)), strict=True)
        ]
        looked = torch.cat(heads, -1)
    else:
        looked = torch.zeros_like(x)
    x = module.look_norm(x + module.out(looked))
    return module.think_norm(x + module.narrow(F.gelu(module.widen(x))))


def naive(module, x):
    """Peters et al. 2019, section 3.3, one mention and one candidate at a time; also the scores of each mention."""
    out, scores = [], {}
    for b in range(len(x)):
        h = module.inward(x[b])
        real = [j for j in range(2) if SPANS[b, j, 0] >= 0 and (ENTITIES[b, j] >= 0).any()]
        spans = []
        for j in real:
            first, last = SPANS[b, j].tolist()
            weights = module.pooling(h[first : last + 1])[:, 0].softmax(0)
            spans.append(module.span_norm((weights[:, None] * h[first : last + 1]).sum(0)))
        seen = torch.stack(spans) if spans else h[:0]
        seen = layer(module.among, seen, seen) if spans else seen
        known = []
        for s, j in zip(seen, real, strict=True):
            vectors, psi = [], []
            for entity, prior in zip(ENTITIES[b, j].tolist(), PRIORS[b, j].double(), strict=True):
                if entity >= 0:
                    vector = module.entity_norm(module.entities.weight[entity])
                    both = torch.stack([s @ vector / math.sqrt(E), (prior + 1e-6).log()])
                    psi.append(module.score[1](F.relu(module.score[0](both)))[0])
                    vectors.append(vector)
            scores[b, j] = torch.stack(psi)
            likely = [i for i, p in enumerate(psi) if module.nothing is None or p > 0]
            if likely:
                weights = torch.stack([psi[i] for i in likely]).softmax(0)
                meant = sum(w * vectors[i] for w, i in zip(weights, likely, strict=True))
            else:
                meant = module.nothing
            known.append(module.known_norm(s + meant))
        out.append(module.outward(layer(module.across, h, torch.stack(known) if known else h[:0])))
    return torch.stack(out), scores


@pytest.mark.parametrize("linker", ["softmax", "margin"])
def test_it_equals_naive_with_gradients(linker):
    module, x = built(SPEC.replace(linker=linker)), states()
    got, want = module(x, context(), None)[0], naive(module, x)[0]
    weights = [x, *module.parameters()]
    assert_same_with_gradients(got, want, *weights)
    ctx = context(LINKS)
    module(x, ctx, None)
    scores = naive(module, x)[1]
    if linker == "softmax":
        losses = [-scores[0, j].log_softmax(0)[LINKS[0, j]] for j in range(2)]
    else:
        losses = []
        for j in range(2):
            right = torch.arange(len(scores[0, j])) == LINKS[0, j]
            losses.append(F.relu(0.2 + torch.where(right, -scores[0, j], scores[0, j])).sum())
    assert_same_with_gradients(ctx.side_losses["linking"], sum(losses) / 2, *weights)


def test_some_candidates_are_likely_and_some_are_not():
    """So that the case above is one: a mention that means something, and scores on both sides of nothing."""
    scores = torch.cat(list(naive(built(SPEC.replace(linker="margin")), states())[1].values()))
    assert 0 < int((scores > 0).sum()) < len(scores)


def test_nobody_says_which_is_meant_and_nothing_is_lost():
    ctx = context()
    built(SPEC)(states(), ctx, None)
    assert ctx.side_losses == {}
    ctx = context(torch.full_like(LINKS, IGNORE))
    built(SPEC)(states(), ctx, None)
    assert ctx.side_losses["linking"] == 0


def test_where_nothing_is_named_states_pass_by_untouched():
    module, x = built(SPEC), states()
    torch.manual_seed(0)
    residual = WhereKnown().build(DIMS).double()
    got = residual(x, module, context(), None)[0]
    assert torch.equal(got[2], x[2])
    assert not torch.allclose(got[:2], x[:2])
    torch.testing.assert_close(got[:2], residual.norm(x + module(x, context(), None)[0])[:2])
    assert torch.equal(residual(x, module, Context(), None)[0], x)
    assert module(x, context(), None)[0].isfinite().all()


def test_it_goes_back_by_the_pseudo_inverse():
    module = SPEC.build(DIMS)
    torch.nn.init.normal_(module.inward.weight)
    torch.nn.init.normal_(module.inward.bias)
    module.outward.draw()
    there, back = module.inward.weight, module.outward.weight
    torch.testing.assert_close(there @ back, torch.eye(E), rtol=0, atol=1e-5)
    x = torch.randn(4, D)
    twice = module.outward(module.inward(x))
    torch.testing.assert_close(module.outward(module.inward(twice)), twice, rtol=0, atol=1e-4)


def test_a_span_is_a_weighted_mean_of_its_tokens():
    h, scores = torch.randn(1, 4, 3), torch.randn(1, 4)
    spans = torch.tensor([[[1, 2], [3, 3], [-1, -1]]])
    got = span_means(h, scores, spans)
    torch.testing.assert_close(got[0, 0], scores[0, 1:3].softmax(0) @ h[0, 1:3])
    torch.testing.assert_close(got[0, 1], h[0, 3])
    assert not got[0, 2].any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"linker": "max"}, "linker"), ({"n_heads": 3}, "d_entity: 8"), ({"n_entities": 0}, "n_entities")],
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(SpecError, match=words):
        SPEC.replace(**changes)


def test_an_entity_without_a_vector_is_named():
    with pytest.raises(ShapeError, match="entity 4 is beyond the n_entities 4"):
        built(SPEC.replace(n_entities=4))(states(), context(), None)


def test_frozen_entities_learn_nothing():
    module = built(SPEC.replace(frozen=True))
    module(states(), context(), None)[0].sum().backward()
    assert module.entities.weight.grad is None
    assert module.inward.weight.grad is not None
