"""The live page in a real browser: text is typed, a head is chosen, and the numbers are those of the model."""

import os
from pathlib import Path

import pytest
import torch

from kinfolk.core.batch import Batch
from tests.use.serve.browser import CHROMIUM, Browser
from tests.use.serve.conftest import make_run, serving

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no chromium here"), pytest.mark.slow]
PICTURES = os.environ.get("KINFOLK_PICTURES")


@pytest.fixture(scope="module")
def live(gpt2, tmp_path_factory):
    vanilla = make_run(tmp_path_factory.mktemp("runs") / "vanilla", "vanilla")
    with serving([gpt2, vanilla], token="sesame") as running:
        yield running


@pytest.fixture
def browser(tmp_path):
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


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


def test_another_run_in_the_dark_on_a_phone(live, browser):
    browser.resize(390, 844, mobile=True)
    browser.scheme("dark")
    browser.open(live.url)
    browser.ask("document.getElementById('token').value = 'sesame'")
    browser.ask("document.getElementById('token').dispatchEvent(new Event('change'))")
    browser.until("document.getElementById('run').options.length === 2")
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
