"""The scheduler: a bounded queue, one thread, and requests that come, wait, leave and fail."""

import dataclasses
import threading
import time

import pytest

import kinfolk as kf
from kinfolk.data import Tokenizer
from kinfolk.decoding.detokenize import Text
from kinfolk.decoding.engines.torch_engine import TorchEngine
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.running import RunningBatch
from kinfolk.decoding.sequence import RunningSequence
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.scheduler import BusyError, ClosingError, Done, Failed, Request, Scheduler
from tests.use.serve.conftest import TOY


class Client:
    """Collects the events of one request."""

    def __init__(self, engine, prompt, max_new, text=None, **more):
        self.events, self.ended = [], threading.Event()
        rows = [RunningSequence(prompt=prompt, max_new=max_new, how=Decoding(greedy=True))]
        self.request = Request("m", self.tell, rows, [text or Text(Tokenizer.byte().decode)], **more)
        engine.submit(self.request)

    def tell(self, event):
        self.events.append(event)
        if isinstance(event, Failed | Done) or event.finish:
            self.ended.set()


@pytest.fixture
def engine():
    m = kf.build(kf.relative("gpt2", size="tiny", **TOY, vocab_size=263), seed=3)
    made = Scheduler({"m": RunningBatch(TorchEngine(m).within(1024))}, ServerLimits(rows=2, queue=3, seconds=20))
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
    short, long = (
        (Request("m", print, [RunningSequence(prompt=[9] * n, max_new=1, how=Decoding())]), 0) for n in (4, 5)
    )
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
