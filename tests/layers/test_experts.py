import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.errors import SpecError
from kinfolk.layers.feed_forwards.experts import Experts, NoisyTopK, Switch, Top2
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.init import Normal, Xavier, seeded
from kinfolk.layers.module import Dims
from kinfolk.models.cost import cost
from tests.exact import assert_exact

D, F, E = 12, 20, 4
ROUTERS = {
    "top-2": Top2(second="all"),
    "random": Top2(),
    "threshold": Top2(second="threshold", threshold=0.45),
    "first": Top2(second="none"),
    "switch": Switch(),
    "noisy": NoisyTopK(),
}


def dims(direction="both"):
    return Dims(d_model=D, vocab_size=40, max_len=32, dropout=0.0, n_sublayers=4, direction=direction)


def x(length=9, batch=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, D, generator=g, dtype=torch.float64)


def built(router, n_experts=E, direction="both", shake=0.5, **kwargs):
    spec = Experts(n_experts=n_experts, d_ff=F, router=router, **kwargs)
    torch.manual_seed(0)
    module = spec.build(dims(direction)).double()
    for p in module.parameters():
        p.data += shake * torch.randn_like(p)
    assert sum(p.numel() for p in module.parameters()) == spec.cost(dims(), None).params
    return module


def run(module, value, seed=0, **context):
    torch.manual_seed(seed)
    return module(value, Context(**context), None)[0]


def expert(module, e, value):
    wide = torch.relu(value @ module.widen.weights[e].mT + module.widen.biases[e])
    return wide @ module.narrow.weights[e].mT + module.narrow.biases[e]


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_one_expert_is_a_dense_one(router, mode):
    if isinstance(router, NoisyTopK):
        router = router.replace(k=1)
    module = built(router, n_experts=1).train(mode == "train")
    dense = Dense(d_ff=F).build(dims()).double()
    dense.load_state_dict({k: v for k, v in module.state_dict().items() if not k.startswith("router")})
    # their share of the sum has a guard against nothing in it
    torch.testing.assert_close(run(module, x()), run(dense, x()), rtol=1e-8, atol=1e-8)


def test_top_two_is_the_loop_over_experts():
    module = built(ROUTERS["top-2"]).eval()
    probs = (x() @ module.router.scores.weight.mT).softmax(-1)
    want = torch.zeros_like(x())
    for b in range(2):
        for t in range(9):
            first, second = probs[b, t].argsort(descending=True)[:2]
            for e in (first, second):
                share = probs[b, t, e] / (probs[b, t, first] + probs[b, t, second])
                want[b, t] += share * expert(module, e, x()[b, t])
    torch.testing.assert_close(run(module, x()), want, rtol=1e-8, atol=1e-8)


def test_all_experts_without_noise_are_a_dense_mixture():
    module = built(NoisyTopK(k=E)).eval()
    probs = (x() @ module.router.scores_ED.mT).softmax(-1)
    assert_exact(run(module, x()), sum(probs[..., e : e + 1] * expert(module, e, x()) for e in range(E)))


def switch_of_hugging_face(ours, capacity):
    """Return their layer with our weights, as many seats in absolute numbers."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP

    config = transformers.SwitchTransformersConfig(
        d_model=D,
        d_ff=F,
        num_experts=E,
        expert_capacity=capacity,
        router_jitter_noise=0.0,
        dropout_rate=0.0,
    )
    theirs = SwitchTransformersSparseMLP(config).double()
    theirs.router.dtype = torch.float64
    theirs.router.classifier.weight.data = ours.router.scores.weight.data.clone()
    for e in range(E):
        theirs.experts[f"expert_{e}"].wi.weight.data = ours.widen.weights[e].data.clone()
        theirs.experts[f"expert_{e}"].wo.weight.data = ours.narrow.weights[e].data.clone()
    return theirs


@pytest.mark.parametrize("direction", ["past", "both"])
def test_switch_is_hugging_faces(direction):
    # twenty tokens, four experts: a share of 1.25 is six seats
    ours = built(Switch(jitter=0.0), bias=False, capacity=1.25, direction=direction).train()
    theirs = switch_of_hugging_face(ours, capacity=6)
    taps, value = Taps(), x(20, batch=3).requires_grad_()
    y = run(ours, value, taps=taps)
    assert_exact(y, theirs(value))
    assert (taps.found["experts"] == E).any()
    inputs = [value, ours.router.scores.weight]
    grads = torch.autograd.grad(y.square().sum(), inputs)
    wants = torch.autograd.grad(theirs(value).square().sum(), [value, theirs.router.classifier.weight])
    for got, want in zip(grads, wants, strict=True):
        assert_exact(got, want)
    # nobody is dropped at evaluation
    ours.eval()
    assert_exact(run(ours, value), switch_of_hugging_face(ours, capacity=99)(value))


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
def test_padding_takes_no_seat_and_has_no_say(router):
    module = built(router, capacity=0.5).train()
    keep = torch.arange(25).expand(2, 25) < 20
    losses = [{}, {}]
    # the noise of padding is not drawn either
    real = run(module, x(20), side_losses=losses[0])
    padded = torch.cat([x(20), 100 * x(5, seed=3)], 1)
    got = run(module, padded, padding=Padding(keep, right=True), side_losses=losses[1])
    assert_exact(got[:, :20], real)
    assert torch.equal(got[:, 20:], torch.zeros_like(got[:, 20:]))
    assert_exact(losses[0]["balance"], losses[1]["balance"])
    both = (y[:, :20].square().sum() + lost["balance"] for y, lost in zip((real, got), losses, strict=True))
    for a, b in zip(*(torch.autograd.grad(loss, list(module.parameters())) for loss in both), strict=True):
        assert_exact(a, b)


@pytest.mark.parametrize("router", [ROUTERS["top-2"], Switch(jitter=0.0)])
@pytest.mark.parametrize("direction", ["past", "both"])
def test_examples_and_documents_do_not_compete(router, direction):
    module = built(router, capacity=0.6, direction=direction).train()
    assert_exact(run(module, x(20))[1:], run(module, x(20)[1:]))
    packed = torch.cat([x(20)[:1], x(13, seed=2)[:1]], 1)
    group = torch.tensor([[4] * 20 + [9] * 13])
    together = run(module, packed, group_BL=group)
    assert_exact(together[:, :20], run(module, x(20)[:1]))
    assert_exact(together[:, 20:], run(module, x(13, seed=2)[:1]))


def test_a_decoder_loses_no_seat_to_a_later_token_and_an_encoder_may():
    moved = {}
    for direction in ("past", "both"):
        module = built(ROUTERS["top-2"], capacity=0.9, direction=direction).train()
        before, changed = run(module, x(24)), x(24)
        changed[:, 12:] = x(24, seed=5)[:, 12:]
        moved[direction] = float((run(module, changed)[:, :12] - before[:, :12]).abs().max().detach())
    assert moved["past"] < 1e-12
    assert moved["both"] > 1e-3


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
def test_evaluation_draws_nothing_and_drops_nobody(router):
    module = built(router, capacity=0.1).eval()
    taps = Taps()
    first = run(module, x(24), seed=1, taps=taps)
    assert torch.equal(first, run(module, x(24), seed=2))
    chosen = taps.found["experts"]
    assert chosen.shape == taps.found["gates"].shape == (2, 24, router.n_choices)
    dropped = chosen == E
    assert dropped.any() if router is ROUTERS["threshold"] else not dropped.any()
    assert not dropped[..., 0].any()
    # one at a time as well as all at once
    assert_exact(torch.cat([run(module, x(24)[:, t : t + 1]) for t in range(24)], 1), first)


def test_the_second_expert_is_asked_at_random_in_proportion():
    module, n = built(Top2(threshold=0.5)).train(), 3000
    taps = Taps()
    run(module, x(1, batch=1).expand(n, 1, D), taps=taps)
    share = taps.found["gates"][0, 0, 1]
    asked = (taps.found["experts"][:, 0, 1] != E).double().mean()
    assert 0.05 < share < 0.45
    assert float(asked) == pytest.approx(float(share.detach()) / 0.5, abs=0.04)


def test_noise_moves_choices_and_learns_from_the_balance():
    module = built(NoisyTopK(), shake=0.0).train()
    losses, taps = {}, Taps()
    run(module, x(200), side_losses=losses, taps=taps)
    counts = torch.bincount(taps.found["experts"].flatten(), minlength=E)
    assert counts.min() > 0.15 * counts.sum()
    grads = torch.autograd.grad(losses["balance"], [module.router.scores_ED, module.router.noise_ED])
    assert all(g.abs().sum() > 0 for g in grads)


def test_balance_is_one_share_when_even():
    module, losses = built(Switch(balance=0.5, z=0.1, jitter=0.0)).train(), {}
    module.router.scores.weight.data.zero_()
    run(module, x(), side_losses=losses)
    assert losses["balance"].item() == pytest.approx(0.5)
    assert losses["router-z"].item() == pytest.approx(0.1 * torch.tensor(float(E)).log().item() ** 2)


def test_the_router_learns_through_the_gate_and_the_balance_only():
    module, losses = built(Switch(jitter=0.0)).train(), {}
    y = run(module, x(), side_losses=losses)
    probs = (x() @ module.router.scores.weight.mT).softmax(-1)
    gate, chosen = probs.max(-1)
    outside = torch.stack([expert(module, e, x()).detach() for e in range(E)], -1)
    want = (gate * outside.gather(-1, chosen[..., None, None].expand(2, 9, D, 1))[..., 0].sum(-1)).sum()
    got, want = (torch.autograd.grad(s, module.router.scores.weight)[0] for s in (y.sum(), want))
    assert_exact(got, want)


def test_every_expert_is_drawn_as_a_map_of_its_own():
    wide = Dims(d_model=128, vocab_size=9, max_len=9, dropout=0.0, n_sublayers=4)
    for init, std in ((Normal(branches="scaled"), 0.02), (Xavier(), (2 / (128 + 256)) ** 0.5)):
        module = Experts(n_experts=3, d_ff=256).build(wide)
        seeded(init, module, wide, 0)
        assert float(module.widen.weights[2].detach().std()) == pytest.approx(std, rel=0.03)
        narrow = std / 2 if isinstance(init, Normal) else std
        assert float(module.narrow.weights[1].detach().std()) == pytest.approx(narrow, rel=0.03)


def test_experts_keep_what_a_token_costs_and_add_parameters():
    numbers = {"d_model": 64, "d_ff": 256, "n_layers": 4, "vocab_size": 40}
    plain = cost(kf.relative("vanilla-pre", size="tiny", **numbers).model, 16)
    for name in ("moe", "switch"):
        few, many = (cost(kf.relative(name, size="tiny", n_experts=n, **numbers).model, 16) for n in (8, 64))
        assert many.params > 4 * few.params > 4 * plain.params
        assert many.flops_per_token < 1.1 * plain.flops_per_token


def test_balance_keeps_all_experts_at_work():
    """Four kinds of tokens, each to be mapped its own way: with the loss all experts are used, without some starve."""
    g = torch.Generator().manual_seed(0)
    centres, maps = torch.randn(4, D, generator=g), torch.randn(4, D, D, generator=g)
    entropy = {}
    for balance in (1.0, 0.0):
        module = built(Switch(balance=balance, jitter=0.0), shake=0.0).float().train()
        # a router that starts with a favourite
        module.router.scores.weight.data[0] += 0.5 * centres.mean(0)
        optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
        for step in range(150):
            kind = torch.randint(4, (1, 64), generator=g)
            value = centres[kind] + 0.5 * torch.randn(1, 64, D, generator=g)
            want = (maps[kind] @ value[..., None])[..., 0]
            losses, taps = {}, Taps()
            y = run(module, value, seed=step, side_losses=losses, taps=taps)
            optimiser.zero_grad()
            ((y - want).square().mean() + losses["balance"]).backward()
            optimiser.step()
        share = torch.bincount(taps.found["experts"].flatten(), minlength=E) / 64
        entropy[balance] = float(-(share * share.clamp(min=1e-9).log()).sum())
    full = torch.tensor(float(E)).log().item()
    assert entropy[1.0] > 0.9 * full, entropy
    assert entropy[0.0] < entropy[1.0], entropy


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="unknown 'al'; did you mean 'all'"):
        Top2(second="al")
    with pytest.raises(SpecError, match="n_experts: 0 is not allowed; at least 1"):
        Experts(n_experts=0, d_ff=3)
    with pytest.raises(SpecError, match="takes 1 to 2 experts"):
        Experts(n_experts=2, d_ff=3, router=NoisyTopK(k=3)).build(dims())
