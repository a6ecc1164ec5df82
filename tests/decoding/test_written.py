"""What is written for pairs and how it is judged: spelling, ROUGE-L, BLEU, means of checkpoints."""

import functools
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.errors import CheckpointError, DataError, SpecError
from kinfolk.data import Batches, open_data
from kinfolk.data.tokenizers.tokenizer import Tokenizer
from kinfolk.decoding.rouge import longest_common, rouge_l, words
from kinfolk.decoding.spelling import Spelling
from kinfolk.decoding.written import WrittenTargets, targets_of, write
from kinfolk.runs.average import averaged
from kinfolk.runs.run import Run

TASK = "copy:length=5,symbols=4,examples=64,valid=20"


@functools.cache
def plainly(a, b):
    """The length of the longest common subsequence, by its definition."""
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return 1 + plainly(a[:-1], b[:-1])
    return max(plainly(a[:-1], b), plainly(a, b[:-1]))


@pytest.mark.parametrize("seed", range(30))
def test_the_longest_common_subsequence(seed):
    draw = random.Random(seed)
    a, b = ("".join(draw.choices("abc", k=draw.randint(0, 12))) for _ in range(2))
    assert longest_common(a, b) == plainly(a, b) == longest_common(b, a)


def test_rouge_by_hand():
    """The example of Lin 2004, section 3.1, where order counts."""
    reference = "police killed the gunman"
    assert rouge_l("police kill the gunman", reference) == pytest.approx(3 / 4)
    assert rouge_l("the gunman kill police", reference) == pytest.approx(2 / 4)
    assert rouge_l("Police, killed THE gunman!", reference) == 1.0
    assert rouge_l("nothing else", reference) == 0.0
    assert rouge_l("", "") == 0.0
    # precision 2/2, recall 2/4
    assert rouge_l("police gunman", reference) == pytest.approx(2 * 1.0 * 0.5 / 1.5)
    assert words("Don't stop_it: 3.5") == ["don", "t", "stop", "it", "3", "5"]


def test_bleu_is_sacrebleus():
    sacrebleu = pytest.importorskip("sacrebleu", reason="BLEU needs kinfolk[translate]")
    texts = ("the cat is on the mat", "there is a dog", "it rains")
    references = ("the cat sat on the mat", "there is a big dog", "it rains today")
    found = WrittenTargets(texts, references).scores(("bleu", "exact", "rouge"))
    assert found["bleu"]["BLEU"] == pytest.approx(sacrebleu.corpus_bleu(list(texts), [list(references)]).score)
    assert found["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert "tok:none" in found["bleu"]["tokenised signature"]
    assert WrittenTargets(references, references).bleu()["BLEU"] == pytest.approx(100)
    assert found["exact"] == {"exact": 0.0}
    assert found["rouge"]["ROUGE-L"] == pytest.approx(100 * sum(map(rouge_l, texts, references)) / 3)
    with pytest.raises(SpecError, match="did you mean 'bleu'"):
        WrittenTargets(texts, references).scores(("blue",))


def test_sentinels_are_written_as_numbers():
    spelling = Spelling(Tokenizer.byte(), 100)
    ids = spelling.encode("a<0>b<99><100><x>")
    assert ids[:3] == [7 + ord("a"), 263 + 99, 7 + ord("b")]
    assert ids[3] == 263
    assert spelling.decode(ids) == "a<0>b<99><100><x>"
    assert Spelling(Tokenizer.byte()).encode("<0>") == Tokenizer.byte().encode("<0>")


def learner(name, steps=0):
    data = open_data(TASK)
    recipe = kf.relative(name, size="tiny", d_model=32, n_heads=2, d_ff=64, vocab_size=data.tokenizer.vocab_size)
    return kf.build(recipe, seed=1), data


@pytest.mark.parametrize("name", ["vanilla", "transformer-d"])
def test_any_causal_topology_writes_targets(name):
    """The same text for a source alone and in company, and nothing of the source in it."""
    model, data = learner(name)
    batches = Batches(split=data.split("valid"), batch_size=7, shuffle=False, length=16)
    made = write(model, batches, 10)
    assert len(made.texts) == len(made.references) == 10
    sources = [[8, 9, 10, 2], [9, 2]]
    together = targets_of(model, sources, data.tokenizer)
    for row, text in zip(sources, together, strict=True):
        alone = targets_of(model, [row], data.tokenizer)[0]
        # a text that does not end may be longer in the company of a longer source
        assert alone == text[: len(alone)]
        assert len(alone) > 3
    source, target = data.split("valid").pairs(torch.arange(1).numpy())[0]
    assert made.references[0] == data.tokenizer.decode(target) == data.tokenizer.decode(source)
    with pytest.raises(DataError, match="pairs of a source and a target"):
        write(
            model, Batches(split=open_data("stdlib:megabytes=1").split("valid"), batch_size=2, length=8, shuffle=False)
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "copy"
    sets = ["training.save_every=2", "training.keep_last=3", "training.eval_every=4", "training.eval_batches=1"]
    sets += ["d_model=32", "n_heads=2", "d_ff=64", "training.batch_size=4", "training.length=8"]
    words = ["train", "vanilla", "--data", TASK, "--steps", "8", "--out", str(out), "--quiet", "--no-tensorboard"]
    assert main([*words, "--bleu-samples", "5", *(w for s in sets for w in ("--set", s))]) == 0
    return out


def test_bleu_during_training(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    valid = [row["valid"] for row in rows if "valid" in row]
    assert len(valid) == 2
    assert all(0 <= scores["bleu"] <= 100 for scores in valid)
    assert next(iter(valid[0])) == "target-token"


def test_the_mean_of_checkpoints(run):
    kept = sorted((run / "checkpoints").glob("step-*"))
    weights = [load_file(path / "model.safetensors") for path in kept]
    assert [path.name for path in kept] == ["step-000004", "step-000006", "step-000008"]
    found = averaged(run, 3)
    for name, x in found.items():
        torch.testing.assert_close(x, sum(w[name].double() for w in weights).float() / 3)
    assert any(not torch.equal(x, weights[-1][name]) for name, x in found.items())
    model = Run.open(run).learner(average=2).model
    name = "embedding.table.weight"
    newest = (weights[1][name].double() + weights[2][name].double()) / 2
    assert torch.equal(model.state_dict()[name], newest.float())
    assert not torch.equal(model.state_dict()[name], found[name])
    with pytest.raises(CheckpointError, match="3 checkpoints are kept, so the mean of 5"):
        averaged(run, 5)


def test_eval_prints_what_was_asked(run, capsys):
    assert main(["eval", str(run), "--bleu", "--exact", "--rouge", "--bleu-samples", "6", "--average", "2"]) == 0
    said = capsys.readouterr().out
    for name in ("target-token", "BLEU", "signature", "tok:13a", "exact", "ROUGE-L", "training FLOPs"):
        assert name in said
    assert main(["eval", str(run), "--exact", "--written", "6", "--beams", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["written"]["pairs"] == 6
    assert "BLEU" not in found["written"]


def test_a_prompt_of_pairs_ends_as_their_sources_do(run, capsys):
    """The source of a pair has its end; a prompt without it would be another source."""
    assert main(["generate", str(run), "--prompt", "ab", "--greedy", "--json", "--max-new", "6"]) == 0
    ids = json.loads(capsys.readouterr().out)["ids"]
    model, tokenizer = Run.open(run).learner().model, Tokenizer.load(Path(run) / "tokenizer.json")
    source = [*tokenizer.encode("ab"), tokenizer.eos]
    assert ids == kf.generate(model, source, max_new=6, greedy=True, stop=(tokenizer.eos,))
