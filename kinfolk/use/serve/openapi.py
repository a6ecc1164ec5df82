"""The OpenAPI document of a server: the schemas that requests are held to, and those of answers."""

from importlib.metadata import version
from typing import Any

from kinfolk.use.serve.protocol import Forms
from kinfolk.use.serve.schema import Schema, array, record

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
REAL: Schema = {"type": "number"}


def document(forms: Forms, guarded: bool) -> dict[str, Any]:
    """Describe a server; `guarded` if it wants a token."""
    usage = record(prompt_tokens=WHOLE, completion_tokens=WHOLE, total_tokens=WHOLE)
    model = record(["id", "object"], id=TEXT, object=TEXT, created=WHOLE, owned_by=TEXT, topology=TEXT)
    models = record(["object", "data"], object=TEXT, data=array(model))
    embedding = record(["index", "embedding"], object=TEXT, index=WHOLE, embedding={"anyOf": [array(REAL), TEXT]})
    label = record(
        ["index", "probabilities"],
        index=WHOLE,
        label=TEXT,
        labels=array(TEXT),
        score=REAL,
        probabilities={"type": "object", "additionalProperties": REAL},
    )
    paths = {
        "/health": _get("whether it is there", _json(record(["status"], status=TEXT, models=array(TEXT)))),
        "/metrics": _get("numbers for Prometheus", {"text/plain": {"schema": TEXT}}),
        "/v1/models": _get("what is served", _json(models)),
        "/v1/models/{model}": _get("one of them", _json(model), [_NAME]),
        "/v1/completions": _post(
            "go on from prompts",
            forms.completions,
            _json(_completion(usage)) | {"text/event-stream": {"schema": {"type": "object"}}},
        ),
        "/v1/embeddings": _post("a vector for each text", forms.embeddings, _json(_list(embedding, usage))),
        "/v1/classify": _post("the class of each text", forms.classify, _json(_list(label, usage))),
        "/v1/inspect": _post("attention of every layer and head", forms.inspect, _json({"type": "object"})),
    }
    told = record(["tokens"], tokens=array(WHOLE), count=WHOLE, max_model_len=WHOLE)
    name = {"type": ["string", "null"]}
    names = record(bos_token=name, eos_token=name, pad_token=name)
    paths |= {
        "/tokenizer_info": _get("the names of special tokens", _json(names)),
        "/tokenize": _post("the ids of a text", forms.tokenize, _json(told)),
        "/detokenize": _post("the text of ids", forms.detokenize, _json(record(["prompt"], prompt=TEXT))),
    }
    paths["/health"]["get"]["security"] = []
    guard: dict[str, Any] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if guarded else {}
    error = record(["message", "type", "code"], message=TEXT, type=TEXT, param={"type": "null"}, code=TEXT)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kinfolk", "version": version("kinfolk")},
        "paths": paths,
        "components": {"schemas": {"Error": record(["error"], error=error)}, **guard},
    } | ({"security": [{"token": []}]} if guarded else {})


_NAME = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[^/?#]+$"}}


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _answers(content: dict[str, Any]) -> dict[str, Any]:
    refused = {"description": "why not", "content": _json({"$ref": "#/components/schemas/Error"})}
    return {"200": {"description": "the answer", "content": content}, "4XX": refused, "5XX": refused}


def _get(what: str, content: dict[str, Any], parameters: list[Any] | None = None) -> dict[str, Any]:
    more = {"parameters": parameters} if parameters else {}
    return {"get": {"summary": what, "responses": _answers(content), **more}}


def _post(what: str, form: Schema, content: dict[str, Any]) -> dict[str, Any]:
    body = {"required": True, "content": _json(form)}
    return {"post": {"summary": what, "requestBody": body, "responses": _answers(content)}}


def _list(item: Schema, usage: Schema) -> Schema:
    return record(["data", "model"], object=TEXT, data=array(item), model=TEXT, usage=usage)


def _completion(usage: Schema) -> Schema:
    maybe = {"type": ["number", "null"]}
    tops = {"type": ["object", "null"], "additionalProperties": REAL}
    logprobs = record(
        tokens=array(TEXT),
        token_logprobs=array(maybe),
        top_logprobs={"anyOf": [array(tops), {"type": "null"}]},
        text_offset=array(WHOLE),
    )
    choice = record(
        ["index", "text", "finish_reason"],
        index=WHOLE,
        text=TEXT,
        logprobs={"anyOf": [logprobs, {"type": "null"}]},
        finish_reason={"type": ["string", "null"]},
    )
    return record(
        ["id", "object", "choices"],
        id=TEXT,
        object=TEXT,
        created=WHOLE,
        model=TEXT,
        choices=array(choice),
        usage=usage,
    )
