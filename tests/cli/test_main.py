"""The command's frame: help without the engine, one line per error, exit codes."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kinfolk.cli import main as frame
from kinfolk.core.errors import DataError, TrainingError

SILENT_ENGINE = """
import sys
from kinfolk.cli.main import main
code = main(sys.argv[1:])
heavy = {"torch", "numpy", "tokenizers", "cattrs"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""


def kin(*argv, **kwargs):
    return subprocess.run([sys.executable, "-m", "kinfolk", *argv], capture_output=True, text=True, **kwargs)


@pytest.fixture
def verb(monkeypatch):
    """Return a function that replaces what `kin family` does."""

    def install(run):
        arguments = lambda parser: parser.add_argument("--steps", type=int)  # noqa: E731
        monkeypatch.setitem(sys.modules, "kinfolk.cli.family", SimpleNamespace(arguments=arguments, run=run))

    return install


@pytest.mark.parametrize("argv", [[], ["--help"], ["family"], ["family", "--json"], ["family", "--help"]])
def test_help_and_the_tree_import_no_engine(argv):
    done = subprocess.run([sys.executable, "-c", SILENT_ENGINE, *argv], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_help_lists_the_verbs_that_are_there_and_no_others(capsys, tmp_path, monkeypatch):
    assert frame.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "family     draw the family tree" in text
    assert "usage: kin VERB" in text
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(frame, "__file__", str(tmp_path / "main.py"))
    assert list(frame.verbs()) == ["train"]
    assert "train      train one relative" in frame.overview()
    assert "draw the family tree" not in frame.overview()


@pytest.mark.parametrize("name", frame.verbs())
def test_every_verb_has_help_with_examples_and_the_shared_options(name):
    text = frame.parser_of(name).format_help()
    assert f"usage: kin {name}" in text
    assert "example" in text
    for option in ("--json", "--debug", "--plugin"):
        assert option in text


def test_the_version_is_told(capsys):
    assert frame.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kinfolk 0.")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["famly"], "kin: unknown verb 'famly'; did you mean 'family'? (known: "),
        (["family", "--sise", "tiny"], "kin family: unknown option '--sise'; did you mean '--size'? (known: "),
        (["family", "--sise=tiny"], "kin family: unknown option '--sise=tiny'; did you mean '--size'? (known: "),
        (["family", "--size"], "kin family: argument --size: expected one argument (see kin family --help)"),
        (["family", "a", "b"], "kin family: unknown argument 'b'"),
        (["family", "--plugin", "absent.py"], "kin family: plugin absent.py: there is no such file"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_2(argv, message, capsys):
    assert frame.main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("a.csv:3: ragged"), 2, "kin family: a.csv:3: ragged\n"),
        (TrainingError("the loss is nan at step 3"), 1, "kin family: the loss is nan at step 3\n"),
        (OSError(28, "No space left on device"), 1, "kin family: [Errno 28] No space left on device\n"),
        (KeyError("x"), 1, "kin family: unexpected KeyError: 'x' (--debug shows where)\n"),
        (KeyboardInterrupt(), 130, "kin: interrupted\n"),
    ],
)
def test_an_error_of_the_work_is_one_line_with_its_code(error, code, message, verb, capsys):
    def fail(args):
        raise error

    verb(fail)
    assert frame.main(["family"]) == code
    assert capsys.readouterr().err == message


def test_the_traceback_is_shown_only_on_request(verb, capsys):
    def fail(args):
        raise DataError("bad row")

    verb(fail)
    assert frame.main(["family", "--debug"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith("kin family: bad row\n")


def test_the_code_of_a_verb_is_the_code_of_the_command(verb):
    verb(lambda args: args.steps)
    assert frame.main(["family", "--steps", "7"]) == 7


def test_plugins_are_loaded_before_the_verb_runs(verb, tmp_path, monkeypatch):
    monkeypatch.setenv("KINFOLK_PLUGINS", "")
    (tmp_path / "mine.py").write_text("import os\nos.environ['MINE'] = 'here'\n")
    monkeypatch.setenv("MINE", "")
    seen = []
    verb(lambda args: seen.append(os.environ["MINE"]) or 0)
    assert frame.main(["family", "--plugin", str(tmp_path / "mine.py")]) == 0
    assert seen == ["here"]


@pytest.mark.parametrize("lines", [1, 10**6])
def test_a_reader_that_goes_away_is_no_error(lines):
    # waits for a line of input, so that the reader has gone before anything is written
    code = f"import sys; from kinfolk.cli import main as frame; frame.overview = lambda: input() or 'a\\n' * {lines};"
    command = [sys.executable, "-c", f"{code} sys.exit(frame.main([]))"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        error = process.stderr.read()
    assert (process.returncode, error) == (141, "")


def test_the_module_is_the_command():
    done = kin("no-such-verb")
    assert done.returncode == 2
    assert done.stderr.startswith("kin: unknown verb 'no-such-verb'")
