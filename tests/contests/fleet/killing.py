"""What tests of deaths share: who ended what, as the journals tell."""

import json
from collections import Counter
from pathlib import Path


def ended(home: Path) -> dict[str, int]:
    """Return how often each trial was run to its end."""
    lines = [line for file in home.glob("queue/journal/*.jsonl") for line in file.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    return dict(Counter(event["trial"] for event in events if event["event"] == "ended"))
