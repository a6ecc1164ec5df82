"""Our modules against PyTorch's and Hugging Face's with copied weights."""

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.context import Context, Padding
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.module import Dims
from kinfolk.ops.patterns.leaves import Causal, Full

D, H, F, V, L = 24, 4, 40, 37, 9
DIMS = Dims(d_model=D, vocab_size=V, max_len=32, dropout=0.0, n_sublayers=4)


def copy_attention(ours, theirs):
    """From a packed self-attention of ours to nn.MultiheadAttention."""
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.qkv.weight.data.clone(), ours.qkv.bias.data.clone()
    copy_linear(ours.out, theirs.out_proj)


def copy_cross(ours, theirs):
    theirs.in_proj_weight.data = torch.cat([ours.q.weight, ours.kv.weight]).data.clone()
    theirs.in_proj_bias.data = torch.cat([ours.q.bias, ours.kv.bias]).data.clone()
    copy_linear(ours.out, theirs.out_proj)


def copy_linear(ours, theirs):
    theirs.weight.data, theirs.bias.data = ours.weight.data.clone(), ours.bias.data.clone()


@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_torchs_multihead_attention(causal):
    torch.manual_seed(0)
    ours = Attention(n_heads=H, pattern=Causal() if causal else Full()).build(DIMS).double()
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    copy_attention(ours, theirs)
    x = torch.randn(2, L, D, dtype=torch.float64)
    keep = torch.arange(L) < torch.tensor([[L], [5]])
    mask = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64) if causal else None
    hidden = torch.zeros(2, L, dtype=torch.float64).masked_fill(~keep, -torch.inf)
    want, weights = theirs(x, x, x, attn_mask=mask, key_padding_mask=hidden, average_attn_weights=False)
    from kinfolk.core.context import Taps

    taps = Taps()
    got, _ = ours(x, Context(padding=Padding(keep, right=False), taps=taps), None)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(taps.found["weights"], weights)


def randomise(model):
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)


@pytest.mark.parametrize("name", ["vanilla", "vanilla-pre"])
def test_encoder_decoder_is_torchs_transformer(name):
    numbers = {"d_model": D, "n_layers": 2, "n_heads": H, "d_ff": F, "vocab_size": V, "max_len": 32}
    ours = kf.build(kf.relative(name, size="tiny", **numbers)).double().eval()
    torch.manual_seed(1)
    randomise(ours)
    pre = name == "vanilla-pre"
    kwargs = {"batch_first": True, "dropout": 0.0, "norm_first": pre, "dtype": torch.float64}
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, F, **kwargs), 2, enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, F, **kwargs), 2)
    for mine, their in zip(ours.encoder.blocks, encoder.layers, strict=True):
        copy_attention(mine.parts[0], their.self_attn)
        copy_linear(mine.parts[1].widen, their.linear1)
        copy_linear(mine.parts[1].narrow, their.linear2)
        for residual, norm in zip(mine.residuals, (their.norm1, their.norm2), strict=True):
            copy_linear(residual.norm, norm)
    for mine, their in zip(ours.decoder.blocks, decoder.layers, strict=True):
        copy_attention(mine.parts[0], their.self_attn)
        copy_cross(mine.parts[1], their.multihead_attn)
        copy_linear(mine.parts[2].widen, their.linear1)
        copy_linear(mine.parts[2].narrow, their.linear2)
        for residual, norm in zip(mine.residuals, (their.norm1, their.norm2, their.norm3), strict=True):
            copy_linear(residual.norm, norm)
    if pre:
        encoder.norm, decoder.norm = (nn.LayerNorm(D, dtype=torch.float64) for _ in range(2))
        copy_linear(ours.encoder.norm, encoder.norm)
        copy_linear(ours.decoder.norm, decoder.norm)
    source, target = torch.randint(V, (2, 7)), torch.randint(V, (2, L))
    embed = ours.embedding.table
    angle = torch.arange(32, dtype=torch.float64)[:, None] / 1e4 ** (torch.arange(0, D, 2).double() / D)
    table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
    x, y = (embed(t) * D**0.5 + table[: t.shape[1]] for t in (source, target))
    mask = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    want = decoder(y, encoder(x), tgt_mask=mask) @ embed.weight.T
    torch.testing.assert_close(ours(source, target).logits, want, rtol=1e-6, atol=1e-6)


def hugging_face(name):
    transformers = pytest.importorskip("transformers", reason="the identity with Hugging Face needs kinfolk[bench]")
    numbers = {"n_embd": D, "n_layer": 2, "n_head": H, "vocab_size": V, "n_positions": 32}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_inner=F, **numbers, **off)).double().eval()
    return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**numbers, **off)).double().eval()


@pytest.mark.parametrize("name", ["gpt", "gpt2"])
def test_decoders_are_hugging_faces(name):
    theirs = hugging_face(name)
    torch.manual_seed(2)
    randomise(theirs)
    d_ff = F if name == "gpt2" else 4 * D
    numbers = {"d_model": D, "n_layers": 2, "n_heads": H, "d_ff": d_ff, "vocab_size": V, "max_len": 32}
    ours = kf.build(kf.relative(name, size="tiny", **numbers)).double().eval()
    w = theirs.transformer.state_dict()
    names = ("wte", "wpe") if name == "gpt2" else ("tokens_embed", "positions_embed")
    ours.embedding.table.weight.data = w[f"{names[0]}.weight"].clone()
    ours.embedding.position.table.weight.data = w[f"{names[1]}.weight"].clone()
    for i, block in enumerate(ours.decoder.blocks):
        for mine, their in (
            (block.parts[0].qkv, "attn.c_attn"),
            (block.parts[0].out, "attn.c_proj"),
            (block.parts[1].widen, "mlp.c_fc"),
            (block.parts[1].narrow, "mlp.c_proj"),
        ):
            mine.weight.data = w[f"h.{i}.{their}.weight"].T.clone()
            mine.bias.data = w[f"h.{i}.{their}.bias"].clone()
        for residual, their in zip(block.residuals, ("ln_1", "ln_2"), strict=True):
            residual.norm.weight.data = w[f"h.{i}.{their}.weight"].clone()
            residual.norm.bias.data = w[f"h.{i}.{their}.bias"].clone()
    if name == "gpt2":
        ours.decoder.norm.weight.data, ours.decoder.norm.bias.data = w["ln_f.weight"].clone(), w["ln_f.bias"].clone()
    tokens = torch.randint(V, (2, L))
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-9, atol=1e-9)


def test_bert_is_hugging_faces():
    transformers = pytest.importorskip("transformers", reason="the identity with Hugging Face needs kinfolk[bench]")
    config = transformers.BertConfig(
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=H,
        intermediate_size=F,
        vocab_size=V,
        max_position_embeddings=32,
    )
    theirs = transformers.BertForMaskedLM(config).double().eval()
    torch.manual_seed(3)
    randomise(theirs)
    numbers = {"d_model": D, "n_layers": 2, "n_heads": H, "d_ff": F, "vocab_size": V, "max_len": 32}
    ours = kf.build(kf.relative("bert", size="tiny", **numbers)).double().eval()
    w = {k: v.clone() for k, v in theirs.state_dict().items()}
    e = "bert.embeddings."
    ours.embedding.table.weight.data = w[e + "word_embeddings.weight"]
    ours.embedding.position.table.weight.data = w[e + "position_embeddings.weight"]
    ours.embedding.segments.weight.data = w[e + "token_type_embeddings.weight"]
    plain = {"weight": "weight", "bias": "bias"}
    for field in plain:
        getattr(ours.embedding.norm, field).data = w[f"{e}LayerNorm.{field}"]
        for i, block in enumerate(ours.encoder.blocks):
            layer = f"bert.encoder.layer.{i}."
            packed = [w[f"{layer}attention.self.{x}.{field}"] for x in ("query", "key", "value")]
            getattr(block.parts[0].qkv, field).data = torch.cat(packed)
            getattr(block.parts[0].out, field).data = w[f"{layer}attention.output.dense.{field}"]
            getattr(block.parts[1].widen, field).data = w[f"{layer}intermediate.dense.{field}"]
            getattr(block.parts[1].narrow, field).data = w[f"{layer}output.dense.{field}"]
            getattr(block.residuals[0].norm, field).data = w[f"{layer}attention.output.LayerNorm.{field}"]
            getattr(block.residuals[1].norm, field).data = w[f"{layer}output.LayerNorm.{field}"]
        getattr(ours.head.transform, field).data = w[f"cls.predictions.transform.dense.{field}"]
        getattr(ours.head.norm, field).data = w[f"cls.predictions.transform.LayerNorm.{field}"]
    ours.head.bias.data = w["cls.predictions.bias"]
    tokens = torch.randint(V, (2, L))
    keep = torch.arange(L) < torch.tensor([[L], [5]])
    want = theirs(tokens, attention_mask=keep.long()).logits
    got = ours(tokens, keep=keep).logits
    torch.testing.assert_close(got[keep], want[keep], rtol=1e-9, atol=1e-9)
