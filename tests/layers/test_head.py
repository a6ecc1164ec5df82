import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.batch import IGNORE
from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.adaptive import Adaptive, AdaptiveSoftmax
from kinfolk.layers.embeddings.embedding import Factorised, Tokens
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.heads.mixture_of_softmaxes import MixtureHead
from kinfolk.layers.init import Xavier, seeded
from kinfolk.layers.module import Dims
from kinfolk.models.cost import cost
from tests.exact import assert_exact

D, V = 32, 40
DIMS = Dims(d_model=D, vocab_size=V, max_len=32, dropout=0.0, n_sublayers=4)
CUT = (7, 19)
HEADS = {
    "adaptive": (Tokens(), AdaptiveSoftmax(cutoffs=CUT)),
    "adaptive, three cuts": (Tokens(), AdaptiveSoftmax(cutoffs=(4, 9, 33), widths=(32, 5, 3, 2))),
    "adaptive, no projections": (Tokens(), AdaptiveSoftmax(cutoffs=CUT, divisor=1)),
    "adaptive, tied": (Adaptive(cutoffs=CUT), AdaptiveSoftmax(cutoffs=CUT, weights="tied")),
    "adaptive, tied through maps": (
        Adaptive(cutoffs=CUT, widths=(9, 5, 3)),
        AdaptiveSoftmax(cutoffs=CUT, widths=(9, 5, 3), weights="tied"),
    ),
    "adaptive, tied to a plain table": (Tokens(), AdaptiveSoftmax(cutoffs=CUT, divisor=1, weights="tied")),
    "adaptive, tied to factors": (Factorised(d_inner=6), AdaptiveSoftmax(cutoffs=CUT, weights="tied")),
    "mixture": (Tokens(), MixtureHead(n_components=4)),
    "mixture, untied": (Tokens(), MixtureHead(n_components=4, weights="untied")),
    "mixture, factors": (Factorised(d_inner=6), MixtureHead(n_components=3)),
}
NUMBERS = {"d_model": D, "n_layers": 1, "n_heads": 4, "d_ff": 64, "vocab_size": V, "max_len": 32}


def built(name):
    embedding_spec, spec = HEADS[name]
    embedding = embedding_spec.build(DIMS)
    head = spec.build(DIMS, embedding)
    for module in (embedding, head):
        seeded(Xavier(), module.double(), DIMS, 0)
    assert sum(p.numel() for p in head.parameters()) == spec.cost(DIMS).params
    return embedding, head


def x(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (2, 9)), D, generator=g, dtype=torch.float64, requires_grad=True)


def targets():
    t = torch.randint(V, (2, 9), generator=torch.Generator().manual_seed(1))
    t[0, 3] = t[1, 0] = IGNORE
    return t


@pytest.mark.parametrize("name", HEADS)
def test_probabilities_add_up_to_one(name):
    _, head = built(name)
    assert_exact(head.logits(x()).exp().sum(-1), torch.ones(2, 9, dtype=torch.float64))


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(("epsilon", "over"), [(0.0, "all"), (0.1, "all"), (0.1, "others")])
def test_the_loss_is_that_of_the_logits(name, epsilon, over):
    embedding, head = built(name)
    states, params = x(), [*embedding.parameters(), *head.parameters()]
    got = head.loss(states, targets(), epsilon, over)
    log_probs, real = head.logits(states), targets() != IGNORE
    gold = log_probs.gather(-1, targets().clamp(min=0)[..., None])[..., 0]
    if over == "all":
        each = (1 - epsilon) * gold + epsilon * log_probs.mean(-1)
    else:
        each = (1 - epsilon) * gold + epsilon * (log_probs.sum(-1) - gold) / (V - 1)
    want = -each[real].sum()
    assert_exact(got, want)
    grads = [torch.autograd.grad(y, [states, *params], allow_unused=True) for y in (got, want)]
    for a, b in zip(*grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_exact(a, b)
    if not epsilon:
        losses = head.losses(states, targets())
        assert_exact(losses[real], -gold[real].detach())
        assert losses[~real].abs().sum() == 0


@pytest.mark.parametrize("divisor", [2, 4])
def test_the_adaptive_softmax_is_torchs(divisor):
    torch.manual_seed(0)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(D, V, CUT, div_value=divisor, head_bias=False).double()
    ours = AdaptiveSoftmax(cutoffs=CUT, divisor=divisor).build(DIMS, Tokens().build(DIMS)).double()
    ours.tables[0].weight.data = theirs.head.weight.data[: CUT[0]].clone()
    ours.clusters.weight.data = theirs.head.weight.data[CUT[0] :].clone()
    for c, (inward, table) in enumerate(theirs.tail, start=1):
        ours.maps[c].weight.data, ours.tables[c].weight.data = inward.weight.data.clone(), table.weight.data.clone()
    states, t = x(50), torch.randint(V, (50,), generator=torch.Generator().manual_seed(2))
    assert_exact(ours.logits(states), theirs.log_prob(states))
    out = theirs(states, t)
    assert_exact(ours.loss(states[None], t[None]), -out.output.sum())
    assert_exact(ours.losses(states[None], t[None])[0], -out.output.detach())


def test_a_tied_first_cluster_goes_through_its_map():
    embedding, head = built("adaptive, tied through maps")
    outer = embedding.table.maps[0].weight
    words = x() @ outer @ embedding.table.tables[0].weight.mT
    every = torch.cat([words, head.clusters(x())], -1).log_softmax(-1)
    assert_exact(head.logits(x())[..., : CUT[0]], every[..., : CUT[0]])


def test_one_cluster_is_a_plain_softmax():
    embedding = Tokens().build(DIMS).double()
    ours = AdaptiveSoftmax(cutoffs=(), weights="tied").build(DIMS, embedding)
    plain = LMHead().build(DIMS, embedding)
    assert_exact(ours.logits(x()), plain.logits(x()).log_softmax(-1))
    assert_exact(ours.loss(x(), targets()), plain.loss(x(), targets()))


def test_one_component_is_a_softmax_after_its_map():
    embedding = Tokens().build(DIMS).double()
    ours = MixtureHead(n_components=1).build(DIMS, embedding).double()
    inner = torch.tanh(ours.components(x()))
    assert_exact(ours.logits(x()), (inner @ embedding.weight.mT).log_softmax(-1))
    # equal components are one
    many = MixtureHead(n_components=3).build(DIMS, embedding).double()
    many.components.weight.data = ours.components.weight.data.repeat(3, 1)
    many.components.bias.data = ours.components.bias.data.repeat(3)
    assert_exact(many.logits(x()), ours.logits(x()))


def test_a_mixture_is_its_probabilities_added_up():
    embedding, head = built("mixture")
    inner = torch.tanh(head.components(x())).unflatten(-1, (4, D))
    prior = head.prior(x()).softmax(-1)
    probs = (prior[..., None] * (inner @ embedding.weight.mT).softmax(-1)).sum(-2)
    assert_exact(head.logits(x()), probs.log())


def test_a_mixture_breaks_the_bottleneck():
    narrow = Dims(d_model=4, vocab_size=V, max_len=32, dropout=0.0, n_sublayers=4)
    torch.manual_seed(0)
    embedding = Tokens().build(narrow).double()
    states = 3 * torch.randn(300, 4, dtype=torch.float64)
    one, many = LMHead().build(narrow, embedding), MixtureHead(n_components=5).build(narrow, embedding).double()
    rank = [int(torch.linalg.matrix_rank(h.logits(states[None])[0].log_softmax(-1), rtol=1e-9)) for h in (one, many)]
    assert rank[0] <= 4 + 1
    assert rank[1] > 20


def test_words_of_no_target_cost_no_softmax():
    """Only the head is multiplied where all targets are frequent."""
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    _, head = built("adaptive")
    for words in (torch.zeros(1, 50, dtype=torch.long), torch.full((1, 50), V - 1)):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            head.loss(x(1, 50), words)
        counts.append(counter.get_total_flops())
    assert counts[0] == 2 * 50 * D * (CUT[0] + 2)
    assert counts[1] == counts[0] + 2 * 50 * 2 * (D + V - CUT[1])


@pytest.mark.parametrize("name", HEADS)
def test_a_head_in_a_whole_model(name):
    recipe = kf.relative("gpt2", size="tiny", **NUMBERS)
    embedding, head = HEADS[name]
    model = recipe.model.replace(embedding=embedding.replace(position=recipe.model.embedding.position), head=head)
    m = kf.build(model, seed=1)
    assert cost(model, 16).params == m.n_params
    assert len(kf.generate(m.eval(), [[8, 9]], max_new=3, greedy=True)[0]) > 0


def test_the_published_sizes():
    """Narang et al. 2021: 232 million with fifteen softmaxes, 204 and 223 with adaptive ones, from 223."""
    dims = Dims(d_model=768, vocab_size=32128, max_len=512, dropout=0.0, n_sublayers=36)
    assert 222.9 + MixtureHead().cost(dims).params / 1e6 == pytest.approx(231.7, abs=0.15)
    assert AdaptiveSoftmax(cutoffs=(2500, 8500), weights="tied").cost(dims).params == 2 * 768


def test_what_cannot_be_is_refused():
    embedding = Adaptive(cutoffs=CUT).build(DIMS)
    with pytest.raises(SpecError, match=r"must cut at \[7, 19\] as the embedding, not \[7, 20\]"):
        AdaptiveSoftmax(cutoffs=(7, 20), weights="tied").build(DIMS, embedding)
    with pytest.raises(SpecError, match="n_components: 0 is not allowed; at least 1"):
        MixtureHead(n_components=0)
