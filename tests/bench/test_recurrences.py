"""What is compared in the contests of recurrences is the same function, with the same gradients."""

import pytest
import torch

from kinfolk.bench import attention, recurrences
from kinfolk.bench.contest import OURS


@pytest.mark.parametrize("rule", recurrences.RULES)
def test_all_contestants_compute_the_same(rule):
    pytest.importorskip("fla", reason="its references are the peers")
    (contest,) = (c for c in recurrences.contests() if c.sizes["rule"] == rule)
    given, found = recurrences.drawn(128, "per channel" in rule), {}
    for who in contest.contestants:
        if who.missing:
            continue
        leaves = [x.clone().requires_grad_() for x in given]
        out = recurrences.recurrence(who.how, rule)(*leaves)
        grads = torch.autograd.grad(out.square().sum(), leaves[:3])
        found[who.name] = [out, *grads]
    assert len(found) > 1
    for peer in found.values():
        for a, b in zip(peer, found[OURS], strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4)


def test_they_are_a_part_of_the_contest_of_attention():
    assert {c.title for c in recurrences.contests()} <= {c.title for c in attention.contests()}
    (work,) = (recurrences.prepare(c.contestants[0], c.sizes | {"length": 128}) for c in recurrences.contests()[:1])
    work.step()
    assert work.flops > 0
