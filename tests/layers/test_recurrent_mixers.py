"""Recurrent mixers with copied weights against transformers' torch paths, in float64, with gradients."""

import functools

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.layers.feed_forwards.feed_forward import Gated
from kinfolk.layers.feed_forwards.gated_experts import GatedExperts, TopK
from kinfolk.layers.feed_forwards.token_gate import TokenGated
from kinfolk.layers.mixers.decay import ChannelStepDecay, StepDecay, TiedDecay, draw_steps
from kinfolk.layers.mixers.evolved import Branches
from kinfolk.layers.mixers.linear_recurrence import LinearRecurrence
from kinfolk.layers.mixers.mamba import Mamba, Mamba2
from kinfolk.layers.mixers.rg_lru import RGLRU
from kinfolk.layers.module import Dims
from kinfolk.layers.norms.norm import RMSNorm
from tests.runs.test_llama_formats import Wide

DIMS = Dims(d_model=24, vocab_size=9, max_len=64, dropout=0.0, n_sublayers=2, direction="past")
transformers = pytest.importorskip("transformers")


def built(spec, dims=DIMS):
    torch.manual_seed(3)
    module = spec.build(dims).double()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return module


def assert_same(ours, theirs, pairs):
    """Compare outputs, and the gradients of pairs of parameters."""
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    weight = torch.randn_like(ours)
    for out in (ours, theirs):
        (out * weight).sum().backward()
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad.view_as(a), rtol=1e-8, atol=1e-9)


def test_griffins_recurrent_block_is_that_of_transformers():
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    config = transformers.RecurrentGemmaConfig(hidden_size=24, lru_width=24, num_attention_heads=3, num_hidden_layers=1)
    ours, theirs = built(RGLRU(n_heads=3)), RecurrentGemmaRecurrentBlock(config, 0).double()
    with torch.no_grad():
        for theirs_of, part in zip((theirs.linear_y, theirs.linear_x), (0, 1), strict=True):
            theirs_of.weight.copy_(ours.inner.weight.chunk(2)[part])
            theirs_of.bias.copy_(ours.inner.bias.chunk(2)[part])
        theirs.linear_out.weight.copy_(ours.out.weight)
        theirs.linear_out.bias.copy_(ours.out.bias)
        theirs.conv_1d.weight.copy_(ours.conv.taps_Dt.unsqueeze(1))
        theirs.conv_1d.bias.copy_(ours.conv.bias_D)
        lru = theirs.rg_lru
        lru.recurrent_param.copy_(ours.log_rate_D)
        for name, part in (("input", 0), ("recurrent", 1)):
            getattr(lru, f"{name}_gate_weight").copy_(ours.gates_HbK.chunk(2, -1)[part])
            getattr(lru, f"{name}_gate_bias").copy_(ours.gate_bias_HK.chunk(2, -1)[part])
    x = torch.randn(2, 70, 24, dtype=torch.float64)
    # their scan accumulates in float32 by default
    lru._rnn_scan.__func__.__defaults__ = (torch.float64,)
    with Wide():
        wanted = theirs(x, torch.arange(70)[None], None, use_cache=False)[0]
    pairs = [(ours.log_rate_D, lru.recurrent_param), (ours.conv.taps_Dt, theirs.conv_1d.weight)]
    assert_same(ours(x, Context(), None)[0], wanted, [*pairs, (ours.out.weight, theirs.linear_out.weight)])


def test_mamba_with_norms_is_that_of_jamba():
    from transformers.models.jamba.modeling_jamba import JambaMambaMixer

    config = transformers.JambaConfig(hidden_size=24, mamba_d_state=4, mamba_dt_rank=2, use_mamba_kernels=False)
    ours, theirs = built(Mamba(d_state=4, norm=RMSNorm())), JambaMambaMixer(config, 0).double()
    pairs = [
        (ours.inner.weight, theirs.in_proj.weight),
        (ours.conv.taps_Dt, theirs.conv1d.weight),
        (ours.conv.bias_D, theirs.conv1d.bias),
        (ours.selective.weight, theirs.x_proj.weight),
        (ours.norms[0].weight, theirs.dt_layernorm.weight),
        (ours.norms[1].weight, theirs.b_layernorm.weight),
        (ours.norms[2].weight, theirs.c_layernorm.weight),
        (ours.step.weight, theirs.dt_proj.weight),
        (ours.step_bias_D, theirs.dt_proj.bias),
        (ours.log_rate_DR, theirs.A_log),
        (ours.skip_D, theirs.D),
        (ours.out.weight, theirs.out_proj.weight),
    ]
    with torch.no_grad():
        for a, b in pairs:
            b.copy_(a.view_as(b))
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    with Wide():
        wanted = theirs(x)
    assert_same(ours(x, Context(), None)[0], wanted, pairs)


def test_gated_deltanet_is_that_of_qwen3_next():
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    config = transformers.Qwen3NextConfig(
        hidden_size=24,
        num_hidden_layers=1,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=3,
        linear_value_head_dim=5,
        linear_conv_kernel_dim=4,
        layer_types=["linear_attention"],
    )
    sizes = {"n_heads": 4, "n_key_heads": 2, "d_key": 3, "d_value": 5, "kernel": 4}
    spec = LinearRecurrence(**sizes, decay=StepDecay(), update="delta", features="swish-unit", gate="swish")
    ours, theirs = built(spec), Qwen3NextGatedDeltaNet(config, 0).double()
    q, k, v = ours.qkv.weight.split([6, 6, 20])
    by_key_head = [x.unflatten(0, (2, -1)) for x in (q, k, v, ours.gate.weight)]
    with torch.no_grad():
        theirs.in_proj_qkvz.weight.copy_(torch.cat(by_key_head, 1).flatten(0, 1))
        b, a = (x.weight.unflatten(0, (2, -1)) for x in (ours.beta, ours.decay.steps))
        theirs.in_proj_ba.weight.copy_(torch.cat([b, a], 1).flatten(0, 1))
        theirs.conv1d.weight.copy_(ours.conv.taps_Dt.unsqueeze(1))
        theirs.A_log.copy_(ours.decay.log_rate_H)
        theirs.dt_bias.copy_(ours.decay.bias)
        theirs.norm.weight.copy_(ours.norm.weight)
        theirs.out_proj.weight.copy_(ours.out.weight)
    x = torch.randn(2, 70, 24, dtype=torch.float64)
    with Wide():
        wanted = theirs(x)
    pairs = [(ours.decay.log_rate_H, theirs.A_log), (ours.out.weight, theirs.out_proj.weight)]
    pairs += [(ours.norm.weight, theirs.norm.weight), (ours.conv.taps_Dt, theirs.conv1d.weight)]
    assert_same(ours(x, Context(), None)[0], wanted, pairs)


def test_experts_with_a_gated_shared_one_are_those_of_qwen3_next():
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

    config = transformers.Qwen3NextConfig(
        hidden_size=24,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=5,
        shared_expert_intermediate_size=7,
        norm_topk_prob=True,
    )
    experts = GatedExperts(n_experts=6, d_ff=5, router=TopK(k=3))
    shared = TokenGated(part=Gated(d_ff=7, activation="swish"))
    ours, theirs = built(Branches(parts=(experts, shared))), Qwen3NextSparseMoeBlock(config).double()
    routed, gated = ours.parts
    with torch.no_grad():
        theirs.gate.weight.copy_(routed.router.scores.weight)
        theirs.experts.gate_up_proj.copy_(routed.widen.weights)
        theirs.experts.down_proj.copy_(routed.narrow.weights)
        theirs.shared_expert_gate.weight.copy_(gated.gate.weight)
        theirs.shared_expert.gate_proj.weight.copy_(gated.part.widen.weight[:7])
        theirs.shared_expert.up_proj.weight.copy_(gated.part.widen.weight[7:])
        theirs.shared_expert.down_proj.weight.copy_(gated.part.narrow.weight)
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    with Wide():
        wanted = theirs(x)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    pairs = [(gated.gate.weight, theirs.shared_expert_gate.weight)]
    pairs += [(gated.part.narrow.weight, theirs.shared_expert.down_proj.weight)]
    assert_same(ours(x, Context(), None)[0], wanted, pairs)


@pytest.mark.parametrize("spec", [Mamba(), Mamba2(n_heads=3), RGLRU(n_heads=3), LinearRecurrence(n_heads=3)])
def test_an_encoder_is_refused_by_name(spec):
    with pytest.raises(SpecError, match=f"{spec.kind}: its state knows the past only"):
        spec.build(Dims(d_model=24, vocab_size=9, max_len=64, dropout=0.0, n_sublayers=2))


@pytest.mark.parametrize(
    "spec",
    [
        Mamba(),
        Mamba(norm=RMSNorm()),
        Mamba2(n_heads=3),
        RGLRU(n_heads=3),
        LinearRecurrence(n_heads=3, kernel=4),
        LinearRecurrence(n_heads=3, update="delta", decay=StepDecay()),
        LinearRecurrence(n_heads=3, decay=TiedDecay(floor=0.5), features="swish-query"),
    ],
    ids=lambda spec: f"{spec.kind}",
)
def test_the_state_does_not_grow(spec):
    """Neither with the position nor with the room that is asked for."""
    module = built(spec)

    def size(state):
        return {name: getattr(state, name).shape for name in state.held}

    state = module.new_state(2, 8)
    wanted = size(module.new_state(2, 1 << 20))
    for length in (1, 5, 1, 90):
        with torch.no_grad():
            module(torch.randn(2, length, 24, dtype=torch.float64), Context(start=1), state)
        assert size(state) == wanted


@pytest.mark.parametrize("kind", [StepDecay, ChannelStepDecay, Mamba, functools.partial(Mamba2, n_heads=2)])
def test_steps_are_drawn_from_a_range(kind):
    """From every range that is one, down to a point; what ends a little below its start is refused, not turned."""
    for least, most in ((0.05, 0.0499), (0.1, 0.06), (0.1, 1e-9)):
        with pytest.raises(SpecError, match="least: steps are drawn from"):
            kind(least=least, most=most)
    for least, most in ((0.05, 0.05), (0.05, 0.0501)):
        bias = torch.full((500,), float("nan"))
        spec = kind(least=least, most=most)
        draw_steps(bias, spec.least, spec.most)
        steps = torch.nn.functional.softplus(bias.double())
        assert steps.min() > least * (1 - 1e-5)
        assert steps.max() < most * (1 + 1e-5)


def test_olmo_hybrid_is_that_of_transformers():
    """The whole model with copied weights: linear layers with pre-norm, attention with norms behind, no positions."""
    size = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "vocab_size": 31}
    config = transformers.OlmoHybridConfig(**size, num_hidden_layers=4, pad_token_id=None, eos_token_id=None)
    torch.manual_seed(0)
    theirs = transformers.OlmoHybridForCausalLM(config).double().eval()
    theirs.model.rotary_emb = None  # as in the released weights
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.2)
    recipe = kf.relative("olmo-hybrid", size="base", d_model=24, n_heads=3, n_layers=4, d_ff=60, vocab_size=31)
    ours = kf.build(recipe).double().eval()
    with torch.no_grad():
        ours.embedding.weight.copy_(theirs.model.embed_tokens.weight)
        ours.head.untied.weight.copy_(theirs.lm_head.weight)
        ours.decoder.norm.weight.copy_(theirs.model.norm.weight)
        for block, layer in zip(ours.decoder.blocks, theirs.model.layers, strict=True):
            mixer, think = block.parts
            think.widen.weight.copy_(torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]))
            think.narrow.weight.copy_(layer.mlp.down_proj.weight)
            norms = [layer.post_attention_layernorm]
            if hasattr(layer, "linear_attn"):
                inner, norms = layer.linear_attn, [layer.input_layernorm, *norms]
                mixer.conv.taps_Dt.copy_(inner.conv1d.weight[:, 0])
                mixer.decay.log_rate_H.copy_(inner.A_log)
                mixer.decay.bias.copy_(inner.dt_bias)
                mixer.decay.steps.weight.copy_(inner.a_proj.weight)
                mixer.beta.weight.copy_(inner.b_proj.weight)
                mixer.gate.weight.copy_(inner.g_proj.weight)
                mixer.norm.weight.copy_(inner.o_norm.weight)
            else:
                inner, norms = layer.self_attn, [*norms, layer.post_feedforward_layernorm]
                mixer.norms.q.weight.copy_(inner.q_norm.weight)
                mixer.norms.k.weight.copy_(inner.k_norm.weight)
            mixer.qkv.weight.copy_(torch.cat([inner.q_proj.weight, inner.k_proj.weight, inner.v_proj.weight]))
            mixer.out.weight.copy_(inner.o_proj.weight)
            for residual, norm in zip(block.residuals, norms, strict=True):
                (residual.norm if hasattr(residual, "norm") else residual.after).weight.copy_(norm.weight)
    tokens = torch.randint(0, 31, (2, 70))
    with Wide():
        wanted = theirs(tokens).logits
    pairs = [
        (ours.embedding.weight, theirs.model.embed_tokens.weight),
        (ours.head.untied.weight, theirs.lm_head.weight),
    ]
    assert_same(ours(tokens).logits, wanted, pairs)


def test_a_forget_gate_that_underflows_forgets_everything_and_stays_a_number():
    torch.manual_seed(0)
    mixer = LinearRecurrence(decay=TiedDecay(), n_heads=2).build(DIMS)
    for p in mixer.parameters():
        torch.nn.init.normal_(p, std=0.3)
    torch.nn.init.constant_(mixer.decay.forget.weight, -40.0)
    x_BLD = torch.rand(1, 40, 24).add(0.5).requires_grad_()
    y_BLD, _ = mixer(x_BLD, Context(), None)
    y_BLD.sum().backward()
    assert y_BLD.isfinite().all()
    assert all(p.grad.isfinite().all() for p in (x_BLD, *mixer.parameters()))
