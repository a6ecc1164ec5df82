"""`kin generate`: generate text or images with a trained model."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kinfolk.cli import drawing
from kinfolk.cli.chat import talk

EPILOG = """\
examples:
  kin generate runs/a --prompt "def " --max-new 200               sampled, as it is written
  kin generate runs/a --prompt "import" --greedy                  always the likeliest token
  kin generate runs/a --prompt "class A" --temperature 0.8 --top-p 0.95 --seed 3
  kin generate runs/translation --prompt "a b c" --beams 4        beam search; the prompt is the source
  kin generate runs/t5 --prompt "def <0>(x): return <1>"          what T5 puts in the place of its sentinels
  cat prompts.txt | kin generate runs/a --prompts - --json        one prompt per line, as one batch
  kin generate runs/a --prompt "def " --draft runs/small          speculative decoding: the same text, sooner
  kin generate runs/a --prompt "def " --engine onnx               by onnxruntime; graphs are made once and kept
  kin generate my-graphs --prompt "def " --engine onnx            of a folder that `kin export --to onnx` wrote
  kin generate runs/smollm --chat                                 a conversation; of runs that have a chat template
  kin generate runs/smollm --chat --prompt "Hello" --greedy       its answer to one message
  kin generate runs/pixels --samples 8 --out made/                images as PNG, of a run that generates them
  kin generate runs/pixels --images cat.png dog.png               go on from their upper halves, or make them large"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument("what", type=Path, metavar="RUN", help="the run folder, or an export for onnxruntime")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt", metavar="TEXT", help="what to continue (default: nothing, from the start of a text)"
    )
    prompt.add_argument("--prompts", metavar="FILE", help="one prompt per line; - is standard input")
    parser.add_argument(
        "--chat",
        action="store_true",
        help="messages instead of prompts, by the run's chat template; without --prompt a conversation, a line each",
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="the system message of a chat")
    parser.add_argument(
        "--average", type=int, default=0, metavar="N", help="use the mean of the weights of the newest N checkpoints"
    )
    parser.add_argument("--max-new", type=int, default=100, metavar="N", help="most new tokens (default: 100)")
    parser.add_argument(
        "--engine",
        metavar="E",
        help="torch, torch-bf16 (weights rounded to bf16: faster, not quite the same text), onnx, a plugin's, or auto, "
        "which says what it takes (default: torch; of exports, onnx)",
    )
    parser.add_argument(
        "--draft",
        metavar="RUN|lookup",
        help="speculative decoding: the same text in fewer passes; guesses by a smaller run, or by looking up the text",
    )
    parser.add_argument("--ahead", type=int, default=4, metavar="N", help="tokens guessed at once (default: 4)")
    how = parser.add_argument_group("how a token is chosen")
    how.add_argument("--greedy", action="store_true", help="always the likeliest")
    how.add_argument("--temperature", type=float, default=1.0, help="below 1 sharpens, above 1 flattens (default: 1)")
    how.add_argument("--top-k", type=int, default=0, metavar="K", help="among the K likeliest only")
    how.add_argument("--top-p", type=float, default=1.0, metavar="P", help="among the likeliest that reach P together")
    how.add_argument("--repetition-penalty", type=float, default=1.0, help="above 1 makes tokens already there rarer")
    how.add_argument("--beams", type=int, default=1, help="beam search with this many hypotheses")
    how.add_argument("--length-penalty", type=float, default=0.6, help="of beam search (default: 0.6)")
    how.add_argument(
        "--length-norm",
        choices=["wu", "tokens"],
        default="wu",
        help="beams are divided by ((5+n)/6)^penalty, or n^penalty",
    )
    how.add_argument(
        "--early-stopping",
        choices=["never", "estimate", "full"],
        default="never",
        help="stop before no beam can win (default: never)",
    )
    how.add_argument("--no-repeat-ngram", type=int, default=0, metavar="N", help="no N tokens occur twice in a row")
    how.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    drawing.arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print what the model writes, token by token where there is one prompt."""
    from kinfolk.decoding import generate
    from kinfolk.objectives.image import ImageObjective
    from kinfolk.runs.engines import AUTO, automatic
    from kinfolk.runs.run import Run
    from kinfolk.use.generating import encoded, refuse_long, runner

    opened = Run.open(args.what)
    if args.engine == AUTO:
        args.engine, why = automatic(opened.path)
        print(f"engine: {args.engine}: {why}", file=sys.stderr)
    several = args.prompts is not None or args.beams > 1
    model = runner(opened, args.engine, args.draft, args.ahead, args.average, 8 if several else 1)
    topology, names = opened.recipe.model.topology, ["greedy", "temperature", "top_k", "top_p", "seed"]
    if isinstance(opened.recipe.objective, ImageObjective):
        return drawing.draw(args, opened, model, {name: getattr(args, name) for name in names})
    if args.chat:
        return talk(args, opened, model, {name: getattr(args, name) for name in [*names, "repetition_penalty"]})
    prompts = _prompts(args)
    rows, spelling = encoded(opened, prompts, model.generation.start_id)
    names += ["repetition_penalty", "no_repeat_ngram", "beams", "length_penalty", "length_norm", "early_stopping"]
    options: dict[str, Any] = {name: getattr(args, name) for name in names}
    refuse_long(rows, model, args.max_new if topology == "decoder" else 0)
    live = len(rows) == 1 and args.beams == 1 and not args.json
    writer = StreamWriter(spelling, rows[0] if topology == "decoder" else []) if live else None
    out = generate(model, rows, args.max_new, stream=writer, **options)
    if writer is not None:
        writer.close()
        return 0
    for prompt, ids in zip(prompts, out, strict=True):
        text = spelling.decode(ids)
        print(json.dumps({"prompt": prompt, "text": text, "ids": ids}, ensure_ascii=False) if args.json else text)
    return 0


class StreamWriter:
    """Prints a text while it grows."""

    def __init__(self, tokenizer: Any, ids: list[int]) -> None:
        from kinfolk.decoding.detokenize import Text

        self.text = Text(tokenizer.decode, before=ids)
        self._show(tokenizer.decode(ids))

    def __call__(self, newest: list[int]) -> None:
        if newest[0] >= 0:
            self._show(self.text.add(newest[0]))

    def close(self) -> None:
        """Print what still waits, and end the line."""
        self._show(self.text.close() + "\n")

    def _show(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _prompts(args: argparse.Namespace) -> list[str]:
    from kinfolk.core.errors import DataError
    from kinfolk.core.lines import split_lines

    if args.prompts is None:
        return [args.prompt or ""]
    try:
        text = sys.stdin.read() if args.prompts == "-" else Path(args.prompts).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{args.prompts}: cannot be read: {error}") from None
    lines = split_lines(text)
    if not lines:
        raise DataError(f"{args.prompts}: has no line to continue")
    return lines
