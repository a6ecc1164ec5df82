"""From a request to sequences of the running batch: its run, prompts, sampling options and limits."""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, create_model

from kinfolk.core.errors import KinfolkError, brief, suggest
from kinfolk.decoding.detokenize import Text
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.sequence import RunningSequence
from kinfolk.use.serve import messages
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.messages import ChatForm, CompletionForm, Form, RefusalError, Writing
from kinfolk.use.serve.served import Served


@dataclasses.dataclass(frozen=True)
class Forms:
    """The classes of requests to a server of these runs, with the bounds that these have."""

    completions: type[messages.CompletionForm]
    chat: type[messages.ChatForm]
    embeddings: type[messages.EmbeddingForm]
    classify: type[messages.LabelForm]
    predict: type[messages.PredictForm]
    inspect: type[messages.InspectForm]
    tokenize: type[messages.TokenizeForm]
    detokenize: type[messages.DetokenizeForm]


def forms(served: Mapping[str, Served], limits: ServerLimits) -> Forms:
    """Narrow each request to names that are served for it, token ids that exist, and the server's limits."""
    most = limits.rows + limits.queue

    def narrow(form: Any, verb: str = "", **kinds: Any) -> Any:
        """Return a form whose fields have these types, with its own defaults and descriptions."""
        # a run that is not served, or not for this, is answered with 404 before the form is looked at
        names = [name for name, one in served.items() if not verb or verb in one.verbs]
        own = form.model_fields
        if own["model"].is_required():
            kinds["model"] = Literal[tuple(names)] if names else str
        fields: Any = {
            name: (kind, Field(own[name].default, description=own[name].description)) for name, kind in kinds.items()
        }
        return create_model(form.__name__, __base__=form, __doc__=form.__doc__, **fields)

    def end(verb: str) -> int:
        # of several runs, what all of them have
        return min((one.spec.vocab_size for one in served.values() if verb in one.verbs), default=1)

    n_texts = {one.opened.n_texts for one in served.values() if one.classifies and one.opened}
    columns = [one.columns for one in served.values() if one.columns]
    new, prompt = messages.tokens(limits.new), messages.texts(end("complete"), limits.context, most)
    every = min(one.spec.vocab_size for one in served.values())
    pairs = any(one.spec.topology == "encoder-decoder" for one in served.values())
    return Forms(
        completions=narrow(CompletionForm, "complete", prompt=prompt, max_tokens=new),
        chat=narrow(ChatForm, "chat", max_tokens=new),
        embeddings=narrow(messages.EmbeddingForm, input=messages.texts(every, limits.context, most)),
        classify=narrow(messages.LabelForm, "classify", input=messages.labelled(n_texts, most)),
        predict=narrow(messages.PredictForm, "predict", input=messages.rows(columns, most)),
        inspect=narrow(messages.InspectPairForm if pairs else messages.InspectForm),
        tokenize=narrow(messages.TokenizeForm),
        detokenize=narrow(messages.DetokenizeForm, tokens=messages.ids(every, limits.context, 0)),
    )


def find(served: Mapping[str, Served], name: str) -> Served:
    """Return the run of this name, or refuse."""
    if name not in served:
        raise RefusalError(404, "model_not_found", f"model: unknown {brief(name)}{suggest(name, list(served))}")
    return served[name]


UNABLE = {
    messages.CompletionForm: ("complete", "model_does_not_write", "does not write: it has no decoder for text"),
    messages.ChatForm: ("chat", "model_does_not_chat", "has no chat template; /v1/completions takes a plain prompt"),
    messages.LabelForm: ("classify", "model_does_not_classify", "was not trained to tell classes apart"),
    messages.PredictForm: ("predict", "model_has_no_labels", "was not trained on labels"),
}


def able(served: Served, form: type[Form]) -> None:
    """Refuse to ask a run for what is not its work."""
    for base, (verb, code, reason) in UNABLE.items():
        if issubclass(form, base) and verb not in served.verbs:
            raise RefusalError(404, code, f"{served.name} {reason}")


@dataclasses.dataclass(frozen=True)
class TextRequest:
    """A request for texts as the engine takes it: rows, and what the answer has to show."""

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


def several(value: Any) -> list[Any]:
    """Return a text, several, or their ids, as several."""
    return value if isinstance(value, list) and not isinstance(value[0], int) else [value]


def sequences(served: Served, value: Any, most: int) -> list[list[int]]:
    """Return a text, several, or their ids as lists of ids."""
    rows = []
    for one in several(value):
        try:
            ids = served.encode(one) if isinstance(one, str) else list(one)
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


def completion(form: CompletionForm, served: Served, limits: ServerLimits) -> TextRequest:
    """Turn a request for texts into rows, or refuse it."""
    prompts = sequences(served, form.prompt, served.limit(limits.context))
    if served.spec.topology == "encoder-decoder" and form.echo and form.logprobs is not None:
        raise RefusalError(400, "invalid_request", "echo: the source of an encoder-decoder has no probabilities")
    return order(form, served, prompts, limits, form.echo, form.logprobs)


def chat(form: ChatForm, served: Served, limits: ServerLimits) -> TextRequest:
    """Turn a conversation into rows by the run's chat template, or refuse it."""
    template = served.chat_template
    assert template is not None
    try:
        ids = template.ids([turn.model_dump() for turn in form.messages])
    except KinfolkError as error:
        raise RefusalError(400, "invalid_request", f"messages: {error}") from None
    return order(form, served, sequences(served, [ids], served.limit(limits.context)), limits)


def order(
    form: Writing,
    served: Served,
    prompts: Sequence[list[int]],
    limits: ServerLimits,
    echo: bool = False,
    top: int | None = None,
) -> TextRequest:
    """Return rows that continue prompts, `n` of each."""
    pairs, context = served.spec.topology == "encoder-decoder", served.limit(limits.context)
    how, stops = _decoding(form, served), [form.stop] if isinstance(form.stop, str) else form.stop
    rows, texts = [], []
    for prompt in prompts:
        # the last of the new tokens is not read again
        room = min(form.max_tokens, context - (1 if pairs else len(prompt)) + 1)
        for choice in range(form.n):
            row = RunningSequence(
                prompt=prompt,
                max_new=room,
                how=how,
                choice=choice,
                n_top=-1 if top is None else top,
                scores_prompt=echo and top is not None and choice == 0,
                presence=form.presence_penalty,
                frequency=form.frequency_penalty,
            )
            rows.append(row)
            texts.append(Text(served.decode, stops, () if pairs else prompt))
    ids, usage = tuple(tuple(prompt) for prompt in prompts), form.stream_options.include_usage
    return TextRequest(served, ids, tuple(rows), tuple(texts), echo, top, form.stream, usage)


def _decoding(form: Writing, served: Served) -> Decoding:
    greedy = form.temperature == 0 or form.top_p == 0
    return Decoding(
        greedy=greedy,
        temperature=1.0 if greedy else max(form.temperature, 1e-3),
        top_p=1.0 if greedy else form.top_p,
        top_k=form.top_k,
        repetition_penalty=form.repetition_penalty,
        ids=served.generation,
        seed=secrets.randbits(63) if form.seed is None else form.seed,
    )
