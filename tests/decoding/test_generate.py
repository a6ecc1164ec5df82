import itertools

import pytest
import torch

import kinfolk as kf
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.decoding.beam import length_penalty
from kinfolk.decoding.engines.engine import Engine
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.sampling import choose, distribution, penalise

PROMPTS = [[9, 30, 41, 5], [12], [50, 8, 8, 17, 60, 33, 9]]


def model(name="gpt2", **numbers):
    small = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "vocab_size": 64, "max_len": 48} | numbers
    built = kf.build(kf.relative(name, size="tiny", **small), seed=3).double()
    for p in built.parameters():  # sharp enough that choices differ
        p.data *= 3
    return built


@pytest.mark.parametrize("name", ["gpt", "gpt2", "vanilla"])
def test_unequal_prompts_get_what_each_gets_alone_and_uncached(name):
    m = model(name)
    together = kf.generate(m, PROMPTS, max_new=12, greedy=True)
    for prompt, got in zip(PROMPTS, together, strict=True):
        assert got == kf.generate(m, prompt, max_new=12, greedy=True)
        assert got == kf.generate(m, prompt, max_new=12, greedy=True, cached=False)
    assert len({tuple(r[-6:]) for r in together}) > 1


def test_sampling_depends_on_the_seed_and_not_on_the_company():
    m = model()
    options = {"max_new": 10, "temperature": 1.3, "top_k": 20, "top_p": 0.9, "seed": 5}
    first = kf.generate(m, PROMPTS, **options)
    assert first == kf.generate(m, PROMPTS, **options)
    assert first[0] == kf.generate(m, PROMPTS[0], **options)
    assert first != kf.generate(m, PROMPTS, **options | {"seed": 6})


def test_draws_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(4000, 4)
    how = Decoding(temperature=0.7)
    share = torch.bincount(choose(logits, how, None, [(0, i, 0) for i in range(4000)]), minlength=4) / 4000
    torch.testing.assert_close(share, (logits[0] / 0.7).softmax(-1), atol=0.03, rtol=0)


def test_top_k_and_top_p_keep_the_likeliest_tokens():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    assert (distribution(logits, Decoding(top_k=2)) > 0).tolist() == [[True, True, False, False]]
    # softmax: .64 .24 .09 .03
    assert (distribution(logits, Decoding(top_p=0.7)) > 0).tolist() == [[True, True, False, False]]
    assert (distribution(logits, Decoding(top_p=0.01)) > 0).tolist() == [[True, False, False, False]]
    torch.testing.assert_close(distribution(logits, Decoding(top_p=0.7)).sum(), torch.tensor(1.0))


def test_the_repetition_penalty_divides_positive_and_multiplies_negative_scores():
    logits, seen = torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[0, 1, -1]])
    assert penalise(logits, seen, 2.0).tolist() == [[1.0, -4.0, 2.0]]
    m = model()
    plain = kf.generate(m, [9, 9, 9], max_new=20, greedy=True)
    assert len(set(kf.generate(m, [9, 9, 9], max_new=20, greedy=True, repetition_penalty=5.0))) > len(set(plain))


def test_a_stop_token_ends_a_row_and_is_kept():
    m = model()
    full = kf.generate(m, PROMPTS, max_new=12, greedy=True)
    stop = full[0][len(PROMPTS[0]) + 3]
    stopped = kf.generate(m, PROMPTS, max_new=12, greedy=True, stop=(stop,))
    for prompt, whole, got in zip(PROMPTS, full, stopped, strict=True):
        new = whole[len(prompt) :]
        assert got == prompt + (new[: new.index(stop) + 1] if stop in new else new)


def test_one_beam_is_greedy_and_beams_find_what_exhaustive_search_finds():
    m = model(vocab_size=9)
    assert kf.generate(m, [[3, 4]], max_new=8, beams=2, top_k=0)[0][:2] == [3, 4]
    prompt, n = [3, 4, 1], 3
    scores = {}
    with torch.no_grad():
        for tail in itertools.product(range(9), repeat=n):
            logits = m(torch.tensor([[*prompt, *tail]])).logits.log_softmax(-1)[0]
            scores[tail] = sum(float(logits[len(prompt) - 1 + i, t]) for i, t in enumerate(tail))
    best = max(scores, key=scores.get)
    assert kf.generate(m, prompt, max_new=n, beams=81) == [*prompt, *best]


def hypotheses(n_tokens, stop, n):
    """Every text of up to `n` tokens that ends with the stopping token or at `n`."""
    for tail in itertools.product(range(n_tokens), repeat=n):
        yield tail[: tail.index(stop) + 1] if stop in tail else tail


@pytest.mark.parametrize("alpha", [0.0, 0.6, 5.0])
def test_the_length_penalty_decides_between_texts_of_different_lengths(alpha):
    m, prompt, n, stop = model(vocab_size=5), [3, 4, 1], 4, 2
    m.embedding.table.weight.data *= 0.2  # flat enough that lengths matter
    scores = {}
    with torch.no_grad():
        for tail in set(hypotheses(5, stop, n)):
            logits = m(torch.tensor([[*prompt, *tail]])).logits.log_softmax(-1)[0]
            total = sum(float(logits[len(prompt) - 1 + i, t]) for i, t in enumerate(tail))
            scores[tail] = total / ((5 + len(tail)) / 6) ** alpha
    best = max(scores, key=scores.get)
    assert kf.generate(m, prompt, max_new=n, beams=125, stop=(stop,), length_penalty=alpha) == [*prompt, *best]
    # the penalty must be able to change the winner, or this test could not fail
    assert len(best) == (n if alpha == 5.0 else 1)


def test_beams_over_unequal_prompts_equal_beams_alone_and_uncached():
    for name in ("gpt2", "vanilla"):
        m = model(name)
        options = {"max_new": 6, "beams": 3, "stop": (11, 23)}
        together = kf.generate(m, PROMPTS, **options)
        for prompt, got in zip(PROMPTS, together, strict=True):
            assert got == kf.generate(m, prompt, **options)
            assert got == kf.generate(m, prompt, **options, cached=False)


def test_the_length_penalty_is_wus():
    assert length_penalty(1, Decoding(length_penalty=0.6)) == 1.0
    assert length_penalty(7, Decoding(length_penalty=0.5)) == pytest.approx(2**0.5)


def test_forms_in_are_forms_out():
    m = model()
    row = kf.generate(m, [5, 6], max_new=3, greedy=True)
    assert kf.generate(m, torch.tensor([5, 6]), max_new=3, greedy=True).tolist() == row
    assert kf.generate(m, torch.tensor([[5, 6]]), max_new=3, greedy=True).tolist() == [row]
    assert kf.generate(m, [5, 6], max_new=0) == [5, 6]
    seen = []
    kf.generate(m, [5, 6], max_new=3, greedy=True, stream=seen.append)
    assert [t for (t,) in seen] == row[2:]


def test_what_cannot_be_is_refused():
    m = model()
    with pytest.raises(ShapeError, match="need 59 positions, the model has 48"):
        kf.generate(m, [5] * 40, max_new=20)
    # the last token that is made is not read again
    for how in ({"greedy": True}, {"greedy": True, "cached": False}, {"beams": 2}):
        assert len(kf.generate(m, [5] * 40, max_new=9, **how)) == 49
    with pytest.raises(ShapeError, match="need 49 positions"):
        kf.generate(m, [5] * 40, max_new=10)
    with pytest.raises(ShapeError, match="at least one token"):
        kf.generate(m, [])
    with pytest.raises(SpecError, match="top_p must lie"):
        kf.generate(m, [5], top_p=0.0)
    with pytest.raises(SpecError, match="an encoder does not generate"):
        kf.generate(model("bert"), [5])


class OnDevice(torch.Tensor):
    """Numbers of the host that say they are on another device."""

    device = torch.device("meta")


class Scripted(Engine):
    """An engine of three tokens whose probabilities depend on the last one only."""

    limit, pairs, generation = None, False, GenerationIds()

    def __init__(self, table):
        self.table = torch.tensor(table).log()

    def open(self, run, threads=0):
        raise NotImplementedError

    def read(self, prompts, sources, need, chunk):
        yield from ()
        return None, self.table[[row[-1] for row in prompts]], None

    def join(self, state, n, other, n_other):
        raise NotImplementedError

    def select(self, state, rows_B):
        return None

    def advance(self, state, tokens_B):
        return self.table[tokens_B]


def test_a_beam_that_stops_leaves_its_place_to_the_next_best():
    """Of two places one goes to the stopping token 0 at first; what wins in the end is third then."""
    engine = Scripted([[1 / 3] * 3, [0.45, 0.30, 0.25], [0.98, 0.01, 0.01]])
    assert kf.generate(engine, [1], max_new=2, beams=2, stop=(0,), length_penalty=4.0) == [1, 2, 0]


def test_beams_are_read_on_the_device_of_the_model():
    class Pretended(Engine):
        limit, pairs, generation = None, False, GenerationIds()

        def _logits(self, n):
            return torch.randn(n, 11, generator=torch.Generator().manual_seed(n)).as_subclass(OnDevice)

        def open(self, run, threads=0):
            raise NotImplementedError

        def read(self, prompts, sources, need, chunk):
            yield from ()
            return None, self._logits(len(prompts)), None

        def join(self, state, n, other, n_other):
            raise NotImplementedError

        def select(self, state, rows_B):
            devices.append(rows_B.device)

        def advance(self, state, tokens_B):
            devices.append(tokens_B.device)
            return self._logits(len(tokens_B))

    devices = []
    out = kf.generate(Pretended(), [[7], [8]], max_new=4, beams=3)
    assert [len(row) for row in out] == [5, 5]
    assert len(devices) == 7
    assert set(devices) == {OnDevice.device}
