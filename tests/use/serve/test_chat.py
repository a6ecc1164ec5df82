"""Conversations: OpenAI's client against a run with a chat template, and the same from the command line."""

import io
import json

import openai
import pytest

import kinfolk as kf
from kinfolk.cli import main
from kinfolk.runs import chat_template, folder
from kinfolk.runs.run import Run
from tests.use.serve.conftest import make_run, serving

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if messages | length > 5 %}{{ raise_exception('too long a talk') }}{% endif %}<assistant>"
)
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "naïve?"}]
PROMPT = "<system>Be brief.\n<user>naïve?\n<assistant>"


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("runs") / "talker", "gpt2")
    folder.add(run, chat_template.FILE, lambda file: file.write_text(TEMPLATE))
    return run


@pytest.fixture(scope="module")
def both(talker, gpt2):
    with serving([talker, gpt2]) as running:
        yield running


@pytest.fixture
def client(both):
    with openai.OpenAI(base_url=f"{both.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def expected(both, n):
    one = both.served["talker"]
    ids = one.tokenizer.encode(PROMPT)
    return one.decode(kf.generate(one.model, ids, max_new=n, greedy=True, stop=(one.tokenizer.eos,))[len(ids) :])


def test_a_chat_is_what_the_rendered_prompt_gives(both, client):
    made = client.chat.completions.create(model="talker", messages=TALK, max_tokens=12, temperature=0)
    (choice,) = made.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected(both, 12))
    assert (choice.finish_reason, made.object) == ("length", "chat.completion")
    assert made.usage.prompt_tokens == len(PROMPT.encode())
    assert made.usage.completion_tokens == 12
    two = client.chat.completions.create(model="talker", messages=TALK, max_tokens=5, n=2, seed=3, temperature=1.3)
    assert len({one.message.content for one in two.choices}) == 2


def test_a_chat_streams_what_it_would_send_at_once(both, client):
    asked = {"model": "talker", "messages": TALK, "max_tokens": 12, "temperature": 0}
    with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        pieces = list(stream)
    assert pieces[0].choices[0].delta.role == "assistant"
    assert {piece.object for piece in pieces} == {"chat.completion.chunk"}
    assert "".join(piece.choices[0].delta.content for piece in pieces[:-1]) == expected(both, 12)
    assert pieces[-2].choices[0].finish_reason == "length"
    assert (pieces[-1].choices, pieces[-1].usage.completion_tokens) == ([], 12)


def test_what_cannot_be_said_is_refused_in_one_line(both, client):
    with pytest.raises(openai.NotFoundError, match="gpt2 has no chat template"):
        client.chat.completions.create(model="gpt2", messages=TALK)
    with pytest.raises(openai.BadRequestError, match="too long a talk"):
        client.chat.completions.create(model="talker", messages=TALK * 3)
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\].role"):
        client.chat.completions.create(model="talker", messages=[{"role": "nobody", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="at least 1 item"):
        client.chat.completions.create(model="talker", messages=[])
    with pytest.raises(openai.BadRequestError, match="1024 positions"):
        client.chat.completions.create(model="talker", messages=[{"role": "user", "content": "x" * 2000}])
    does = {one["id"]: one["does"] for one in both.get("/v1/models").json()["data"]}
    assert does == {"talker": ["complete", "chat", "embed", "inspect"], "gpt2": ["complete", "embed", "inspect"]}


def test_kin_generate_chats(talker, gpt2, both, capsys, monkeypatch):
    words = ["generate", str(talker), "--chat", "--system", "Be brief.", "--greedy", "--max-new", "12"]
    assert main.main([*words, "--prompt", "naïve?"]) == 0
    # a terminal gets no control characters
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in expected(both, 12))
    assert capsys.readouterr().out == shown + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("naïve?\n\nand now?\n"))
    assert main.main([*words, "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"role": "assistant", "content": expected(both, 12)}
    # the second answer goes on from the whole conversation
    template = Run.open(talker).chat_template
    turns = [*TALK, first, {"role": "user", "content": "and now?"}]
    ids, one = template.ids(turns), both.served["talker"]
    assert template.render(turns).startswith(PROMPT + first["content"])
    out = kf.generate(one.model, ids, max_new=12, greedy=True, stop=(one.tokenizer.eos,))
    assert second["content"] == one.decode(out[len(ids) :])
    assert main.main(["generate", str(gpt2), "--chat", "--prompt", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main.main([*words, "--beams", "2"]) == 2
    assert "--beams" in capsys.readouterr().err


def test_import_and_export_keep_the_template(talker, tmp_path):
    out, run = tmp_path / "hf", tmp_path / "run"
    assert main.main(["export", str(talker), "--to", "hf", "--out", str(out)]) == 0
    assert (out / chat_template.FILE).read_text() == TEMPLATE
    assert Run.open(out).chat_template.render(TALK) == PROMPT
    assert main.main(["import", str(out), "--out", str(run)]) == 0
    assert Run.open(run).chat_template.text == TEMPLATE
    # kept with its hash
    (run / chat_template.FILE).write_text("other")
    assert main.main(["generate", str(run), "--chat", "--prompt", "x", "--max-new", "1"]) == 2
