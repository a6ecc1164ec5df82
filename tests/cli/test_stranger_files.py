"""Data, tokenizers, comparisons and tables of somebody else: no verb that reads them executes anything in them."""

import argparse
import io
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from kinfolk.cli.main import VERBS, main, parser_of
from kinfolk.contests import trials
from kinfolk.contests.acting import environment
from kinfolk.contests.acting.study import ActingStudy
from kinfolk.contests.acting.study import run as run_study
from kinfolk.contests.fleet.queue import Queue, Ticket
from kinfolk.contests.settings import Settings
from kinfolk.contests.trial import Trial
from kinfolk.contests.trial import run as run_trial
from kinfolk.core.console import Console
from tests.cli.test_stranger import EVIL, MARK, honest  # noqa: F401 - a fixture
from tests.contests.acting.toy import toy
from tests.contests.test_run import Machine
from tests.data.test_tokenizer_choice import files as tokenizer_files

MODULES = ("evil", "json", "torch", "numpy", "kinfolk", "tokenizers", "sitecustomize", "conftest", "__init__", "setup")
SETS = ["d_model=16", "n_layers=1", "n_heads=2", "d_ff=16", "max_len=64", "training.length=16", "training.batch_size=2"]
SMALL = [word for one in SETS for word in ("--set", one)]
SHORT = ["--budget", "1k-tokens", "--tune", "off", "--match", "none", "--seeds", "2"]


class Payload:
    """Touches a file where it is unpickled."""

    def __reduce__(self):
        return os.system, (f"touch {MARK}",)


def packed(kind: str) -> bytes:
    """Return bytes that execute something where they are read by pickle, or by numpy with pickles allowed."""
    if kind == "pickle":
        return pickle.dumps(Payload())
    out = io.BytesIO()
    np.save(out, np.array([Payload()], dtype=object), allow_pickle=True)
    return out.getvalue()


def trapped(folder: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put traps into every folder and be in it; with another change than "beside", replace every file too."""
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        if change != "beside":
            file.write_bytes(packed(change))
    # a file of any name is a ticket in the folders of a queue, and refused
    places = [path for path in folder.rglob("*") if path.is_dir() and "queue" not in path.relative_to(folder).parts]
    for place in [folder, *places]:
        for name in MODULES:
            (place / f"{name}.py").write_text(EVIL)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("KINFOLK_CACHE", str(folder.parent / "cache"))
    return folder


def assert_harmless(root: Path) -> None:
    assert not list(root.rglob(MARK))


CHANGES = ("beside", "pickle", "array")
CODES = (0, 1, 2, 3)
"""Of any end that is in words; 3 is a gate's "not decided"."""


def test_the_traps_go_off(tmp_path, monkeypatch):
    """Where a file is executed or unpickled there is a mark, or nothing below would mean anything."""
    monkeypatch.chdir(tmp_path)
    for trap in (
        lambda: exec(EVIL),
        lambda: pickle.loads(packed("pickle")),
        lambda: np.load(io.BytesIO(packed("array")), allow_pickle=True),
    ):
        trap()
        assert (tmp_path / MARK).exists()
        (tmp_path / MARK).unlink()


def options_of(verb: str) -> set[str]:
    actions: list[argparse.Action] = parser_of(verb)._actions
    return {option for action in actions for option in action.option_strings or [action.dest]}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A prepared folder, with a text beside it."""
    root = tmp_path_factory.mktemp("data")
    (root / "text.txt").write_text("so it is, and so it was\n" * 400)
    assert main(["prepare", str(root / "text.txt"), "--out", str(root / "data"), "--workers", "1"]) == 0
    return root / "data"


DATA = {
    "train": ["gpt2", "--data", "{gift}", "--steps", "1", "--out", "../more", "--quiet", "--no-tensorboard", *SMALL],
    "eval": ["{run}", "--data", "{gift}", "--batches", "1"],
    "compare": ["gpt2", "gpt", "--data", "{gift}", *SHORT, "--out", "../compared"],
    "gate": ["gpt2", "gpt", "--data", "{gift}", *SHORT, "--out", "../gated"],
    "scale": ["gpt2", "--data", "{gift}", "--rungs", "1x16", "--tokens", "1k", "--out", "../scaled"],
    "compress": ["{run}", "--steps", "int8", "--data", "{gift}", "--out", "../small"],
    "export": ["{run}", "--to", "onnx", "--data", "{gift}", "--batches", "1", "--out", "../graphs"],
    "finetune": ["{run}", "--task", "lm", "--train", "{gift}", "--steps", "1", "--out", "../tuned"],
    "predict": ["{run}", "--input", "{gift}"],
    "embed": ["{run}", "--input", "{gift}", "--out", "../vectors.npy"],
    "prepare": ["../text.txt", "--out", "{gift}"],
}
READ = {"train", "eval", "compare", "compress"}
"""Verbs that must accept the data where nothing but traps beside it is wrong: refusing all would show nothing."""


def test_every_verb_that_reads_data_is_tried():
    assert set(DATA) == {verb for verb in VERBS if options_of(verb) & {"--data", "--train", "--input", "inputs"}}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_no_verb_executes_what_is_in_prepared_data(prepared, honest, tmp_path, monkeypatch, capsys, change):  # noqa: F811
    root = tmp_path / "place"
    shutil.copytree(prepared.parent, root)
    gift = trapped(root / "data", change, monkeypatch)
    monkeypatch.setattr(trials, "run_all", Machine())
    for verb, words in DATA.items():
        code = main([verb, *(word.format(gift=gift, run=honest) for word in words)])
        assert_harmless(tmp_path)
        said = capsys.readouterr().err
        assert code == 0 if change == "beside" and verb in READ else code in CODES, f"{verb}: {said}"
        assert "unexpected" not in said, f"{verb}: {said}"


TOKENIZERS = {
    "train": DATA["train"],
    "eval": ["{run}", "--data", "../text.txt", "--batches", "1"],
    "compare": DATA["compare"],
    "gate": DATA["gate"],
    "scale": DATA["scale"],
    "compress": ["{run}", "--steps", "int8", "--data", "../text.txt", "--out", "../small"],
    "prepare": ["../text.txt", "--out", "../again", "--workers", "1"],
}


def test_every_verb_that_reads_a_tokenizer_is_tried():
    assert set(TOKENIZERS) == {verb for verb in VERBS if "--tokenizer" in options_of(verb)}


@pytest.mark.parametrize("change", CHANGES)
def test_no_verb_executes_what_is_in_a_tokenizer(prepared, honest, tmp_path, monkeypatch, capsys, change):  # noqa: F811
    root = tmp_path / "place"
    gift, names = root / "gift", [file.name for file in tokenizer_files(tmp_path / "made")]
    shutil.copytree(tmp_path / "made", gift)
    shutil.copy(prepared.parent / "text.txt", root / "text.txt")
    shutil.copy(prepared / "tokenizer.json", gift)
    (gift / "spiece.model").write_bytes(packed("pickle"))
    remote = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (gift / "tokenizer_config.json").write_text(json.dumps(remote))
    trapped(gift, change, monkeypatch)
    monkeypatch.setattr(trials, "run_all", Machine())
    # one verb takes every file, the others one of each kind
    for verb, words in TOKENIZERS.items():
        for name in ["tokenizer.json", "spiece.model", *(names if verb == "prepare" else [])]:
            for left in ("more", "small", "again", "compared", "gated", "scaled"):
                shutil.rmtree(root / left, ignore_errors=True)
            words_of = [word.format(gift="../text.txt", run=honest) for word in words]
            code = main([verb, *words_of, "--tokenizer", str(gift / name)])
            assert_harmless(tmp_path)
            said = capsys.readouterr().err
            assert code in CODES, f"{verb} {name}: {said}"
            assert "unexpected" not in said, f"{verb} {name}: {said}"
            if change == "beside" and verb in ("train", "prepare") and name == "tokenizer.json":
                assert code == 0, f"{verb} {name}: {said}"


COMPARISONS = {
    "compare": [
        ["gpt2", "gpt", "--data", "copy", *SHORT, "--out", "."],
        ["gpt2", "./table.toml", "--data", "copy", *SHORT, "--out", "../table"],
        ["--suite", "lra-small", "--relatives", "gpt2,gpt", *SHORT, "--out", "."],
        ["--table", "narang", "--rows", "1", *SHORT, "--out", "."],
        ["--status", "."],
    ],
    "gate": [["gpt2", "gpt", "--data", "copy", *SHORT, "--out", "."]],
    "scale": [["gpt2", "--data", "copy", "--rungs", "1x16,1x24", "--tokens", "1k,2k", "--out", "."]],
    "work": [["."], [".", "--status"]],
    "runs": [["."]],
}


def test_every_verb_that_opens_a_comparison_is_tried():
    assert set(COMPARISONS) == {verb for verb in VERBS if options_of(verb) & {"--on", "--patience"}} - {"finetune"} | {
        "runs"
    }


@pytest.fixture(scope="module")
def suite_data(tmp_path_factory):
    """Where the data of a suite is made once: nothing of it is the stranger's."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_no_verb_executes_what_is_in_a_comparison(tmp_path, monkeypatch, capsys, change, suite_data):
    """Processes are pretended here: what they read is a trial, see below."""
    gift = tmp_path / "gift"
    monkeypatch.setattr(trials, "run_all", Machine())
    first = [word if word != "." else str(gift) for word in COMPARISONS["compare"][0]]
    assert main(["compare", *first]) == 0, capsys.readouterr().err
    queue = Queue(gift)
    queue.create()
    room, name = next((path.parent.name, path.name) for path in gift.glob("trials/*"))
    queue.put([Ticket(name=name, room=room, requires={"plugin evil.py": "0" * 64})])
    (gift / "table.toml").write_text('[contestants.mine]\nrelative = "gpt"\nplugins = ["evil.py"]\n')
    for file in gift.rglob("*.json"):
        told = json.loads(file.read_text())
        if change == "beside" and isinstance(told, dict) and "on" in told:
            file.write_text(json.dumps(told | {"on": f"touch {MARK}"}))
    trapped(gift, change, monkeypatch)
    monkeypatch.setenv("KINFOLK_CACHE", str(suite_data))
    for verb, commands in COMPARISONS.items():
        for words in commands:
            code = main([verb, *words])
            assert_harmless(tmp_path)
            assert_harmless(suite_data)
            said = capsys.readouterr().err
            assert code in CODES, f"{verb} {words}: {said}"
            assert "unexpected" not in said, f"{verb} {words}: {said}"


@pytest.mark.slow
def test_a_worker_runs_trials_and_nothing_else(tmp_path, monkeypatch, capsys):
    """A real process in a folder of traps: it trains, and imports nothing from where it is."""
    gift = tmp_path / "gift"
    words = ["gpt", "--data", "copy", *SHORT, "--out", str(gift)]
    with monkeypatch.context() as patch:
        patch.setattr(trials, "run_all", Machine())
        main(["compare", "gpt2", *words])
    for result in gift.glob("trials/*/result.json"):
        result.unlink()
    queue = Queue(gift)
    queue.create()
    name = next(path.name for path in sorted(gift.glob("trials/*")))
    queue.put([Ticket(name=name, room="trials")])
    trapped(gift, "beside", monkeypatch)
    capsys.readouterr()
    assert main(["work", ".", "--most", "1"]) == 0, capsys.readouterr().err
    assert json.loads((gift / "trials" / name / "result.json").read_text())["status"] == "done"
    assert_harmless(tmp_path)


def test_an_environment_that_only_a_trial_names_is_not_imported(tmp_path, monkeypatch):
    """Gymnasium imports the module before a colon; a user may name one, a file may not."""
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    recipe, world = toy()
    settings = Settings(contestants=("gtrxl",), seeds=1, out=tmp_path / "study")
    study = ActingStudy(world=world, recipes={"gtrxl": recipe}, settings=settings, threshold=1.0)
    trial = study.trial("gtrxl", 0)
    (tmp_path / "trap_of_a_stranger.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path))
    hostile = Trial(**(vars(trial) | {"data": {"env": "trap_of_a_stranger:Game-v0"}}))
    outcome = run_trial(hostile, tmp_path / "trial")
    assert outcome is not None
    assert (outcome.status, "--plugin" in outcome.reason) == ("crashed", True), outcome.reason
    assert_harmless(tmp_path)
    # what the user has named is permitted to the processes of a study
    environment.permit("trap_of_a_stranger:Game-v0")
    run_trial(hostile, tmp_path / "trial")
    assert list(tmp_path.rglob(MARK))
    monkeypatch.setattr(trials, "run_all", Machine())
    run_study(study, "", Console(file=io.StringIO()))
    assert os.environ[environment.VARIABLE] == world.name
    sys.modules.pop("trap_of_a_stranger", None)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{}", "null", '{"jobs": "2", "threads": 1}', '{"jobs": 0, "threads": 1}']
)
def test_a_folder_that_cannot_go_on_as_it_was_begun_is_named(tmp_path, monkeypatch, capsys, text):
    monkeypatch.setattr(trials, "run_all", Machine())
    (tmp_path / "layout.json").write_text(text)
    assert main(["compare", "gpt2", "gpt", "--data", "copy", *SHORT, "--out", str(tmp_path)]) == 2
    assert "layout.json: is not what this folder's trials were begun with" in capsys.readouterr().err
    (tmp_path / "layout.json").unlink()
    (tmp_path / "widths.json").write_text(text)
    timed = ["--match", "time"]
    code = main(["compare", "gpt2", "gpt", "--data", "copy", *SHORT, *timed, "--out", str(tmp_path)])
    said = capsys.readouterr().err
    # widths by name: none at all may be
    assert "unexpected" not in said
    assert text == "{}" or (code == 2 and "widths.json: is not what" in said), said
