"""Treebanks: what a file says reaches the batch, and what is wrong with it is named with its line."""

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import kinfolk as kf
from kinfolk.core.annotations import Parse
from kinfolk.core.errors import DataError
from kinfolk.data import Batches, open_data
from kinfolk.data.files.treebank import ParsedSentence, read_treebank
from kinfolk.train import RunOptions, resume, train
from kinfolk.train.parallel import Team
from tests.train.toy import same_run

GOOD = """\
# sent_id = 1
# text = The cat sat
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tcat\tcat\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsat\tsit\tVERB\t_\t_\t0\troot\t_\t_

# text = vámonos
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
1.1\tnada\t_\t_\t_\t_\t_\t_\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
"""


def word(number: object, form: str = "a", head: object = 0, tag: str = "X") -> str:
    return f"{number}\t{form}\t_\t{tag}\t_\t_\t{head}\t_\t_\t_\n"


def wrote(folder: Path, text: str, name: str = "t.conllu") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def many(n: int = 30) -> str:
    sentences = []
    for i in range(n):
        words = [word(j + 1, f"w{i}.{j}", j, "ABCD"[j % 4]) for j in range(1 + i % 6)]
        sentences.append("".join(words))
    return "\n".join(sentences)


@pytest.mark.parametrize("ending", ["", "\n", "\n\n\n"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_sentences_are_what_the_file_says(tmp_path: Path, ending: str, newline: str) -> None:
    path = tmp_path / "t.conllu"
    path.write_bytes((GOOD + ending).replace("\n", newline).encode())
    assert read_treebank(path) == [
        ParsedSentence(("The", "cat", "sat"), (1, 2, -1), ("DET", "NOUN", "VERB"), relations=("det", "nsubj", "root")),
        ParsedSentence(("vamos", "nos"), (-1, 0), ("VERB", "PRON"), relations=("root", "obj")),
    ]


def test_compressed_and_marked_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "T.CoNLLU.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + GOOD.encode()))
    assert len(read_treebank(path)) == 2
    assert open_data(path).kind == "pairs"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (word(1) + "1\ta b\n", 2, "10 columns with tabs between them, this line has 2"),
        (word(1) + word(3), 2, "expected 2, found '3'"),
        (word("one"), 1, "expected 1, found 'one'"),
        (word(1, head=2), 1, "the head of 'a' should be a word from 1 to 1, or 0 for a root, found '2'"),
        (word(1, head="_"), 1, "found '_'"),
        (word(1, head="-1"), 1, "found '-1'"),
        (word(1, head=1), 1, "the heads of word 1 go round in a circle"),
        ("\n" + word(1) + word(2, head=3) + word(3, head=2), 3, "the heads of word 2 go round"),
        (word(1, form=""), 1, "a word without a form"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    path = wrote(tmp_path, text)
    with pytest.raises(DataError) as error:
        open_data(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert what in str(error.value)


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "t.conllu"
    path.write_bytes(word(1).encode() + b"2\t\xff\n")
    with pytest.raises(DataError, match=r"t\.conllu:2: "):
        read_treebank(path)
    broken = tmp_path / "b.conllu.gz"
    broken.write_bytes(gzip.compress(many(500).encode())[:-200])
    with pytest.raises(DataError, match=r"b\.conllu\.gz:\d+: broken gzip"):
        read_treebank(broken)
    for text in ("", "\n\n# nothing\n"):
        with pytest.raises(DataError, match="holds no sentence"):
            read_treebank(wrote(tmp_path, text))


def test_batches_carry_parses(tmp_path: Path) -> None:
    data = open_data(wrote(tmp_path, many()))
    split: Any = data.split("train")
    assert len(split) + len(data.split("valid")) == 30
    batch = Batches(split, batch_size=len(split), shuffle=False).at(0)
    parse = batch.annotation(Parse)
    assert parse is not None
    assert batch.source is not None
    assert batch.source_keep is not None
    assert parse.words_BL.shape == batch.source.shape
    for row in range(len(batch)):
        keep = batch.source_keep[row]
        text = data.tokenizer.decode(batch.source[row][keep].numpy())
        words = text.split(" ")
        # a chain from the left, whose end has no word
        assert parse.heads_BW[row].tolist()[: len(words)] == list(range(-1, len(words) - 1))
        pieces = ["" for _ in words]
        for token, at in zip(batch.source[row][keep].tolist(), parse.words_BL[row][keep].tolist(), strict=True):
            if at >= 0:
                pieces[at] += data.tokenizer.decode([token])
            else:
                assert token == data.tokenizer.eos
        assert [piece.strip() for piece in pieces] == words
        tags = data.tokenizer.decode(batch.tokens[row][batch.keep[row]].numpy())  # type: ignore[index]
        assert tags == " ".join("ABCD"[j % 4] for j in range(len(words)))
        assert (parse.words_BL[row][~keep] == -1).all()


def test_what_is_cut_off_keeps_its_place_in_the_tree(tmp_path: Path) -> None:
    text = word(1, "aaa", 2) + word(2, "bbb", 0) + "\n" + word(1, "c", 0) + "\n" + word(1, "d", 0)
    data = open_data(wrote(tmp_path, text))
    rows = []
    for name in ("train", "valid"):
        batches = Batches(data.split(name), batch_size=3, shuffle=False, length=3)
        rows += [batches.at(0).rows(slice(i, i + 1)) for i in range(len(batches.at(0)))]
    parses = [row.annotation(Parse) for row in rows]
    (parse,) = (p for p in parses if p is not None and p.heads_BW[0].tolist()[:2] == [1, -1])
    assert parse.words_BL.tolist() == [[0, 0, 0]]


def test_translations_are_targets_where_all_sentences_have_one(tmp_path: Path) -> None:
    both = "# text_en = one\n" + word(1) + "\n# text_en = two\n" + word(1)
    data = open_data(wrote(tmp_path, both))
    texts = {data.tokenizer.decode(s.pairs([0])[0][1]) for s in data.splits.values()}  # type: ignore[attr-defined]
    assert texts == {"one", "two"}
    data = open_data(wrote(tmp_path, both + "\n" + word(1, tag="NOUN")))
    split: Any = data.split("train")
    assert {data.tokenizer.decode(t) for _, t in split.pairs(range(len(split)))} <= {"X", "NOUN"}


def test_the_fingerprint_is_the_content(tmp_path: Path) -> None:
    one = open_data(wrote(tmp_path, many()))
    same = open_data(wrote(tmp_path, many(), "other.conllu"))
    assert one.fingerprint == same.fingerprint
    for other in (many(29), many().replace("\t1\t", "\t0\t", 1)):
        assert open_data(wrote(tmp_path, other)).fingerprint != one.fingerprint
    words = open_data(wrote(tmp_path, many()), tokenizer="word", vocab=64)
    assert words.tokenizer.kind == "word"
    assert words.fingerprint != one.fingerprint
    assert open_data(wrote(tmp_path, many()), seed=1).fingerprint != one.fingerprint


def test_a_parse_reaches_the_loss(tmp_path: Path) -> None:
    from kinfolk.train.run import make_job

    # all words below the last
    flat = "\n".join("".join(word(j + 1, f"w{j}", 0 if j == 4 else 5) for j in range(5)) for _ in range(9))
    data = open_data(wrote(tmp_path, flat))
    small: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 64, "vocab_size": 263}
    recipe = kf.relative("syntax", size="tiny", **small, **{"training.batch_size": 4, "training.length": 64})
    job = make_job(recipe, data, 0)
    batch, _ = job.read(1, Team())
    parse = batch.annotation(Parse)
    assert parse is not None
    assert parse.heads_BW.tolist() == [[4, 4, 4, 4, -1]] * 4
    parsed, chain = (job.learner.eval()(b).total for b in (batch, batch.without(Parse)))
    assert not torch.isclose(parsed, chain, rtol=1e-7)


def test_a_run_on_a_treebank_resumes_to_the_bit(tmp_path: Path) -> None:
    path = wrote(tmp_path, many())
    small: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 64, "vocab_size": 263}
    changes = {"batch_size": 4, "length": 64, "steps": 4, "save_every": 2, "eval_batches": 1, "precision": "fp32"}
    recipe = kf.relative("syntax", size="tiny", **small, **{f"training.{k}": v for k, v in changes.items()})
    options = RunOptions(quiet=True, tensorboard=False, threads=1)
    results = [train(recipe, open_data(path), tmp_path / name, options=options) for name in ("a", "b")]
    shutil.rmtree(tmp_path / "b/checkpoints/step-000004")
    (tmp_path / "b/result.json").unlink()
    assert resume(tmp_path / "b", options=options).valid == results[0].valid
    assert same_run(tmp_path / "a", tmp_path / "b")
