"""Chat template of a run: from the messages of a conversation to the prompt that its model was trained with."""

import atexit
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from kinfolk.core import durable
from kinfolk.core.child import Child
from kinfolk.core.errors import CheckpointError, DataError
from kinfolk.data import Tokenizer
from kinfolk.runs import folder

FILE = "chat_template.jinja"
SETTINGS = "tokenizer_config.json"
SECONDS = 10.0
"""How long a template may take for one conversation."""
LONGEST = 1 << 20
"""Bytes of a template."""
PROGRAM = Path(__file__).with_name("chat_renderer.py")
"""Run and never imported here, so that jinja2 is in no process that trains."""


class Renderer:
    """The process in which templates run; it is started when it is needed, and again after it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None

    def render(self, template: str, variables: Mapping[str, Any], seconds: float = SECONDS) -> str:
        """Return the text that a template makes of its variables; refuse what takes too long or too much."""
        request = json.dumps({"template": template, "variables": variables})
        with self._lock:
            child = self._running()
            # a timer, because a read of a pipe has no deadline on every system
            timer = threading.Timer(seconds, child.process.kill)
            timer.start()
            try:
                child.say(request)
                line = next(child.lines(), "")
            finally:
                timer.cancel()
            if not line:
                self.close()
                raise DataError(f"the chat template needs more than {seconds:g} seconds, or too much memory")
        answer = json.loads(line)
        if "error" in answer:
            raise DataError(f"the chat template refuses: {answer['error']}")
        return str(answer["text"])

    def _running(self) -> Child:
        if self._child is None or self._child.process.poll() is not None:
            self._child = Child([sys.executable, "-I", str(PROGRAM)])
        return self._child

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.end()
            self._child = None


RENDERER = Renderer()
atexit.register(RENDERER.close)


class ChatTemplate:
    """A template with the tokenizer whose special tokens it names."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self.text, self.tokenizer = text, tokenizer

    def render(self, messages: Sequence[Mapping[str, str]], prompt: bool = True) -> str:
        """Return a conversation as text; `prompt`: up to where the model's next message begins."""
        name = self.tokenizer.inner.id_to_token
        roles = {"bos_token": self.tokenizer.bos, "eos_token": self.tokenizer.eos, "pad_token": self.tokenizer.pad}
        special = {role: name(i) or "" for role, i in roles.items()}
        variables = {"messages": list(map(dict, messages)), "add_generation_prompt": prompt, **special}
        return RENDERER.render(self.text, variables)

    def ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return a conversation as token ids; the names of special tokens in the text are those tokens."""
        ids: list[int] = self._with_specials.encode(self.render(messages), add_special_tokens=False).ids
        return ids

    @cached_property
    def _with_specials(self) -> tokenizers.Tokenizer:
        # the run's own reads the name of a special token as plain text
        inner = tokenizers.Tokenizer.from_str(self.tokenizer.inner.to_str())
        inner.encode_special_tokens = False
        return inner


def template_in(source: Path) -> str | None:
    """Return the chat template of a folder: a file of its own, or what tokenizer_config.json has; None without one."""
    file = source / FILE
    try:
        if file.is_file():
            text: Any = file.read_text(encoding="utf-8")
        elif (source / SETTINGS).is_file():
            file = source / SETTINGS
            text = json.loads(file.read_text(encoding="utf-8")).get("chat_template")
        else:
            return None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from None
    if isinstance(text, list):
        # several, by name
        named = {one.get("name"): one.get("template") for one in text if isinstance(one, dict)}
        text = named.get("default")
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > LONGEST:
        raise CheckpointError(f"{file}: chat_template: should be a text of at most {LONGEST:,} characters")
    return text


def keep_template(source: Path, run: Path) -> None:
    """Copy the chat template of a folder, if it has one, into a run."""
    text = template_in(source)
    if text is not None:
        folder.add(run, FILE, lambda file: durable.write(file, text))
