import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kinfolk.ops import routing as fast
from kinfolk.ops.naive import routing as slow
from tests.exact import assert_exact


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


@given(
    st.integers(1, 3),
    st.integers(1, 23),
    st.integers(1, 2),
    st.integers(2, 5),
    st.sampled_from([0.5, 1.0, 1.25, 2.0, 9.0]),
    st.sampled_from(["position", "choice"]),
    st.booleans(),
    st.integers(0, 99),
)
@example(1, 1, 1, 2, 1.0, "choice", False, 0)
@example(2, 23, 2, 2, 1.0, "position", True, 1)
def test_seats_equal_naive(batch, length, k, n_experts, share, first, packed, seed):
    expert = torch.rand(batch, length, n_experts, generator=gen(seed)).argsort(-1)[..., :k]
    # crowd the first expert, and let some examples end early
    expert[..., 0] = torch.where(torch.rand(batch, length, generator=gen(seed + 1)) < 0.4, 0, expert[..., 0])
    expert = expert.masked_fill(torch.rand(batch, length, 1, generator=gen(seed + 2)) < 0.2, n_experts)
    group = torch.randint(2, (batch, length), generator=gen(seed + 3)).cumsum(1) if packed else None
    got = fast.take_seats(expert, group, n_experts, share, first)
    assert torch.equal(got, slow.take_seats(expert, group, n_experts, share, first))


def test_seats_by_hand():
    # twelve tokens, two experts, one and a quarter of an even share: seven seats each
    expert = torch.zeros(1, 12, 1, dtype=torch.long)
    assert fast.take_seats(expert, None, 2, 1.25, "position").flatten().tolist() == [0] * 7 + [2] * 5
    # never fewer than four, even for one token
    assert fast.take_seats(expert[:, :5], None, 4, 0.1, "choice").flatten().tolist() == [0] * 4 + [4]
    # padding takes no seat and counts for nothing: five real tokens have four seats
    padded = expert.clone()
    padded[:, :7] = 2
    assert fast.take_seats(padded, None, 2, 1.25, "position").flatten().tolist() == [2] * 7 + [0] * 4 + [2]


def test_first_choices_go_before_second_ones_unless_position_does():
    # eight tokens of two choices for two experts: the first four want (0, 1), the last four (1, 0)
    expert = torch.tensor([[[0, 1]] * 4 + [[1, 0]] * 4])
    by_choice = fast.take_seats(expert, None, 2, 1.0, "choice")
    assert by_choice[0].tolist() == [[0, 2]] * 4 + [[1, 2]] * 4
    by_position = fast.take_seats(expert, None, 2, 1.0, "position")
    assert by_position[0].tolist() == [[0, 1]] * 4 + [[2, 2]] * 4


@pytest.mark.parametrize("length", [9, 40])
def test_no_later_token_takes_a_seat_by_position(length):
    expert = torch.rand(2, length, 3, generator=gen()).argsort(-1)[..., :2]
    seated = fast.take_seats(expert, None, 3, 0.8, "position")
    assert (seated == 3).any()
    for t in range(1, length):
        other = expert.clone()
        other[:, t:] = other[:, t:].flip(-1)
        assert torch.equal(fast.take_seats(other, None, 3, 0.8, "position")[:, :t], seated[:, :t])


@pytest.mark.parametrize(("n", "n_experts"), [(1, 1), (1, 2), (7, 3), (13, 5)])
def test_choices_balance_and_chances_equal_naive(n, n_experts):
    scores = torch.randn(n, n_experts, generator=gen(n), dtype=torch.float64, requires_grad=True)
    probs = scores.softmax(-1)
    for got, want in zip(fast.top_two(probs), slow.top_two(probs), strict=True):
        assert_exact(got, want)
    expert = probs.argmax(-1)
    std = (0.5 + torch.rand(n, n_experts, generator=gen(1), dtype=torch.float64)).requires_grad_()
    noisy = scores + std * torch.randn(n, n_experts, generator=gen(2), dtype=torch.float64)
    weight = torch.randn(n, n_experts, generator=gen(3), dtype=torch.float64)
    for make in (
        lambda op: op.imbalance(probs, expert),
        lambda op: (op.top_two(probs)[1] * weight[:, :2]).sum(),
        *(lambda op, k=k: (op.chance_of_choice(scores, noisy, std, k) * weight).sum() for k in range(1, n_experts + 1)),
    ):
        ours, theirs = make(fast), make(slow)
        assert_exact(ours, theirs)
        both = [
            torch.autograd.grad(y + (scores.sum() + std.sum()) * 0, (scores, std), retain_graph=True)
            for y in (ours, theirs)
        ]
        for got, want in zip(*both, strict=True):
            assert_exact(got, want)


def test_the_chance_of_a_choice_is_how_often_it_is_chosen():
    clean = torch.tensor([[0.3, -0.2, 0.9, 0.0, 0.4]], dtype=torch.float64)
    std = torch.tensor([[0.5, 1.0, 0.7, 0.2, 1.5]], dtype=torch.float64)
    noisy = clean + std * torch.randn(1, 5, generator=gen(4), dtype=torch.float64)
    want = fast.chance_of_choice(clean, noisy, std, 2)[0]
    n = 40_000
    for e in range(5):
        again = noisy.expand(n, -1).clone()
        again[:, e] = clean[0, e] + std[0, e] * torch.randn(n, generator=gen(5 + e), dtype=torch.float64)
        often = (again.topk(2).indices == e).any(-1).double().mean()
        assert float(often) == pytest.approx(float(want[e]), abs=0.01)


def test_balance_is_one_when_even_and_more_when_not():
    even = torch.full((8, 4), 0.25, dtype=torch.float64)
    assert fast.imbalance(even, torch.arange(8) % 4) == pytest.approx(1.0)
    crowded = torch.tensor([[0.7, 0.1, 0.1, 0.1]], dtype=torch.float64).expand(8, 4)
    assert fast.imbalance(crowded, torch.zeros(8, dtype=torch.long)) == pytest.approx(4 * 0.7)
    assert fast.imbalance(even[:0], torch.zeros(0, dtype=torch.long)) == 0
    assert fast.unevenness(torch.full((5,), 3.0)) == 0
    assert fast.unevenness(torch.tensor([0.0, 2.0])) == pytest.approx(1.0)
