"""The best answer among all spans, held to the loop."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.ops import answer_span as best_span
from kinfolk.ops.naive import answer_span as naive


@given(
    length=st.sampled_from([1, 2, 3, 7, 11]),
    longest=st.integers(1, 12),
    threshold=st.sampled_from([-2.0, 0.0, 1.0]),
    seed=st.integers(0, 99),
)
def test_equals_the_loop(length, longest, threshold, seed):
    g = torch.Generator().manual_seed(seed)
    begin, end = torch.randn(2, 4, length, dtype=torch.float64, generator=g)
    real = torch.arange(length) < torch.randint(1, length + 1, (4, 1), generator=g)
    begin, end = (x.masked_fill(~real, -torch.inf) for x in (begin, end))
    span, margin = best_span.best_span(begin, end, longest, threshold)
    want, want_margin = naive.best_span(begin, end, longest, threshold)
    assert torch.equal(span, want)
    torch.testing.assert_close(margin, want_margin)
    assert (span[:, 0] <= span[:, 1]).all()
    assert (span[:, 1] - span[:, 0] < longest).all()


def test_no_answer_needs_more_than_the_threshold():
    begin, end = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.5]])
    span, margin = best_span.best_span(begin, end, 30)
    assert (span.tolist(), margin.item()) == ([[1, 2]], 1.5)
    assert best_span.best_span(begin, end, 30, 1.5)[0].tolist() == [[0, 0]]
    assert best_span.best_span(begin, end, 1)[0].tolist() == [[0, 0]]
