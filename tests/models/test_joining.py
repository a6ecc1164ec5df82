"""Rows join a running state late and leave it early, and nobody notices: every causal relative."""

import pytest
import torch

from kinfolk.core.batch import Batch
from kinfolk.core.errors import ShapeError
from kinfolk.layers.states.rows import Axes, appended
from kinfolk.models.joining import join, least_room, leave
from tests.cover import sampled
from tests.family.test_relatives import CAUSAL, model, tokens

TEXTS = tokens(3, 16)


class Company:
    """A state whose rows read their texts; every step is held to a pass over the text alone."""

    def __init__(self, m):
        self.m, self.room = m, least_room(m, 64)
        self.alone = [self.pass_over(row, TEXTS.shape[1], None).logits[0] for row in range(3)]
        self.rows, self.at, self.state = [], [], None

    def pass_over(self, row, n, state):
        # sources of unequal lengths too
        source = tokens(1, 5 + row, seed=row) if self.m.spec.topology == "encoder-decoder" else None
        batch = Batch(index=torch.zeros(1), tokens=TEXTS[row : row + 1, :n], source=source)
        return self.m.run(batch, state)

    def joined_by(self, row, n, room):
        new = self.m.new_state(1, max(room, self.room))
        self.pass_over(row, n, new)
        if self.state is None:
            self.state = new
        else:
            join(self.state, len(self.rows), new, 1)
        self.rows, self.at = [*self.rows, row], [*self.at, n]

    def left_by_all_but(self, *staying):
        leave(self.state, torch.tensor(staying))
        self.rows, self.at = ([x[i] for i in staying] for x in (self.rows, self.at))

    def go_on(self, n_steps):
        for _ in range(n_steps):
            newest = TEXTS[self.rows, self.at][:, None]
            got = self.m.run(Batch(index=torch.zeros(len(self.rows)), tokens=newest), self.state).logits[:, 0]
            for one, row, at in zip(got, self.rows, self.at, strict=True):
                torch.testing.assert_close(one, self.alone[row][at], rtol=1e-9, atol=1e-11)
            self.at = [at + 1 for at in self.at]


@pytest.mark.parametrize("name", sampled(CAUSAL, "joining"))
@torch.no_grad()
def test_rows_come_and_go_and_each_reads_as_it_would_alone(name):
    company = Company(model(name))
    company.joined_by(0, n=4, room=16)
    company.go_on(2)
    company.joined_by(1, n=2, room=40)
    company.go_on(2)
    company.joined_by(2, n=7, room=20)
    company.go_on(1)
    company.left_by_all_but(1, 2)
    company.go_on(2)
    company.joined_by(0, n=1, room=33)
    company.go_on(2)
    company.left_by_all_but(2)
    company.go_on(2)
    assert company.at == [5]


@torch.no_grad()
def test_the_work_of_a_step_follows_the_furthest_that_is_left():
    company = Company(model("gpt2"))
    company.joined_by(0, n=12, room=16)
    company.joined_by(1, n=3, room=16)
    company.go_on(1)
    assert company.state.next_pos == 13
    company.left_by_all_but(1)
    assert company.state.next_pos == 4


@torch.no_grad()
def test_states_that_do_not_belong_together_are_refused():
    read, unread = Company(model("vanilla")), model("vanilla").new_state(1, 16)
    read.joined_by(0, n=3, room=16)
    with pytest.raises(ShapeError, match="have not"):
        join(read.state, 1, unread, 1)
    with pytest.raises(ShapeError, match="different models"):
        join(read.state, 1, model("gpt2").new_state(1, 16), 1)


def test_the_one_with_less_room_is_filled_up():
    short, long = torch.ones(1, 2, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
    found = appended(short, long, Axes(room=1, empty=-1))
    assert found.tolist() == [[1, 1, -1], [1, 1, 1], [1, 1, 1]]
    assert appended((short,), (short,), Axes(rows=1))[0].shape == (1, 4)
