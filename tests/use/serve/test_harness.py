"""A real run of lm-evaluation-harness: against a server as it is, and in the same process, with equal scores."""

import json
import logging

import pytest

from kinfolk.cli import main
from tests.use.serve.conftest import make_run

lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
pytestmark = [
    # the harness and what it loads have their own
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,
]

ROWS = [
    {"question": "a rose is", "choices": ["red", "a stone", "b"], "answer": 0, "text": "a rose is a rose"},
    {"question": "the sky is", "choices": ["made of wood", "blue"], "answer": 1, "text": "blue sky, naïve"},
    {"question": "", "choices": ["x", "yy", "zzz"], "answer": 2, "text": "z" * 40},
    {"question": "one and one ", "choices": ["two", "four"], "answer": 0, "text": "1 + 1 = 2"},
]
CHOICE = """\
task: colours
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: " "
metric_list:
  - metric: acc
  - metric: acc_norm
"""
ROLLING = """\
task: texts
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: bits_per_byte
  - metric: word_perplexity
"""
WRITING = """\
task: writing
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{question}}}}"
generation_kwargs:
  until: ["e", "\\n"]
  max_gen_toks: 12
metric_list:
  - metric: exact_match
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "rows.json").write_text("\n".join(map(json.dumps, ROWS)))
    for name, text in (("colours", CHOICE), ("texts", ROLLING), ("writing", WRITING)):
        (folder / f"{name}.yaml").write_text(text.format(file=folder / "rows.json"))
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "TQDM_DISABLE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    logging.getLogger("lm_eval").setLevel("ERROR")


def samples(found):
    """Every answer of a model, in the order of the rows."""
    return {
        name: [one["resps"] for one in sorted(rows, key=lambda one: one["doc_id"])]
        for name, rows in found["samples"].items()
    }


def numbers(rows):
    """Every score of every choice, and whether it is the likeliest text."""
    return [[float(x) for choice in row for one in choice for x in one] for row in rows]


def test_scores_in_process_equal_those_through_a_server(server, tasks):
    from lm_eval.tasks import TaskManager

    from kinfolk.use.serve.harness import KinfolkLM

    names = ["colours", "texts", "writing"]
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    how = {"tasks": names, "task_manager": manager, "bootstrap_iters": 0}
    # as anybody would call it; the server tells its tokenizer
    there = {"model": "gpt2", "base_url": f"{server.url}/v1/completions", "max_length": 1024, "num_concurrent": 2}
    far = lm_eval.simple_evaluate(model="local-completions", model_args=there, **how)
    near = lm_eval.simple_evaluate(model=KinfolkLM(server.served["gpt2"], rows=3), **how)
    assert near["results"].keys() == set(names)
    for name in names:
        measured = {k: v for k, v in near["results"][name].items() if isinstance(v, float)}
        assert measured
        for key, value in measured.items():
            assert far["results"][name][key] == pytest.approx(value, rel=1e-5), (name, key)
    a, b = samples(near), samples(far)
    assert a["writing"] == b["writing"]
    assert all(text and "e" not in text for ((text,),) in a["writing"])
    for x, y in zip(numbers(a["colours"]), numbers(b["colours"]), strict=True):
        assert x == pytest.approx(y, rel=1e-5)


def test_kin_eval_scores_local_tasks(gpt2, tasks, capsys):
    assert (
        main.main(["eval", str(gpt2), "--tasks", str(tasks / "colours.yaml"), str(tasks / "texts.yaml"), "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["tasks"]["colours"]["acc"] <= 1
    assert found["tasks"]["texts"]["bits_per_byte"] > 0
    assert main.main(["eval", str(gpt2), "--tasks", str(tasks / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


MARK = "executed"
PYTHON = f"from pathlib import Path\nPath({MARK!r}).touch()\ndef of(*args, **kwargs):\n    return args[0]\n"
ESCAPE = "{{{{ cycler.__init__.__globals__.os.system('touch " + MARK + "') }}}}"
HOSTILE = {
    "function": CHOICE + "process_docs: !function evil.of\n",
    "in an include": "include: part.yaml\n" + CHOICE,
    "a tag of python": CHOICE + "x: !!python/object/apply:os.system ['touch " + MARK + "']\n",
    "class": CHOICE + "class: !function evil.of\n",
    "metric from a script": CHOICE.replace("acc_norm", "./evil.py"),
    "metric of evaluate": CHOICE + "    hf_evaluate: true\n",
    "pickle": CHOICE.replace("dataset_path: json", "dataset_path: pandas"),
    "template": CHOICE.replace('"{{{{question}}}}"', '"' + ESCAPE + '"'),
    "group": "group: all\ntask: [colours]\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_task_file_runs_nothing(gpt2, tasks, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(PYTHON)
    (tmp_path / "part.yaml").write_text("process_docs: !function evil.of\n")
    (tmp_path / "task.yaml").write_text(HOSTILE[name].format(file=tasks / "rows.json"))
    code = main.main(["eval", str(gpt2), "--tasks", "task.yaml"])
    said = capsys.readouterr().err
    assert not list(tmp_path.rglob(MARK))
    assert code == 2, said
    assert ".yaml" in said
    assert ("a template cannot be filled" if name == "template" else "--trust-tasks") in said


def test_code_of_a_task_runs_when_it_is_asked_for(gpt2, tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(PYTHON)
    (tmp_path / "task.yaml").write_text(HOSTILE["function"].format(file=tasks / "rows.json"))
    assert main.main(["eval", str(gpt2), "--tasks", "task.yaml", "--trust-tasks"]) == 0, capsys.readouterr().err
    assert (tmp_path / MARK).exists()


def test_an_encoder_decoder_is_scored_by_its_target(tmp_path, tasks):
    from kinfolk.use.serve.harness import run_tasks

    run = make_run(tmp_path / "vanilla", "vanilla")
    found = run_tasks(run, [tasks / "colours.yaml", tasks / "writing.yaml"])
    assert 0 <= found["colours"]["acc"] <= 1
    assert found["writing"]["exact_match"] == 0
