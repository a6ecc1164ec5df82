"""Models that others taught: a folder with a head that judges, imported, says what the original stack says."""

import json

import pytest
import tokenizers
import torch

from kinfolk.cli.main import main
from kinfolk.data.files.reader import FileRow
from kinfolk.use.predict.opening import open_run
from kinfolk.use.predict.predicting import predict

transformers = pytest.importorskip("transformers", reason="is the other side of this test")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "ada",
    "love",
    "##lace",
    "goes",
    "to",
    "the",
    "river",
    ".",
    "who",
]
SMALL = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
TEXT = "Ada Lovelace goes to the river."


def saved(folder, kind, **config):
    torch.manual_seed(0)
    theirs = getattr(transformers, kind)(transformers.BertConfig(**SMALL, **config)).eval()
    # larger weights, so that answers are far apart
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(6 if p.ndim > 1 else 1)
    theirs.save_pretrained(folder)
    inner = tokenizers.BertWordPieceTokenizer(vocab={word: i for i, word in enumerate(WORDS)})
    inner.save(str(folder / "tokenizer.json"))
    assert main(["import", str(folder), "--out", str(folder / "run")]) == 0
    return theirs, inner, open_run(folder / "run")


def test_classes(tmp_path):
    names = {0: "bad", 1: "good", 2: "odd"}
    theirs, inner, ours = saved(tmp_path, "BertForSequenceClassification", id2label=names)
    assert (ours.task.labels, ours.classes, ours.length) == ("class", ("bad", "good", "odd"), 39)
    (said,) = predict(ours, [FileRow("x", 1, {"text": TEXT})])
    with torch.no_grad():
        wanted = theirs(torch.tensor([inner.encode(TEXT).ids])).logits.softmax(-1)[0]
    assert list(said["probabilities"].values()) == pytest.approx(wanted.tolist(), abs=1e-5)
    assert said["label"] == names[int(wanted.argmax())]


def test_several_classes(tmp_path):
    theirs, inner, ours = saved(
        tmp_path, "BertForSequenceClassification", num_labels=3, problem_type="multi_label_classification"
    )
    assert ours.task.labels == "classes"
    (said,) = predict(ours, [FileRow("x", 1, {"text": TEXT})])
    with torch.no_grad():
        wanted = theirs(torch.tensor([inner.encode(TEXT).ids])).logits.sigmoid()[0]
    assert list(said["probabilities"].values()) == pytest.approx(wanted.tolist(), abs=1e-5)


def test_tags(tmp_path):
    names = {0: "O", 1: "B-PER", 2: "I-PER"}
    theirs, inner, ours = saved(tmp_path, "BertForTokenClassification", id2label=names)
    (said,) = predict(ours, [FileRow("x", 1, {"text": TEXT})])
    coded = inner.encode(TEXT)
    with torch.no_grad():
        shares = theirs(torch.tensor([coded.ids])).logits.softmax(-1)[0]
    firsts = [i for i, piece in enumerate(coded.tokens) if not piece.startswith(("##", "["))]
    assert said["tags"] == [names[int(shares[i].argmax())] for i in firsts]
    assert said["scores"] == pytest.approx([float(shares[i].max()) for i in firsts], abs=1e-5)


def test_answers(tmp_path):
    theirs, inner, ours = saved(tmp_path, "BertForQuestionAnswering")
    assert (ours.task.labels, ours.reading.window) == ("span", 40)
    asked = {"question": "who goes", "context": TEXT}
    (said,) = predict(ours, [FileRow("x", 1, asked)])
    coded = inner.encode("who goes", TEXT)
    with torch.no_grad():
        found = theirs(torch.tensor([coded.ids]), token_type_ids=torch.tensor([coded.type_ids]))
    inside = [i for i, kind in enumerate(coded.type_ids) if kind == 1 and coded.ids[i] != WORDS.index("[SEP]")]
    spans = {(i, j): float(found.start_logits[0, i] + found.end_logits[0, j]) for i in inside for j in inside if i <= j}
    first, last = max(spans, key=spans.__getitem__)
    assert said["answer"] == TEXT[coded.offsets[first][0] : coded.offsets[last][1]]
    total = torch.tensor(list(spans.values())).double().logsumexp(0)
    assert said["score"] == pytest.approx(float((spans[first, last] - total).exp()), abs=1e-5)
    assert json.dumps(said)


PIECES = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "<mask>",
    "a",
    "b",
    "c",
    "d",
    "\u0120a",
    "\u0120b",
    "\u0120c",
    "\u0120d",
    "\u0120",
]


def saved_roberta(folder, kind, *options, **config):
    """Save a model whose tokenizer puts two separators between two texts, as RoBERTa's does."""
    torch.manual_seed(0)
    numbers = SMALL | {"vocab_size": len(PIECES), "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    numbers |= {"type_vocab_size": 1}  # as in all of theirs: it is not told which text is the second
    theirs = getattr(transformers, kind)(transformers.RobertaConfig(**numbers, **config)).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(6 if p.ndim > 1 else 1)
    theirs.save_pretrained(folder)
    merges = [("\u0120", letter) for letter in "abcd"]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({x: i for i, x in enumerate(PIECES)}, merges))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    inner.add_special_tokens(PIECES[:5])
    inner.save(str(folder / "tokenizer.json"))
    assert main(["import", str(folder), "--out", str(folder / "run"), *options]) == 0
    return theirs, inner, folder / "run"


def test_pairs_as_their_tokenizer_joins_them(tmp_path, capsys):
    names = {0: "no", 1: "perhaps", 2: "yes"}
    theirs, inner, run = saved_roberta(tmp_path, "RobertaForSequenceClassification", "--pairs", id2label=names)
    coded = inner.encode("a b", "c d")
    assert coded.tokens == ["<s>", "a", "\u0120b", "</s>", "</s>", "c", "\u0120d", "</s>"]
    (tmp_path / "x.csv").write_text("text,claim\na b,c d\n")
    capsys.readouterr()
    assert main(["predict", str(run), "--input", str(tmp_path / "x.csv"), "--second-column", "claim"]) == 0
    said = json.loads(capsys.readouterr().out)
    with torch.no_grad():
        wanted = theirs(torch.tensor([coded.ids])).logits.softmax(-1)[0]
    assert list(said["probabilities"].values()) == pytest.approx(wanted.tolist(), abs=1e-5)
    assert open_run(run).length == (40 - 2 - 2) // 2  # two positions are theirs alone, two marks stand besides


def test_a_second_text_is_not_passed_over_in_silence(tmp_path, capsys):
    _, _, run = saved_roberta(tmp_path, "RobertaForSequenceClassification")
    (tmp_path / "x.csv").write_text("text,claim\na b,c d\n")
    assert main(["predict", str(run), "--input", str(tmp_path / "x.csv"), "--second-column", "claim"]) == 2
    assert "kin import --pairs" in capsys.readouterr().err


def test_only_who_judges_texts_judges_pairs(tmp_path, capsys):
    with pytest.raises(AssertionError):
        saved_roberta(tmp_path, "RobertaForTokenClassification", "--pairs")
    assert "--pairs: RobertaForTokenClassification judges no texts as a whole" in capsys.readouterr().err


def test_answers_behind_two_separators(tmp_path):
    theirs, inner, run = saved_roberta(tmp_path, "RobertaForQuestionAnswering")
    (said,) = predict(open_run(run), [FileRow("x", 1, {"question": "a b", "context": "c d a b c"})])
    coded = inner.encode("a b", "c d a b c")
    with torch.no_grad():
        found = theirs(torch.tensor([coded.ids]))
    inside = [i for i, owner in enumerate(coded.sequence_ids) if owner == 1]
    spans = {(i, j): float(found.start_logits[0, i] + found.end_logits[0, j]) for i in inside for j in inside if i <= j}
    first, last = max(spans, key=spans.__getitem__)
    total = torch.tensor(list(spans.values())).double().logsumexp(0)
    assert said["score"] == pytest.approx(float((spans[first, last] - total).exp()), abs=1e-5)
    assert said["answer"] == "c d a b c"[coded.offsets[first][0] : coded.offsets[last][1]].strip()


def test_names_of_classes_go_back_with_the_model(tmp_path):
    _, _, ours = saved(tmp_path, "BertForTokenClassification", id2label={0: "O", 1: "B-PER", 2: "I-PER"})
    assert main(["export", str(ours.folder), "--to", "hf", "--out", str(tmp_path / "back")]) == 0
    config = transformers.AutoConfig.from_pretrained(tmp_path / "back")
    assert config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"}
    assert config.label2id == {"O": 0, "B-PER": 1, "I-PER": 2}
    assert transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "back").num_labels == 3


def test_graphs_say_the_same(tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="graphs need kinfolk[onnx]")
    pytest.importorskip("onnxscript", reason="graphs need kinfolk[onnx]")
    _, _, ours = saved(tmp_path, "BertForTokenClassification", id2label={0: "O", 1: "B-PER", 2: "I-PER"})
    lines, run = tmp_path / "a.txt", str(ours.folder)
    lines.write_text(f"{TEXT}\nwho goes\n")
    assert main(["export", run, "--to", "onnx", "--out", str(tmp_path / "graphs")]) == 0
    capsys.readouterr()
    said = []
    for engine in (["torch"], ["onnx", "--graphs", str(tmp_path / "graphs")]):
        assert main(["predict", run, "--input", str(lines), "--engine", *engine]) == 0
        said.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for a, b in zip(*said, strict=True):
        assert a["tags"] == b["tags"]
        assert a["scores"] == pytest.approx(b["scores"], abs=1e-5)
