"""State-space decoders: Mamba and Mamba-2."""

import math
from typing import Any, ClassVar

from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.heads.head import Head
from kinfolk.layers.mixers.mamba import Mamba, Mamba2
from kinfolk.layers.norms.norm import RMSNorm
from kinfolk.layers.part import Mixer
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.runs.formats.gpt import heads, tied_head
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import Architecture, Format, Misfit, layers, need
from kinfolk.runs.huggingface.places import Spread, Table


class StateSpace(Format):
    """What both share: blocks of one mixer behind a norm."""

    prefix = "backbone."
    std = 0.1
    free: ClassVar[tuple[str, ...]] = ("max_len",)
    unsaid: ClassVar[dict[str, Any]] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    mixer_table: ClassVar[Table] = {}

    def mixer(self, config: Config) -> Mixer:
        """Return the mixer of every layer."""
        raise NotImplementedError

    def own(self, model: Model) -> dict[str, Any]:
        """Return what a configuration says of the mixer."""
        raise NotImplementedError

    def sizes_of_mixer(self, config: Config, d_state: int) -> dict[str, Any]:
        """Return what both mixers have; `d_state`: where a configuration says none."""
        return {
            "d_state": config.number("state_size", d_state),
            "expand": int(config.get("expand", 2)),
            "kernel": config.number("conv_kernel", 4),
            "least": config.get("time_step_min", 0.001),
            "most": config.get("time_step_max", 0.1),
        }

    def mixer_values(self, mixer: Mamba | Mamba2) -> dict[str, Any]:
        """Return what a configuration says of both."""
        return {
            "state_size": mixer.d_state,
            "expand": mixer.expand,
            "conv_kernel": mixer.kernel,
            "time_step_min": mixer.least,
            "time_step_max": mixer.most,
        }

    def model(self, config: Config, head: Head) -> Model:
        config.fixed(use_bias=False, use_conv_bias=True, hidden_act="silu")
        config.idle("residual_in_fp32", "rescale_prenorm_residual", "use_cache", "tie_word_embeddings", "layer_types")
        config.idle("time_step_init_scheme", "time_step_scale", "time_step_floor")
        norm = RMSNorm(eps=config.get("layer_norm_epsilon", 1e-5))
        block = Block(parts=(self.mixer(config),), residual=PreNorm(norm=norm))
        n_layers = config.number("num_hidden_layers")
        return self.assembled(
            config,
            max_len=2048,
            dropout=0.0,
            embedding=Tokens(),
            decoder=Stack(blocks=(block,) * n_layers, order=tuple(range(n_layers)), norm=norm),
            head=head,
        )

    def values(self, model: Model) -> dict[str, Any]:
        depth = need(Stack, model, "decoder")
        mixers = {block.parts for block in depth.blocks}
        if len(mixers) != 1 or len(depth.blocks[0].parts) != 1:
            raise Misfit("every block is one and the same mixer there, without a feed-forward")
        return self.sizes(model) | {
            "num_hidden_layers": depth.n_layers,
            "layer_norm_epsilon": need(RMSNorm, model, "decoder.norm").eps,
            **self.own(model),
        }

    def tied_to(self, model: Model) -> dict[str, str]:
        return tied_head(model)

    def body(self, model: Model) -> Table:
        layer: Table = {
            "residuals.0.norm": "norm",
            "parts.0.inner": "mixer.in_proj",
            "parts.0.conv.taps_Dt": Spread.at("mixer.conv1d.weight", axis=1),
            "parts.0.conv.bias_D": "mixer.conv1d.bias",
            "parts.0.out": "mixer.out_proj",
            **self.mixer_table,
        }
        return {
            "embedding.table": "embeddings",
            "decoder.norm": "norm_f",
            **layers("decoder.blocks.*", "layers.*", layer),
        }


class MambaFormat(StateSpace, model_type="mamba"):
    """Gu and Dao 2023."""

    architectures: ClassVar[tuple[Architecture, ...]] = heads("Mamba", "ForCausalLM")[:2]
    mixer_table: ClassVar[Table] = {
        "parts.0.selective": "mixer.x_proj",
        "parts.0.step": "mixer.dt_proj",
        "parts.0.step_bias_D": "mixer.dt_proj.bias",
        "parts.0.log_rate_DR": "mixer.A_log",
        "parts.0.skip_D": "mixer.D",
    }

    def mixer(self, config: Config) -> Mixer:
        width = config.number("hidden_size")
        config.only("intermediate_size", int(config.get("expand", 2) * width))
        config.idle("use_mambapy", "use_associative_scan")
        if config.values.get("time_step_rank") == "auto":
            config.values["time_step_rank"] = math.ceil(width / 16)
        rank = config.number("time_step_rank", math.ceil(width / 16))
        return Mamba(**self.sizes_of_mixer(config, 16), rank=0 if rank == math.ceil(width / 16) else rank)

    def own(self, model: Model) -> dict[str, Any]:
        mamba = need(Mamba, model, "decoder.blocks[0].parts[0]")
        return self.mixer_values(mamba) | {
            "intermediate_size": mamba.expand * model.d_model,
            "time_step_rank": mamba.rank or math.ceil(model.d_model / 16),
        }


class Mamba2Format(StateSpace, model_type="mamba2"):
    """Dao and Gu 2024, with one group of B and C."""

    architectures: ClassVar[tuple[Architecture, ...]] = heads("Mamba2", "ForCausalLM")[:2]
    mixer_table: ClassVar[Table] = {
        "parts.0.step_bias_H": "mixer.dt_bias",
        "parts.0.log_rate_H": "mixer.A_log",
        "parts.0.skip_H": "mixer.D",
        "parts.0.norm": "mixer.norm",
    }

    def mixer(self, config: Config) -> Mixer:
        sizes, n_heads = self.sizes_of_mixer(config, 128), config.number("num_heads")
        config.only("head_dim", sizes["expand"] * config.number("hidden_size") // n_heads)
        config.fixed(n_groups=1, rms_norm=True)
        config.idle("chunk_size", "time_step_rank", "time_step_limit")
        return Mamba2(**sizes, n_heads=n_heads, norm=RMSNorm(eps=config.get("layer_norm_epsilon", 1e-5)))

    def own(self, model: Model) -> dict[str, Any]:
        mamba = need(Mamba2, model, "decoder.blocks[0].parts[0]")
        return self.mixer_values(mamba) | {
            "num_heads": mamba.n_heads,
            "head_dim": mamba.expand * model.d_model // mamba.n_heads,
            "n_groups": 1,
        }
