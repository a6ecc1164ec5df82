"""Switch Transformers: T5 whose feed-forwards are experts in some layers."""

from typing import Any

from kinfolk.layers.feed_forwards.experts import Experts, Switch
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.part import FeedForward
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.runs.formats.t5 import T5Format
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, Misfit, need, their_activation
from kinfolk.runs.huggingface.places import Table


def _head(config: Config) -> LMHead:
    tied = config.get("tie_word_embeddings", True)
    return LMHead(scale="rsqrt") if tied else LMHead(weights="untied")


def _values(head: LMHead) -> dict[str, Any]:
    if (head.weights == "tied") != (head.scale == "rsqrt"):
        raise Misfit("head: states are divided before a tied output layer, and only there")
    return {"tie_word_embeddings": head.weights == "tied"}


class SwitchTransformers(T5Format, model_type="switch_transformers"):
    """Fedus et al. 2021. No token is turned away here at evaluation, where theirs has `expert_capacity` seats."""

    refuses = "router_bias"
    architectures = (
        Architecture(
            "SwitchTransformersForConditionalGeneration", LMHead, _head, _values, table={"head.untied": "lm_head"}
        ),
    )

    def mlps(self, config: Config, n_layers: int, side: str) -> list[FeedForward]:
        config.fixed(router_bias=False, add_cross_attention=False)
        for key in (
            "expert_capacity",
            "router_dtype",
            "router_ignore_padding_tokens",
            "router_type",
            "add_router_probs",
        ):
            # where they compute in another way or drop tokens, which a longer seat list would keep
            config.get(key, None)
        config.get("is_gated_act", False)
        config.get("num_sparse_encoder_layers", 0)
        config.get("num_sparse_decoder_layers", 0)
        config.only("feed_forward_proj", "relu")
        d_ff, activation = config.number("d_ff"), config.choice("dense_act_fn", ACTIVATIONS, "relu")
        router = Switch(
            jitter=config.get("router_jitter_noise", 0.01),
            balance=config.get("router_aux_loss_coef", 0.001),
            z=config.get("router_z_loss_coef", 0.001),
        )
        dense = Dense(d_ff=d_ff, activation=activation, bias=False)
        n = config.number("num_experts", 8)
        experts = Experts(n_experts=n, d_ff=d_ff, activation=activation, bias=False, router=router)
        step = config.get(f"{side}_sparse_step", 1)
        return [experts if step == 1 or (step and i % step == 1) else dense for i in range(n_layers)]

    def values(self, model: Model) -> dict[str, Any]:
        values: dict[str, Any] = super().values(model)
        for side in ("encoder", "decoder"):
            mlps = [block.parts[-1] for block in need(Stack, model, side).blocks]
            sparse = [i for i, mlp in enumerate(mlps) if isinstance(mlp, Experts)]
            if not sparse:
                raise Misfit(f"{side}: has no layer of experts")
            mlp = mlps[sparse[0]]
            assert isinstance(mlp, Experts)
            router = need(Switch, model, f"{side}.blocks[{sparse[0]}].parts[-1].router")
            # layers 1, 1 + step, …: their class counts them itself from the number of sparse ones
            step = 1 if len(sparse) == len(mlps) else sparse[1] - sparse[0] if len(sparse) > 1 else len(mlps)
            values |= {
                f"{side}_sparse_step": step,
                f"num_sparse_{side}_layers": len(mlps) // step,
                "num_experts": mlp.n_experts,
                "d_ff": mlp.d_ff,
                "dense_act_fn": their_activation(mlp.activation),
                "router_jitter_noise": router.jitter,
                "router_aux_loss_coef": router.balance,
                "router_z_loss_coef": router.z,
            }
        return values

    def mlp_table(self, mlp: Any) -> Table:
        if not isinstance(mlp, Experts):
            return {"widen": "mlp.wi", "narrow": "mlp.wo"}
        names = [f"mlp.experts.expert_{i}" for i in range(mlp.n_experts)]
        return {
            "router.scores": "mlp.router.classifier",
            "widen": tuple(f"{name}.wi" for name in names),
            "narrow": tuple(f"{name}.wo" for name in names),
        }
