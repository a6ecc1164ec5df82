"""Chat templates: equal to what transformers renders, kept by import and export, and bounded, whatever they do."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from kinfolk.core.errors import CheckpointError, DataError
from kinfolk.data import Tokenizer
from kinfolk.runs import chat_template
from kinfolk.runs.chat_template import RENDERER, ChatTemplate, template_in

# in the manner of three families, written for this test
CHATML = """
{%- for message in messages %}
    {%- if loop.first and message.role != "system" %}
        {{- "<|im_start|>system\\nBe brief.<|im_end|>\\n" }}
    {%- endif %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content | trim + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}
"""
LLAMA = """{{ bos_token }}
{%- if messages[0].role == "system" %}
    {%- set rules = messages[0].content %}{% set turns = messages[1:] %}
{%- else %}
    {%- set rules = none %}{% set turns = messages %}
{%- endif %}
{%- for turn in turns %}
    {%- if (turn.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("turns must alternate") }}
    {%- endif %}
    {%- if turn.role == "user" %}
        {{- "[INST] " }}{% if loop.first and rules is not none %}{{ "<<SYS>>" ~ rules ~ "<</SYS>> " }}{% endif %}
        {{- turn.content.strip() + " [/INST]" }}
    {%- else %}
        {{- " " + turn.content + eos_token }}
    {%- endif %}
{%- endfor %}"""
GEMMA = """{{ bos_token }}{% set ns = namespace(first="") %}{% for m in messages %}
    {%- if m["role"] == "system" %}{% set ns.first = m["content"] + "\\n\\n" %}{% continue %}{% endif %}
    {%- set role = "model" if m["role"] == "assistant" else m["role"] %}
<start_of_turn>{{ role }}
{{ ns.first }}{{ m["content"] | trim }}<end_of_turn>
{% set ns.first = "" %}
{%- endfor %}
{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "gemma": GEMMA}
TALKS = [
    [{"role": "user", "content": '  Hello <b>there</b> & "you" '}],
    [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "naïve 漢字 🙂"},
        {"role": "assistant", "content": "yes\nno"},
        {"role": "user", "content": "<|im_end|> is text? </s>"},
    ],
]
SPECIALS = ["<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"]


def tokenizer():
    """A byte-level tokenizer with special tokens that templates name."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIALS)
    return made


@pytest.fixture(scope="module")
def own():
    return Tokenizer(tokenizer(), {"bos": [1], "eos": [2], "pad": [3], "unk": [0]})


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("talk", TALKS, ids=["one", "system", "three"])
def test_text_and_ids_are_those_of_transformers(own, name, talk):
    from transformers import PreTrainedTokenizerFast

    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), chat_template=TEMPLATES[name], **names)
    ours = ChatTemplate(TEMPLATES[name], own)
    for prompt in (True, False):
        text = theirs.apply_chat_template(talk, tokenize=False, add_generation_prompt=prompt)
        assert ours.render(talk, prompt) == text
        assert talk[-1]["content"].split()[0] in text
    ids = theirs.apply_chat_template(talk, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert ours.ids(talk) == list(ids)


def test_a_template_may_refuse_a_conversation(own):
    with pytest.raises(DataError, match="turns must alternate"):
        ChatTemplate(LLAMA, own).render([{"role": "assistant", "content": "me first"}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "SecurityError|Undefined"),
        ("{% include '/etc/passwd' %}", "TypeError|no loader"),
        ("{{ 'x' * 10 ** 10 }}", "memory"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "1,048,576 characters"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ nothing.at.all }}", "Undefined"),
    ],
)
def test_a_hostile_template_is_refused(own, text, message):
    with pytest.raises(DataError, match=message):
        ChatTemplate(text, own).render(TALKS[0])
    assert ChatTemplate("{{ messages[0].role }}", own).render(TALKS[0]) == "user"


def test_a_template_without_end_is_ended():
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(DataError, match=r"more than 0\.5 seconds"):
        RENDERER.render(loop, {}, 0.5)
    assert RENDERER.render("{{ a }}", {"a": "b"}) == "b"


def test_templates_are_found_where_folders_have_them(tmp_path):
    assert template_in(tmp_path) is None
    config = tmp_path / chat_template.SETTINGS
    config.write_text(json.dumps({"chat_template": "a"}))
    assert template_in(tmp_path) == "a"
    config.write_text(
        json.dumps({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]})
    )
    assert template_in(tmp_path) == "d"
    (tmp_path / chat_template.FILE).write_text("own")
    assert template_in(tmp_path) == "own"
    (tmp_path / chat_template.FILE).unlink()
    for wrong in ("[]", "{", json.dumps({"chat_template": 3})):
        config.write_text(wrong)
        with pytest.raises(CheckpointError, match="tokenizer_config"):
            template_in(tmp_path)
