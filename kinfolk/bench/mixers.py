"""One layer of every mixer with its projections, beside its peers and beside causal attention over everything."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.bench import mixer_peers
from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work
from kinfolk.core.context import Context
from kinfolk.core.cost import Shape
from kinfolk.core.paths import set_path
from kinfolk.family.making import make
from kinfolk.layers.init import Xavier
from kinfolk.layers.module import Dims
from kinfolk.layers.part import Mixer

ENGINE = True
D_MODEL, N_HEADS = 512, 8
LENGTHS, LONG = (1024, 4096, 16384), 65536
SDPA = "causal SDPA"
PASSES = {"forward": False, "forward and backward": True}


def _ours(name: str, relative: str, rival: str = "", layer: int = 0, **changes: Any) -> BenchContestant:
    """Return a layer of a relative; `numbers` are the relative's, other `changes` fields of its mixer."""
    numbers, longest = changes.pop("numbers", {}), changes.pop("longest", 0)
    settings = {"relative": relative, "layer": layer, "set": changes, "numbers": numbers}
    return BenchContestant(name, OURS, settings, rival=rival, longest=longest)


def _peer(name: str, how: str, package: str, longest: int = 0, **settings: Any) -> BenchContestant:
    return BenchContestant(name, how, settings, package, longest=longest)


def _recurrent(relative: str, package: str, **changes: Any) -> tuple[BenchContestant, BenchContestant]:
    """Return a recurrent layer and its peer, which reads one position after the other or keeps all states."""
    how, longest = "fla" if package == "fla" else "transformers", changes.pop("longest", 4096)
    rival = f"{relative}, fla's naive" if package == "fla" else f"{relative}, Hugging Face"
    return _ours(relative, relative, rival, **changes), _peer(rival, how, package, longest, kind=relative)


LOCAL, LONGFORMER, BIGBIRD = "local-attention", "Longformer, Hugging Face", "BigBird, Hugging Face"
REFORMER, REFORMER_OTHER = "Reformer, Hugging Face", "reformer-pytorch"
PERFORMER, PERFORMER_BOTH = "performer-pytorch, causal", "performer-pytorch"
LINEAR, LINEAR_BOTH = "linear-attention-transformer, causal", "linear-attention-transformer"
LINFORMER, X = "linformer", "x-transformers, causal"
OWN_REFORMER = {"bucket_size": 64, "n_hashes": 4, "causal": True, "allow_duplicate_attention": False}
CONTESTANTS = (
    BenchContestant(SDPA, "sdpa"),
    _ours("gpt2 (everything)", "gpt2", SDPA),
    _peer(X, "x-transformers", "x_transformers", causal=True, flash=True),
    _ours("local, window 256", "local", LOCAL),
    _peer(LOCAL, "local-attention", "local_attention", window_size=256, causal=True, exact_windowsize=True),
    _ours("longformer, window 512", "longformer", LONGFORMER),
    _peer(LONGFORMER, "longformer", "transformers", window=512),
    _ours("bigbird, blocks of 64", "bigbird", BIGBIRD),
    _peer(BIGBIRD, "bigbird", "transformers", block=64, n_random=3),
    _ours("sparse-strided, merged", "sparse-strided", numbers={"combination": "merged"}),
    _ours("sparse-fixed, merged", "sparse-fixed", numbers={"combination": "merged"}),
    _ours("axial", "axial"),
    _ours("image-1d", "image-1d"),
    _ours("image-2d", "image-2d"),
    _ours("reformer-lsh, 4 rounds", "reformer-lsh"),
    _ours("reformer-lsh, chunks", "reformer-lsh", REFORMER, sight={"kind": "chunks", "size": 64}),
    _peer(REFORMER, "reformer", "transformers", chunk=64, n_rounds=4),
    _peer(REFORMER_OTHER, "reformer-pytorch", "reformer_pytorch", **OWN_REFORMER),
    _ours("performer, causal", "performer", PERFORMER),
    _peer(PERFORMER, "performer", "performer_pytorch", causal=True),
    _ours("performer, both ways", "performer", PERFORMER_BOTH, direction="both"),
    _peer(PERFORMER_BOTH, "performer", "performer_pytorch", causal=False),
    _ours("linear, causal", "linear", LINEAR),
    _peer(LINEAR, "linear", "linear_attention_transformer", causal=True),
    _ours("linear, both ways", "linear", LINEAR_BOTH, direction="both"),
    _peer(LINEAR_BOTH, "linear", "linear_attention_transformer", causal=False),
    _ours("linformer, rank 256", "linformer", LINFORMER, numbers={"rank": 256}),
    _peer(LINFORMER, "linformer", "linformer", k=256),
    _ours("adaptive-span, as it begins", "adaptive-span"),
    _ours("dynamic-span, as it begins", "dynamic-span"),
    _ours("talking-heads", "talking-heads", SDPA, longest=4096),
    _ours("synthesizer-factorized", "synthesizer-factorized", SDPA, longest=4096),
    _ours("dmca", "dmca", layer=1, numbers={"n_layers": 2}, longest=16384),
    _ours("lightweight-conv", "lightweight-conv"),
    _ours("dynamic-conv", "dynamic-conv"),
    *_recurrent("gla", "fla"),
    *_recurrent("kda", "fla"),
    *_recurrent("gated-deltanet", "transformers"),
    *_recurrent("mamba", "transformers"),
    *_recurrent("mamba2", "transformers"),
    *_recurrent("griffin", "transformers"),
)


def contests(long: bool = False) -> list[Contest]:
    """Return one contest for each length and direction; the longest takes minutes and is asked for."""
    return [
        Contest(
            "mixers",
            f"one layer of {length:,} positions with its projections, d={D_MODEL}, {N_HEADS} heads, batch 1, {passes}",
            {"length": length, "d_model": D_MODEL, "n_heads": N_HEADS, "backward": backward},
            tuple(c for c in CONTESTANTS if not c.longest or length <= c.longest),
            SDPA,
            unit="positions",
        )
        for length in (*LENGTHS, *([LONG] if long else []))
        for passes, backward in PASSES.items()
    ]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return one pass of a layer over random input."""
    torch.manual_seed(0)
    length, d_model = sizes["length"], sizes["d_model"]
    layer = MixerLayer(contestant.settings, sizes) if not contestant.peer else mixer_peers.layer(contestant, sizes)
    draw = torch.Generator().manual_seed(1)
    x, d = (torch.randn(1, length, d_model, generator=draw) for _ in range(2))
    layer.train()

    def both() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        layer(x).backward(d)

    def forward() -> None:
        with torch.no_grad():
            layer(x)

    x.requires_grad_(sizes["backward"])
    parameters = sum(p.numel() for p in layer.parameters())
    flops = layer.flops * (3 if sizes["backward"] else 1) if isinstance(layer, MixerLayer) else 0.0
    return Work(both if sizes["backward"] else forward, length, flops, parameters, steps=sizes.get("steps", 5))


class MixerLayer(nn.Module):
    """The mixer of one layer of a relative, as any model of ours would run it."""

    def __init__(self, settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
        super().__init__()
        spec, dims = mixer_of(settings, sizes)
        self.mixer = spec.build(dims)
        Xavier().apply(self, dims)
        self.flops = spec.cost(dims, Shape(sizes["length"])).flops * sizes["length"]

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Run the mixer over [B, L, D]."""
        y_BLD, _ = self.mixer(x_BLD, Context(), None)
        return y_BLD


def mixer_of(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> tuple[Mixer, Dims]:
    """Return the spec of the mixer that a contestant's settings name, and the numbers to build it with."""
    numbers = {"n_layers": settings["layer"] + 1} | dict(settings["numbers"])
    recipe = make(
        settings["relative"],
        size="small",
        d_model=sizes["d_model"],
        n_heads=sizes["n_heads"],
        max_len=sizes["length"],
        vocab_size=64,
        dropout=0.0,
        **numbers,
    )
    depth: Any = recipe.model.decoder or recipe.model.encoder
    spec = next(p for p in depth.blocks[depth.order[settings["layer"]]].parts if isinstance(p, Mixer))
    for path, value in settings["set"].items():
        spec = set_path(spec, path, value)
    direction = "past" if recipe.model.decoder is not None else "both"
    dims = Dims(
        d_model=sizes["d_model"],
        vocab_size=64,
        max_len=sizes["length"],
        dropout=0.0,
        n_sublayers=2,
        direction=settings["set"].get("direction", direction),
    )
    return spec, dims
