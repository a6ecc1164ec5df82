"""Batches made ahead: the same ones, in the same order, and only where nothing but their number decides them."""

import threading
import types

import pytest
import torch

from kinfolk.core.batch import Batch
from kinfolk.train.ahead import AHEAD, Ahead
from kinfolk.train.parallel import Team


class Read:
    """Stands for a job: knows which steps were read, and in which thread."""

    def __init__(self, batches=None, wrong=0):
        self.batches, self.wrong, self.steps, self.threads = batches, wrong, [], set()

    def read(self, step, team):
        self.steps.append(step)
        self.threads.add(threading.current_thread())
        if step == self.wrong:
            raise ValueError(f"step {step}")
        return Batch(index=torch.tensor([step]), tokens=torch.full((1, 2), step)), 10 * step


def test_every_step_gets_its_own_batch_and_none_after_the_last_is_read():
    job = Read()
    ahead = Ahead(job, Team(), last=6)
    for step in range(3, 7):
        batch, tokens, waited = ahead.at(step)
        assert (int(batch.index), tokens) == (step, 10 * step)
        assert waited >= 0
    ahead.close()
    assert job.steps == [3, 4, 5, 6]
    assert threading.current_thread() not in job.threads


def test_so_many_are_made_ready():
    job = Read()
    ahead = Ahead(job, Team(), last=100)
    ahead.at(1)
    ahead.close()
    assert set(job.steps) <= set(range(1, 2 + AHEAD))


def test_another_step_than_the_next_is_read_anew():
    job = Read()
    ahead = Ahead(job, Team(), last=100)
    assert int(ahead.at(1)[0].index) == 1
    assert int(ahead.at(50)[0].index) == 50
    assert int(ahead.at(51)[0].index) == 51
    ahead.close()


def test_what_goes_wrong_is_told_at_its_step():
    ahead = Ahead(Read(wrong=2), Team(), last=9)
    assert int(ahead.at(1)[0].index) == 1
    with pytest.raises(ValueError, match="step 2"):
        ahead.at(2)
    ahead.close()


def test_who_acts_with_the_weights_as_they_are_is_asked_in_turn():
    acting = types.SimpleNamespace(meet=lambda memories: None, tensors=dict, restore=lambda tensors: None)
    job = Read(acting)
    ahead = Ahead(job, Team(), last=9)
    assert int(ahead.at(1)[0].index) == 1
    assert job.steps == [1]
    assert job.threads == {threading.current_thread()}
    ahead.close()
