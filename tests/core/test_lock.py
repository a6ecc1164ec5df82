"""The lock of a folder: one holder, other processes included, and a child that inherits it keeps it."""

import errno
import subprocess
import sys

import pytest

from kinfolk.core.errors import KinfolkError
from kinfolk.core.lock import LOCK, locked

HOLD = """
import sys
from pathlib import Path
from kinfolk.core.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def take(folder):
    with locked(folder, KinfolkError("busy")):
        return True


def test_a_second_holder_is_refused_and_the_next_one_is_not(tmp_path):
    with locked(tmp_path), pytest.raises(KinfolkError, match="busy"):
        take(tmp_path)
    assert take(tmp_path)
    assert (tmp_path / LOCK).exists()


def test_another_process_holds_it_until_it_is_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(KinfolkError, match="busy"):
            take(tmp_path)
        other.kill()
        other.wait(30)
    with locked(tmp_path):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are inherited on POSIX")
def test_a_child_that_inherits_it_holds_it_longer_than_its_parent(tmp_path):
    with locked(tmp_path) as descriptor:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(descriptor,))
    with pytest.raises(KinfolkError, match="busy"):
        take(tmp_path)
    child.communicate(b"\n")
    assert child.returncode == 0
    assert take(tmp_path)


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(number, "no locks")

    monkeypatch.setattr("filelock.lock_descriptor", refuse)
    number = errno.ENOLCK
    with pytest.warns(UserWarning, match="has no file locks"):
        assert take(tmp_path)
    number = errno.EBADF
    with pytest.raises(OSError, match="no locks"):
        take(tmp_path)
