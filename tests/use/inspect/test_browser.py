"""The page in a real browser: it draws, shows the numbers that were computed, and has nothing to complain about."""

import html
import re

import pytest
import torch

import kinfolk as kf
from kinfolk.data import Tokenizer
from kinfolk.use.inspect.page import Findings, describe, render
from kinfolk.use.inspect.sight import look
from tests.use.serve.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
TOY = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "max_len": 64}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("chromium") / "profile")
    yield made
    made.close()


def opened(file, chromium, anchor=""):
    """Return the page as it is once its script has run, and what the browser said meanwhile."""
    browser = chromium.fresh()
    browser.open(f"{file.as_uri()}{anchor}")
    return browser.ask("document.documentElement.outerHTML"), browser.complaints


@pytest.mark.parametrize("name", ["gpt2", "vanilla", "universal-act", "switch", "performer"])
def test_the_page_shows_what_was_computed(name, tmp_path, chromium):
    tokenizer = Tokenizer.byte()
    model = kf.build(kf.relative(name, size="tiny", vocab_size=tokenizer.vocab_size, **TOY), seed=1)
    sight = look(model, tokenizer, "<b>so it is", "it is" if model.spec.topology == "encoder-decoder" else None)
    file = tmp_path / "page.html"
    file.write_text(render("Inside", describe(sight, [False] * len(sight.tokens), Findings())), encoding="utf-8")
    last = sight.maps[-1] if sight.maps else None
    page, complaints = opened(file, chromium, f"#{last.path}/2/3/1" if last else "")
    assert complaints == []
    if last is not None:
        shown = re.search(r'id="told"[^>]*data-value="([^"]*)"', page)
        assert torch.tensor(float(shown.group(1))) == last.weights_HLM[2, 3, 1]
        assert page.count("<canvas") == sum(one.weights_HLM.shape[0] for one in sight.maps)
        assert f"{last.path}, head 2" in html.unescape(page)
    for special in sight.specials:
        assert f"{special.path} · {special.name}" in html.unescape(page)


def test_the_page_shows_what_is_near_a_word(tmp_path, chromium):
    from kinfolk.use.inspect.neighbours import neighbours

    tokenizer = Tokenizer.byte()
    model = kf.build(kf.relative("gpt2", size="tiny", vocab_size=tokenizer.vocab_size, **TOY), seed=1)
    found = neighbours(model, tokenizer, "a <b> bank, the bank & a river", "bank", n=2)
    sight = look(model, tokenizer, "the bank")
    data = describe(sight, [False] * len(sight.tokens), Findings(neighbours=found))
    file = tmp_path / "page.html"
    file.write_text(render("Inside", data), encoding="utf-8")
    page, complaints = opened(file, chromium)
    assert complaints == []
    shown = html.unescape(page)
    assert all(near.around in shown for one in found.contextual for near in one.near)
    assert f"{found.static[0].cosine:.3f}" in shown
