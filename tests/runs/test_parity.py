"""Every kind of checkpoint against the class that writes it: the same numbers from a folder, and back."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import kinfolk as kf
from kinfolk.core.annotations import Visible
from kinfolk.core.batch import Batch
from kinfolk.core.knowledge import Names
from kinfolk.layers.heads.detection_head import DetectionHead
from kinfolk.layers.heads.paired_head import PairedHeadModule
from kinfolk.objectives.knowledge import Facts
from kinfolk.objectives.objective import Vocabulary
from kinfolk.runs.huggingface.folder import open_folder

transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs kinfolk[bench]")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

V = 37
BERT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "vocab_size": V}
ODD = {"hidden_size": 21, "num_hidden_layers": 3, "num_attention_heads": 7, "intermediate_size": 17, "vocab_size": V}
BERT |= {"max_position_embeddings": 24}
ODD |= {"max_position_embeddings": 19, "layer_norm_eps": 1e-3, "type_vocab_size": 1}
DISTIL = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "vocab_size": V, "max_position_embeddings": 24}
GPT = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 24, "vocab_size": V}

CASES = {
    "bert": ("BertModel", BERT),
    "bert-mlm": ("BertForMaskedLM", BERT),
    "bert-mlm-odd": ("BertForMaskedLM", ODD | {"hidden_act": "gelu_new"}),
    "bert-class": ("BertForSequenceClassification", BERT | {"num_labels": 5}),
    "bert-pairs": ("BertForPreTraining", BERT),
    "albert": ("AlbertModel", BERT | {"embedding_size": 5}),
    "albert-pairs": ("AlbertForPreTraining", ODD | {"embedding_size": 5}),
    "albert-mlm-groups": (
        "AlbertForMaskedLM",
        BERT | {"embedding_size": 24, "num_hidden_layers": 5, "num_hidden_groups": 2},
    ),
    "albert-class": ("AlbertForSequenceClassification", BERT | {"embedding_size": 5}),
    "electra": ("ElectraModel", BERT | {"embedding_size": 5}),
    "electra-mlm": ("ElectraForMaskedLM", BERT | {"embedding_size": 24}),
    "electra-mlm-odd": ("ElectraForMaskedLM", ODD | {"embedding_size": 5, "hidden_act": "relu"}),
    "electra-class": ("ElectraForSequenceClassification", BERT | {"embedding_size": 5}),
    "distilbert": ("DistilBertModel", DISTIL),
    "distilbert-mlm": ("DistilBertForMaskedLM", DISTIL),
    "distilbert-mlm-odd": ("DistilBertForMaskedLM", DISTIL | {"dim": 21, "n_heads": 7, "activation": "relu"}),
    "distilbert-class": ("DistilBertForSequenceClassification", DISTIL | {"num_labels": 3}),
    "roberta": ("RobertaModel", BERT),
    "roberta-mlm": ("RobertaForMaskedLM", BERT),
    "roberta-mlm-odd": ("RobertaForMaskedLM", ODD | {"hidden_act": "relu"}),
    "roberta-class": ("RobertaForSequenceClassification", BERT | {"num_labels": 2}),
    "camembert-mlm": ("CamembertForMaskedLM", ODD),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gpt2-odd": ("GPT2LMHeadModel", GPT | {"n_embd": 21, "n_head": 7, "n_inner": 13, "activation_function": "relu"}),
    "gpt2-untied": ("GPT2LMHeadModel", GPT | {"tie_word_embeddings": False}),
    "gpt2-class": ("GPT2ForSequenceClassification", GPT | {"num_labels": 3, "pad_token_id": 1}),
    "gpt": ("OpenAIGPTLMHeadModel", GPT),
    "gpt-odd": ("OpenAIGPTLMHeadModel", GPT | {"n_embd": 21, "n_head": 7, "layer_norm_epsilon": 1e-2}),
}

T5 = {"d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 3, "vocab_size": V, "dropout_rate": 0.0}
T5_ODD = {**T5, "d_model": 21, "d_kv": 5, "num_layers": 3, "num_decoder_layers": 1, "relative_attention_num_buckets": 6}
UNTIED = {"tie_word_embeddings": False}
CASES |= {
    "t5": ("T5ForConditionalGeneration", T5),
    "t5-odd": ("T5ForConditionalGeneration", T5_ODD | {"relative_attention_max_distance": 9}),
    "t5-v1-1": ("T5ForConditionalGeneration", T5 | UNTIED | {"feed_forward_proj": "gated-gelu"}),
    "t5-v1-1-odd": ("T5ForConditionalGeneration", T5_ODD | UNTIED | {"feed_forward_proj": "gated-silu"}),
}
SIDES = {"encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 33, "d_model": 24}
SIDES |= {"encoder_attention_heads": 3, "decoder_attention_heads": 4, "vocab_size": V, "max_position_embeddings": 19}
CASES |= {
    **{
        f"{name}-{kind}": (f"{name}For{kind}", numbers | ({"num_labels": 5} if kind == "TokenClassification" else {}))
        for kind in ("TokenClassification", "QuestionAnswering")
        for name, numbers in (
            ("Bert", BERT),
            ("DistilBert", DISTIL),
            ("Roberta", ODD),
            ("Electra", BERT),
            ("Albert", BERT),
        )
    },
    "electra-detect": ("ElectraForPreTraining", BERT | {"embedding_size": 5}),
    "bart": ("BartForConditionalGeneration", SIDES),
    "bart-scaled": ("BartForConditionalGeneration", SIDES | {"scale_embedding": True, "activation_function": "relu"}),
    "marian": ("MarianMTModel", SIDES | {"pad_token_id": 1, "eos_token_id": 0, "scale_embedding": True}),
    "marian-plain": ("MarianMTModel", SIDES | {"pad_token_id": 1, "eos_token_id": 0, "activation_function": "swish"}),
}
XLNET = {"d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 40, "vocab_size": V, "mem_len": None}
FUNNEL = {"d_model": 24, "n_head": 3, "d_head": 8, "d_inner": 40, "vocab_size": V, "truncate_seq": False}
SWITCH = T5 | {"num_experts": 3, "num_layers": 3, "num_sparse_encoder_layers": 1}
SWITCH |= {"num_decoder_layers": 2, "num_sparse_decoder_layers": 2}
CASES |= {
    "xlnet": ("XLNetModel", XLNET),
    "xlnet-lm": ("XLNetLMHeadModel", XLNET | {"ff_activation": "relu", "layer_norm_eps": 1e-3}),
    "xlnet-class": ("XLNetForSequenceClassification", XLNET | {"num_labels": 5}),
    "xlnet-tags": ("XLNetForTokenClassification", XLNET | {"num_labels": 5}),
    "xlnet-span": ("XLNetForQuestionAnsweringSimple", XLNET),
    "funnel": ("FunnelModel", FUNNEL | {"block_sizes": [1, 2], "num_decoder_layers": 1}),
    "funnel-mlm": ("FunnelForMaskedLM", FUNNEL | {"block_sizes": [2, 1, 1], "d_head": 5}),
    "switch": ("SwitchTransformersForConditionalGeneration", SWITCH),
}
WINDOWS = ODD | {"type_vocab_size": 2, "attention_window": [4, 8, 4], "max_position_embeddings": 26}
CASES |= {
    "bigbird": ("BigBirdModel", BERT | {"attention_type": "original_full", "rescale_embeddings": True}),
    "bigbird-mlm": ("BigBirdForMaskedLM", BERT | {"attention_type": "original_full"}),
    "longformer": ("LongformerModel", WINDOWS | {"num_hidden_layers": 3}),
    "longformer-mlm": ("LongformerForMaskedLM", WINDOWS),
}
# heads and terms whose product has a whole root, which theirs takes in single precision
APART = BERT | {"num_attention_heads": 2, "relative_attention": True, "pos_att_type": "c2p|p2c"}
BUCKETS = APART | {"position_buckets": 6, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
BUCKETS |= {"position_biased_input": False, "pos_att_type": ["p2c", "c2p"]}
CASES |= {
    "deberta": ("DebertaModel", APART),
    "deberta-mlm": ("DebertaForMaskedLM", APART | {"position_biased_input": False, "max_relative_positions": 7}),
    "deberta-mlm-c2p": ("DebertaForMaskedLM", APART | {"num_attention_heads": 3, "pos_att_type": ["c2p"]}),
    "deberta-plain": ("DebertaForMaskedLM", BERT | {"num_attention_heads": 6, "hidden_act": "relu"}),
    "deberta-class": ("DebertaForSequenceClassification", APART | {"num_labels": 5, "pooler_hidden_act": "tanh"}),
    "deberta-v2": ("DebertaV2Model", APART),
    "deberta-v2-mlm": ("DebertaV2ForMaskedLM", BUCKETS),
    "deberta-v2-mlm-odd": ("DebertaV2ForMaskedLM", BUCKETS | {"share_att_key": False, "max_relative_positions": 13}),
    "deberta-v2-mlm-p2c": ("DebertaV2ForMaskedLM", BUCKETS | {"num_attention_heads": 3, "pos_att_type": "p2c"}),
    "deberta-v2-class": ("DebertaV2ForSequenceClassification", BUCKETS | {"num_labels": 1}),
    "deberta-v2-tags": ("DebertaV2ForTokenClassification", BUCKETS | {"num_labels": 5, "type_vocab_size": 3}),
    "deberta-v2-span": ("DebertaV2ForQuestionAnswering", BUCKETS),
}
ROUNDED = {"longformer": 3e-6, "longformer-mlm": 3e-6, "funnel": 1e-5, "funnel-mlm": 1e-5, "switch": 1e-6}
"""Kinds whose class goes through single precision at some place, and how far that takes them."""
UNPADDED = {"funnel", "funnel-mlm", "xlnet", "xlnet-class"}
"""Theirs hides a slot that holds any padding, or takes a vector from where padding stands."""


def their_model(name, numbers):
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**numbers)).double().eval()
    generator = torch.Generator().manual_seed(3)
    if name.startswith("T5") and not numbers.get("tie_word_embeddings", True):
        # their configuration ties it always; files of the second release have their own
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    trained = [(key, b) for key, b in model.named_buffers() if key == "final_logits_bias"]
    for key, p in [*model.named_parameters(), *trained]:
        if key.endswith("embed_positions.weight") and not p.requires_grad:
            continue
        if name.startswith("Funnel") and key.endswith(("seg_embed", "r_s_bias")):
            nn.init.zeros_(p)
            continue
        nn.init.normal_(
            p, mean=1.0 if "norm" in key.lower() and key.endswith("weight") else 0.0, std=0.2, generator=generator
        )
    return model


def batch():
    """Three rows of unequal lengths, padded on the right with an id that padding has in every kind."""
    tokens = torch.randint(3, V, (3, 17), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([17, 9, 1])
    keep = torch.arange(17) < lengths[:, None]
    return tokens.masked_fill(~keep, 1), keep


def target(tokens):
    """Another length than the source's."""
    return tokens[:, :11].flip(1)


@torch.no_grad()
def theirs(model, tokens, keep):
    more = {"decoder_input_ids": target(tokens)} if model.config.is_encoder_decoder else {}
    out = model(input_ids=tokens, attention_mask=keep.long(), **more)
    if "logits" in out:
        return out.logits
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], -1)
    if "prediction_logits" in out:
        pair = next(out[key] for key in ("seq_relationship_logits", "sop_logits") if key in out)
        return out.prediction_logits + pair.sum(-1)[:, None, None]
    if "pooler_output" in out:
        return out.pooler_output
    return out.last_hidden_state[:, -1 if isinstance(model, transformers.XLNetModel) else 0]


@torch.no_grad()
def ours(model, tokens, keep):
    more = (target(tokens),) if model.spec.topology == "encoder-decoder" else ()
    out = model.eval()(tokens, *more, keep=keep)
    if isinstance(model.spec.head, DetectionHead):
        return out.logits[..., 1] - out.logits[..., 0]
    if isinstance(out.head, PairedHeadModule):
        return out.logits + out.head.pair(out.hidden).sum(-1)[:, None, None]
    return out.logits


def same(found, wanted, keep, atol=1e-9):
    if found.shape[:2] == keep.shape:
        # what is made of padding is nobody's business
        found, wanted = found[keep], wanted[keep]
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


@pytest.fixture
def in_double(monkeypatch):
    """Let those compute in double precision that have a norm or a table in single precision written down."""

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)

    def centred(self, x):
        x = x - x.mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon) + self.bias

    deberta = pytest.importorskip("transformers.models.deberta.modeling_deberta")
    monkeypatch.setattr(deberta.DebertaLayerNorm, "forward", centred)
    for module, name in (("t5", "T5LayerNorm"), ("switch_transformers", "SwitchTransformersLayerNorm")):
        modeling = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
        monkeypatch.setattr(getattr(modeling, name), "forward", forward)
    table = transformers.XLNetModel.positional_embedding

    def in_order(places, rates, batch=None):
        rates = 1 / 10000 ** (torch.arange(0, 2 * len(rates), 2).double() / (2 * len(rates)))
        return table(places.double(), rates, batch)

    monkeypatch.setattr(transformers.XLNetModel, "positional_embedding", staticmethod(in_order))


@pytest.mark.parametrize("case", CASES)
def test_a_folder_is_read_and_written_to_the_same_numbers(case, tmp_path, in_double):
    original = their_model(*CASES[case])
    original.save_pretrained(tmp_path / "theirs")
    tokens, keep = batch()
    keep = torch.ones_like(keep) if case in UNPADDED else keep
    wanted = theirs(original, tokens, keep)
    assert wanted.std() > 1e-3
    imported = open_folder(tmp_path / "theirs")
    same(ours(imported.model, tokens, keep), wanted, keep, ROUNDED.get(case, 1e-9))
    # an ordinary model: saved and loaded as any other
    kf.save(imported.model, tmp_path / "saved")
    assert kf.load(tmp_path / "saved").spec == imported.model.spec
    kf.to_hf(imported.model, tmp_path / "again", model_type=imported.model_type, also=imported.also)
    with warnings.catch_warnings(action="ignore"):
        again, report = type(original).from_pretrained(
            tmp_path / "again", dtype=torch.float64, output_loading_info=True
        )
    # what asks about hidden tokens is a token here, and a pooler that nobody asks is not there
    idle = {"mask_emb", "transformer.mask_emb", "bert.pooler.weight", "bert.pooler.bias"}
    report["missing_keys"] = set(report["missing_keys"]) - idle
    assert not any(report.values()), report
    # theirs makes some parameters of these anew in single precision
    atol = 1e-6 if imported.model_type in ("xlnet", "deberta") else 1e-12
    same(theirs(again.double().eval(), tokens, keep), wanted, keep, atol)
    assert open_folder(tmp_path / "again").model.spec == imported.model.spec


@pytest.mark.parametrize("size", [8, [12, 8]])
@pytest.mark.parametrize("name", ["ViTModel", "ViTForImageClassification"])
def test_pictures_are_read_and_written_to_the_same_numbers(name, size, tmp_path):
    numbers = {key: BERT[key] for key in BERT if key not in ("vocab_size", "max_position_embeddings")}
    original = their_model(name, numbers | {"image_size": size, "patch_size": 4, "num_labels": 5})
    original.save_pretrained(tmp_path / "theirs")
    rows, columns = size if isinstance(size, list) else (size, size)
    values = torch.randint(256, (2, rows, columns, 3), generator=torch.Generator().manual_seed(0))

    def answer(model, mean=0.5, std=0.5):
        with torch.no_grad():
            out = model(pixel_values=((values.double() / 255 - mean) / std).permute(0, 3, 1, 2))
        return out.logits if "logits" in out else out.pooler_output

    imported = open_folder(tmp_path / "theirs")
    tokens = values.flatten(1) + 7
    found = imported.model.eval()(tokens).logits
    torch.testing.assert_close(found, answer(original), rtol=0, atol=1e-9)
    # how values enter is said beside the configuration
    other = {"image_mean": [0.3] * 3, "image_std": [0.2] * 3}
    (tmp_path / "theirs" / "preprocessor_config.json").write_text(json.dumps(other))
    imported = open_folder(tmp_path / "theirs")
    wanted = answer(original, 0.3, 0.2)
    torch.testing.assert_close(imported.model.eval()(tokens).logits, wanted, rtol=0, atol=1e-9)
    kf.to_hf(imported.model, tmp_path / "again", also=imported.also)
    with warnings.catch_warnings(action="ignore"):
        again = type(original).from_pretrained(tmp_path / "again", dtype=torch.float64).eval()
    torch.testing.assert_close(answer(again, 0.3, 0.2), wanted, rtol=0, atol=1e-12)
    assert kf.from_hf(tmp_path / "again").spec == imported.model.spec
    (tmp_path / "theirs" / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.3, 0.4, 0.3]}))
    with pytest.raises(kf.KinfolkError, match=r"image_mean = \[0\.3, 0\.4, 0\.3\]"):
        kf.from_hf(tmp_path / "theirs")


@pytest.mark.parametrize("name", ["Bart", "T5"])
def test_classes_are_told_by_the_last_state_of_a_decoder_that_reads_again(name, tmp_path, in_double):
    numbers = {"Bart": SIDES, "T5": T5 | {"decoder_start_token_id": 0}}[name]
    original = their_model(f"{name}ForSequenceClassification", numbers | {"num_labels": 5})
    original.save_pretrained(tmp_path / "theirs")
    tokens, keep = batch()
    tokens = tokens[:2].scatter(1, keep[:2].sum(1, keepdim=True) - 1, original.config.eos_token_id)
    keep = keep[:2]
    tokens = tokens.masked_fill(~keep, original.config.pad_token_id)
    with torch.no_grad():
        wanted = original(input_ids=tokens, attention_mask=keep.long()).logits
    behind = torch.cat([torch.full((2, 1), original.config.decoder_start_token_id), tokens[:, :-1]], 1)
    given = Batch(index=torch.arange(2), tokens=behind, keep=keep, source=tokens, source_keep=keep)
    imported = open_folder(tmp_path / "theirs")
    same(imported.model.eval().run(given).logits, wanted, keep)
    kf.to_hf(imported.model, tmp_path / "again", also=imported.also)
    with warnings.catch_warnings(action="ignore"):
        again = type(original).from_pretrained(tmp_path / "again", dtype=torch.float64).eval()
    with torch.no_grad():
        same(again(input_ids=tokens, attention_mask=keep.long()).logits, wanted, keep, 1e-12)


def test_their_library_reads_our_shards(tmp_path):
    original = their_model(*CASES["bert-mlm"])
    original.save_pretrained(tmp_path / "theirs")
    tokens, keep = batch()
    kf.to_hf(kf.from_hf(tmp_path / "theirs"), tmp_path / "again", shard=20_000)
    assert len(list((tmp_path / "again").glob("model-*.safetensors"))) > 2
    again = type(original).from_pretrained(tmp_path / "again", dtype=torch.float64).eval()
    same(theirs(again, tokens, keep), theirs(original, tokens, keep), keep, 1e-12)


def test_facts_beside_a_text_are_positions_and_a_mask_to_their_bert(tmp_path):
    """K-BERT on an imported body: what a batch says of who sees whom, given to theirs as numbers."""
    original = their_model(*CASES["bert-mlm"])
    original.save_pretrained(tmp_path)
    facts = Facts(Names({(20, 21): ((30, 31), (32,)), (25,): ((33, 34, 35),)}))
    plain = Batch(index=torch.arange(2), tokens=torch.tensor([[10, 20, 21, 12, 25, 13], [25, 9, 11, 12, 13, 14]]))
    told = facts.inform(plain, Vocabulary(V), 24)
    pairs = told.annotation(Visible).pairs_BLM
    mask = torch.zeros(pairs.shape).double().masked_fill(~pairs, -1e9)[:, None]
    with torch.no_grad():
        wanted = original(input_ids=told.tokens, position_ids=told.positions, attention_mask=mask).logits
    found = kf.from_hf(tmp_path).eval().run(told).logits
    same(found, wanted, told.keep)
    assert told.keep.sum() == 21


def test_what_a_funnel_cannot_express_is_refused(tmp_path):
    original = their_model("FunnelModel", FUNNEL)
    original.encoder.blocks[0][0].attention.seg_embed.data[0, 0, 0] = 1
    original.save_pretrained(tmp_path)
    with pytest.raises(kf.KinfolkError, match=r"blocks\.0\.0\.attention\.seg_embed is not zero"):
        kf.from_hf(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("conv_kernel_size", 3), ("embedding_size", 12), ("pos_att_type", ["c2p", "p2p"])]
)
def test_what_a_deberta_cannot_express_is_refused(key, value, tmp_path):
    their_model("DebertaV2ForMaskedLM", BUCKETS | {key: value}).save_pretrained(tmp_path)
    with pytest.raises(kf.KinfolkError, match=rf"config\.json: {key} = "):
        kf.from_hf(tmp_path)


@pytest.mark.parametrize("name", ["DebertaForMaskedLM", "DebertaV2ForMaskedLM"])
def test_the_head_of_a_deberta_has_two_names(name, tmp_path, in_double):
    original = their_model(name, APART | {"legacy": False})
    original.save_pretrained(tmp_path / "theirs")
    tokens, keep = batch()
    model = kf.from_hf(tmp_path / "theirs")
    same(ours(model, tokens, keep), theirs(original, tokens, keep), keep)
    kf.to_hf(model, tmp_path / "again")
    assert "cls.predictions.bias" in load_file(tmp_path / "again" / "model.safetensors")


def test_blocks_of_a_big_bird_are_those_of_the_relative(tmp_path):
    original = their_model("BigBirdForMaskedLM", BERT | {"block_size": 4, "num_random_blocks": 1})
    original.save_pretrained(tmp_path)
    look = kf.from_hf(tmp_path).spec.encoder.blocks[0].parts[0]
    relative = kf.relative(
        "bigbird", size="base", d_model=24, n_layers=1, n_heads=3, d_ff=40, max_len=24, block=4, n_random=1
    )
    assert look.pattern == relative.model.encoder.blocks[0].parts[0].pattern
    kf.to_hf(kf.from_hf(tmp_path), tmp_path / "again")
    assert kf.from_hf(tmp_path / "again").spec == kf.from_hf(tmp_path).spec


@pytest.mark.parametrize("case", ["bert-mlm", "gpt2", "t5-v1-1", "bart", "deberta-v2-mlm", "deberta-mlm"])
def test_gradients_are_theirs(case, tmp_path, in_double):
    """Each parameter's gradient, brought to their names by the tables that bring the parameters."""
    original = their_model(*CASES[case])
    original.save_pretrained(tmp_path / "theirs")
    # no padding: theirs has no gradient for its vector
    tokens = batch()[0].clamp(min=3)
    pairs = original.config.is_encoder_decoder
    imported = open_folder(tmp_path / "theirs")
    more = (target(tokens),) if pairs else ()
    weights = torch.randn(V, generator=torch.Generator().manual_seed(0)).double()
    (imported.model.eval()(tokens, *more).logits * weights).square().mean().backward()
    named = {"decoder_input_ids": target(tokens)} if pairs else {}
    (original(input_ids=tokens, **named).logits * weights).square().mean().backward()
    for p in imported.model.parameters():
        p.data = p.grad
    kf.to_hf(imported.model, tmp_path / "gradients", model_type=imported.model_type)
    found = load_file(tmp_path / "gradients" / "model.safetensors")
    wanted = {name: p.grad for name, p in original.named_parameters() if name in found}
    assert len(wanted) >= len(found) - 1
    for name, gradient in wanted.items():
        rows = slice(2, None) if "embed_positions" in name else slice(None)
        torch.testing.assert_close(found[name][rows], gradient[rows], rtol=1e-8, atol=1e-9, msg=name)
    assert sum(float(g.abs().sum()) for g in wanted.values()) > 1
