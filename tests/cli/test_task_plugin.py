"""The task and the metrics that CONTRIBUTING.md adds in one file: ordinal regression, through the ordinary verbs."""

import json
import re
from pathlib import Path

import pytest
import sklearn.metrics

from tests import forked

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
WORDS = ("awful", "poor", "fair", "good", "great")
SMALL = [word for size in ("n_layers=1", "d_model=16", "n_heads=2", "d_ff=16") for word in ("--set", size)]
DATA = "labelled:task=ordinal,label=stars:reviews.csv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("ordinal")
    shown = re.search(r"^```python\n# ordinal\.py\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE)
    (place / "ordinal.py").write_text(shown[1])
    rows = [f"a {WORDS[i % 5]} thing number {i},{1 + i % 5}" for i in range(100)]
    (place / "reviews.csv").write_text("\n".join(["text,stars", *rows]) + "\n")
    return place


def kin(folder, *argv, plugin=True):
    named = ["--plugin", "ordinal.py"] if plugin else []
    return forked.kin(folder, *argv, *named, KINFOLK_CACHE=str(folder / "cache"))


@pytest.fixture(scope="module")
def run(folder):
    fast = ["--set", "training.optimiser.lr=0.003", "--set", "training.batch_size=16"]
    quiet = ["--steps", 100, "--tokenizer", "word", "--quiet", "--no-tensorboard", "--json"]
    done = kin(folder, "train", "bert", "--data", DATA, "--out", "run", *SMALL, *fast, *quiet)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_it_trains_with_its_own_head_and_metric(folder, run):
    assert list(run["valid"]) == ["rank-error"]
    assert run["valid"]["rank-error"] < 1.0
    spec = (folder / "run" / "spec.toml").read_text()
    assert 'kind = "thresholds"' in spec
    # five classes have four thresholds between them
    assert "n_classes = 4" in spec


@pytest.mark.slow
def test_it_is_evaluated_and_predicts(folder, run):
    done = kin(folder, "eval", "run", "--data", "reviews.csv", "--json", "--report", "report.txt")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert scores["split"] == "all"
    said = kin(folder, "predict", "run", "--input", "reviews.csv", "--out", "answers.jsonl")
    assert said.returncode == 0, said.stderr
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    labels, guesses = [1 + i % 5 for i in range(100)], [int(answer["label"]) for answer in answers]
    assert len(answers[0]["above"]) == 4
    # what evaluation says is what the answers of prediction give, by another's hand
    error = sum(abs(a - b) for a, b in zip(labels, guesses, strict=True)) / 100
    assert scores["measures"]["rank-error"] == {"mean": pytest.approx(error), "perplexity": None, "count": 100}
    kappa = sklearn.metrics.cohen_kappa_score(labels, guesses, weights="quadratic")
    assert scores["judgement"]["kappa"] == pytest.approx(kappa)
    assert scores["judgement"]["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(labels, guesses))
    report = (folder / "report.txt").read_text()
    assert re.search(rf"^kappa +{kappa:.4f}$", report, re.MULTILINE)
    assert "The worst examples" in report


@pytest.mark.slow
def test_it_is_tuned_and_compared(folder, run):
    quiet = ["--epochs", 1, "--json", "--no-tensorboard"]
    tuned = kin(
        folder, "finetune", "run", "--task", "ordinal", "--train", "reviews.csv", "--label-column", "stars",
        "--out", "tuned", *quiet,
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    result = json.loads(tuned.stdout)
    assert (result["task"], next(iter(result["valid"]))) == ("ordinal", "kappa")
    budget = ["--budget", "2k-tokens", "--seeds", 1, "--tune", "off", "--out", "study", "--json"]
    study = kin(folder, "compare", "bert", "gpt2", "--data", DATA, *budget, *SMALL)
    assert study.returncode == 0, study.stderr
    measures = re.findall(r'"measure": "([a-z-]+)"', study.stdout)
    assert set(measures) == {"rank-error"}


@pytest.mark.slow
def test_without_the_plugin_the_task_is_unknown(folder):
    done = kin(folder, "train", "bert", "--data", DATA, "--out", "other", *SMALL, plugin=False)
    assert done.returncode == 2
    assert "task: unknown 'ordinal'" in done.stderr
