"""Every page in a browser: no complaint on its console, not wider than a phone, nothing grave found by axe-core."""

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinfolk as kf
from kinfolk.contests.report.page import render
from kinfolk.data import Tokenizer
from kinfolk.train import report
from kinfolk.use.inspect.page import Findings, describe
from kinfolk.use.inspect.page import render as render_heads
from kinfolk.use.inspect.sight import look
from tests.contests.made_up import everything
from tests.use.serve.browser import CHROMIUM, Browser

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no chromium here"), pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def comparison(folder: Path) -> str:
    return render(everything(folder))


def run(folder: Path) -> str:
    rows = [
        f'{{"step": {n}, "loss": {4 / n}, "lr": 0.001, "valid": {{"next-token": {5 / n}}}}}\n' for n in range(1, 30)
    ]
    (folder / "metrics.jsonl").write_text("".join(rows))
    return report.render(folder, [report.TextSample("so", "so it is")])


def heads(folder: Path) -> str:
    tokenizer = Tokenizer.byte()
    toy = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "max_len": 64}
    model = kf.build(kf.relative("gpt2", size="tiny", vocab_size=tokenizer.vocab_size, **toy), seed=1)
    sight = look(model, tokenizer, "so it is")
    return render_heads("Inside", describe(sight, [False] * len(sight.tokens), Findings()))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    runpy.run_path(str(ROOT / "docs" / "build_site.py"))["build"](out)
    return out


@pytest.fixture(scope="module")
def pages(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for make in (comparison, run, heads):
        (folder / make.__name__).mkdir()
        made[make.__name__] = folder / f"{make.__name__}.html"
        made[make.__name__].write_text(make(folder / make.__name__), encoding="utf-8")
    return made | {"docs": site / "comparing.html", "front": site / "index.html"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("browser") / "profile")
    yield opened
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["comparison", "run", "heads", "docs", "front"])
def test_anybody_can_read_it(name: str, scheme: str, pages: dict[str, Path], browser: Browser) -> None:
    browser.fresh().scheme(scheme)
    browser.open(pages[name].as_uri())
    assert browser.ask(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
    assert browser.grave() == []
    browser.resize(390, 844, mobile=True)
    assert browser.ask("document.documentElement.scrollWidth") <= 390
    assert browser.complaints == []
