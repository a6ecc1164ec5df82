"""The real client of OpenAI against a server of ours."""

import math

import openai
import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def expected(server, prompt, n, **options):
    """What the model writes alone."""
    one = server.served["gpt2"]
    ids = one.encode(prompt)
    out = kf.generate(one.model, ids, max_new=n, stop=(one.tokenizer.eos,), **({"greedy": True} | options))
    return one.decode(out[len(ids) :])


def test_lists_models(client):
    assert [m.id for m in client.models.list()] == ["gpt2", "bert"]
    assert client.models.retrieve("gpt2").owned_by == "gpt2"


def test_completes_one_prompt_and_several_each_as_alone(server, client):
    prompts = ["def f(", "x", "a longer prompt than the others"]
    made = client.completions.create(model="gpt2", prompt=prompts, max_tokens=20, temperature=0)
    assert [c.text for c in made.choices] == [expected(server, p, 20) for p in prompts]
    assert [c.index for c in made.choices] == [0, 1, 2]
    assert made.usage.completion_tokens == 60
    assert made.usage.prompt_tokens == sum(map(len, prompts))
    assert made.choices[0].finish_reason == "length"


def test_token_ids_are_prompts_too(server, client):
    ids = server.served["gpt2"].encode("def f(")
    one = client.completions.create(model="gpt2", prompt=ids, max_tokens=9, temperature=0)
    two = client.completions.create(model="gpt2", prompt=[ids, ids[:3]], max_tokens=9, temperature=0)
    assert one.choices[0].text == two.choices[0].text == expected(server, "def f(", 9)
    assert two.choices[1].text == expected(server, "def", 9)


def test_streams_what_it_would_send_at_once(server, client):
    asked = {"model": "gpt2", "prompt": ["def f(", "x"], "max_tokens": 24, "temperature": 0}
    texts, ends = ["", ""], [None, None]
    with client.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        pieces = list(stream)
    for piece in pieces[:-1]:
        (choice,) = piece.choices
        texts[choice.index] += choice.text
        ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [expected(server, p, 24) for p in asked["prompt"]]
    assert ends == ["length", "length"]
    assert len(pieces) > 24
    assert (pieces[-1].choices, pieces[-1].usage.completion_tokens) == ([], 48)


def test_seeds_draw_the_same_text_again_and_choices_differ(server, client):
    asked = {
        "model": "gpt2",
        "prompt": "def f(",
        "max_tokens": 12,
        "temperature": 1.2,
        "top_p": 0.95,
        "seed": 5,
        "n": 3,
    }
    first, again = (client.completions.create(**asked) for _ in range(2))
    texts = [c.text for c in first.choices]
    assert texts == [c.text for c in again.choices]
    assert len(set(texts)) == 3
    assert texts[0] == expected(server, "def f(", 12, greedy=False, temperature=1.2, top_p=0.95, seed=5)
    other = client.completions.create(**asked | {"seed": 6})
    assert [c.text for c in other.choices] != texts


def test_echo_scores_the_prompt_as_a_full_pass_does(server, client):
    prompt = "def f("
    made = client.completions.create(model="gpt2", prompt=prompt, max_tokens=4, temperature=0, echo=True, logprobs=3)
    (choice,) = made.choices
    one = server.served["gpt2"]
    ids = one.encode(prompt + choice.text[len(prompt) :])
    with torch.no_grad():
        batch = Batch(index=torch.zeros(1), tokens=torch.tensor([one.encode(prompt)]))
        log_p = one.model.run(batch).logits[0].log_softmax(-1)
    assert choice.text.startswith(prompt)
    found = choice.logprobs
    assert found.token_logprobs[0] is None
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset) == len(prompt) + 4
    for at in range(1, len(prompt)):
        assert math.isclose(found.token_logprobs[at], float(log_p[at - 1, ids[at]]), abs_tol=1e-4)
        best = max(found.top_logprobs[at], key=found.top_logprobs[at].get)
        assert best == one.names[int(log_p[at - 1].argmax())]
        assert len(found.top_logprobs[at]) == 3
    assert found.text_offset[: len(prompt)] == list(range(len(prompt)))
    none = client.completions.create(model="gpt2", prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    assert none.choices[0].text == prompt
    assert none.choices[0].logprobs.token_logprobs[1:] == pytest.approx(found.token_logprobs[1 : len(prompt)])


def test_stops_before_a_word(server, client):
    whole = expected(server, "def f(", 40)
    stop = whole[7:10]
    made = client.completions.create(model="gpt2", prompt="def f(", max_tokens=40, temperature=0, stop=[stop, "\x00zz"])
    assert made.choices[0].text == whole[: whole.index(stop)]
    assert made.choices[0].finish_reason == "stop"
    with client.completions.create(
        model="gpt2", prompt="def f(", max_tokens=40, temperature=0, stop=stop, stream=True
    ) as stream:
        assert "".join(piece.choices[0].text for piece in stream) == whole[: whole.index(stop)]


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_embeddings_are_the_mean_of_the_last_states(server, client, name):
    texts = ["one text", "another, longer one"]
    # the client asks for base64 unless told otherwise
    made = client.embeddings.create(model=name, input=texts)
    plain = client.embeddings.create(model=name, input=texts, encoding_format="float")
    one = server.served[name]
    rows = [[one.tokenizer.bos, *one.tokenizer.encode(text), one.tokenizer.eos] for text in texts]
    as_ids = client.embeddings.create(model=name, input=rows)
    for i, row in enumerate(rows):
        with torch.no_grad():
            hidden = one.model.run(Batch(index=torch.zeros(1), tokens=torch.tensor([row]))).hidden[0]
        for answer in (made, plain, as_ids):
            torch.testing.assert_close(torch.tensor(answer.data[i].embedding), hidden.mean(0), atol=1e-5, rtol=1e-4)


def test_errors_are_those_that_the_client_knows(client):
    with pytest.raises(openai.NotFoundError, match="gpt2"):
        client.completions.create(model="gpt3", prompt="x")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="gpt2", prompt="x", temperature=9)
    with pytest.raises(openai.NotFoundError, match="does not write"):
        client.completions.create(model="bert", prompt="x")
