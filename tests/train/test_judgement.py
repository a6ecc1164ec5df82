"""Figures about labels against their definitions, and from a file with labels to what `kin eval` says of it."""

import json
import warnings

import numpy as np
import pytest
import sklearn.metrics
import torch
from scipy.stats import rankdata, spearmanr

from kinfolk.cli.main import main
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import DataError
from kinfolk.data import Split, open_data
from kinfolk.data.splits.labels import with_classes
from kinfolk.models.model import Output
from kinfolk.objectives.measures.tallies import Confusion, Correlation, ranks
from kinfolk.objectives.supervised import Classify, ClassifyMany, Regress, SpanAnswer, Tag
from kinfolk.train.judgement import tally_of


class Fixed:
    """A head that says what it was told to."""

    def __init__(self, logits):
        self.logits = logits

    def answer(self, hidden, keep):
        return self.logits


def labelled(classes=()):
    split = Split()
    split.classes = tuple(classes)
    return split


def said(logits):
    return Output(torch.zeros(1), Fixed(logits), {}, {})


def batch(labels, **fields):
    n = torch.arange(len(labels))
    return Batch(index=n, tokens=n[:, None], labels=labels, **fields)


def told(labels, answers, n):
    """Tally answers in two batches."""
    tally = tally_of(Classify(), labelled([f"c{i}" for i in range(n)]))
    logits = torch.nn.functional.one_hot(answers, n).double()
    for some in (slice(0, 7), slice(7, None)):
        tally.add(said(logits[some]), batch(labels[some]))
    return tally


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_classes_by_their_definitions(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(n, (60,), generator=g)
    answers = torch.where(torch.rand(60, generator=g) < 0.6, labels, torch.randint(n, (60,), generator=g))
    tally = told(labels, answers, n)
    assert tally.counts_CC.sum() == 60
    assert all(tally.counts_CC[i, j] == ((labels == i) & (answers == j)).sum() for i in range(n) for j in range(n))
    assert tally.accuracy == pytest.approx(float((labels == answers).double().mean()))
    f1 = []
    for i in range(n):
        hit = int(((labels == i) & (answers == i)).sum())
        precision, recall = hit / max(1, int((answers == i).sum())), hit / max(1, int((labels == i).sum()))
        f1.append(2 * precision * recall / (precision + recall) if hit else 0.0)
    assert tally.f1 == pytest.approx(f1)
    assert tally.macro_f1 == pytest.approx(np.mean(f1))
    # the correlation of indicators, summed over classes
    a, b = (np.eye(n)[x.numpy()] for x in (labels, answers))
    a, b = a - a.mean(0), b - b.mean(0)
    assert tally.mcc == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def test_a_class_nobody_speaks_of_does_not_count():
    tally = told(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 0]), 3)
    assert tally.f1 == [pytest.approx(0.8), pytest.approx(2 / 3), None]
    assert tally.macro_f1 == pytest.approx((0.8 + 2 / 3) / 2)
    one_sided = told(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 1]), 2)
    assert (one_sided.mcc, one_sided.f1[0]) == (0.0, 0.0)
    assert one_sided.plain()["confusion"] == [[0, 1], [0, 2]]
    assert "MCC            0.0000" in one_sided.sentences()
    many = tally_of(Classify(), labelled([f"c{i}" for i in range(30)]))
    many.add(said(torch.eye(30)), batch(torch.arange(30)))
    assert many.sentences()[-1].startswith("lowest F1")


def test_tags_count_where_there_are_any():
    tally = tally_of(Tag(), labelled(["a", "b"]))
    targets = torch.tensor([[0, 1, IGNORE], [1, IGNORE, IGNORE]])
    logits = torch.tensor([[[1.0, 0], [0, 1], [0, 1]], [[1, 0], [1, 0], [0, 1]]])
    tally.add(said(logits), Batch(index=torch.arange(2), tokens=targets, targets=targets))
    assert tally.counts_CC.tolist() == [[1, 0], [1, 1]]


def test_classes_that_hold_together():
    tally = tally_of(ClassifyMany(), labelled(["a", "b", "c"]))
    holds = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0]])
    found = torch.tensor([[1, -1, -1], [-1, 1, -1], [1, 1, -1], [1, 1, -1]]).double()
    tally.add(said(found[:3]), batch(holds[:3]))
    tally.add(said(found[3:]), batch(holds[3:]))
    assert tally.counts_C3.tolist() == [[2, 1, 1], [2, 1, 0], [0, 0, 0]]
    assert tally.f1 == [pytest.approx(4 / 6), pytest.approx(4 / 5), None]
    assert tally.micro_f1 == pytest.approx(8 / 11)
    assert tally.macro_f1 == pytest.approx((4 / 6 + 4 / 5) / 2)


def test_the_correlation_is_that_of_all_at_once():
    g = np.random.default_rng(0)
    labels = 1e6 + g.normal(size=50)
    guesses = 0.5 * labels + 0.3 * g.normal(size=50)
    tally = tally_of(Regress(), labelled(()))
    for some in (slice(0, 1), slice(1, 20), slice(20, 50)):
        tally.add(said(torch.from_numpy(guesses[some])), batch(torch.from_numpy(labels[some])))
    assert tally.pearson == pytest.approx(np.corrcoef(guesses, labels)[0, 1], rel=1e-8)
    assert tally.values()["spearman"] == pytest.approx(spearmanr(guesses, labels).statistic)
    assert Correlation().pearson == Correlation().spearman == 0.0
    assert tally_of(SpanAnswer(), labelled(("a",))) is None


def test_ranks_share_ties():
    values = torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0])
    assert ranks(values).tolist() == rankdata(values.numpy()).tolist() == [4, 1, 4, 2, 4]
    tally = Correlation()
    tally.add(said(values), batch(torch.tensor([1.0, 1.0, 5.0, 2.0, 0.0])))
    assert tally.spearman == pytest.approx(spearmanr(values.numpy(), [1, 1, 5, 2, 0]).statistic)


def test_figures_are_those_of_scikit_learn():
    g = torch.Generator().manual_seed(1)
    labels, answers = torch.randint(4, (80,), generator=g), torch.randint(4, (80,), generator=g)
    answers = torch.where(torch.rand(80, generator=g) < 0.4, labels, answers)
    values = told(labels, answers, 4).values()
    assert values["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(labels, answers))
    assert values["macro-f1"] == pytest.approx(sklearn.metrics.f1_score(labels, answers, average="macro"))
    assert values["mcc"] == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, answers))
    holds, logits = torch.rand(50, 5, generator=g) < 0.3, torch.randn(50, 5, generator=g)
    tally = tally_of(ClassifyMany(), labelled(list("abcde")))
    tally.add(said(logits), batch(holds.float()))
    found, values = (logits > 0).numpy(), tally.values()
    assert values["micro-f1"] == pytest.approx(sklearn.metrics.f1_score(holds.numpy(), found, average="micro"))
    assert values["macro-f1"] == pytest.approx(sklearn.metrics.f1_score(holds.numpy(), found, average="macro"))
    assert values["exact-match"] == pytest.approx(sklearn.metrics.accuracy_score(holds.numpy(), found))


def rows(path, pairs):
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in pairs))
    return path


def test_from_a_file_with_labels_to_its_confusion(tmp_path, capsys):
    train = rows(
        tmp_path / "train.jsonl",
        [(f"it is {'good' if i % 3 else 'bad'} {i}", ["no", "yes", "yes"][i % 3]) for i in range(80)],
    )
    cache, out = ["--cache", str(tmp_path / "cache")], str(tmp_path / "run")
    fixed = ("d_model=16", "n_layers=1", "n_heads=2", "d_ff=16", "training.precision=fp32", "training.compile=off")
    small = [x for pair in fixed for x in ("--set", pair)]
    quick = ["--steps", "3", "--quiet", "--no-tensorboard", "--threads", "1", "--out", out]
    assert main(["train", "bert", "--data", f"labelled:{train}", *cache, *small, *quick, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["valid"]) == ["class", "accuracy"]
    assert main(["eval", out, "--split", "all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measures"]["accuracy"]["mean"] == pytest.approx(found["judgement"]["accuracy"])
    assert found["measures"]["accuracy"]["perplexity"] is None
    assert [row["name"] for row in found["judgement"]["classes"]] == ["no", "yes"]
    assert sum(row["labels"] for row in found["judgement"]["classes"]) == 80
    # in a file of one class it keeps the number that the model knows
    other = rows(tmp_path / "yes.jsonl", [(f"it is good {i}", "yes") for i in range(20)])
    assert main(["eval", out, "--data", f"labelled:{other}", *cache, "--split", "all", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["judgement"]
    assert [row["labels"] for row in alone["classes"]] == [0, 20]
    strange = rows(tmp_path / "odd.jsonl", [(f"it is odd {i}", "perhaps") for i in range(20)])
    assert main(["eval", out, "--data", f"labelled:{strange}", *cache]) != 0
    assert "has the class 'perhaps', which the model does not know" in capsys.readouterr().err
    assert main(["eval", out]) == 0
    assert "label \\ answer" in capsys.readouterr().out


def test_classes_of_tasks_are_as_they_are():
    data = open_data("parity")
    assert with_classes(data, ("even", "odd")) is data
    with pytest.raises(DataError, match="its classes are even, odd"):
        with_classes(data, ("odd", "even"))
    with pytest.raises(DataError, match="'even', which the model does not know"):
        with_classes(data, ("a", "b"))
    assert isinstance(tally_of(Classify(), labelled(("a", "b"))), Confusion)


def test_what_is_cut_is_said(tmp_path, capsys):
    data = rows(tmp_path / "long.jsonl", [("x" * (10 + i), "no" if i % 2 else "yes") for i in range(30)])
    fixed = ("d_model=16", "n_layers=1", "n_heads=2", "d_ff=16", "training.length=24", "training.precision=fp32")
    small = [x for pair in (*fixed, "training.compile=off") for x in ("--set", pair)]
    quick = ["--steps", "1", "--quiet", "--no-tensorboard", "--threads", "1", "--out", str(tmp_path / "run")]
    cache = ["--cache", str(tmp_path / "cache")]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["train", "bert", "--data", f"labelled:{data}", *cache, *small, *quick]) == 0
    # of texts of 10 to 39 letters and an end, those of 24 and more
    part = {"train": 0, "valid": 0}
    for name in part:
        split = open_data(f"labelled:{data}", cache=tmp_path / "cache").split(name)
        part[name] = sum(int(n) >= 24 for n in split.lengths(np.arange(len(split))))
    said = capsys.readouterr().err
    assert sum(part.values()) == 16
    n = len(open_data(f"labelled:{data}", cache=tmp_path / "cache").split("train"))
    assert f"{part['train']} of {n} examples of the train part are longer than 24 tokens and lose their end" in said
