"""`kin generate --chat`: a conversation with a run that has a chat template."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kinfolk.core.errors import SpecError

if TYPE_CHECKING:
    from kinfolk.runs.run import Run


def talk(args: argparse.Namespace, run: "Run", model: Any, options: Mapping[str, Any]) -> int:
    """Answer each message in turn; the earlier ones are part of the prompt."""
    from kinfolk.use.chatting import Conversation

    if args.prompts is not None or args.beams != 1:
        raise SpecError("--chat: takes --prompt or lines of standard input, and neither --prompts nor --beams")
    conversation = Conversation(run, model, args.system)
    for message in _messages(args):
        show = None if args.json else lambda piece: print(piece, end="", flush=True)
        conversation.say(message, args.max_new, show, **options)
        print(json.dumps(conversation.messages[-1], ensure_ascii=False) if args.json else "", flush=True)
    return 0


def _messages(args: argparse.Namespace) -> Iterator[str]:
    """Yield what the user says: --prompt, or lines until the end of the input."""
    if args.prompt is not None:
        yield args.prompt
        return
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")
