"""Prompts that start like earlier ones read their rest only, and are continued by the same tokens."""

import pytest
import torch

import kinfolk as kf
from kinfolk.decoding.engines.prefix_cache import LEAST, PrefixCache, shared
from kinfolk.decoding.engines.torch_engine import TorchEngine
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.running import RunningBatch
from kinfolk.decoding.sequence import RunningSequence

SYSTEM = [5 + i % 23 for i in range(30)]
PROMPTS = [[*SYSTEM, 7, 8], [*SYSTEM, 9, 11, 12], [*SYSTEM, 7, 8, 13], SYSTEM, [30, *SYSTEM], [*SYSTEM, 7, 8]]


def model(name):
    # in float64, so that no tie depends on the order of sums
    m = kf.build(kf.relative(name, size="tiny", vocab_size=40, max_len=96), seed=0).double().eval()
    with torch.no_grad():
        for p in m.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.05)
    return m


def continued(engine, prompt, chunk=0, **how):
    batch = RunningBatch(engine)
    row = RunningSequence(prompt=prompt, max_new=12, how=Decoding(**how))
    if chunk:
        for _ in batch.coming([row], chunk):
            pass
    else:
        batch.start([row])
    while batch.sequences:
        batch.step()
        batch.go_on([one for one in batch.sequences if one.finish is None])
    return row.written


@pytest.mark.parametrize("chunk", [0, 7])
@pytest.mark.parametrize("how", [{"greedy": True}, {"seed": 3}])
@pytest.mark.parametrize("name", ["gpt2", "llama", "alibi"])
def test_tokens_are_those_without_a_cache(name, how, chunk):
    m = model(name)
    engine = TorchEngine(m).within(96)
    engine.prefixes = PrefixCache(1 << 30)
    for prompt in PROMPTS:
        assert continued(engine, prompt, chunk, **how) == continued(TorchEngine(m).within(96), prompt, chunk, **how)
    # all but the first and the one that starts otherwise; a prompt's last token is read for its logits
    assert engine.prefixes.hits == 4
    assert engine.prefixes.reused == 30 + 32 + 29 + 31


def test_the_prompt_is_scored_whole():
    m = model("gpt2")
    engine = TorchEngine(m)
    engine.prefixes = PrefixCache(1 << 30)
    found = []
    for one in (engine, engine, TorchEngine(m)):
        row = RunningSequence(prompt=PROMPTS[0], max_new=1, how=Decoding(greedy=True), n_top=0, scores_prompt=True)
        RunningBatch(one).start([row])
        found.append([token.logprob for token in row.read[1:]])
    assert engine.prefixes.hits == 1
    for other in found[:2]:
        torch.testing.assert_close(other, found[2])


def test_bytes_are_bounded_and_the_least_recently_used_goes_first():
    m = model("gpt2")
    one = PrefixCache(1 << 30)
    engine = TorchEngine(m)
    engine.prefixes = one
    continued(engine, [1] * 20, greedy=True)
    size = one.held
    engine.prefixes = cache = PrefixCache(2 * size)
    for token in (1, 2, 1, 3):
        continued(engine, [token] * 20, greedy=True)
        assert cache.held <= cache.limit
    assert len(cache) == 2
    hits = cache.hits
    continued(engine, [1] * 20, greedy=True)
    assert cache.hits == hits + 1
    continued(engine, [2] * 20, greedy=True)
    assert cache.hits == hits + 1
    engine.prefixes = small = PrefixCache(size - 1)
    continued(engine, [1] * 20, greedy=True)
    assert len(small) == small.held == 0


def test_a_longer_prompt_replaces_the_one_it_continues():
    engine = TorchEngine(model("gpt2"))
    engine.prefixes = PrefixCache(1 << 30)
    for prompt in (SYSTEM, [*SYSTEM, 7], [*SYSTEM, 7, 8]):
        continued(engine, prompt, greedy=True)
    assert len(engine.prefixes) == 1


@pytest.mark.parametrize("name", ["lstm", "performer", "mamba"])
def test_states_that_cannot_go_back_are_not_kept(name):
    m = model(name)
    engine = TorchEngine(m)
    engine.prefixes = PrefixCache(1 << 30)
    for prompt in PROMPTS[:2]:
        assert continued(engine, prompt, greedy=True) == continued(TorchEngine(m), prompt, greedy=True)
    assert engine.prefixes.hits == len(engine.prefixes) == 0


def test_common_prefixes():
    assert shared((1, 2, 3), [1, 2, 4, 5]) == 2
    assert shared((1, 2), [1, 2, 4]) == 2
    assert shared((3,), [1]) == 0
    assert LEAST > 1
