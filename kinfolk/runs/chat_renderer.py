"""Chat templates in a process of their own: jinja2's immutable sandbox, with bounds on memory and on the output.

A template comes with a checkpoint, so it is a stranger's input. The sandbox keeps it from everything but its variables;
loops without end and texts of gigabytes it does not see, so the process has a limit on its memory, and its parent one
on time. Reads requests and writes answers as lines of JSON. Imports nothing of Kinfolk, so that it starts quickly.
"""

import functools
import json
import sys
import time
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 1 << 29
"""Bytes of address space."""
LONGEST = 1 << 20
"""Characters of a rendered conversation."""


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 reads

    def parse(self, parser: Any) -> Any:
        """Return the nodes up to the end tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def refuse(message: str) -> None:
    """Let a template refuse a conversation, as those of Hugging Face do."""
    raise jinja2.TemplateError(message)


def environment() -> ImmutableSandboxedEnvironment:
    """Return the sandbox with what templates of Hugging Face expect."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    # jinja2's own escapes HTML
    sandbox.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    sandbox.globals["raise_exception"] = refuse
    sandbox.globals["strftime_now"] = time.strftime
    return sandbox


@functools.lru_cache(maxsize=16)
def compiled(text: str) -> jinja2.Template:
    """Return a template; each is compiled once."""
    return environment().from_string(text)


def render(request: dict[str, Any]) -> dict[str, str]:
    """Return the text of a conversation, or why there is none."""
    parts, size = [], 0
    try:
        for part in compiled(request["template"]).generate(**request["variables"]):
            size += len(part)
            if size > LONGEST:
                return {"error": f"gives more than {LONGEST:,} characters"}
            parts.append(part)
    except MemoryError:
        return {"error": "needs too much memory"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {"text": "".join(parts)}


def main() -> None:
    """Answer requests until there are no more."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(render(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
