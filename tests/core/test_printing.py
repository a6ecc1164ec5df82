"""Nothing in a file can command the terminal it is printed to."""

import io
import re
import sys
from pathlib import Path

import pytest
from rich.table import Table

import kinfolk
from kinfolk.contests.screen import Screen
from kinfolk.core.console import Console
from kinfolk.core.printing import clean, printable, raw

HOSTILE = "a\x1b]0;title\x07b\x9b2Jc\rd\u202ee\x08\x7f"


def test_control_characters_are_spelled_out_and_text_is_left_alone():
    assert printable(HOSTILE) == r"a\x1b]0;title\x07b\x9b2Jc\rd\u202ee\x08\x7f"
    for text in ("tab\tand\nlines\r\n", "日本語 ü 🙂 \u00a0", ""):
        assert printable(text) == text


def test_print_and_errors_are_cleaned_and_our_own_sequences_are_not(capsys):
    with clean():
        sys.stdout.write(HOSTILE)
        sys.stderr.writelines([HOSTILE])
        raw(sys.stderr).write("\r\x1b[K")
    out, err = capsys.readouterr()
    assert "\x1b" not in out
    assert err.replace("\r\x1b[K", "") == out


def test_tables_are_cleaned_and_keep_their_colours(capsys):
    with clean():
        console = Console(force_terminal=True, color_system="standard", width=200)
        grid = Table("name")
        grid.add_row(HOSTILE, style="red")
        console.print(grid)
        console.print(HOSTILE, markup=False)
    out = capsys.readouterr().out
    # what is left are rich's own colours
    assert "\x1b[31m" in out
    assert not re.search(r"[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202e]", re.sub(r"\x1b\[[0-9;]*m", "", out))
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", out)


def test_a_live_display_moves_the_cursor_and_keeps_its_colours(capsys):
    with clean():
        console = Console(stderr=True, force_terminal=True, color_system="standard", width=80, _environ={})
        screen = Screen(2, console=console)
        with screen:
            screen.update([])
            screen.note(f"a note [dim] {HOSTILE}")
            # what others write while the display is on passes through it
            sys.stderr.write(f"{HOSTILE}\n")
    err = capsys.readouterr().err
    assert "\x1b[2K" in err
    assert r"\x1b[2K" not in err
    assert r"a\x1b]0;title" in err
    assert "\x1b]0" not in err
    # bars are no markup, which notes turn off
    assert "[green]" not in err
    assert "a note [dim]" in err


def test_every_console_is_the_cleaned_one():
    files = [f for f in Path(kinfolk.__file__).parent.rglob("*.py") if f.name != "console.py"]
    assert len(files) > 100
    wrong = re.compile(r"rich\.console import [^\n]*\bConsole\b|rich import print|rich\.get_console")
    assert [f.name for f in files if wrong.search(f.read_text(encoding="utf-8"))] == []


def test_a_process_may_have_no_standard_streams(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with clean():
        assert sys.stdout is None
    assert sys.stdout is None
    assert isinstance(raw(io.StringIO()), io.StringIO)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", ["diff", "resume", "generate", "eval"])
def test_what_a_stranger_wrote_does_not_reach_the_terminal(verb, tmp_path, capsys):
    from kinfolk.cli.main import main

    (tmp_path / "spec.toml").write_text('name = "x\\u001b]0;owned\\u0007"\n[\x1b')
    (tmp_path / "run.toml").write_text('plugins = ["\\u001b]0;owned\\u0007.py"]\n[data]\nname = "\\u001b[2J"\n')
    (tmp_path / "tokenizer.json").write_text("{}")
    words = {"diff": ["gpt2", str(tmp_path)], "generate": [str(tmp_path), "--prompt", "a"]}
    assert main([verb, *words.get(verb, [str(tmp_path)])]) != 0
    out, err = capsys.readouterr()
    assert err
    assert "\x1b" not in out + err
