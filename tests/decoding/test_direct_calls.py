"""While a model decodes, its modules call `forward` directly; afterwards they are as before."""

import sys

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.decoding.engines.direct_calls import call_directly, direct_calls


def model():
    return kf.build(kf.relative("gpt2", size="tiny", n_layers=2), seed=0).eval()


def test_modules_are_as_before_afterwards():
    m = model()
    before = [(type(x), set(vars(x))) for x in m.modules()]
    tokens = torch.arange(5, 9)[None]
    expected = m(tokens).logits
    with direct_calls(m):
        assert type(m.head) is not before[-1][0]
        assert isinstance(m.decoder, before[[x is m.decoder for x in m.modules()].index(True)][0])
        assert torch.equal(m(tokens).logits, expected)
    assert [(type(x), set(vars(x))) for x in m.modules()] == before
    kf.generate(m.train(), [5, 6], max_new=2)
    assert [(type(x), set(vars(x))) for x in m.modules()] == before
    assert all(x.training for x in m.modules())


def test_a_module_with_hooks_still_calls_them():
    m, heard = model(), []
    m.decoder.blocks[1].register_forward_hook(lambda *_: heard.append(1))
    kf.generate(m, [5, 6], max_new=3, greedy=True)
    assert len(heard) == 3


@pytest.mark.parametrize("path", ["residuals.0", "residuals.1", "residuals.0.norm", "parts.1", "parts.0.qkv"])
def test_hooks_inside_a_block_are_called_too(path):
    m, heard = model(), []
    m.decoder.blocks[1].get_submodule(path).register_forward_hook(lambda *_: heard.append(1))
    kf.generate(m, [5, 6], max_new=3, greedy=True)
    assert len(heard) == 3


def test_hooks_of_all_modules_are_called_too():
    m, heard = model(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append(module))
    try:
        kf.generate(m, [5, 6], max_new=3, greedy=True)
    finally:
        handle.remove()
    assert heard.count(m.decoder.blocks[1]) == 3


def test_an_assigned_part_takes_the_place_of_the_old_one():
    m = model()
    call_directly(m)
    m.decoder.norm = nn.Identity()
    assert isinstance(m.decoder.norm, nn.Identity)
    weight = nn.Parameter(torch.zeros_like(m.decoder.blocks[0].parts[0].out.weight))
    m.decoder.blocks[0].parts[0].out.weight = weight
    assert m.decoder.blocks[0].parts[0].out.weight is weight


def test_a_token_takes_no_call_of_the_machinery_of_modules():
    m = model()
    kf.generate(m, [5, 6], max_new=2, greedy=True)
    names = {"_wrapped_call_impl", "_call_impl", "__getattr__"}

    def calls(n):
        count = 0

        def profile(frame, event, _):
            nonlocal count
            count += event == "call" and frame.f_code.co_name in names

        sys.setprofile(profile)
        try:
            kf.generate(m, [5, 6], max_new=n, greedy=True, stop=())
        finally:
            sys.setprofile(None)
        return count

    assert calls(12) == calls(2)
