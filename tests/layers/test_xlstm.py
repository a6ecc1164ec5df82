"""mLSTM beside transformers' xLSTM, sLSTM beside its equations, and both step by step with a constant state."""

import pytest
import torch

from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.xlstm import MLSTM, SLSTM
from kinfolk.layers.module import Dims
from tests.layers.test_latent_attention import DIMS, assert_same, built, normal
from tests.runs.test_llama_formats import Wide

HEADS, WIDTH = 2, 4


def test_mlstm_is_that_of_transformers():
    """Their stabiliser cancels but for `eps`, which is 0 here: the normaliser is at least 1 as it is."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

    config = transformers.xLSTMConfig(
        hidden_size=16, num_heads=2, num_hidden_layers=1, eps=0.0, mode="train", chunk_size=8, vocab_size=9
    )
    dims = Dims(d_model=16, vocab_size=9, max_len=64, dropout=0.0, n_sublayers=2, direction="past")
    torch.manual_seed(0)
    ours, theirs = MLSTM(n_heads=2).build(dims).double(), xLSTMLayer(config).double()
    for p in ours.parameters():
        torch.nn.init.normal_(p, std=0.5)
    q, k, v, o = ours.inner.weight.split(ours.parts)
    gates = ours.gates.weight.chunk(2), ours.gates.bias.chunk(2)
    with torch.no_grad():
        for theirs_of, weight in ((theirs.q, q), (theirs.k, k), (theirs.v, v), (theirs.ogate_preact, o)):
            theirs_of.weight.copy_(weight)
        for n, gate in enumerate((theirs.igate_preact, theirs.fgate_preact)):
            gate.weight.copy_(gates[0][n])
            gate.bias.copy_(gates[1][n])
        theirs.multihead_norm.weight.copy_(ours.gain_D)
        theirs.out_proj.weight.copy_(ours.out.weight)
    x = normal(2, 24, 16)
    with Wide():
        wanted = theirs(x)[0]
    found = ours(x, Context(), None)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
    weight = normal(*found.shape, seed=3)
    for out in (found, wanted):
        (out * weight).sum().backward()
    for a, b in ((ours.out.weight, theirs.out_proj.weight), (ours.gain_D, theirs.multihead_norm.weight)):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-9)
    grads = torch.cat([theirs.q.weight.grad, theirs.k.weight.grad, theirs.v.weight.grad])
    torch.testing.assert_close(ours.inner.weight.grad[: len(grads)], grads, rtol=1e-8, atol=1e-9)


def mlstm(m, x):
    """From the definition, one position after the other."""
    memory, total, rows = torch.zeros(HEADS, 2, WIDTH, dtype=x.dtype), torch.zeros(HEADS, 2, dtype=x.dtype), []
    for now in x:
        q, k, v, o = m.inner(now).split(m.parts)
        i, f = (15 * torch.tanh(m.gates(now) / 15)).chunk(2)
        q, k, v = q.view(HEADS, -1) / 2**0.5, k.view(HEADS, -1), v.view(HEADS, -1)
        memory = f.sigmoid()[:, None, None] * memory + i.exp()[:, None, None] * k[:, :, None] * v[:, None]
        total = f.sigmoid()[:, None] * total + i.exp()[:, None] * k
        h = (q[:, :, None] * memory).sum(1) / (q * total).sum(-1, keepdim=True).abs().clamp(min=1)
        rows.append(m.out(o.sigmoid() * normed(h, m)))
    return torch.stack(rows)


def slstm(m, x):
    """Without the stabiliser: exponential input gates as they are."""
    h, c, n = (torch.zeros(8, dtype=x.dtype) for _ in range(3))
    rows = []
    for now in x:
        own = torch.stack([h.view(HEADS, -1)[j] @ m.recurrent_HKn[j] for j in range(HEADS)]).view(HEADS, 4, -1)
        i, f, z, o = (m.inner(now).view(4, -1) + own.transpose(0, 1).flatten(1)).unbind()
        c = f.sigmoid() * c + i.exp() * z.tanh()
        n = f.sigmoid() * n + i.exp()
        h = o.sigmoid() * c / n
        rows.append(m.out(normed(h.view(HEADS, -1), m)))
    return torch.stack(rows)


def normed(h, m):
    out = (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + m.spec.eps).sqrt()
    return out.flatten() * m.gain_D


@pytest.mark.parametrize(("spec", "naive"), [(MLSTM(n_heads=HEADS), mlstm), (SLSTM(n_heads=HEADS), slstm)])
def test_both_are_their_equations_and_decode(spec, naive):
    module = built(spec)
    x = normal(1, 9, 8).requires_grad_()
    whole = module(x, Context(), None)[0]
    assert_same(whole[0], naive(module, x[0]), [x, *module.parameters()])
    state, steps = module.new_state(1, 4), []
    with torch.no_grad():
        for t in range(9):
            steps.append(module(x[:, t : t + 1], Context(start=t), state)[0])
            sizes = {getattr(state, name).shape for name in state.held}
            assert sizes == {getattr(module.new_state(1, 1 << 20), name).shape for name in state.held}
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", [MLSTM(n_heads=3), SLSTM(n_heads=3)], ids=lambda spec: spec.kind)
def test_heads_that_do_not_fit_are_refused(spec):
    with pytest.raises(SpecError, match=f"{spec.kind}: d_model 8 is not a multiple of n_heads 3"):
        spec.build(DIMS)


@pytest.mark.parametrize("spec", [MLSTM(n_heads=HEADS), SLSTM(n_heads=HEADS)], ids=lambda spec: spec.kind)
def test_large_gates_do_not_overflow(spec):
    """Gates far up and far down in single precision, over a long sequence, forward and backward."""
    module = spec.build(DIMS)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(100 * normal(*p.shape, seed=1))
    x = normal(1, 200, 8).float().requires_grad_()
    y = module(x, Context(), None)[0]
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
