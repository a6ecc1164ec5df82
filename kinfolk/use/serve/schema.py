"""What requests and answers look like: JSON schemas, which the OpenAPI document shows and requests are held to.

One description for both, so that what is documented is what is accepted.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.core.errors import brief, suggest

Schema = Mapping[str, Any]

_TYPES: dict[str, Any] = {
    "string": lambda x: isinstance(x, str),
    "boolean": lambda x: isinstance(x, bool),
    "null": lambda x: x is None,
    "array": lambda x: isinstance(x, list),
    "object": lambda x: isinstance(x, dict),
    # an int may be too large for a float, so only floats are asked whether they are finite
    "number": lambda x: (isinstance(x, int) and not isinstance(x, bool)) or (isinstance(x, float) and math.isfinite(x)),
    # 2.0 is an integer in JSON
    "integer": lambda x: (isinstance(x, int) and not isinstance(x, bool)) or (isinstance(x, float) and x.is_integer()),
}
_BOUNDS: dict[str, tuple[str, Any]] = {
    "minimum": ("at least", lambda x, n: x >= n),
    "exclusiveMinimum": ("above", lambda x, n: x > n),
    "maximum": ("at most", lambda x, n: x <= n),
    "minLength": ("of at least so many characters:", lambda x, n: len(x) >= n),
    "maxLength": ("of at most so many characters:", lambda x, n: len(x) <= n),
    "minItems": ("of at least so many items:", lambda x, n: len(x) >= n),
    "maxItems": ("of at most so many items:", lambda x, n: len(x) <= n),
}


def complaint(value: Any, schema: Schema, where: str = "") -> str | None:
    """Say what is wrong with a value, or nothing."""
    if "anyOf" in schema:
        found = [complaint(value, one, where) for one in schema["anyOf"]]
        return None if None in found else max((text for text in found if text is not None), key=_resemblance)
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else list(schema.get("type", ()))
    if kinds and not any(_TYPES[kind](value) for kind in kinds):
        return f"{where or 'the request'}: should be {' or '.join(kinds)}, got {_shown(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}: {_shown(value)} is not known; one of {', '.join(map(str, schema['enum']))}"
    for name, (words, holds) in _BOUNDS.items():
        if name in schema and _bounded(name, value) and not holds(value, schema[name]):
            return f"{where}: should be {words} {schema[name]}, got {_shown(value)}"
    if isinstance(value, list) and "items" in schema:
        if _are_ids(value, schema["items"]):
            return None
        each = (complaint(one, schema["items"], f"{where}[{i}]") for i, one in enumerate(value))
        return next((text for text in each if text is not None), None)
    return _of_object(value, schema, where) if isinstance(value, dict) else None


def _are_ids(values: list[Any], schema: Schema) -> bool:
    """Tell whether all values are integers within plain bounds: thousands of ids need no walk through a schema each."""
    if schema.keys() != {"type", "minimum", "maximum"} or schema["type"] != "integer":
        return False
    low, high = schema["minimum"], schema["maximum"]
    return all(type(value) is int and low <= value <= high for value in values)


def _of_object(value: Mapping[str, Any], schema: Schema, where: str) -> str | None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where or 'the request'}: {name!r} is missing"
    for name, one in value.items():
        inner = f"{where}.{name}" if where else name
        if name in known:
            text = complaint(one, known[name], inner)
        elif isinstance(others, Mapping):
            text = complaint(one, others, inner)
        else:
            text = None if others else f"unknown field {brief(name)}{suggest(name, list(known))}"
        if text is not None:
            return text
    return None


def _resemblance(text: str) -> tuple[int, bool]:
    """Rank complaints: a form that gets further, and whose kinds of values fit, is the one that was meant."""
    return text.partition(":")[0].count("["), not any(f"should be {kind}" in text for kind in _TYPES)


def _bounded(name: str, value: Any) -> bool:
    """Tell whether a bound is about values of this kind."""
    if name.endswith("Length"):
        return isinstance(value, str)
    return isinstance(value, list) if name.endswith("Items") else _TYPES["number"](value)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else brief(value[:40] if isinstance(value, list) else value)
    return repr(text if len(text) <= 40 else f"{text[:37]}…")


def number(low: float, high: float, default: float, what: str, **more: Any) -> Schema:
    """Describe a number that may be left out."""
    return {
        "type": ["number", "null"],
        "minimum": low,
        "maximum": high,
        "default": default,
        "description": what,
        **more,
    }


def integer(low: int, high: int, default: int | None, what: str) -> Schema:
    """Describe a whole number that may be left out."""
    kind = {"type": ["integer", "null"], "minimum": low, "maximum": high, "description": what}
    return kind if default is None else {**kind, "default": default}


def flag(what: str) -> Schema:
    """Describe a choice that is off if it is left out."""
    return {"type": ["boolean", "null"], "default": False, "description": what}


def record(required: Sequence[str] = (), **properties: Schema) -> Schema:
    """Describe an object that has these fields and no others."""
    found: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found


def array(items: Schema, low: int = 0, high: int | None = None) -> Schema:
    """Describe a list."""
    found: dict[str, Any] = {"type": "array", "items": items}
    return found | ({"minItems": low} if low else {}) | ({} if high is None else {"maxItems": high})
