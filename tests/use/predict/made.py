"""Small runs that were taught something, made once for all tests."""

import json
import random

from kinfolk.cli.main import main

SMALL = ("d_model=16", "n_layers=1", "n_heads=2", "d_ff=16", "training.precision=fp32", "training.compile=off")


def train(out, data, *options, steps=1, relative="bert", more=()):
    sets = [word for pair in (*SMALL, *options) for word in ("--set", pair)]
    quick = ["--steps", str(steps), "--quiet", "--no-tensorboard", "--threads", "1", "--out", str(out), "--json"]
    cache = ["--cache", str(out.parent / "cache")]
    assert main(["train", relative, "--data", data, *cache, *sets, *quick, *more]) == 0
    return out


def reviews(path, label=lambda i: ["no", "yes", "perhaps"][i % 3], n=30):
    rows = [{"text": f"it is {'good' if i % 3 else 'bad'} {'x ' * (i % 7)}{i}", "label": label(i)} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def entities(path, n=20):
    draw = random.Random(0)
    sentences = []
    for _ in range(n):
        words = [(draw.choice(["goes", "to", "the"]), "O") for _ in range(draw.randint(1, 5))]
        words[draw.randrange(len(words))] = ("Ada", "B-PER")
        sentences.append("".join(f"{word}\t{tag}\n" for word, tag in words))
    path.write_text("\n".join(sentences))
    return path


def questions(path, n=8, impossible=False):
    data = []
    for i in range(n):
        context = f"In the year {1800 + i} a man named N{i} built a bridge over the river. " * 3
        right = [{"text": str(1800 + i), "answer_start": 12}]
        asked = [{"id": f"q{i}", "question": "When was it?", "answers": right}]
        if impossible:
            asked.append({"id": f"n{i}", "question": "Why not?", "answers": [], "is_impossible": True})
        data.append({"title": str(i), "paragraphs": [{"context": context, "qas": asked}]})
    path.write_text(json.dumps({"data": data}))
    return path
