"""Recurrent mixers' operators: chunked form against the naive loop, fla's references, and themselves step by step."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinfolk.ops import chunk_scan, decayed_scores, delta_rule, diagonal_scan, gated_linear_recurrence
from kinfolk.ops.naive import decayed_scores as naive_scores
from kinfolk.ops.naive import delta_rule as naive_delta
from kinfolk.ops.naive import diagonal_scan as naive_diagonal
from kinfolk.ops.naive import gated_linear_recurrence as naive_gated

FLA = importlib.util.find_spec("fla")
needs_fla = pytest.mark.skipif(FLA is None, reason="fla-core is not installed (pip install --no-deps fla-core)")


def fla(path):
    """Load one reference by its path, without the package around it, which wants triton."""
    spec = importlib.util.spec_from_file_location("naive_" + path, Path(FLA.origin).parent / "ops" / path / "naive.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def decay(*shape, seed=9, strength=1.0):
    return -strength * normal(*shape, seed=seed).exp()


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def cases(length, batch=2, heads=2, r=3, d=5):
    """Return every operator with its twin and inputs."""
    q, k = (normal(batch, heads, length, r, seed=i) for i in (1, 2))
    v = normal(batch, heads, length, d, seed=3)
    by_head, by_channel = decay(batch, heads, length, 1), decay(batch, heads, length, r)
    beta = normal(batch, heads, length, 1, seed=4).sigmoid()
    bonus = normal(heads, r, seed=5)
    a, b = (0.5 * unit(normal(batch, heads, length, r, seed=i)) for i in (6, 7))
    x, step = normal(batch, length, d, seed=8), normal(batch, length, d, seed=10).exp()
    write, read = (normal(batch, length, r, seed=i) for i in (11, 12))
    gate, bias_D, skip = normal(batch, length, d, seed=13), normal(d, seed=14), normal(d, seed=15)
    gated, naive = gated_linear_recurrence.gated_linear_recurrence, naive_gated.gated_linear_recurrence
    return {
        "decay by head": (gated, naive, (q, k, v, by_head), {}),
        "decay by channel": (gated, naive, (q, k, v, by_channel), {}),
        "bonus": (gated, naive, (q, k, v, by_channel, bonus), {}),
        "delta": (delta_rule.delta_rule, naive_delta.delta_rule, (q, unit(k), v, beta, by_head), {}),
        "delta by channel": (delta_rule.delta_rule, naive_delta.delta_rule, (q, unit(k), v, beta, by_channel), {}),
        "generalised": (
            delta_rule.generalised_delta_rule,
            naive_delta.generalised_delta_rule,
            (q, k, v, a, b, by_channel),
            {},
        ),
        "diagonal": (
            diagonal_scan.diagonal_scan, naive_diagonal.diagonal_scan, (decay(batch, length, d), x), {}
        ),
        "selective": (
            diagonal_scan.selective_scan,
            naive_diagonal.selective_scan,
            (x, step.log(), write, read, gate, decay(d, r), bias_D, skip),
            {},
        ),
    }  # fmt: skip


KINDS = list(cases(1))
HEADED = KINDS[:-2]


def call(kind, op, leaves, **more):
    """Call an operator, whose arguments are not all alike."""
    naive = op.__module__.startswith("kinfolk.ops.naive")
    if kind == "bonus":
        *leaves, bonus = leaves
        more["bonus" if naive else "bonus_HR"] = bonus
    if kind == "generalised":
        q, k, v, a, b, g = leaves
        leaves = q, k, v, (a, b), g
    if kind == "selective":
        leaves = *leaves[:5], tuple(leaves[5:])
    if not naive:
        names = {"keep": "keep_BL", "group": "group_BL", "state": STATES.get(kind, "state_BHRK")}
        more = {names.get(name, name): value for name, value in more.items()}
    return op(*leaves, **more)


STATES = {"diagonal": "state_B1D", "selective": "state_BDR"}


def run(kind, op, leaves, **more):
    """Return output, state, and the gradients of a weighted sum of both."""
    leaves = [x.detach().requires_grad_() for x in leaves]
    out, state = call(kind, op, leaves, **more)
    loss = (out * normal(*out.shape, seed=20)).sum() + (state * normal(*state.shape, seed=21)).sum()
    return [out, state, *torch.autograd.grad(loss, leaves)]


def assert_same(ours, theirs, **tolerance):
    for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(a, b, **({"rtol": 1e-10, "atol": 1e-11} | tolerance), msg=lambda m, n=n: f"{n}: {m}")


def small_chunks(patch, chunk, tile=2):
    for module in (gated_linear_recurrence, delta_rule, diagonal_scan):
        patch.setattr(module, "CHUNK", chunk)
    for module in (gated_linear_recurrence, delta_rule):
        patch.setattr(module, "SEVERAL", 2)
    # of the states of two examples, with five channels of three numbers
    patch.setattr(diagonal_scan, "BLOCK_BYTES", tile * 2 * 5 * 3 * 8)
    patch.setattr(decayed_scores, "TILE", tile)


def hidden(what, length, batch=2):
    g = torch.Generator().manual_seed(length)
    keep = torch.rand(batch, length, generator=g) > 0.4
    group = (torch.rand(batch, length, generator=g) * 3).long().sort(1).values
    return {
        "nothing": {},
        "padding": {"keep": keep},
        "packed": {"group": group},
        "both": {"keep": keep, "group": group},
    }[what]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(
    length=st.sampled_from([1, 2, 7, 11]),
    chunk=st.sampled_from([1, 2, 3, 5, 64]),
    what=st.sampled_from(["nothing", "padding", "packed", "both"]),
)
@example(length=11, chunk=5, what="both")
@example(length=11, chunk=3, what="packed")
@example(length=11, chunk=64, what="padding")
def test_equals_naive(kind, length, chunk, what):
    op, naive, leaves, _ = cases(length)[kind]
    masks = hidden(what, length)
    if kind in STATES:
        masks.pop("keep", None)
    with pytest.MonkeyPatch.context() as patch:
        small_chunks(patch, chunk)
        ours = run(kind, op, leaves, **masks)
    assert_same(ours, run(kind, naive, leaves, **masks))


@pytest.mark.parametrize("length", [1, 2, 3, 9, 11])
def test_runs_side_by_side_are_positions_one_after_the_other(length, monkeypatch):
    """Accelerators read runs side by side, forward and from the other end; CPUs position by position."""
    decay, entering = (normal(length, 2, 5, seed=i) for i in (1, 2))
    states, adjoint, a = entering.clone(), entering.clone(), diagonal_scan._positions(decay)
    diagonal_scan._scan(a, diagonal_scan._positions(states), normal(2, 5, seed=3))
    diagonal_scan._scan_back(a, diagonal_scan._positions(adjoint))
    assert_same([diagonal_scan._side_by_side(decay, entering, normal(2, 5, seed=3))], [states])
    expected = [entering[-1]]
    for a_t, d in zip(reversed(decay[1:]), reversed(entering[:-1]), strict=True):
        expected.insert(0, d + a_t * expected[0])
    assert_same([adjoint], [torch.stack(expected)])
    monkeypatch.setattr(diagonal_scan, "_waits", lambda x: True)
    side_by_side = entering.clone()
    diagonal_scan._scan_back(a, diagonal_scan._positions(side_by_side))
    assert_same([side_by_side], [adjoint])


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("length", [1, 11, 70])
def test_accelerators_scan_what_processors_scan(kind, length, monkeypatch):
    op, _, leaves, _ = cases(length)[kind]
    group = hidden("packed", length)
    alone = run(kind, op, leaves, **group)
    monkeypatch.setattr(diagonal_scan, "_waits", lambda x: True)
    assert_same(run(kind, op, leaves, **group), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_real_chunks_equal_position_by_position(kind):
    """The chunked form, with several chunks and tiles, is the recurrent form of one position after the other."""
    op, _, leaves, _ = cases(150, batch=1)[kind]
    axis = 1 if kind in STATES else 2
    with torch.no_grad():
        whole, last = call(kind, op, leaves)
        state, outs = None, []
        for t in range(150):
            parts = [x.narrow(axis, t, 1) if x.ndim == axis + 2 and x.shape[axis] == 150 else x for x in leaves]
            out, state = call(kind, op, parts, **({} if state is None else {"state": state}))
            outs.append(out)
    assert_same([whole, last], [torch.cat(outs, axis), state])


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_handed_on_with_its_gradient(kind):
    op, naive, leaves, _ = cases(9)[kind]
    with torch.no_grad():
        state = call(kind, op, leaves)[1]
    found = []
    for one in (op, naive):
        begin = state.clone().requires_grad_()
        out, after = call(kind, one, leaves, state=begin)
        found.append([out, after, *torch.autograd.grad(out.sum() + after.square().sum(), begin)])
    assert_same(*found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", [0.0, 1e-3, 300.0])
def test_any_decay_is_stable_in_single_precision(kind, strength):
    op, _, leaves, _ = cases(130, batch=1)[kind]
    leaves = [x * strength if (x <= 0).all() and x.ndim > 2 else x for x in leaves]
    single = run(kind, op, [x.float() for x in leaves])
    double = run(kind, op, leaves)
    for a, b in zip(single, double, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a.double(), b, rtol=2e-3, atol=2e-4 * max(1.0, float(b.detach().abs().max())))


def test_the_generalised_rule_is_the_delta_rule():
    op, _, (q, k, v, beta, g), _ = cases(70)["delta by channel"]
    ours = delta_rule.generalised_delta_rule(q, beta * k, v, (g.exp() * k, -beta * k), g)
    assert_same(ours, op(q, k, v, beta, g))


def test_without_correction_the_delta_rule_is_linear_attention():
    """Orthogonal keys find nothing to correct."""
    q, v = normal(1, 1, 6, 6, seed=1), normal(1, 1, 6, 5, seed=2)
    k, none = torch.eye(6, dtype=torch.float64)[None, None], torch.zeros(1, 1, 6, 1, dtype=torch.float64)
    ours = delta_rule.delta_rule(q, k, v, torch.ones_like(none), none)
    assert_same(ours, gated_linear_recurrence.gated_linear_recurrence(q, k, v, none))
    torch.testing.assert_close(ours[0], (q @ k.mT).tril() @ v)


def test_a_selective_scan_of_one_channel_is_a_gated_recurrence():
    x, step, write, read, gate, rate, bias_D, skip = cases(70)["selective"][2]
    ours, _ = diagonal_scan.selective_scan(x, step, write, read, gate, (rate, bias_D, skip))
    for d in range(x.shape[2]):
        dt = torch.nn.functional.softplus(step + bias_D)[:, None, :, d : d + 1]
        parts = read[:, None], write[:, None] * dt, x[:, None, :, d : d + 1], dt * rate[d]
        wanted, _ = gated_linear_recurrence.gated_linear_recurrence(*parts)
        gated = (wanted[:, 0, :, 0] + skip[d] * x[..., d]) * torch.nn.functional.silu(gate[..., d])
        torch.testing.assert_close(ours[..., d], gated, rtol=1e-10, atol=1e-11)


def test_memory_is_inputs_and_one_state_per_run():
    q, k, v, g = (x.requires_grad_() for x in cases(600, batch=1)["decay by channel"][2])
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        out, _ = gated_linear_recurrence.gated_linear_recurrence(q, k, v, g)
    assert sum(sizes) == sum(x.numel() for x in (q, k, v, g)) + 3 * 2 * 3 * 5
    assert out.requires_grad


def test_half_precision_is_summed_in_single():
    leaves = [x.bfloat16() for x in cases(80)["delta"][2]]
    out, state = delta_rule.delta_rule(*leaves)
    assert out.dtype == torch.bfloat16
    assert state.dtype == torch.float32


@needs_fla
@pytest.mark.parametrize("kind", ["gla", "simple_gla", "retention", "delta_rule", "gated_delta_rule", "kda", "dplr"])
def test_equals_fla(kind):
    """The references compute in single precision."""
    length, r, tolerance = 128, 4, {"rtol": 1e-4, "atol": 1e-5}
    kinds = cases(length, heads=3, r=r)
    q, k, v, g = (x.float() for x in kinds["decay by channel"][2])
    beta, by_head = (x.float() for x in kinds["delta"][2][3:])
    k, scale = unit(k), r**-0.5
    gated, zero = gated_linear_recurrence.gated_linear_recurrence, torch.zeros_like(by_head)
    swap = lambda *tensors: [x.transpose(1, 2) for x in tensors]  # noqa: E731
    if kind == "gla":
        ours, theirs = gated(q * scale, k, v, g)[0], fla("gla").naive_recurrent_gla(*swap(q, k, v, g))[0]
    elif kind == "simple_gla":
        theirs = fla(kind).naive_chunk_simple_gla(*swap(q, k, v), by_head[..., 0].transpose(1, 2))[0]
        ours = gated(q * scale, k, v, by_head)[0]
    elif kind == "retention":
        fixed = torch.log1p(-(2.0 ** (-5.0 - torch.arange(3.0)))).view(1, 3, 1, 1).expand_as(by_head)
        ours, theirs = gated(q * scale, k, v, fixed)[0].transpose(1, 2), fla(kind).naive_retention(q, k, v)
        theirs = theirs.transpose(1, 2)
    elif kind == "delta_rule":
        ours = delta_rule.delta_rule(q * scale, k, v, beta, zero)[0].transpose(1, 2)
        theirs = fla(kind).delta_rule_recurrence(q, k, v, beta[..., 0])[0].transpose(1, 2)
    elif kind == "dplr":
        a, b = (x.float() for x in kinds["generalised"][2][3:5])
        ours = delta_rule.generalised_delta_rule(q * scale, k, v, (a, b), g)[0].transpose(1, 2)
        theirs = fla("generalized_delta_rule/dplr").dplr_recurrence(q, k, v, a, b, g)[0].transpose(1, 2)
    else:
        gates = {"g": g if kind == "kda" else by_head[..., 0], "beta": beta[..., 0]}
        gates = {name: x.transpose(1, 2) for name, x in gates.items()}
        recurrent = getattr(fla(kind), f"naive_recurrent_{kind}")
        ours = delta_rule.delta_rule(q * scale, k, v, beta, g if kind == "kda" else by_head)[0]
        theirs = recurrent(*swap(q, k, v), **gates)[0]
    ours = ours if kind in ("retention", "delta_rule", "dplr") else ours.transpose(1, 2)
    torch.testing.assert_close(ours, theirs, **tolerance)


def test_chunks_cover_every_position_once():
    assert [(at.start, at.stop) for at in chunk_scan.chunks_of(150, 64)] == [(0, 64), (64, 128), (128, 150)]
    assert [(at.start, at.stop) for at in chunk_scan.runs_of(150, 32, 3)] == [(0, 96), (96, 128), (128, 150)]


def test_heads_may_share_queries_and_keys():
    """As in Mamba-2: one query and key for all heads of values."""
    op, naive, (q, k, v, g), _ = cases(150)["decay by head"]
    shared = [q[:, :1], k[:, :1], v, g]
    each = [x.expand(-1, 2, -1, -1) for x in shared[:2]]
    assert_same(run("decay by head", op, shared)[:2], run("decay by head", naive, [*each, v, g])[:2])
    ours, theirs = (run("decay by head", op, x)[2:] for x in (shared, [*each, v, g]))
    assert_same(ours, [*(x.sum(1, keepdim=True) for x in theirs[:2]), *theirs[2:]])


@pytest.mark.parametrize("size", [1, 11, 32, 50, 64])
def test_triangular_matrices_are_inverted(size):
    lower = normal(3, size, size)
    identity = torch.eye(size, dtype=torch.float64)
    found = chunk_scan._inverse(0.3 * lower.tril(-1) + lower.triu())
    torch.testing.assert_close(found @ (identity + 0.3 * lower.tril(-1)), identity.expand(3, -1, -1))


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_decayed_scores_equal_naive(by_channel, strict):
    q, k = normal(1, 2, 19, 3, seed=1), normal(1, 2, 19, 3, seed=2)
    log = decay(1, 2, 19, 3 if by_channel else 1).cumsum(-2)
    pair = torch.ones(19, 19, dtype=torch.bool).tril(-1 if strict else 0)
    found = []
    for op in (decayed_scores.decayed_scores, naive_scores.decayed_scores):
        leaves = [x.detach().requires_grad_() for x in (q, k, log)]
        out = op(leaves[0], leaves[1], leaves[2], leaves[2], pair)
        found.append([out, *torch.autograd.grad((out * normal(*out.shape, seed=3)).sum(), leaves)])
    assert_same(*found)
