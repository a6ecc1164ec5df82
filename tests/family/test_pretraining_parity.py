"""Losses of pre-training against Hugging Face's classes with copied weights, in float64."""

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.annotations import OtherDocument
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.rng import Rng
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary

transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs kinfolk[bench]")

D, H, F, V, L = 24, 3, 40, 37, 22
TOY = {"d_model": D, "n_layers": 2, "n_heads": H, "d_ff": F, "vocab_size": V, "max_len": 32, "dropout": 0.0}
CONFIG = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attn_implementation": "eager",
}


def learner(name, **numbers):
    recipe = kf.relative(name, size="base", **TOY | numbers)
    learn = Learner(kf.build(recipe).double(), recipe.objective, Vocabulary(V)).double()
    torch.manual_seed(0)
    for p in learn.parameters():
        nn.init.normal_(p, std=0.3)
    return learn


def copy(theirs, ours):
    """Copy a linear map, a table or a norm."""
    assert theirs.weight.shape == ours.weight.shape
    theirs.weight.data = ours.weight.data.clone()
    if getattr(theirs, "bias", None) is not None:
        theirs.bias.data = ours.bias.data.clone()


def copy_embedding(theirs, ours):
    copy(theirs.word_embeddings, ours.table)
    copy(theirs.position_embeddings, ours.position.table)
    copy(theirs.token_type_embeddings, ours.segments)
    copy(theirs.LayerNorm, ours.norm)


def copy_qkv(theirs, ours):
    for linear, weight, bias in zip(theirs, ours.qkv.weight.chunk(3), ours.qkv.bias.chunk(3), strict=True):
        linear.weight.data, linear.bias.data = weight.data.clone(), bias.data.clone()


def maps(think):
    return [m for m in think.modules() if isinstance(m, nn.Linear)]


def copy_layer(theirs, block):
    look, think = block.parts
    copy_qkv((theirs.attention.self.query, theirs.attention.self.key, theirs.attention.self.value), look)
    copy(theirs.attention.output.dense, look.out)
    copy(theirs.attention.output.LayerNorm, block.residuals[0].norm)
    up, down = maps(think)
    copy(theirs.intermediate.dense, up)
    copy(theirs.output.dense, down)
    copy(theirs.output.LayerNorm, block.residuals[1].norm)


def copy_albert_layer(theirs, block):
    look, think = block.parts
    copy_qkv((theirs.attention.query, theirs.attention.key, theirs.attention.value), look)
    copy(theirs.attention.dense, look.out)
    copy(theirs.attention.LayerNorm, block.residuals[0].norm)
    up, down = maps(think)
    copy(theirs.ffn, up)
    copy(theirs.ffn_output, down)
    copy(theirs.full_layer_layer_norm, block.residuals[1].norm)


def prepared(learn):
    draw = torch.Generator().manual_seed(3)
    tokens, others = torch.randint(7, V, (2, 6, L + 1), generator=draw)
    keep = torch.arange(L + 1) < torch.tensor([L + 1, 14, L + 1, 9, 18, L + 1])[:, None]
    batch = Batch(index=torch.arange(6), tokens=tokens, keep=keep, annotations=(OtherDocument(others),))
    made = learn.prepare(batch, Rng(0))
    assert made.labels is None or set(made.labels.tolist()) == {0, 1}
    return made


def asked(batch, **more):
    return {
        "input_ids": batch.tokens,
        "token_type_ids": batch.segments,
        "attention_mask": batch.keep.long(),
        "labels": batch.targets,
        **more,
    }


def assert_same_loss(learn, batch, want):
    loss = learn(batch)
    torch.testing.assert_close(loss.total / loss.count + loss.side, want, rtol=1e-9, atol=1e-9)


def test_bert_is_bert_for_pre_training():
    learn = learner("bert")
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**CONFIG)).double().eval()
    copy_embedding(theirs.bert.embeddings, learn.model.embedding)
    for layer, block in zip(theirs.bert.encoder.layer, learn.model.encoder.blocks, strict=True):
        copy_layer(layer, block)
    head = learn.model.head
    copy(theirs.bert.pooler.dense, head.judge.hidden)
    copy(theirs.cls.seq_relationship, head.judge.output)
    copy(theirs.cls.predictions.transform.dense, head.transform)
    copy(theirs.cls.predictions.transform.LayerNorm, head.norm)
    theirs.cls.predictions.bias.data = head.bias.data.clone()
    theirs.cls.predictions.decoder.bias = theirs.cls.predictions.bias
    theirs.tie_weights()
    batch = prepared(learn)
    want = theirs(**asked(batch, next_sentence_label=batch.labels))
    output = learn.model.run(batch)
    torch.testing.assert_close(output.logits[batch.keep], want.prediction_logits[batch.keep], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(head.pair(output.hidden), want.seq_relationship_logits, rtol=1e-9, atol=1e-9)
    assert_same_loss(learn, batch, want.loss)


def test_albert_is_albert_for_pre_training():
    learn = learner("albert", d_inner=10)
    config = transformers.AlbertConfig(
        **CONFIG, embedding_size=10, num_hidden_groups=1, inner_group_num=1, classifier_dropout_prob=0.0
    )
    theirs = transformers.AlbertForPreTraining(config).double().eval()
    embedding, head = learn.model.embedding, learn.model.head
    copy_embedding(theirs.albert.embeddings, embedding.inner)
    copy(theirs.albert.encoder.embedding_hidden_mapping_in, embedding.outer)
    copy_albert_layer(theirs.albert.encoder.albert_layer_groups[0].albert_layers[0], learn.model.encoder.blocks[0])
    copy(theirs.albert.pooler, head.judge.hidden)
    copy(theirs.sop_classifier.classifier, head.judge.output)
    copy(theirs.predictions.dense, head.transform)
    copy(theirs.predictions.LayerNorm, head.norm)
    theirs.predictions.bias.data = head.bias.data.clone()
    theirs.predictions.decoder.bias = theirs.predictions.bias
    theirs.tie_weights()
    batch = prepared(learn)
    want = theirs(**asked(batch, sentence_order_label=batch.labels))
    output = learn.model.run(batch)
    torch.testing.assert_close(output.logits[batch.keep], want.prediction_logits[batch.keep], rtol=1e-9, atol=1e-9)
    assert_same_loss(learn, batch, want.loss)


@pytest.mark.parametrize("d_inner", [0, 10])
def test_electra_is_the_pair_of_masked_lm_and_pre_training(d_inner):
    learn = learner("electra", d_inner=d_inner)
    size, small = d_inner or D, learn.partner.spec
    big = transformers.ElectraForPreTraining(transformers.ElectraConfig(**CONFIG, embedding_size=size)).double().eval()
    narrow = {"hidden_size": small.d_model, "num_attention_heads": 1, "intermediate_size": F * small.d_model // D}
    config = transformers.ElectraConfig(**CONFIG | narrow, embedding_size=size)
    filler = transformers.ElectraForMaskedLM(config).double().eval()
    shared = learn.model.embedding.inner if d_inner else learn.model.embedding
    for theirs, ours in ((big, learn.model), (filler, learn.partner)):
        copy_embedding(theirs.electra.embeddings, shared)
        if hasattr(theirs.electra, "embeddings_project"):
            copy(theirs.electra.embeddings_project, ours.embedding.outer)
        for layer, block in zip(theirs.electra.encoder.layer, ours.encoder.blocks, strict=True):
            copy_layer(layer, block)
    copy(big.discriminator_predictions.dense, learn.model.head.hidden)
    copy(big.discriminator_predictions.dense_prediction, learn.model.head.output)
    copy(filler.generator_predictions.dense, learn.partner.head.transform)
    copy(filler.generator_predictions.LayerNorm, learn.partner.head.norm)
    filler.generator_lm_head.bias.data = learn.partner.head.bias.data.clone()
    filler.tie_weights()
    batch = prepared(learn)
    generated = filler(**asked(batch))
    _, made = learn.run(batch)
    labels = made.targets.masked_fill(made.targets == IGNORE, 0)
    assert 0 < labels.sum() < (batch.targets != IGNORE).sum() + 1
    judged = big(input_ids=made.tokens, attention_mask=batch.keep.long(), labels=labels.double())
    # their mean of the detector is taken in float32, so the exact one is of their scores
    chosen, real = batch.targets != IGNORE, batch.keep
    fills = nn.functional.cross_entropy(generated.logits[chosen], batch.targets[chosen])
    detects = nn.functional.binary_cross_entropy_with_logits(judged.logits[real], labels[real].double())
    torch.testing.assert_close(fills + 50 * detects, generated.loss + 50 * judged.loss, rtol=1e-6, atol=0)
    assert_same_loss(learn, batch, fills + 50 * detects)


def test_distilbert_has_the_shape_of_theirs():
    ours = kf.relative("distilbert", size="base", **TOY).model
    config = transformers.DistilBertConfig(
        vocab_size=V, dim=D, n_layers=2, n_heads=H, hidden_dim=F, max_position_embeddings=32
    )
    theirs = transformers.DistilBertForMaskedLM(config)
    assert kf.build(ours).n_params == sum(p.numel() for p in theirs.parameters())


def test_gpt_is_open_ai_gpt():
    config = transformers.OpenAIGPTConfig(
        vocab_size=V, n_embd=D, n_layer=2, n_head=H, n_positions=32, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0
    )
    # theirs has a feed-forward four times as wide
    learn = learner("gpt", d_ff=4 * D)
    theirs = transformers.OpenAIGPTLMHeadModel(config).double().eval()
    copy(theirs.transformer.tokens_embed, learn.model.embedding.table)
    copy(theirs.transformer.positions_embed, learn.model.embedding.position.table)
    for layer, block in zip(theirs.transformer.h, learn.model.decoder.blocks, strict=True):
        look, think = block.parts
        # their maps are written the other way round
        for conv, linear in zip(
            (layer.attn.c_attn, layer.attn.c_proj, layer.mlp.c_fc, layer.mlp.c_proj),
            (look.qkv, look.out, *maps(think)),
            strict=True,
        ):
            conv.weight.data, conv.bias.data = linear.weight.data.T.clone(), linear.bias.data.clone()
        copy(layer.ln_1, block.residuals[0].norm)
        copy(layer.ln_2, block.residuals[1].norm)
    theirs.tie_weights()
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(7, V, (3, L + 1), generator=draw)
    batch = learn.prepare(Batch(index=torch.arange(3), tokens=tokens), Rng(0))
    want = nn.functional.cross_entropy(theirs(input_ids=tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert_same_loss(learn, batch, want)
