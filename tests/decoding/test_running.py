"""The running batch: what a sequence gets does not depend on the others in the batch."""

import pytest
import torch
import torch.nn.functional as F

import kinfolk as kf
from kinfolk.core.errors import ShapeError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.decoding.engines.engine import Engine
from kinfolk.decoding.engines.torch_engine import TorchEngine
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.running import RunningBatch
from kinfolk.decoding.sequence import RunningSequence
from kinfolk.runs.engines import engines, opener_of
from tests.cover import sampled
from tests.family.test_relatives import CAUSAL, model

PROMPTS = [[9, 30, 21], [12], [33, 8, 8, 17, 20, 9, 11], [14, 15]]


def greedy(prompts, n_new):
    """Return sequences that take the likeliest tokens."""
    how = Decoding(greedy=True)
    return [RunningSequence(prompt=p, max_new=n, how=how) for p, n in zip(prompts, n_new, strict=True)]


def written(batch, rows, every=2):
    """Let rows join one after the other, each leaving when it is done."""
    waiting, n = list(rows), 0
    while waiting or batch.sequences:
        if waiting and n % every == 0:
            batch.start([waiting.pop(0)])
        batch.step()
        batch.go_on([row for row in batch.sequences if row.finish is None])
        n += 1
    return [row.written for row in rows]


@pytest.mark.parametrize("name", sampled(CAUSAL, "join late"))
def test_rows_that_join_late_write_what_they_write_alone(name):
    m = model(name)
    prompts, n_new = PROMPTS[:3], [6, 2, 4]
    rows = [
        RunningSequence(prompt=p, max_new=n, how=Decoding(greedy=True)) for p, n in zip(prompts, n_new, strict=True)
    ]
    found = written(RunningBatch(TorchEngine(m).within(64)), rows)
    for prompt, n, got in zip(prompts, n_new, found, strict=True):
        alone = kf.generate(m, prompt, max_new=n, greedy=True)
        assert got == alone[-n:]


@pytest.mark.parametrize("name", sampled(CAUSAL, "long prompts"))
def test_others_write_while_a_long_prompt_is_read_in_pieces(name):
    m, how, long = model(name), Decoding(greedy=True), [9, 30, 21, 12, 33, 8, 8, 17, 20, 9, 11, 14, 15]
    batch = RunningBatch(TorchEngine(m).within(64))
    early, late = RunningSequence(prompt=[12, 7], max_new=6, how=how), RunningSequence(prompt=long, max_new=3, how=how)
    batch.start([early])
    reading, pauses = batch.coming([late], chunk=5), 0
    for _ in reading:
        pauses += 1
        batch.step()
        batch.go_on(batch.sequences)
        assert late not in batch.sequences
    # an encoder reads its source at once
    assert (pauses, len(early.written)) == ((0, 0) if batch.engine.pairs else (2, 2))
    written(batch, [])
    for row in (early, late):
        assert row.written == kf.generate(m, row.prompt, max_new=row.max_new, greedy=True)[-row.max_new :]


def test_prompts_read_together_and_draws_of_their_own():
    m = model("gpt2")
    hows = [Decoding(seed=s, temperature=1.3, top_k=30) for s in range(4)]
    rows = [RunningSequence(prompt=p, max_new=6, how=how, n_top=2) for p, how in zip(PROMPTS, hows, strict=True)]
    batch = RunningBatch(TorchEngine(m).within(64))
    batch.start(rows)
    while batch.sequences:
        made = batch.step()
        assert all(one.logprob <= one.top[0][1] for one in made)
        batch.go_on([row for row in batch.sequences if row.finish is None])
    for prompt, row, how in zip(PROMPTS, rows, hows, strict=True):
        alone = kf.generate(m, prompt, max_new=6, seed=how.seed, temperature=1.3, top_k=30)
        assert row.written == alone[len(prompt) :]


def test_penalties_make_written_tokens_rarer():
    m = model("gpt2")
    plain, shy = (
        RunningSequence(prompt=[9, 9, 9], max_new=24, how=Decoding(greedy=True), frequency=f) for f in (0.0, 2.0)
    )
    a, b = written(RunningBatch(TorchEngine(m).within(64)), [plain, shy])
    assert len(set(b)) > len(set(a))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match="70 positions"):
        RunningBatch(TorchEngine(model("gpt2")).within(64)).start(
            [RunningSequence(prompt=[9] * 60, max_new=11, how=Decoding())]
        )


def test_a_sequence_is_constrained_by_its_own_prompt_and_step():
    """Sequences with other options, steps and lengths share a step, and each gets what it would get alone."""
    m = model("gpt2")
    ids = GenerationIds(stop_ids=(2,), forced_first_id=8, forced_last_id=2, suppressed_ids=(17,))
    hows = [
        {"greedy": True, "ids": ids},
        {"greedy": True, "ids": ids},
        {"seed": 4, "no_repeat_ngram": 2},
        {"seed": 9, "repetition_penalty": 1.5},
        {"seed": 4},
    ]
    prompts, n_new = [*PROMPTS, [9]], [5, 6, 7, 4, 6]
    rows = [
        RunningSequence(prompt=p, max_new=n, how=Decoding(**how))
        for p, n, how in zip(prompts, n_new, hows, strict=True)
    ]
    written(RunningBatch(TorchEngine(m).within(64)), rows, every=1)
    for row, how in zip(rows, hows, strict=True):
        assert row.written == kf.generate(m, row.prompt, max_new=row.max_new, **how)[len(row.prompt) :]
    assert rows[1].written[0] == 8


def test_finished_sequences_leave_and_the_others_keep_their_draws():
    m, options = model("gpt2"), {"seed": 3, "temperature": 1.5, "stop": tuple(range(20))}
    widths, advance = [], TorchEngine.advance

    class Counting(TorchEngine):
        def advance(self, state, tokens_B):
            widths.append(len(tokens_B))
            return advance(self, state, tokens_B)

    found = kf.generate(Counting(m), PROMPTS, max_new=12, **options)
    whole = kf.generate(m, PROMPTS, max_new=12, **options | {"stop": ()})
    for prompt, got, full in zip(PROMPTS, found, whole, strict=True):
        new = full[len(prompt) :]
        end = next((i + 1 for i, token in enumerate(new) if token < 20), len(new))
        assert got == prompt + new[:end]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < len(PROMPTS)


class Repeating(Engine, kind="repeating"):
    """Says the last token again: an engine in a few lines."""

    limit, pairs, generation = None, False, GenerationIds()

    @classmethod
    def open(cls, run, threads=0):
        return cls()

    def read(self, prompts, sources, need, chunk):
        yield from ()
        last_B = torch.tensor([row[-1] for row in prompts])
        return last_B, F.one_hot(last_B, 50).float(), lambda i: iter(())

    def join(self, state, n, other, n_other):
        return torch.cat([state, other])

    def select(self, state, rows_B):
        return state[rows_B]

    def advance(self, state, tokens_B):
        return F.one_hot(tokens_B, 50).float()


def test_an_engine_registers_itself_and_takes_the_place_of_a_model():
    assert {"torch", "repeating"} <= set(engines())
    assert isinstance(opener_of("repeating")(None, 0), Repeating)
    assert kf.generate(Repeating(), [[4, 5], [7]], max_new=2, greedy=True) == [[4, 5, 5, 5], [7, 7, 7]]
    assert kf.generate(Repeating(), [4, 5], max_new=2, beams=2) == [4, 5, 5, 5]
    assert written(RunningBatch(Repeating()), greedy([[4, 5], [7]], [3, 2]), every=1) == [[5, 5, 5], [7, 7]]
