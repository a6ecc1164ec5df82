"""Reports: the worst examples are the worst, figures are those of the tally, and pages hold what was said as text."""

import html
import json

import pytest
import torch

from kinfolk.cli.main import main
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.data import Split
from kinfolk.objectives.supervised import Classify, ClassifyMany, Regress, SpanAnswer, Tag
from kinfolk.objectives.tasks.task import Example
from kinfolk.train.judgement import tally_of
from kinfolk.use.predict.page import as_page
from kinfolk.use.predict.report import as_text, make_report
from kinfolk.use.predict.worst import Keeping
from tests.train.test_judgement import labelled, said
from tests.use.predict import made


def batch(labels, **fields):
    n = torch.arange(len(labels))
    return Batch(index=n, tokens=n[:, None], labels=labels, **fields)


class Words(Split):
    """Texts that are their own numbers."""

    classes = ("no", "yes")

    class tokenizer:  # noqa: N801 - stands for an object
        @staticmethod
        def decode(ids):
            return f"text {int(ids)}"

    def examples(self, indices):
        return [(i, None) for i in indices]


def test_losses_add_up_to_those_that_are_learnt():
    g = torch.Generator().manual_seed(0)
    n, c = 5, 3
    logits, targets = torch.randn(n, 4, c, generator=g).double(), torch.randint(c, (n, 4), generator=g)
    targets[:, 2] = IGNORE
    tagged = Tag().example_losses(logits, Batch(index=torch.arange(n), tokens=targets, targets=targets))
    each = torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none", ignore_index=IGNORE)
    torch.testing.assert_close(tagged, each.sum(1) / 3)
    flat, labels = logits[:, 0], targets[:, 0]
    cases = [
        (Classify(), flat, labels),
        (ClassifyMany(), flat, torch.rand(n, c, generator=g).round()),
        (Regress(), flat[:, 0], torch.randn(n, generator=g)),
        (SpanAnswer(), logits[..., :2], torch.randint(4, (n, 2), generator=g)),
    ]
    for objective, scores, given in cases:
        found = objective.example_losses(scores, batch(given))
        assert found.shape == (n,)
        total = objective.loss(output(scores), batch(given)).total
        assert float(found.sum()) == pytest.approx(float(total))


def output(logits):
    made_up = said(logits)
    made_up.hidden = torch.zeros(1)
    return made_up


def test_the_worst_are_kept_in_order():
    keeping = Keeping(tally_of(Classify(), labelled(["no", "yes"])), Classify(), 3)
    keeping.split = Words()
    margins = torch.tensor([1.0, -3.0, 2.0, -1.0, -2.0, 5.0])
    logits = torch.stack([torch.zeros(6), margins], 1)
    for start in (0, 2, 4):
        some = batch(torch.ones(2, dtype=torch.long)).replace(index=torch.arange(start, start + 2))
        keeping.add(said(logits[start : start + 2]), some)
    worst = keeping.worst()
    assert [example.text for example in worst] == ["text 1", "text 4", "text 3"]
    assert [example.loss for example in worst] == sorted((x.loss for x in worst), reverse=True)
    assert (worst[0].label, worst[0].answer) == ("yes", "no (0.95)")
    assert keeping.inner.accuracy == 0.5


def test_a_page_shows_text_as_text():
    tally = tally_of(Classify(), labelled(["<b>", "a&b"]))
    tally.add(said(torch.eye(2)[[0, 1, 1]]), batch(torch.tensor([0, 1, 0])))
    nasty = Example("<script>alert(1)</script>", "<b>", "a&b (0.73)", 1.5, "x < y")
    report = make_report("run", {"data": "d"}, {"class": 0.5}, tally, [nasty], ["cut 3"])
    page, text = as_page(report), as_text(report)
    assert "<script>" not in page
    assert html.escape(nasty.text) in page
    assert "src=" not in page
    assert page.replace('href="data:,"', "").count("href=") == 0
    assert "background: color-mix" in page
    for wanted in ("accuracy", "0.6667", "cut 3", "The worst examples"):
        assert wanted in page
        assert wanted in text
    assert "| <script>alert(1)</script>" in text
    row = next(line for line in text.splitlines() if line.startswith("a&b"))
    assert row.split() == ["a&b", "1", "2", "1", "0.5000", "1.0000", "0.6667"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


CASES = {
    "class": (made.reviews, "labelled:"),
    "number": (lambda path: made.reviews(path, label=lambda i: i / 10), "labelled:labels=number:"),
    "classes": (lambda path: made.reviews(path, label=lambda i: ["a", "b"][: i % 3]), "labelled:labels=classes:"),
    "tags": (made.entities, "labelled:"),
    "span": (lambda path: made.questions(path, impossible=True), "labelled:window=64,stride=20:"),
}
NAMES = {"class": "c.jsonl", "number": "n.jsonl", "classes": "m.jsonl", "tags": "t.conll", "span": "q.json"}
HOLDS = {"class": "perhaps", "number": "<circle", "classes": "micro-f1", "tags": "entity-f1", "span": "without answer"}


@pytest.mark.parametrize("task", CASES)
def test_from_a_run_to_a_page(folder, task, capsys):
    write, prefix = CASES[task]
    path = write(folder / NAMES[task])
    run = made.train(folder / task, f"{prefix}{path}")
    capsys.readouterr()
    page = folder / f"{task}.html"
    common = ["eval", str(run), "--data", f"labelled:{path}", "--cache", str(folder / "cache")]
    assert main([*common, "--report", str(page), "--worst", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = page.read_text()
    assert HOLDS[task] in text
    assert text.count('class="example"') == 4
    assert f"{next(iter(found['measures'].values()))['mean']:.4f}" in text
    assert main([*common, "--report", str(page.with_suffix(".txt"))]) == 0
    assert "The worst examples" in page.with_suffix(".txt").read_text()
    assert main([*common, "--report", "x.pdf"]) == 2
    assert "should end with .html or .txt" in capsys.readouterr().err
