"""The live page in a real browser: text is typed, a head is chosen, and the numbers are those of the model."""

import os
from pathlib import Path

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.runs import chat_template, folder
from tests.use.serve.browser import CHROMIUM, Browser
from tests.use.serve.conftest import make_run, serving

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no chromium here"), pytest.mark.slow]
PICTURES = os.environ.get("KINFOLK_PICTURES")


@pytest.fixture(scope="module")
def live(gpt2, judge, asker, tmp_path_factory):
    vanilla = make_run(tmp_path_factory.mktemp("runs") / "vanilla", "vanilla")
    talker = make_run(tmp_path_factory.mktemp("runs") / "talker", "gpt2")
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    folder.add(talker, chat_template.FILE, lambda file: file.write_text(template))
    with serving([gpt2, vanilla, judge, talker, asker], token="sesame") as running:
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("chromium") / "profile")
    yield made
    made.close()


@pytest.fixture
def browser(chromium):
    return chromium.fresh()


def taps(served, text):
    """The attention of every layer, by a pass of the model itself."""
    ids = torch.tensor([[served.tokenizer.bos, *served.tokenizer.encode(text)]])
    with torch.no_grad():
        found = served.model.run(Batch(index=torch.zeros(1), tokens=ids), taps=["weights"]).taps
    return {path.removesuffix(".weights"): value[0] for path, value in found.items()}


def number(browser):
    return torch.tensor(float(browser.ask("document.getElementById('told').dataset.value")))


def test_long_texts_are_cut_so_that_an_answer_stays_small(live, monkeypatch):
    monkeypatch.setattr("kinfolk.use.serve.page.WEIGHTS", 8 * 20 * 20)
    headers = {"authorization": "Bearer sesame"}
    found = live.post("/v1/inspect", {"model": "gpt2", "text": "x" * 300}, headers=headers).json()
    assert (len(found["tokens"]), found["cut"]) == (21, 280)


def test_typed_text_is_looked_at_and_every_number_is_the_models(live, browser):
    browser.open(live.url)
    assert browser.ask("document.activeElement.id") == "text"
    browser.type("so it is")
    # the server wants a token, the page asks for it, and says so
    browser.until("!document.getElementById('guarded').hidden")
    assert "token" in browser.ask("document.getElementById('said').textContent")
    browser.complaints.clear()
    browser.click("#token")
    browser.type("sesame")
    browser.press("Enter", windowsVirtualKeyCode=13, text="\r")
    browser.until("document.querySelectorAll('#overview canvas').length === 8")
    weights = taps(live.served["gpt2"], "so it is")
    assert set(weights) == {"decoder.0.0", "decoder.1.0"}

    # by the mouse: the third head of the last layer, and the cell of row 5, column 2
    browser.click("#overview .heads:nth-child(2) button:nth-of-type(3)")
    assert browser.ask("document.getElementById('chosen').textContent").startswith("decoder.1.0, head 2")
    x, y = browser.at("#map image")
    size = browser.ask("document.querySelector('#map image').getBoundingClientRect().width")
    browser.hover(x - size / 2 + size * 2.5 / 9, y - size / 2 + size * 5.5 / 9)
    assert number(browser) == weights["decoder.1.0"][2, 5, 2]
    assert "5 t → 2 o" in browser.ask("document.getElementById('told').textContent")

    # by the keyboard: another cell, then another head
    browser.ask("document.getElementById('map').focus()")
    browser.press("ArrowDown", windowsVirtualKeyCode=40)
    browser.press("ArrowLeft", windowsVirtualKeyCode=37)
    assert number(browser) == weights["decoder.1.0"][2, 6, 1]
    browser.ask("document.querySelector('#overview [aria-pressed=true]').focus()")
    browser.press("ArrowUp", windowsVirtualKeyCode=38)
    assert number(browser) == weights["decoder.0.0"][2, 6, 1]

    # more text: the head and the cell stay chosen
    browser.click("#text")
    browser.press("End", windowsVirtualKeyCode=35)
    browser.type(" now")
    browser.until("document.getElementById('said').textContent.includes('13 tokens')")
    assert browser.ask("document.getElementById('chosen').textContent").startswith("decoder.0.0, head 2")
    assert number(browser) == taps(live.served["gpt2"], "so it is now")["decoder.0.0"][2, 6, 1]
    assert browser.complaints == []
    if PICTURES:
        browser.ask("scrollTo(0, 0)")
        browser.picture(Path(PICTURES) / "live-light.png")


def pick(browser, name, value):
    browser.ask(f"document.getElementById('{name}').value = '{value}'")
    browser.ask(f"document.getElementById('{name}').dispatchEvent(new Event('change'))")


def log_in(browser, live):
    browser.open(live.url)
    pick(browser, "token", "sesame")
    browser.until("document.getElementById('run').options.length === 5")


def answer(browser):
    browser.until(
        "!document.getElementById('answer').hidden && !document.getElementById('said').textContent.includes('…')"
    )
    return browser.ask("document.getElementById('answer').textContent")


def test_a_run_writes_by_the_keyboard(live, browser):
    log_in(browser, live)
    pick(browser, "verb", "complete")
    browser.ask("document.getElementById('temperature').value = 0")
    browser.ask("document.getElementById('max_tokens').value = 20")
    browser.click("#text")
    browser.type("def f(")
    browser.press("Enter", windowsVirtualKeyCode=13, modifiers=2)
    one = live.served["gpt2"]
    ids = one.encode("def f(")
    out = kf.generate(one.model, ids, max_new=20, greedy=True, stop=(one.tokenizer.eos,))
    assert answer(browser) == "def f(" + one.decode(out[len(ids) :])
    assert browser.complaints == []
    if PICTURES:
        browser.picture(Path(PICTURES) / "live-write.png")


def test_a_run_chats_classifies_and_compares(live, browser):
    log_in(browser, live)
    pick(browser, "run", "judge")
    verbs = "[...document.getElementById('verb').options].map(one => one.value).join()"
    assert browser.ask(verbs) == "classify,embed,inspect"
    pick(browser, "verb", "classify")
    browser.click("#text")
    browser.type("it is good")
    browser.click("#ask button")
    answer(browser)
    shown = browser.ask("[...document.querySelectorAll('#answer th')].map(one => one.textContent).sort().join()")
    assert shown == "no,perhaps,yes"
    pick(browser, "verb", "embed")
    browser.click("#second")
    browser.type("it is good")
    browser.click("#ask button")
    assert "cosine similarity 1.0000" in answer(browser)
    pick(browser, "run", "talker")
    pick(browser, "verb", "chat")
    browser.ask("document.getElementById('max_tokens').value = 5")
    browser.click("#ask button")
    answer(browser)
    browser.until("document.getElementById('said').textContent === '2 messages'")
    assert browser.ask("document.getElementById('text').value") == ""
    browser.click("#text")
    browser.type("and?")
    browser.click("#ask button")
    browser.until("document.getElementById('said').textContent === '4 messages'")
    assert browser.ask("document.querySelectorAll('#answer p').length") == 4
    pick(browser, "run", "vanilla")
    assert browser.ask("[...document.getElementById('verb').options].map(one => one.text).join()").startswith(
        "Translate"
    )
    assert browser.complaints == []


def test_a_run_answers_a_question(live, browser):
    log_in(browser, live)
    pick(browser, "run", "asker")
    assert browser.ask("[...document.getElementById('verb').options].map(one => one.text)[0]") == "Answer"
    pick(browser, "verb", "predict")
    assert browser.ask("document.getElementById('texted').firstChild.textContent") == "Question"
    assert browser.ask("document.getElementById('seconded').firstChild.textContent") == "Context"
    browser.click("#text")
    browser.type("who wrote?")
    browser.click("#second")
    browser.type("Ada wrote the first program.")
    browser.click("#ask button")
    assert "answer" in answer(browser)
    assert browser.ask("document.getElementById('said').textContent") in "Ada wrote the first program."
    assert browser.grave() == []
    assert browser.complaints == []


def test_heads_open_on_a_telling_one(live, browser):
    log_in(browser, live)
    browser.click("#text")
    browser.type("so it is so it is")
    browser.until("document.querySelectorAll('#overview canvas').length === 8")
    weights = taps(live.served["gpt2"], "so it is so it is")
    best = (-1.0, "", 0)
    for path, w_HLL in weights.items():
        n = w_HLL.shape[1]
        far = (torch.arange(n)[:, None] - torch.arange(n)).abs() > 1
        far[:, 0] = False
        for h, w in enumerate(w_HLL):
            best = max(best, (float((w * far).amax(-1).mean()), path, h))
    assert browser.ask("document.getElementById('chosen').textContent").startswith(f"{best[1]}, head {best[2]}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(live, browser, scheme):
    browser.scheme(scheme)
    log_in(browser, live)
    for verb in ("complete", "embed", "inspect"):
        pick(browser, "verb", verb)
        browser.ask("document.getElementById('text').value = 'so it is'")
        browser.click("#ask button")
        seen = "answer" if verb != "inspect" else "page"
        browser.until(f"document.getElementById('{seen}').textContent")
        browser.until("!document.getElementById('said').textContent.includes('…')")
        assert browser.grave() == []


def test_another_run_in_the_dark_on_a_phone(live, browser):
    browser.resize(390, 844, mobile=True)
    browser.scheme("dark")
    browser.open(live.url)
    browser.ask("document.getElementById('token').value = 'sesame'")
    browser.ask("document.getElementById('token').dispatchEvent(new Event('change'))")
    browser.until("document.getElementById('run').options.length === 5")
    browser.ask("document.getElementById('run').value = 'vanilla'")
    browser.ask("document.getElementById('run').dispatchEvent(new Event('change'))")
    assert browser.ask("!document.getElementById('targeted').hidden")
    browser.click("#text")
    browser.type("<b>one & two")
    browser.click("#target")
    browser.type("eins")
    browser.until("document.querySelectorAll('#overview canvas').length === 24")
    # nothing is wider than the phone
    assert browser.ask("document.documentElement.scrollWidth") <= 390
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(22, 21, 19)"
    assert browser.ask("document.querySelectorAll('#page b').length") == 0
    assert browser.complaints == []
    if PICTURES:
        browser.ask("scrollTo(0, 0)")
        browser.picture(Path(PICTURES) / "live-dark.png")
