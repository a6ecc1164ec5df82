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
    """Answer each message in turn; what was said before is part of the prompt."""
    from kinfolk.decoding import generate
    from kinfolk.decoding.detokenize import Text

    template = run.chat_template
    if template is None:
        raise SpecError(f"--chat: {run.path} has no chat template; leave --chat out to continue plain text")
    if args.prompts is not None or args.beams != 1:
        raise SpecError("--chat: takes --prompt or lines of standard input, and neither --prompts nor --beams")
    turns = [{"role": "system", "content": args.system}] if args.system else []
    for message in _messages(args):
        turns.append({"role": "user", "content": message})
        ids, limit = template.ids(turns), model.limit
        if limit and len(ids) + args.max_new - 1 > limit:
            raise SpecError(
                f"--chat: {len(ids):,} tokens of conversation and {args.max_new:,} new ones (--max-new) are more than "
                f"the {limit:,} positions of the model"
            )
        text = Text(run.tokenizer.decode, before=ids)
        pieces: list[str] = []

        def show(newest: list[int], text: Text = text, pieces: list[str] = pieces) -> None:
            if newest[0] >= 0 and newest[0] not in model.generation.stop_ids:
                pieces.append(text.add(newest[0]))
                if not args.json:
                    print(pieces[-1], end="", flush=True)

        generate(model, [ids], args.max_new, stream=show, **options)
        pieces.append(text.close())
        turns.append({"role": "assistant", "content": "".join(pieces)})
        print(json.dumps(turns[-1], ensure_ascii=False) if args.json else pieces[-1], flush=True)
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
