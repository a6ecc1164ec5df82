"""BERT with heads that judge, against Hugging Face's classes with copied weights: answers, losses and gradients."""

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.family.supervise import Labelling, as_classifier
from kinfolk.layers.heads.tag_head import SpanHead, TagHead
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.supervised import SpanAnswer, Tag
from kinfolk.objectives.tasks.registry import of_labels

transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs kinfolk[bench]")

D, H, F, V, L, B = 24, 3, 40, 37, 11, 3
CONFIG = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
NUMBERS = {"d_model": D, "n_layers": 2, "n_heads": H, "d_ff": F, "vocab_size": V, "max_len": 32, "dropout": 0.0}


def theirs(kind, **options):
    torch.manual_seed(3)
    model = getattr(transformers, f"BertFor{kind}")(transformers.BertConfig(**CONFIG, **options)).double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model


def recipe():
    return kf.relative("bert", size="tiny", **NUMBERS)


def copied(recipe, them):
    """Build ours with their weights; return it, and our names of what they have under theirs."""
    ours = kf.build(recipe).double()
    mine, w = dict(ours.named_parameters()), dict(them.named_parameters())
    e, plain = "bert.embeddings.", ("weight", "bias")
    names = {
        "embedding.table.weight": w[e + "word_embeddings.weight"],
        "embedding.position.table.weight": w[e + "position_embeddings.weight"],
        "embedding.segments.weight": w[e + "token_type_embeddings.weight"],
    }
    for field in plain:
        names[f"embedding.norm.{field}"] = w[f"{e}LayerNorm.{field}"]
        for i in range(2):
            b, t = f"encoder.blocks.{i}.", f"bert.encoder.layer.{i}."
            names[f"{b}parts.0.out.{field}"] = w[f"{t}attention.output.dense.{field}"]
            names[f"{b}parts.1.widen.{field}"] = w[f"{t}intermediate.dense.{field}"]
            names[f"{b}parts.1.narrow.{field}"] = w[f"{t}output.dense.{field}"]
            names[f"{b}residuals.0.norm.{field}"] = w[f"{t}attention.output.LayerNorm.{field}"]
            names[f"{b}residuals.1.norm.{field}"] = w[f"{t}output.LayerNorm.{field}"]
            names[f"{b}parts.0.qkv.{field}"] = [w[f"{t}attention.self.{x}.{field}"] for x in ("query", "key", "value")]
        if "bert.pooler.dense.weight" in w:
            names[f"head.hidden.{field}"] = w[f"bert.pooler.dense.{field}"]
        output = "qa_outputs" if "qa_outputs.weight" in w else "classifier"
        own = "head.bias" if "head.bias" in mine and field == "bias" else f"head.output.{field}"
        names[own] = w[f"{output}.{field}"]
    assert set(names) == set(mine)
    for name, value in names.items():
        found = torch.cat([x.data for x in value]) if isinstance(value, list) else value.data.clone()
        assert mine[name].shape == found.shape
        mine[name].data = found
    return ours, names


def read(seed=1):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(7, V, (B, L), generator=g)
    keep = torch.arange(L) < torch.tensor([[L], [5], [8]])
    segments = (torch.arange(L) >= torch.tensor([[6], [3], [4]])).long() * keep
    return Batch(index=torch.arange(B), tokens=tokens, keep=keep, segments=segments)


def asked(them, batch, **labels):
    return them(batch.tokens, attention_mask=batch.keep.long(), token_type_ids=batch.segments, **labels)


def agree(ours, objective, names, batch, want):
    """Compare mean losses and the gradients of all weights."""
    learn = Learner(ours, objective, Vocabulary(V))
    loss = learn(batch)
    torch.testing.assert_close(loss.total / loss.count, want.loss, rtol=1e-9, atol=1e-10)
    (loss.total / loss.count).backward()
    want.loss.backward()
    mine = dict(ours.named_parameters())
    for name, value in names.items():
        found = torch.cat([x.grad for x in value]) if isinstance(value, list) else value.grad
        torch.testing.assert_close(mine[name].grad, found, rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


LABELS = {
    "class": ({"num_labels": 4}, torch.tensor([3, 0, 1])),
    "classes": (
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 1]], dtype=torch.float64),
    ),
    "number": ({"num_labels": 1}, torch.tensor([0.5, -2.0, 1.25], dtype=torch.float64)),
}


@pytest.mark.parametrize("labels", LABELS)
def test_sequences_are_judged_as_by_bert(labels):
    options, gold = LABELS[labels]
    them = theirs("SequenceClassification", **options)
    judge = as_classifier(recipe(), Labelling(options["num_labels"], task=of_labels(labels)))
    ours, names = copied(judge, them)
    batch = read().replace(labels=gold)
    want = asked(them, batch, labels=gold)
    got = ours.run(batch).logits
    torch.testing.assert_close(got if labels != "number" else got[:, None], want.logits, rtol=1e-9, atol=1e-10)
    agree(ours, judge.objective, names, batch, want)


def test_tokens_are_tagged_as_by_bert():
    them = theirs("TokenClassification", num_labels=5)
    batch = read()
    gold = torch.where(batch.keep, (batch.tokens * 3) % 5, IGNORE)
    gold[:, ::3] = IGNORE
    batch = batch.replace(targets=gold)
    ours, names = copied(recipe().replace(model=recipe().model.replace(head=TagHead(n_tags=5))), them)
    want = asked(them, batch, labels=gold)
    torch.testing.assert_close(ours.run(batch).logits[batch.keep], want.logits[batch.keep], rtol=1e-9, atol=1e-10)
    agree(ours, Tag(), names, batch, want)


def test_questions_are_answered_as_by_bert():
    them = theirs("QuestionAnswering")
    # theirs lets padding be an answer, ours does not
    batch = read().replace(keep=torch.ones(B, L, dtype=torch.bool), labels=torch.tensor([[2, 5], [0, 0], [9, 10]]))
    ours, names = copied(recipe().replace(model=recipe().model.replace(head=SpanHead())), them)
    want = asked(them, batch, start_positions=batch.labels[:, 0], end_positions=batch.labels[:, 1])
    got = ours.run(batch).logits
    torch.testing.assert_close(got[..., 0], want.start_logits, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(got[..., 1], want.end_logits, rtol=1e-9, atol=1e-10)
    agree(ours, SpanAnswer(), names, batch, want)
