"""Completion scripts, tried in the shells that are installed."""

import json
import shutil
import subprocess

import pytest

from kinfolk.cli.completion import SHELLS, VALUES, script_of
from kinfolk.cli.main import main, verbs
from kinfolk.family.sizes import SIZES


def bash(words: list[str]) -> list[str]:
    """Return what bash offers for a command line whose last word is being written."""
    line = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _kin; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", f"{script_of('bash')}\n{ask}"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["kin", ""], sorted(verbs())),
        (["kin", "comp"], ["compare", "completion", "compress"]),
        (["kin", "completion", "--js"], ["--json"]),
        (["kin", "family", "transformer-x"], ["transformer-xl"]),
        (["kin", "train", "gpt2", "--size", ""], ["base", "small", "tiny"]),
    ],
)
def test_bash_offers_verbs_options_relatives_and_values(words, offered):
    assert sorted(bash(words)) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_a_relative_is_in_every_script(shell, capsys):
    assert main(["completion", shell, "--json"]) == 0
    script = json.loads(capsys.readouterr().out)["script"]
    assert [verb for verb in verbs() if verb not in script] == []
    assert "transformer-xl" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n", "/dev/stdin"], input=script, text=True, check=True)


def test_an_unknown_shell_is_refused_with_the_known_ones(capsys):
    assert main(["completion", "csh"]) == 2
    assert "bash" in capsys.readouterr().err


def test_the_offered_sizes_are_the_ones_there_are():
    assert sorted(VALUES["--size"]) == sorted(SIZES)
