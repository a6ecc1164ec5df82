"""The OpenAPI document of a server: the schemas of the classes that requests and answers are instances of."""

import dataclasses
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kinfolk.use.serve.messages import Form, Message, Refusal

Mode = Literal["validation", "serialization"]


@dataclasses.dataclass(frozen=True)
class Address:
    """A path, what it is for, and the classes of its request and answer; "text/plain" for an answer without one."""

    path: str
    summary: str
    form: type[Form] | None = None
    answer: type[Message] | None = None
    kinds: tuple[str, ...] = ("application/json",)
    open: bool = False


def document(addresses: Iterable[Address], guarded: bool) -> dict[str, Any]:
    """Describe a server; `guarded` if it wants a token."""
    addresses = list(addresses)
    models: set[tuple[type[BaseModel], Mode]] = {(Refusal, "serialization")}
    models |= {(one.form, "validation") for one in addresses if one.form}
    models |= {(one.answer, "serialization") for one in addresses if one.answer}
    ordered = sorted(models, key=lambda pair: (pair[0].__name__, pair[1]))
    references, schemas = models_json_schema(ordered, ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for one in addresses:
        shape = references[one.answer, "serialization"] if one.answer else {}
        contents = {kind: {"schema": shape if "json" in kind else {"type": "string"}} for kind in one.kinds}
        refusal = {"application/json": {"schema": references[Refusal, "serialization"]}}
        refused = {"description": "why not", "content": refusal}
        about: dict[str, Any] = {
            "summary": one.summary,
            "responses": {"200": {"description": "the answer", "content": contents}, "4XX": refused, "5XX": refused},
        }
        if one.form:
            content = {"application/json": {"schema": references[one.form, "validation"]}}
            about["requestBody"] = {"required": True, "content": content}
        if "{" in one.path:
            about["parameters"] = [_NAME]
        if one.open:
            about["security"] = []
        paths[one.path] = {"post" if one.form else "get": about}
    guard: dict[str, Any] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if guarded else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kinfolk", "version": version("kinfolk")},
        "paths": paths,
        "components": {"schemas": schemas["$defs"], **guard},
    } | ({"security": [{"token": []}]} if guarded else {})


_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[^/?#]+$"}}
