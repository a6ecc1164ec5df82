"""A run folder of somebody else's: nothing in it is executed by any verb, and nothing outside it is touched."""

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w

import kinfolk as kf
from kinfolk.cli.main import VERBS, main
from kinfolk.contests import trials
from kinfolk.core import manifest, plugins
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps
from kinfolk.data import Tokenizer
from kinfolk.runs import folder
from kinfolk.runs.metadata import DataSource, Metadata
from kinfolk.runs.options import RunOptions
from tests.contests.test_run import Machine

MARK = "executed"
EVIL = f"from pathlib import Path\nPath({MARK!r}).touch()\n"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """An untrained run that every verb can open."""
    out = tmp_path_factory.mktemp("runs") / "run"
    recipe = kf.relative("gpt2", size="tiny", vocab_size=300, n_layers=1)
    about = Metadata(data=DataSource(name="copy"), options=RunOptions(), data_kind="text").with_origin()
    folder.create(out, dumps(recipe), about, Tokenizer.byte())
    kf.save(kf.build(recipe), out / "aside")
    folder.add(out, folder.WEIGHTS, lambda file: (out / "aside" / folder.WEIGHTS).rename(file))
    return out


@pytest.fixture
def stranger(honest, tmp_path, monkeypatch):
    """The same run, with a plugin inside and named by itself, in every spelling; the user is in its folder."""
    import shutil

    out = tmp_path / "gift"
    shutil.copytree(honest, out)
    names = ("evil.py", str(out / "evil.py"), "../gift/evil.py")
    (out / "evil.py").write_text(EVIL)
    digest = hashlib.sha256(EVIL.encode()).hexdigest()
    about = tomllib.loads((out / "run.toml").read_text())
    about["plugins"] = [{"path": name, "sha256": digest} for name in names] + list(names)
    (out / "run.toml").write_text(tomli_w.dumps(about))
    manifest.create(out)
    monkeypatch.chdir(out)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(plugins, "_loaded", {})
    return out


COMMANDS = {
    "family": ["gpt2"],
    "diff": ["gpt2", "."],
    "axes": ["norm"],
    "doctor": ["--only", "gelu"],
    "runs": [".."],
    # trials are pretended; a contestant is opened as a run
    "compare": [".", "gpt2", "--data", "copy", "--budget", "1k-tokens", "--tune", "off", "--out", "../compared"],
    "scale": [".", "--data", "copy", "--rungs", "1x16", "--tokens", "1k", "--out", "../scaled"],
    "prepare": ["spec.toml", "--out", "../prepared"],
    # reads the recipe only; a vocabulary that is too small ends it before it trains
    "train": [".", "--data", "copy", "--set", "model.vocab_size=2", "--out", "../more"],
    "resume": ["."],
    "eval": ["."],
    "predict": [".", "--input", "spec.toml"],
    "embed": [".", "--input", "spec.toml", "--out", "../vectors.npy"],
    "generate": [".", "--prompt", "a"],
    "finetune": [".", "--train", "spec.toml", "--task", "lm", "--out", "../tuned"],
    "import": [".", "--out", "../imported"],
    "export": [".", "--to", "hf", "--out", "../exported"],
    "compress": [".", "--steps", "int8", "--out", "../small"],
    "inspect": [".", "--text", "a", "--out", "../page.html"],
    "serve": [".", "--port", "0"],
    "bench": ["generate", "--run", "."],
    "gate": [".", "gpt2", "--data", "copy", "--budget", "1k-tokens", "--tune", "off", "--out", "../gated"],
    "work": ["."],
    "new": ["relative", "mine", "--out", "../mine.py"],
    "completion": ["bash"],
}
OPENING = {"resume", "eval", "predict", "embed", "generate", "finetune", "export", "compress", "inspect", "serve"}
OPENING |= {"compare", "gate"}
"""Verbs that open the run and so must refuse it by the plugin's name, hash and option."""


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_executes_what_a_run_names(stranger, capsys, monkeypatch, verb):
    monkeypatch.setattr(trials, "run_all", Machine())
    code = main([verb, *COMMANDS[verb]])
    assert not list(stranger.parent.rglob(MARK))
    if verb in OPENING:
        said = capsys.readouterr().err
        digest = hashlib.sha256(EVIL.encode()).hexdigest()
        assert code == 2, said
        assert f"plugin evil.py (SHA-256 {digest})" in said
        assert "--plugin evil.py" in said


def test_the_same_run_without_a_plugin_opens(honest, capsys):
    """The verbs above are refused because of the plugin, not for another reason."""
    assert main(["generate", str(honest), "--prompt", "a", "--max-new", "1"]) == 0, capsys.readouterr().err


def test_the_library_refuses_it_too(stranger):
    for opening in (kf.load, plugins_of):
        with pytest.raises(SpecError, match=r"evil\.py \(SHA-256 [0-9a-f]{64}\).*--plugin evil\.py"):
            opening(stranger)
    assert not list(stranger.parent.rglob(MARK))


def plugins_of(path: Path) -> None:
    from kinfolk.train.finetune.source import open_source

    open_source(path)


def test_a_plugin_runs_when_its_hash_is_allowed_and_only_with_that_content(stranger, tmp_path):
    allowed = tmp_path / "config" / "kinfolk" / "config.toml"
    allowed.parent.mkdir(parents=True)
    allowed.write_text(f'[plugins]\nallow = ["{hashlib.sha256(EVIL.encode()).hexdigest()}"]\n')
    (stranger / "evil.py").write_text(EVIL + "# another content\n")
    with pytest.raises(SpecError, match=r"\(now [0-9a-f]{64}\)"):
        folder.opened(stranger)
    assert not list(stranger.parent.rglob(MARK))
    (stranger / "evil.py").write_text(EVIL)
    folder.opened(stranger)
    assert list(stranger.parent.rglob(MARK))


def test_naming_the_plugin_opens_the_run_if_the_hash_is_the_recorded_one(stranger, capsys, monkeypatch):
    assert main(["generate", ".", "--prompt", "a", "--max-new", "1", "--plugin", "evil.py"]) == 0
    assert (stranger / MARK).exists()
    capsys.readouterr()
    other = stranger.parent / "evil.py"
    other.write_text("x = 1\n")
    # as in a process of its own, which has loaded and inherited nothing
    plugins._loaded.clear()
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert main(["generate", ".", "--prompt", "a", "--plugin", str(other)]) == 2
    assert "and the file of --plugin has" in capsys.readouterr().err
    assert main(["resume", ".", "--accept-changes", "--plugin", str(other)]) in (0, 1, 2)
    recorded = tomllib.loads((stranger / "run.toml").read_text())["plugins"]
    assert {entry["sha256"] for entry in recorded} == {hashlib.sha256(b"x = 1\n").hexdigest()}


def test_what_is_compiled_is_what_was_hashed(tmp_path, monkeypatch):
    """A .pyc beside a plugin is never used: its source may say something else."""
    import importlib.util
    import py_compile

    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "kind.py"
    file.write_text(EVIL)
    os.utime(file, (1, 1))
    py_compile.compile(str(file), cfile=importlib.util.cache_from_source(str(file)))
    file.write_text("x = 1".ljust(len(EVIL)))
    os.utime(file, (1, 1))
    assert plugins.load_plugin(file).x == 1
    assert not (tmp_path / MARK).exists()


def test_an_environment_in_a_module_is_not_imported(stranger):
    from kinfolk.contests.acting.run import open_actor

    about = tomllib.loads((stranger / "run.toml").read_text()) | {"plugins": [], "data": {"env": "evil:Game-v0"}}
    (stranger / "run.toml").write_text(tomli_w.dumps(about))
    manifest.create(stranger)
    sys.path.insert(0, str(stranger))
    try:
        with pytest.raises(SpecError, match=r"Python module 'evil'.*--plugin"):
            open_actor(stranger)
    finally:
        sys.path.remove(str(stranger))
    assert not (stranger / MARK).exists()


def test_child_processes_do_not_look_for_modules_in_the_working_folder(stranger):
    (stranger / "json.py").write_text(EVIL)
    code = "import sys; from kinfolk.core.child import safe_path; print(*safe_path())"
    bare = [path for path in sys.path if path and Path(path) != stranger]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(kf.__file__).parents[1]), *bare])}
    told = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    command = [sys.executable, *told.stdout.split(), "-m", "kinfolk.contests.trial", "nowhere"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "nowhere" in done.stderr
    assert not (stranger / MARK).exists()


def test_every_child_process_is_started_without_the_working_folder():
    """`python -m` puts the working folder first: a module is started by `child.module`, with `safe_path`."""
    package = Path(kf.__file__).parent
    starts = [f for f in package.rglob("*.py") if "bench" not in f.parts and '"-m"' in f.read_text(encoding="utf-8")]
    assert {f.relative_to(package).as_posix() for f in starts} == {
        "core/child.py",
        "core/fork_server.py",
        "train/parallel.py",
    }
    # the fork server is started with the interpreter and the options of the command that `child.module` made
    others = [f for f in starts if f.name != "fork_server.py"]
    assert [str(f) for f in others if "safe_path()" not in f.read_text(encoding="utf-8")] == []


def test_the_commands_cover_every_verb():
    assert set(COMMANDS) == set(VERBS)
    assert json.dumps(sorted(OPENING - set(VERBS))) == "[]"
