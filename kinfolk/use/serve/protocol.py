"""What can be asked of a server, and how it answers: the schemas of requests, and their translation into rows."""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.core.errors import KinfolkError, brief, suggest
from kinfolk.decoding.detokenize import Text
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.sequence import RunningSequence
from kinfolk.use.serve.limits import Limits
from kinfolk.use.serve.schema import Schema, array, complaint, flag, integer, number, record
from kinfolk.use.serve.served import Served

MOST_TOP = 20
MOST_CHOICES = 16
MOST_STOPS = 16


class RefusalError(Exception):
    """A request that is not carried out: status, a name for programs, and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The answer in the shape that OpenAI's clients read."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}


@dataclasses.dataclass(frozen=True)
class Forms:
    """The schemas of requests to a server of these models; who has no model for something does not know of it."""

    completions: Schema
    embeddings: Schema
    classify: Schema
    inspect: Schema
    tokenize: Schema
    detokenize: Schema


def forms(served: Mapping[str, Served], limits: Limits) -> Forms:
    """Describe what may be asked of these runs."""
    every = list(served)
    writing = [name for name in every if served[name].writes]
    judging = [name for name in every if served[name].classifies]

    def ids(names: Sequence[str]) -> Schema:
        # of several models, what all of them have
        end = min((served[name].spec.vocab_size for name in names), default=1)
        return array({"type": "integer", "minimum": 0, "maximum": end - 1}, 1, limits.context)

    def texts(names: Sequence[str], most: int) -> Schema:
        text = {"type": "string"}
        return {"anyOf": [text, array(text, 1, most), ids(names), array(ids(names), 1, most)]}

    def model(names: Sequence[str]) -> Schema:
        # one that is not served, or not for this, is answered with 404 before the form is looked at
        return {"type": "string", "enum": list(names)} if names else {"type": "string"}

    most, anyone = limits.rows + limits.queue, {"type": ["string", "null"], "description": "the first, if left out"}
    second, judged = dict[str, Any](), _judged([served[name] for name in judging], most)
    if any(one.spec.topology == "encoder-decoder" for one in served.values()):
        second["target"] = {"type": ["string", "null"], "description": "what an encoder-decoder reads besides"}
    return Forms(
        completions=record(["model"], model=model(writing), **_wishes(texts(writing, most), limits)),
        embeddings=record(
            ["model", "input"],
            model=model(every),
            input=texts(every, most),
            encoding_format={"type": ["string", "null"], "enum": ["float", "base64", None], "default": "float"},
            user={"type": ["string", "null"]},
        ),
        classify=record(["model", "input"], model=model(judging), input=judged),
        inspect=record(["model", "text"], model=model(every), text={"type": "string", "minLength": 1}, **second),
        tokenize=record(["prompt"], prompt={"type": "string"}, model=anyone, add_special_tokens=flag("without effect")),
        detokenize=record(["tokens"], tokens={**ids(every), "minItems": 0}, model=anyone),
    )


def _judged(judges: Sequence[Served], most: int) -> Schema:
    """Describe what is judged: texts, or pairs of them, as the runs were taught."""
    text = {"type": "string", "pattern": r"\S", "minLength": 1}
    taught = {one.opened.n_texts for one in judges if one.opened is not None}
    several = [array(form, 1, most) for n, form in ((1, text), (2, array(text, 2, 2))) if n in taught or not taught]
    return {"anyOf": [text, *several] if 1 in taught or not taught else several}


def _wishes(prompt: Schema, limits: Limits) -> dict[str, Schema]:
    stop = {"type": "string", "minLength": 1}
    return {
        "prompt": {**prompt, "description": "what to go on from; of an encoder-decoder, its source"},
        "max_tokens": integer(0, limits.new, 16, "most new tokens; fewer if the model has no more positions"),
        "temperature": number(0, 2, 1, "0 takes the likeliest token"),
        "top_p": number(0, 1, 1, "only the likeliest tokens that together reach this probability"),
        "top_k": integer(0, 1 << 20, 0, "only the k likeliest tokens; 0: all"),
        "repetition_penalty": number(0.01, 100, 1, "above 1 makes tokens already there rarer"),
        "presence_penalty": number(-2, 2, 0, "taken from the score of a token once it has been written"),
        "frequency_penalty": number(-2, 2, 0, "taken from it each time it has been written"),
        "n": integer(1, MOST_CHOICES, 1, "texts for each prompt"),
        "stop": {"anyOf": [stop, array(stop, 0, MOST_STOPS), {"type": "null"}]},
        "seed": integer(-(1 << 63), (1 << 63) - 1, None, "of the draws; left out, every request draws anew"),
        "logprobs": integer(0, MOST_TOP, None, "report so many of the likeliest tokens at each place"),
        "echo": flag("begin the answer with the prompt, and score it if logprobs are asked for"),
        "stream": flag("send what is written while it is written"),
        "stream_options": {**record(include_usage=flag("end with a count of tokens")), "type": ["object", "null"]},
        "user": {"type": ["string", "null"]},
    }


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request for texts, understood: rows for the engine, and what the answer has to show."""

    served: Served
    prompts: tuple[tuple[int, ...], ...]
    rows: tuple[RunningSequence, ...]
    texts: tuple[Text, ...]
    echo: bool
    logprobs: int | None
    stream: bool
    usage: bool

    @property
    def n_prompt(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))


def checked(body: Any, schema: Schema) -> dict[str, Any]:
    """Return a request without what was left out, or refuse it."""
    text = complaint(body, schema)
    if text is not None:
        raise RefusalError(400, "invalid_request", text)
    found: dict[str, Any] = {name: value for name, value in body.items() if value is not None}
    return found


def find(served: Mapping[str, Served], name: str) -> Served:
    """Return the run of this name, or refuse."""
    if name not in served:
        raise RefusalError(404, "model_not_found", f"model: unknown {brief(name)}{suggest(name, list(served))}")
    return served[name]


def able(served: Served, form: str) -> None:
    """Refuse to ask a run for what is not its work."""
    if form == "completions" and not served.writes:
        raise RefusalError(404, "model_does_not_write", f"{served.name} does not write: it has no decoder for text")
    if form == "classify" and not served.classifies:
        message = f"{served.name} was not trained to tell classes apart"
        raise RefusalError(404, "model_does_not_classify", message)


def several(given: Any) -> list[Any]:
    """Return a text, several, or their ids, as several."""
    return given if isinstance(given, list) and not isinstance(given[0], int | float) else [given]


def sequences(served: Served, given: Any, most: int) -> list[list[int]]:
    """Return a text, several, or their ids as lists of ids."""
    rows = []
    for one in several(given):
        try:
            ids = served.encode(one) if isinstance(one, str) else [int(i) for i in one]
        except KinfolkError as error:
            raise RefusalError(400, "invalid_prompt", str(error)) from None
        if len(ids) > most:
            message = f"a text of {len(ids)} tokens does not fit the {most} positions of {served.name}"
            raise RefusalError(400, "context_length_exceeded", message)
        if max(ids) >= served.spec.vocab_size:
            raise RefusalError(400, "invalid_prompt", f"token {max(ids)}: {served.name} has {served.spec.vocab_size}")
        rows.append(ids)
    return rows


def tokens(served: Served, text: str) -> list[int]:
    """Return the ids of a text as it is; the name of a special token alone is that token."""
    names = {served.tokenizer.inner.id_to_token(i): i for i in served.tokenizer.special_ids}
    try:
        return [names[text]] if text in names else served.spelling.encode(text)
    except KinfolkError as error:
        raise RefusalError(400, "invalid_prompt", str(error)) from None


def understand(asked: Mapping[str, Any], served: Served, limits: Limits) -> Asked:
    """Turn a checked request for texts into rows, or refuse it."""
    pairs, context = served.spec.topology == "encoder-decoder", served.limit(limits.context)
    prompts = sequences(served, asked.get("prompt", ""), context)
    n, top, echo = int(asked.get("n", 1)), asked.get("logprobs"), bool(asked.get("echo"))
    if pairs and echo and top is not None:
        raise RefusalError(400, "invalid_request", "echo: the source of an encoder-decoder has no probabilities")
    how = _decoding(asked, served)
    wishes: dict[str, Any] = {name: float(asked.get(f"{name}_penalty", 0.0)) for name in ("presence", "frequency")}
    stop = asked.get("stop", ())
    rows, texts = [], []
    for prompt in prompts:
        used = 1 if pairs else len(prompt)
        # the last of the new tokens is not read again
        room = min(int(asked.get("max_tokens", 16)), context - used + 1)
        for choice in range(n):
            scores = echo and top is not None and choice == 0
            top_n = -1 if top is None else int(top)
            rows.append(
                RunningSequence(
                    prompt=prompt, max_new=room, how=how, choice=choice, n_top=top_n, scores_prompt=scores, **wishes
                )
            )
            texts.append(Text(served.decode, [stop] if isinstance(stop, str) else stop, () if pairs else prompt))
    usage = bool(asked.get("stream_options", {}).get("include_usage"))
    shown = None if top is None else int(top)
    ids = tuple(tuple(prompt) for prompt in prompts)
    return Asked(served, ids, tuple(rows), tuple(texts), echo, shown, bool(asked.get("stream")), usage)


def _decoding(asked: Mapping[str, Any], served: Served) -> Decoding:
    temperature, top_p = float(asked.get("temperature", 1.0)), float(asked.get("top_p", 1.0))
    greedy = temperature == 0 or top_p == 0
    return Decoding(
        greedy=greedy,
        temperature=1.0 if greedy else max(temperature, 1e-3),
        top_p=1.0 if greedy else top_p,
        top_k=int(asked.get("top_k", 0)),
        repetition_penalty=float(asked.get("repetition_penalty", 1.0)),
        ids=served.generation,
        seed=int(asked["seed"]) if "seed" in asked else secrets.randbits(63),
    )
