"""The running batch and the engine over it: what a row writes does not depend on its company."""

import dataclasses
import threading
import time

import pytest

import kinfolk as kf
from kinfolk.core.errors import ShapeError
from kinfolk.data import Tokenizer
from kinfolk.decoding.options import Decoding
from kinfolk.use.serve.batching import Row, Running
from kinfolk.use.serve.engine import BusyError, ClosingError, Done, Engine, Failed, Request
from kinfolk.use.serve.limits import Limits
from kinfolk.use.serve.text import Text
from kinfolk.use.serve.workers import TorchWorker
from tests.cover import sampled
from tests.family.test_relatives import CAUSAL, model
from tests.use.serve.conftest import TOY

PROMPTS = [[9, 30, 21], [12], [33, 8, 8, 17, 20, 9, 11], [14, 15]]


def written(batch, rows, every=2):
    """Let rows join one after the other, each leaving when it is done."""
    waiting, n = list(rows), 0
    while waiting or batch.rows:
        if waiting and n % every == 0:
            batch.start([waiting.pop(0)])
        batch.step()
        batch.go_on([row for row in batch.rows if row.finish is None])
        n += 1
    return [row.written for row in rows]


@pytest.mark.parametrize("name", sampled(CAUSAL, "join late"))
def test_rows_that_join_late_write_what_they_write_alone(name):
    m = model(name)
    prompts, n_new = PROMPTS[:3], [6, 2, 4]
    rows = [Row(prompt=p, max_new=n, how=Decoding(greedy=True)) for p, n in zip(prompts, n_new, strict=True)]
    found = written(Running(TorchWorker(m, 64)), rows)
    for prompt, n, got in zip(prompts, n_new, found, strict=True):
        alone = kf.generate(m, prompt, max_new=n, greedy=True)
        assert got == alone[-n:]


@pytest.mark.parametrize("name", sampled(CAUSAL, "long prompts"))
def test_others_write_while_a_long_prompt_is_read_in_pieces(name):
    m, how, long = model(name), Decoding(greedy=True), [9, 30, 21, 12, 33, 8, 8, 17, 20, 9, 11, 14, 15]
    batch = Running(TorchWorker(m, 64))
    early, late = Row(prompt=[12, 7], max_new=6, how=how), Row(prompt=long, max_new=3, how=how)
    batch.start([early])
    reading, pauses = batch.coming([late], piece=5), 0
    for _ in reading:
        pauses += 1
        batch.step()
        batch.go_on(batch.rows)
        assert late not in batch.rows
    # an encoder reads its source at once
    assert (pauses, len(early.written)) == ((0, 0) if batch.worker.pairs else (2, 2))
    written(batch, [])
    for row in (early, late):
        assert row.written == kf.generate(m, row.prompt, max_new=row.max_new, greedy=True)[-row.max_new :]


def test_prompts_read_together_and_draws_of_their_own():
    m = model("gpt2")
    hows = [Decoding(seed=s, temperature=1.3, top_k=30) for s in range(4)]
    rows = [Row(prompt=p, max_new=6, how=how, n_top=2) for p, how in zip(PROMPTS, hows, strict=True)]
    batch = Running(TorchWorker(m, 64))
    batch.start(rows)
    while batch.rows:
        made = batch.step()
        assert all(one.logprob <= one.top[0][1] for one in made)
        batch.go_on([row for row in batch.rows if row.finish is None])
    for prompt, row, how in zip(PROMPTS, rows, hows, strict=True):
        alone = kf.generate(m, prompt, max_new=6, seed=how.seed, temperature=1.3, top_k=30)
        assert row.written == alone[len(prompt) :]


def test_penalties_make_written_tokens_rarer():
    m = model("gpt2")
    plain, shy = (Row(prompt=[9, 9, 9], max_new=24, how=Decoding(greedy=True), frequency=f) for f in (0.0, 2.0))
    a, b = written(Running(TorchWorker(m, 64)), [plain, shy])
    assert len(set(b)) > len(set(a))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match="70 positions"):
        Running(TorchWorker(model("gpt2"), 64)).start([Row(prompt=[9] * 60, max_new=11, how=Decoding())])


class Client:
    """Collects the events of one request."""

    def __init__(self, engine, prompt, max_new, text=None, **more):
        self.events, self.ended = [], threading.Event()
        rows = [Row(prompt=prompt, max_new=max_new, how=Decoding(greedy=True))]
        self.request = Request("m", self.tell, rows, [text or Text(Tokenizer.byte().decode)], **more)
        engine.submit(self.request)

    def tell(self, event):
        self.events.append(event)
        if isinstance(event, Failed | Done) or event.finish:
            self.ended.set()


@pytest.fixture
def engine():
    m = kf.build(kf.relative("gpt2", size="tiny", **TOY, vocab_size=263), seed=3)
    made = Engine({"m": Running(TorchWorker(m, 1024))}, Limits(rows=2, queue=3, seconds=20))
    made.start()
    yield made
    made.stop(0.2)
    assert not made._thread.is_alive()


def test_the_queue_is_bounded_and_what_was_accepted_is_answered(engine):
    clients, refused = [], 0
    for _ in range(20):
        try:
            clients.append(Client(engine, [9, 10], 60))
        except BusyError:
            refused += 1
    assert len(clients) == 5
    assert refused == 15
    for client in clients:
        assert client.ended.wait(30)
        assert sum(len(event.tokens) for event in client.events) == 60
    for _ in range(100):
        if engine._taken == 0:
            break
        time.sleep(0.01)
    assert engine._taken == 0
    assert Client(engine, [9], 1).ended.wait(30)


def test_a_row_whose_client_left_leaves_the_batch(engine):
    gone, stays = Client(engine, [9], 1000), Client(engine, [10], 40)
    while not gone.events:
        time.sleep(0.005)
    engine.cancel(gone.request)
    assert stays.ended.wait(30)
    for _ in range(200):
        if engine.n_running == 0:
            break
        time.sleep(0.01)
    assert engine.n_running == 0
    assert len(gone.events) < 1000
    assert engine.counts["m"].left_early == 1


def test_a_long_prompt_holds_up_nobody_who_writes(engine):
    engine.limits = dataclasses.replace(engine.limits, piece=4)
    writing = Client(engine, [9], 200)
    while not writing.events:
        time.sleep(0.005)
    before = len(writing.events)
    long = Client(engine, [10] * 400, 2)
    while not long.events and not writing.ended.is_set():
        time.sleep(0.005)
    # a hundred pieces are read, and between two of them a token is written
    assert len(writing.events) - before > 50
    assert long.ended.wait(30)
    assert sum(len(event.tokens) for event in long.events) == 2
    assert engine.counts["m"].prompt_tokens == 401


def test_a_long_prompt_comes_in_alone(engine):
    engine.limits = dataclasses.replace(engine.limits, piece=4)
    short, long = ((Request("m", print, [Row(prompt=[9] * n, max_new=1, how=Decoding())]), 0) for n in (4, 5))
    assert engine._has_room("m", [long])
    assert engine._has_room("m", [short, short])
    assert not engine._has_room("m", [short, long])


def test_whose_client_leaves_while_the_prompt_is_read_is_let_go(engine):
    engine.limits = dataclasses.replace(engine.limits, piece=1)
    gone = Client(engine, [10] * 900, 2)
    while not engine._coming:
        time.sleep(0.001)
    engine.cancel(gone.request)
    for _ in range(400):
        if engine._taken == 0:
            break
        time.sleep(0.01)
    assert (engine._taken, engine.n_running, engine.counts["m"].left_early) == (0, 0, 1)
    assert not gone.events
    assert Client(engine, [9], 1).ended.wait(30)


def test_a_request_whose_time_is_up_is_told_so(engine):
    late = Client(engine, [9], 1000, deadline=time.monotonic() + 0.1)
    assert late.ended.wait(30)
    assert late.events[-1].kind == "timeout"


def test_closing_finishes_what_runs_and_refuses_what_comes(engine):
    running = Client(engine, [9], 100)
    engine.close()
    with pytest.raises(ClosingError):
        Client(engine, [9], 1)
    assert running.ended.wait(30)
    assert running.events[-1].finish == "length"


def test_a_failing_model_fails_its_requests_and_nobody_elses(engine, monkeypatch, capsys):
    batch, fine = engine.running["m"], engine.running["m"].coming

    def failing(rows, piece):
        if rows[0].prompt == [13]:
            raise RuntimeError("out of paper")
        yield from fine(rows, piece)

    monkeypatch.setattr(batch, "coming", failing)
    bad = Client(engine, [13], 5)
    assert bad.ended.wait(30)
    assert bad.events[-1] == Failed("broken", "the model failed: RuntimeError")
    good = Client(engine, [9], 5)
    assert good.ended.wait(30)
    assert good.events[-1].finish == "length"
    assert "out of paper" in capsys.readouterr().err


def test_an_engine_that_breaks_ends_its_requests_and_begins_again(engine, monkeypatch, capsys):
    running = Client(engine, [9], 1000)
    while not running.events:
        time.sleep(0.005)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_admit", lambda: 1 / 0)
        assert running.ended.wait(30)
    assert running.events[-1].kind == "broken"
    assert engine.restarts >= 1
    good = Client(engine, [9], 5)
    assert good.ended.wait(30)
    assert good.events[-1].finish == "length"
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_text_waits_for_whole_characters_and_for_stops():
    tokenizer = Tokenizer.byte()
    whole = "naïve 😀 END of it"
    ids = tokenizer.encode(whole)
    text, found = Text(tokenizer.decode, ["END", "xx"], ids[:2]), []
    for i in ids[2:]:
        found.append(text.add(i))
        if text.stopped:
            break
    assert "".join(found) == "ïve 😀 "
    assert "\ufffd" not in "".join(found)
    assert text.length == len("ïve 😀 ")
    # what might have become a stop comes at the end
    text = Text(tokenizer.decode, ["END"])
    assert "".join(text.add(i) for i in tokenizer.encode("the EN")) == "the "
    assert text.close() == "EN"
    broken = Text(tokenizer.decode)
    assert broken.add(tokenizer.encode("ï")[0]) == ""
    assert broken.close() == "\ufffd"


def test_a_stop_may_begin_inside_what_looked_like_another():
    tokenizer = Tokenizer.byte()
    text = Text(tokenizer.decode, ["aab"])
    found = "".join(text.add(i) for i in tokenizer.encode("xaaab"))
    assert (found, text.stopped) == ("xa", True)
