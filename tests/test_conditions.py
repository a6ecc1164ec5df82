"""What tests/conftest.py promises to every other test."""

import os
from pathlib import Path

import pytest
import torch

from kinfolk.core import plugins


def test_one_thread():
    assert torch.get_num_threads() == 1


def test_what_is_not_initialised_is_nan():
    assert torch.empty(3).isnan().all()
    assert torch.empty_like(torch.zeros(2)).isnan().all()
    assert torch.empty(2, requires_grad=True).isnan().all()
    assert torch.empty(3, dtype=torch.long).shape == (3,)


def test_the_names_of_tensors_are_checked_and_the_cache_is_our_own():
    assert os.environ["KINFOLK_CHECK_SHAPES"] == "1"
    assert "kinfolk-tests-" in os.environ["KINFOLK_CACHE"]


@pytest.mark.parametrize("turn", [1, 2])
def test_plugins_of_another_test_are_not_recorded_here(tmp_path, turn):
    assert plugins.loaded() == []
    (tmp_path / "mine.py").write_text("colour = 'grey'\n")
    plugins.load_plugin(tmp_path / "mine.py")
    assert [Path(entry["path"]).name for entry in plugins.loaded()] == ["mine.py"]
