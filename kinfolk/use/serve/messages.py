"""Requests and answers of the server: one pydantic class each gives validation, JSON schema and OpenAPI."""

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import from_json

from kinfolk.core.errors import brief, suggest

MOST_TOP = 20
MOST_CHOICES = 16
MOST_STOPS = 16


class RefusalError(Exception):
    """A request that is not carried out: status, a name for programs, and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})

    @property
    def body(self) -> "Refusal":
        """The answer in the shape that OpenAI's clients read."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        return Refusal(error=Explanation(message=self.message, type=kind, code=self.code))


def _whole(value: Any) -> Any:
    """2.0 is an integer in JSON."""
    if isinstance(value, list) and any(type(one) is float for one in value):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _shape(value: Any) -> str:
    """Tell which of several forms a text was meant in, so that an error is about that one."""
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else ""
    return "texts" if isinstance(first, str) else "rows" if isinstance(first, list) else "ids"


def _number(value: Any) -> str:
    return "texts" if isinstance(value, list) else "text"


ABSENT = Field(exclude_if=lambda value: value is None)
"""Left out of an answer where there is none."""
WHOLE = BeforeValidator(_whole)
SHAPE = Discriminator(_shape)
NonEmpty = Annotated[str, Field(min_length=1)]
Real = Annotated[float, Field(ge=-2, le=2)]
NEW = Field(ge=0, description="most new tokens; fewer if the model has no more positions")


class Message(BaseModel):
    """JSON with these fields and no others; numbers are finite, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class Form(Message):
    """A request. What may be left out may be null as well, which says the same."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, body: Any) -> Any:
        return {name: one for name, one in body.items() if one is not None} if isinstance(body, dict) else body

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        fields = handler.resolve_ref_schema(schema).get("properties", {})
        for name in fields.keys() - set(handler.resolve_ref_schema(schema).get("required", ())):
            if {"type": "null"} in fields[name].get("anyOf", ()):
                continue
            notes = {key: fields[name].pop(key) for key in ("default", "description", "title") if key in fields[name]}
            fields[name] = {"anyOf": [fields[name], {"type": "null"}], **notes}
        return schema


class StreamOptions(Form):
    """What a stream holds besides the text."""

    include_usage: Annotated[bool, Field(description="end with a count of tokens")] = False


class Writing(Form):
    """What requests for text share: sampling, length and streaming."""

    model: str
    max_tokens: Annotated[int, NEW, WHOLE] = 16
    temperature: Annotated[float, Field(ge=0, le=2, description="0 takes the likeliest token")] = 1.0
    top_p: Annotated[
        float, Field(ge=0, le=1, description="only the likeliest tokens that together reach this probability")
    ] = 1.0
    top_k: Annotated[int, Field(ge=0, le=1 << 20, description="only the k likeliest tokens; 0: all"), WHOLE] = 0
    repetition_penalty: Annotated[
        float, Field(ge=0.01, le=100, description="above 1 makes tokens already there rarer")
    ] = 1.0
    presence_penalty: Annotated[Real, Field(description="taken from the score of a token once it has been written")] = (
        0.0
    )
    frequency_penalty: Annotated[Real, Field(description="taken from it each time it has been written")] = 0.0
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES, description="texts for each prompt"), WHOLE] = 1
    stop: Annotated[
        Annotated[NonEmpty, Tag("text")] | Annotated[list[NonEmpty], Field(max_length=MOST_STOPS), Tag("texts")],
        Discriminator(_number),
    ] = Field(default_factory=list)
    seed: Annotated[
        Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1), WHOLE] | None,
        Field(description="random seed; left out, every request has another"),
    ] = None
    stream: Annotated[bool, Field(description="send what is written while it is written")] = False
    stream_options: StreamOptions = StreamOptions()
    user: str = ""


class CompletionForm(Writing):
    """Text that continues prompts."""

    prompt: Any = Field("", description="what to continue; of an encoder-decoder, its source")
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MOST_TOP), WHOLE] | None,
        Field(description="report this many of the likeliest tokens at each place"),
    ] = None
    echo: Annotated[
        bool, Field(description="begin the answer with the prompt, and score it if logprobs are asked for")
    ] = False


class ChatTurn(Form):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatForm(Writing):
    """The next message of a conversation."""

    max_tokens: Annotated[int, NEW, WHOLE] = 256
    messages: Annotated[list[ChatTurn], Field(min_length=1, max_length=1024, fail_fast=True)]


class EmbeddingForm(Form):
    """Vectors of texts."""

    model: str
    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    user: str = ""


class LabelForm(Form):
    """Classes of texts, or of pairs of texts."""

    model: str
    input: Any


class PredictForm(Form):
    """Rows by the names of their columns, as `kin predict` reads them."""

    model: str
    input: Any


class InspectForm(Form):
    """Attention of every layer and head over a text."""

    model: str
    text: NonEmpty


class InspectPairForm(InspectForm):
    """Attention where a run is an encoder-decoder, which reads two texts."""

    target: Annotated[str, Field(description="what an encoder-decoder reads besides")] = ""


class TokenizeForm(Form):
    """Ids of a text."""

    prompt: str
    model: Annotated[str, Field(description="the first, if left out")] = ""
    add_special_tokens: Annotated[bool, Field(description="without effect")] = False


class DetokenizeForm(Form):
    """The text of ids."""

    tokens: Any
    model: Annotated[str, Field(description="the first, if left out")] = ""


F = TypeVar("F", bound=Form)


def tokens(most: int) -> Any:
    """Return the type of a number of new tokens."""
    return Annotated[int, Field(ge=0, le=most), WHOLE]


def ids(end: int, most: int, least: int = 1) -> Any:
    """Return the type of token ids below `end`."""
    return Annotated[
        list[Annotated[int, Field(ge=0, lt=end)]], Field(min_length=least, max_length=most, fail_fast=True), WHOLE
    ]


def texts(end: int, length: int, most: int) -> Any:
    """Return the type of one text or several, each as a string or as token ids."""
    row: Any = ids(end, length)
    several = Field(min_length=1, max_length=most, fail_fast=True)
    forms: list[tuple[Any, str]] = [
        (str, "text"),
        (Annotated[list[str], several], "texts"),
        (row, "ids"),
        (Annotated[list.__class_getitem__(row), several], "rows"),
    ]
    union = functools.reduce(operator.or_, (Annotated[form, Tag(tag)] for form, tag in forms))
    return Annotated[union, SHAPE]


def labelled(lengths: set[int], most: int) -> Any:
    """Return the type of what is classified: texts, pairs of texts, or both, as the runs were trained."""
    text = Annotated[str, Field(min_length=1, pattern=r"\S")]
    several = Field(min_length=1, max_length=most, fail_fast=True)
    pairs = Annotated[list[Annotated[list[text], Field(min_length=2, max_length=2)]], several]
    if lengths == {2}:
        return pairs
    one = Annotated[text, Tag("text")] | Annotated[list[text], several, Tag("texts")]
    if lengths == {1}:
        return Annotated[one, Discriminator(_number)]
    return Annotated[
        one | Annotated[pairs, Tag("rows")], Discriminator(lambda value: _shape(value).replace("ids", "texts"))
    ]


def rows(runs: Sequence[Collection[str]], most: int) -> Any:
    """Return the type of rows with texts under the names of the columns of some runs; what all have is required."""
    text = Annotated[str, Field(min_length=1, pattern=r"\S")]
    columns = sorted({name for names in runs for name in names})
    required: JsonDict = {"required": [name for name in columns if all(name in names for names in runs)]}
    row: Any = dict.__class_getitem__((Literal[tuple(columns)] if columns else str, text))
    row = Annotated[row, Field(json_schema_extra=required)]
    return Annotated[list.__class_getitem__(row), Field(min_length=1, max_length=most, fail_fast=True)]


class Explanation(Message):
    """Why a request was refused."""

    message: str
    type: str
    param: None = None
    code: str


class Refusal(Message):
    """A refusal, in the shape that OpenAI's clients read."""

    error: Explanation


class Usage(Message):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: Annotated[int | None, ABSENT] = None
    total_tokens: int


class Logprobs(Message):
    """Tokens, their log-probabilities, the likeliest at each place, and where each token begins in the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Message):
    """One text of an answer."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class TextCompletion(Message):
    """Texts that continue prompts; a piece of a stream has the same shape."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Annotated[Usage | None, ABSENT] = None


class ChatMessage(Message):
    """What the model says, or a piece of it."""

    role: Annotated[Literal["assistant"] | None, ABSENT] = None
    content: str


class ChatChoice(Message):
    """One message of an answer: whole in `message`, in a stream as pieces in `delta`."""

    index: int
    message: Annotated[ChatMessage | None, ABSENT] = None
    delta: Annotated[ChatMessage | None, ABSENT] = None
    logprobs: None = None
    finish_reason: str | None = None


class ChatCompletion(Message):
    """The next message of a conversation."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Annotated[Usage | None, ABSENT] = None


class EmbeddingItem(Message):
    """The vector of a text, as numbers or as little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(Message):
    """A vector for each text."""

    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class Label(Message):
    """What a run says of a text."""

    index: int
    label: Annotated[str | None, ABSENT] = None
    labels: Annotated[list[str] | None, ABSENT] = None
    score: Annotated[float | None, ABSENT] = None
    probabilities: dict[str, float]


class Classifications(Message):
    """The class of each text."""

    object: Literal["list"] = "list"
    data: list[Label]
    model: str
    usage: Usage


class Predictions(Message):
    """What a run says of each row: an answer with its place, tags, a number or a class, as `kin predict` writes it."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    model: str


class ServedModel(Message):
    """A run that is served, what it can be asked for, and the columns of rows for `/v1/predict`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    topology: str
    does: list[str]
    columns: list[str]


class ServedModels(Message):
    """All runs that are served."""

    object: Literal["list"] = "list"
    data: list[ServedModel]


class Health(Message):
    """That the server answers, and for which runs."""

    status: Literal["ok"] = "ok"
    models: Annotated[list[str] | None, ABSENT] = None


class TokenizedText(Message):
    """Ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: int


class Prompt(Message):
    """The text of ids."""

    prompt: str


class TokenizerInfo(Message):
    """The names of special tokens."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None


def parsed(raw: bytes) -> Any:
    """Return what the bytes of a request say."""
    try:
        return from_json(raw, allow_inf_nan=False)
    # too deep, a number of too many digits, or bytes that are no text
    except ValueError as error:
        raise RefusalError(400, "invalid_json", f"the request is not JSON: {error}") from None


def validated(body: Any, form: type[F]) -> F:
    """Return a request as its class, or refuse it."""
    try:
        return form.model_validate(body)
    except ValidationError as error:
        raise RefusalError(400, "invalid_request", explained(error, body, form)) from None


def explained(error: ValidationError, body: Any, form: type[Form]) -> str:
    """Say in one line where a request is wrong, what was found, what is allowed, and the nearest match."""
    first = error.errors(include_url=False, include_context=False)[0]
    *places, last = first["loc"] or ("",)
    where = _path(places, body)
    if first["type"] == "missing":
        return f"{where or 'the request'}: {last!r} is missing"
    if first["type"] == "extra_forbidden":
        return f"{where + ': ' if where else ''}unknown field {brief(last)}{suggest(last, form.model_fields)}"
    where = _path(first["loc"], body) or "the request"
    return f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {brief(first['input'], 40)}"


def _path(places: Any, body: Any) -> str:
    """Return the dotted path of a place in a request; a form of a union is named by pydantic, and no place."""
    path = ""
    for place in places:
        if isinstance(place, int) and isinstance(body, list):
            path += f"[{place}]"
        elif isinstance(body, dict) and place in body:
            path += f".{place}" if path else str(place)
        else:
            continue
        body = body[place]
    return path
