"""Engines side by side: the same weights, as many tokens, one thread."""

import json

import pytest
import torch

from kinfolk.bench import engines, peers
from kinfolk.bench.contest import OURS
from kinfolk.cli.main import main
from kinfolk.decoding.engines.weight_layout import bf16_available, blocks_available
from tests.bench.test_cli import instant  # noqa: F401
from tests.bench.test_contestants import GPT, installed, name_of


def test_ctranslate2_writes_what_hugging_face_does(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = peers.hugging_face(GPT).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    engines.convert(model, tmp_path / "fp32", None)
    prompt = torch.tensor([[7, 30, 12, 9], [8, 8, 40, 21]])
    theirs = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
    engine = ctranslate2.Generator(str(tmp_path / "fp32"), intra_threads=1)
    words = [[str(token) for token in row] for row in prompt.tolist()]
    found = engine.generate_batch(words, max_length=6, min_length=6, sampling_topk=1, include_prompt_in_result=False)
    assert [one.sequences_ids[0] for one in found] == theirs[:, 4:].tolist()


NO_BF16 = pytest.mark.skipif(not (blocks_available() and bf16_available()), reason="no instructions for bf16")
WHO = [pytest.param(who, marks=[NO_BF16] if who.name.endswith("bf16") else [], id=name_of(who)) for who in engines.WHO]


@pytest.mark.slow
@pytest.mark.parametrize("who", WHO)
def test_every_engine_makes_all_its_tokens(who, tmp_path_factory, monkeypatch):
    installed(who)
    kept = tmp_path_factory.getbasetemp() / "engines"
    monkeypatch.setattr(engines.tempfile, "gettempdir", lambda: str(kept))
    work = engines.prepare(who, GPT)
    assert work.step() == 3 * (5 if who.how == "ctranslate2" else 4 + 5)
    assert work.units == 3 * 5
    assert work.parameters == engines.prepare(engines.WHO[3], GPT).parameters


def test_the_option_asks_for_engines_on_one_thread(instant, capsys):  # noqa: F811
    assert main(["bench", "generate", "--engines", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [c["subject"] for c in found["contests"]] == ["engines"] * 4
    assert {task.threads for task in instant} == {1}
    assert sum(task.contestant.how == OURS for task in instant) == 5 * 4
