"""Chat with a run: messages in, answers out, by the run's chat template."""

from collections.abc import Callable
from typing import Any

from kinfolk.core.errors import SpecError
from kinfolk.decoding import generate
from kinfolk.decoding.detokenize import Text
from kinfolk.runs.run import Run
from kinfolk.use.generating import refuse_long, runner


class Conversation:
    """A conversation with a run; every earlier message is part of the next prompt.

    model: what generates (`runner`); by default the run's own model. `messages` is the conversation so far.
    """

    def __init__(self, run: Run, model: Any = None, system: str = "") -> None:
        if run.chat_template is None:
            raise SpecError(f"--chat: {run.path} has no chat template; leave --chat out to continue plain text")
        self.run, self.template = run, run.chat_template
        self.model = runner(run) if model is None else model
        self.messages = [{"role": "system", "content": system}] if system else []

    def say(self, message: str, max_new: int = 100, show: Callable[[str], None] | None = None, **options: Any) -> str:
        """Return the answer to a message. show: gets pieces of it as they are written; options as of `Decoding`."""
        self.messages.append({"role": "user", "content": message})
        ids = self.template.ids(self.messages)
        refuse_long([ids], self.model, max_new, "--chat")
        text = Text(self.run.tokenizer.decode, before=ids)
        pieces: list[str] = []

        def add(piece: str) -> None:
            pieces.append(piece)
            if show is not None:
                show(piece)

        def stream(newest: list[int]) -> None:
            if newest[0] >= 0 and newest[0] not in self.model.generation.stop_ids:
                add(text.add(newest[0]))

        generate(self.model, [ids], max_new, stream=stream, **options)
        add(text.close())
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        return "".join(pieces)
