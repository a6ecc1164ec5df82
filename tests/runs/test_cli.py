"""`kin import` and `kin export`: a folder becomes a run, and a run a folder."""

import json
import warnings

import pytest
import tokenizers
import torch

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.data import Tokenizer, open_data
from kinfolk.data.tokenizers.files import word_pieces
from kinfolk.data.tokenizers.unknown import UnknownTokens, warn_of_unknown

NUMBERS = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "vocab_size": 34, "max_len": 32}


@pytest.fixture
def folder(tmp_path):
    """A small GPT-2 whose words are letters."""
    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz ")}
    vocab = letters | {f"<{name}>": 27 + i for i, name in enumerate(("pad", "bos", "eos", "unk", "sep", "cls", "mask"))}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], unk_token="<unk>"))
    made.save(str(tmp_path / "letters.json"))
    model = kf.build(kf.relative("gpt2", size="base", **NUMBERS))
    return kf.to_hf(model, tmp_path / "theirs", tokenizer=tmp_path / "letters.json", also={"eos_token_id": 29})


def test_there_and_back(folder, tmp_path, capsys):
    run, back = tmp_path / "run", tmp_path / "back"
    assert main(["import", str(folder), "--out", str(run), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["architecture"] == "GPT2LMHeadModel"
    assert said["left_out"] == []
    assert Tokenizer.load(run / "tokenizer.json").encode("abc") == [0, 1, 2]
    tokens = torch.arange(12)[None]
    wanted = kf.from_hf(folder).eval()(tokens).logits
    assert torch.equal(kf.load(run).eval()(tokens).logits, wanted)
    assert main(["generate", str(run), "--prompt", "abc", "--max-new", "3", "--greedy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ids"][:3] == [0, 1, 2]
    assert main(["export", str(run), "--to", "hf", "--out", str(back)]) == 0
    assert "GPT2LMHeadModel" in capsys.readouterr().out
    assert torch.equal(kf.from_hf(back).eval()(tokens).logits, wanted)
    assert json.loads((back / "config.json").read_text())["eos_token_id"] == 29
    assert json.loads((back / "tokenizer.json").read_text()) == json.loads((folder / "tokenizer.json").read_text())


def test_refusals_are_one_line_and_leave_nothing(folder, tmp_path, capsys):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rotary_dim": 4}))
    assert main(["import", str(folder), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "rotary_dim = 4" in error
    assert not (tmp_path / "run").exists()
    assert main(["import", str(folder), "--out", str(tmp_path / "run"), "--ignore", "rotary_dim"]) == 0
    assert "parameters" in capsys.readouterr().out
    kf.save(kf.build(kf.relative("performer", size="base", **NUMBERS)), tmp_path / "other")
    assert main(["export", str(tmp_path / "other"), str(tmp_path / "no")]) == 2
    assert "decoder.blocks[0].parts[0]" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "other")]) == 2
    assert "--out" in capsys.readouterr().err


def test_an_imported_bert_looks_at_entities(tmp_path, capsys):
    """The body as it was, a block more, and a file that the run keeps; then fine-tuned with both."""
    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz ")}
    vocab = letters | {f"<{name}>": 27 + i for i, name in enumerate(("pad", "bos", "eos", "unk", "sep", "cls", "mask"))}
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], unk_token="<unk>")).save(str(tmp_path / "letters.json"))
    plain = kf.build(kf.relative("bert", size="base", **NUMBERS)).eval()
    kf.to_hf(plain, tmp_path / "theirs", tokenizer=tmp_path / "letters.json")
    names, run = tmp_path / "names.tsv", tmp_path / "run"
    names.write_text("ada\tperson\t3\nada\tlanguage\t1\nbo\ttree\n")
    assert main(["import", str(tmp_path / "theirs"), "--out", str(run), "--entities", str(names)]) == 0
    capsys.readouterr()
    knows = kf.load(run).eval()
    tokens = torch.tensor([[3, 4, 5]])
    assert torch.equal(knows(tokens).logits, plain(tokens).logits)
    names.unlink()
    (tmp_path / "rows.csv").write_text("text,label\n" + "ada is here,x\nbo is there,y\n" * 8)
    words = ["finetune", str(run), "--train", str(tmp_path / "rows.csv"), "--steps", "1", "--quiet", "--json"]
    assert main([*words, "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "tuned")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(name.startswith("head.") for name in found["fresh"])
    assert (tmp_path / "tuned" / "knowledge.tsv").read_text().startswith("ada\tperson")


def test_unknown_keys_are_named_shortly_and_can_be_ignored_by_option(folder, tmp_path, capsys):
    config = json.loads((folder / "config.json").read_text())
    keys = {f"strange_{i}": "x" * 5000 for i in range(40)}
    (folder / "config.json").write_text(json.dumps(config | keys | {"y" * 3000: 1}))
    assert main(["import", str(folder), "--out", str(tmp_path / "run")]) != 0
    said = capsys.readouterr().err
    assert len(said) < 1200
    assert "--ignore strange_0" in said
    assert "and 36 more" in said
    ignored = [word for key in (*keys, "y" * 3000) for word in ("--ignore", key)]
    assert main(["import", str(folder), "--out", str(tmp_path / "run"), *ignored]) == 0


def test_an_architecture_is_named_by_option(folder, tmp_path, capsys):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2Odd"]}))
    assert main(["import", str(folder), "--out", str(tmp_path / "run")]) != 0
    assert "GPT2Odd" in capsys.readouterr().err
    option = ["--architecture", "GPT2LMHeadModel"]
    assert main(["import", str(folder), "--out", str(tmp_path / "run"), *option]) == 0


def test_text_of_unknown_tokens_is_warned_of_with_an_example(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "runner", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    word_pieces(tmp_path / "vocab.txt").save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    (tmp_path / "a.csv").write_text("text,label\n" + "the runner CCO xyz,a\nthe runners,b\n" * 10, encoding="utf-8")
    where = {"tokenizer": str(tmp_path / "tokenizer.json"), "cache": tmp_path / "cache"}
    # 20 of 70 in the train part or so: two of every seven
    with pytest.warns(UnknownTokens, match=r"a\.csv.*\(2\d\.\d%\) are unknown.*\[UNK\].*the runner \[UNK\]"):
        open_data(f"labelled:{tmp_path / 'a.csv'}", **where)
    with pytest.warns(UnknownTokens, match="1 of 2 tokens"):
        warn_of_unknown(tokenizer, tokenizer.encode_batch(["the zebra"]), "the prompt")
    with warnings.catch_warnings(action="error"):
        warn_of_unknown(tokenizer, tokenizer.encode_batch(["the runner " * 60 + "zebra"]), "the prompt")
        warn_of_unknown(Tokenizer.byte(), Tokenizer.byte().encode_batch(["\x03"]), "the prompt")
