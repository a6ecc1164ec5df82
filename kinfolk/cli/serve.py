"""`kin serve`: an HTTP server for runs, with OpenAI's protocol."""

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

from kinfolk.cli.training import record_of

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN = "KINFOLK_TOKEN"

EPILOG = """\
examples:
  kin serve runs/a                                    http://127.0.0.1:8000, a page at its root
  kin serve runs/a runs/b --port 9000                 several runs, each by the name of its folder
  kin serve runs/a --engine onnx                      by onnxruntime; also an export, such as one in int8
  kin serve runs/a --rows 32 --queue 128              more texts at once, and more that may wait
  KINFOLK_TOKEN=… kin serve runs/a --host 0.0.0.0     for others too; who has no token is refused

  curl localhost:8000/v1/completions -H 'content-type: application/json' \\
       -d '{"model": "a", "prompt": "def ", "max_tokens": 40}'

The addresses are those of OpenAI's protocol: /v1/models, /v1/completions, /v1/chat/completions (of a run
with a chat template), /v1/embeddings; besides /v1/classify, /v1/predict,
/v1/inspect, /health, /metrics and /openapi.json. Ctrl-C ends it after what is being written is finished."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("what", type=Path, nargs="+", metavar="RUN", help="run folders; each is a model by its folder's name")
    add("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    add("--port", type=int, default=8000, help="0 takes any that is free (default: 8000)")
    add("--token", default="", help=f"what clients must send as a bearer token (default: ${TOKEN}, or none)")
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer under this name too, besides localhost, addresses and this machine's own name",
    )
    add(
        "--engine",
        default="torch",
        help="torch, torch-bf16 (weights rounded to bf16), onnx, or auto, which says what it takes (default: torch)",
    )
    add("--threads", type=int, metavar="N", help="of the engine (default: one for each core)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--rows", type=int, metavar="N", help="texts written at once (default: 16)")
    limits.add_argument("--queue", type=int, metavar="N", help="texts that may wait; more get 429 (default: 64)")
    limits.add_argument("--context", type=int, metavar="N", help="positions of a text (default: 4096, or the model's)")
    limits.add_argument(
        "--prefixes", type=int, metavar="BYTES", help="of the prefix cache; 0 turns it off (default: 256 MiB)"
    )
    limits.add_argument("--new", type=int, metavar="N", help="new tokens of one text (default: 4096)")
    limits.add_argument("--body", type=int, metavar="BYTES", help="of a request (default: 1 MiB)")
    limits.add_argument("--seconds", type=float, metavar="S", help="that a request may take (default: 300)")


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from kinfolk.use.serve.limits import ServerLimits
    from kinfolk.use.serve.server import listen, make_server, open_runs, own_names

    limits = record_of(ServerLimits, args)
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    token = args.token or os.environ.get(TOKEN, "")
    # with a token, a server for others may be reached under names that it does not know
    hosts = None if token and args.host not in LOOPBACK and not args.allow_host else {*args.allow_host, *own_names()}
    served = open_runs(args.what, args.engine, args.threads or 0)
    server = make_server(served, limits, token, hosts)
    sock = listen(args.host, args.port)
    host, port = sock.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if args.host not in LOOPBACK and not token:
        print(f"kin serve: anybody who reaches {url} may use it; --token asks for one", file=sys.stderr)
    if args.engine == "auto":
        for name, one in served.items():
            print(f"engine of {name}: {one.engine_kind}", file=sys.stderr)
    engines = ", ".join(sorted({one.engine_kind for one in served.values()}))
    summary = {"url": url, "models": list(served), "engine": engines, "rows": limits.rows, "queue": limits.queue}
    print(json.dumps(summary) if args.json else f"{', '.join(served)} at {url}", flush=True)
    # Ctrl-C is how a server ends, once what is being written is finished
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[sock])
    return 0
