"""What the user sees while a run goes on."""

import io
import sys

import pytest

from kinfolk.train import progress
from kinfolk.train.progress import Lines, Live, Progress, clock

ROW = {"step": 1, "loss": 2.5, "tokens_per_second": 1234.5, "mfu": 0.42, "seconds": 1.0}


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.start(0, 100)
    for step in range(1, 101):
        lines.step(ROW | {"step": step})
        if step == 50:
            lines.valid({"valid": {"next-token": 2.25, "continuation": 2.0}})
    lines.close()
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 20
    assert shown[0].startswith("step 5/100  loss 2.5000  1,234 tokens/s  MFU 42 %  ")
    assert "valid next-token 2.2500" in shown[-1]
    assert shown[-1].endswith("0s left")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    live = Live()
    live.start(3, 10)
    live.step(ROW | {"step": 4, "mfu": None})
    live.valid({"valid": {"next-token": 2.25}})
    live.note("something [happened]")
    live.close()
    assert "something [happened]" in screen.getvalue()
    assert "4/10" in screen.getvalue()
    assert "loss 2.5000" in screen.getvalue()


def test_where_the_output_goes_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(progress.choose(quiet=True)) is Progress
    assert type(progress.choose(quiet=False, main=False)) is Progress
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert type(progress.choose(quiet=False)) is Lines
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert type(progress.choose(quiet=False)) is Live


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0s"), (59, "59s"), (200, "3m20s"), (3725, "1h02m")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
