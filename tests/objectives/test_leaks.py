"""Over all objectives of the registry: no target reaches what it is predicted from, and draws depend on nothing but
the seed and the example.

What a target is predicted from is all that its position can see of a prepared batch: the source, and of the tokens
those up to its own in a decoder, all in an encoder, and what `Visible` says where there is such a mask. A token of a
text is changed; where it was to be predicted, the target changes with it, and nothing that its position sees may. Some
objectives show a part of what they ask for on purpose, and then it is that part and no more.
"""

import functools
import math

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.core.annotations import OtherDocument
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.rng import Rng
from kinfolk.core.spec import choices
from kinfolk.objectives.denoise import T5_TABLE, Denoising
from kinfolk.objectives.masked import MaskedLM
from kinfolk.objectives.mass import MaskedFragment
from kinfolk.objectives.noise import Deletion, Infilling, Masking, Permutation, Rotation, Shuffling
from kinfolk.objectives.objective import Objective, Vocabulary
from kinfolk.objectives.span import SpanCorruption

ROWS, LENGTH = 16, 32
FIRST, FRESH = 100, 5000


class Fives:
    """Stands for a tokenizer whose tokens are words, five of them a sentence."""

    def word_starts(self, ids):
        return np.ones(len(ids), dtype=bool)

    def sentence_ends(self, ids):
        return np.arange(len(ids)) % 5 == 4


WIDE = Vocabulary(10_000, pieces=Fives())
VISIBLE = "Visible.pairs_BLM"
INPUTS = ("source", "source_keep", "tokens", "keep", "positions", "segments", VISIBLE)

# what they ask for is no token of the text: labels that somebody gave, actions, what a teacher says
NO_TOKENS = (
    "classify",
    "classify-apart",
    "classify-many",
    "regress",
    "tag",
    "reconstruct",
    "span-answer",
    "policy",
    "distil",
    "imitate",
    # asks what its tasks ask
    "several",
)
# no part of the model mixes positions, each sees its own token alone
ITSELF = ("skip-gram",)
BY_HAND = {
    "bart-delete": Denoising(noise=(Deletion(share=0.4),)),
    "bart-rotate": Denoising(noise=(Rotation(),)),
    "bart-sentences": Denoising(noise=(Permutation(),)),
    "bart-all": Denoising(noise=(Permutation(), Masking(), Infilling(unit="token"), Rotation())),
    "spans-code": SpanCorruption(closing="code", noise="tokens"),
    "mass-unseen": MaskedFragment(as_mask=1.0, as_random=0.0),
}


@functools.cache
def cases():
    """Return every objective that a relative learns by, T5's table and what is made by hand, each with a topology."""
    found = {}
    for name in kf.relatives():
        about = kf.about(name)
        recipe = kf.relative(name, size="tiny")
        if about.input == "tokens" and recipe.objective.kind not in NO_TOKENS:
            sight = "itself" if recipe.objective.kind in ITSELF else about.topology
            found.setdefault((recipe.objective, sight), name)
    found = {name: case for case, name in found.items()}
    found |= {f"t5-{name}": (objective, "encoder-decoder") for name, objective in T5_TABLE.items()}
    return found | {name: (objective, "encoder-decoder") for name, objective in BY_HAND.items()}


NAMES = sorted(cases())


def text(seed=0):
    """Return windows whose tokens are all different, and other passages that share none with them."""
    tokens = torch.arange(FIRST, FIRST + LENGTH + 1).repeat(ROWS, 1)
    other = OtherDocument(tokens + 1000)
    return Batch(index=torch.arange(ROWS) + 7 * seed, tokens=tokens, annotations=(other,))


def shown_by(noise):
    """Return which share of a text a noise leaves to be seen."""
    return 1.0 if isinstance(noise, Permutation | Rotation | Shuffling) else 1 - noise.share


def design(objective):
    """Return which share of its targets an objective shows on purpose."""
    if isinstance(objective, Denoising):
        return math.prod(map(shown_by, objective.noise))
    if objective.kind == "permuted":
        return 0.0
    if isinstance(objective, MaskedLM | MaskedFragment):
        return 1 - objective.as_mask - objective.as_random
    return 0.0


def seen(batch, row, at, topology):
    """Return everything that a position sees, as plain lists."""
    fields = {name: x for name, x in batch.tensors.items() if name in INPUTS}
    out = {name: x[row] for name, x in fields.items() if name.startswith("source")}
    own = {"encoder": slice(None), "itself": slice(at, at + 1)}.get(topology, slice(0, at + 1))
    for name in set(fields) - set(out) - {VISIBLE}:
        out[name] = fields[name][row, own]
    if VISIBLE in fields:
        # keys that are content; the position itself stands behind them, or among them
        keys = fields[VISIBLE][row, at]
        out["tokens"] = torch.cat([batch.tokens[row, : len(keys)][keys], batch.tokens[row, at : at + 1]])
        out["keys"] = keys
    return {name: x.tolist() for name, x in out.items()}


def shares(objective, topology, batch, vocabulary=WIDE):
    """Return how many targets change with the token they are, and which share of those are seen before."""
    before = objective.prepare(batch, Rng(3), vocabulary)
    asked = leaks = 0
    for place in range(batch.tokens.shape[1]):
        old, new = FIRST + place, FRESH + place
        after = objective.prepare(
            batch.replace(tokens=batch.tokens.where(batch.tokens != old, new)), Rng(3), vocabulary
        )
        assert before.targets.shape == after.targets.shape
        for row, at in ((before.targets == old) & (after.targets == new)).nonzero().tolist():
            asked += 1
            leaks += seen(before, row, at, topology) != seen(after, row, at, topology)
    return asked, leaks / max(asked, 1)


@pytest.mark.parametrize("name", NAMES)
def test_no_target_is_seen_before_it_is_predicted(name):
    objective, topology = cases()[name]
    asked, share = shares(objective, topology, text())
    assert asked > ROWS
    meant = design(objective)
    # exactly none, or about as many as meant: five standard deviations, and what rounding up makes of few words
    assert share == pytest.approx(meant, abs=5 * math.sqrt(meant * (1 - meant) / asked) + 0.04 if meant else 0)


def test_a_leak_is_noticed():
    """Shift by nothing instead of one, and show a fragment: both are seen."""

    class Unshifted(SpanCorruption, kind="unshifted"):
        def prepare(self, batch, rng, vocabulary):
            made = super().prepare(batch, rng, vocabulary)
            return made.replace(tokens=made.targets.clamp(min=0))

    assert shares(Unshifted(), "encoder-decoder", text())[1] == 1.0
    assert shares(SpanCorruption(), "encoder-decoder", text())[1] == 0.0
    assert shares(MaskedFragment(as_mask=0.0, as_random=0.0), "encoder-decoder", text())[1] == 1.0


def test_every_objective_is_among_them_or_asks_for_no_token():
    known = {objective.kind for objective, _ in cases().values()}
    pictures = {"pixel-by-pixel", "super-resolution", "completion"}
    own = {kind for kind, cls in choices(Objective).items() if cls.__module__.startswith("kinfolk.")}
    missing = own - known - set(NO_TOKENS) - pictures - {"unshifted"}
    assert not missing, f"{sorted(missing)}: no relative learns by it; add it to BY_HAND"


def pairs():
    tokens = torch.cat([torch.full((ROWS, 1), WIDE.bos), text().tokens[:, 1:], torch.full((ROWS, 1), WIDE.eos)], 1)
    keep = torch.arange(LENGTH + 2) < 10 + torch.arange(ROWS)[:, None] % 20
    source = torch.arange(2000, 2020).repeat(ROWS, 1)
    return Batch(index=torch.arange(ROWS), tokens=tokens, keep=keep, source=source)


@pytest.mark.parametrize("name", ["gpt2", "vanilla"])
def test_of_pairs_neither(name):
    objective, topology = (
        cases()[name]
        if name in cases()
        else next(case for case in cases().values() if case[0].kind == kf.relative(name, size="base").objective.kind)
    )
    asked, share = shares(objective, topology, pairs())
    assert asked > ROWS
    assert share == 0


def same_row(a, b, i, j):
    """Compare one example of two prepared batches, but for how far it is padded."""
    # positions are written down as soon as one row needs them
    for name in a.tensors.keys() & b.tensors.keys() - {"index", "keep", "source_keep"}:
        x, y = a.tensors[name][i], b.tensors[name][j]
        cut = tuple(slice(0, min(n, m)) for n, m in zip(x.shape, y.shape, strict=True))
        if name in ("positions", "segments", "Visible.pairs_BLM", "UniformNoise.noise_BL"):
            n = min(content(a, i), content(b, j))
            cut = (slice(0, n), *cut[1:])
        assert torch.equal(x[cut], y[cut]), name
    assert content(a, i) == content(b, j)
    assert content(a, i, "source") == content(b, j, "source")


def content(batch, row, side="tokens"):
    tokens, keep = (batch.tokens, batch.keep) if side == "tokens" else (batch.source, batch.source_keep)
    if tokens is None:
        return 0
    return tokens.shape[1] if keep is None else int(keep[row].sum())


@pytest.mark.parametrize("name", NAMES)
def test_draws_depend_on_the_seed_and_the_example_only(name):
    """In any company, in any order, in one process or many, and without touching PyTorch's own random state."""
    objective, _ = cases()[name]
    batch, state = text(), torch.random.get_rng_state()
    whole = objective.prepare(batch, Rng(3), WIDE)
    assert torch.equal(torch.random.get_rng_state(), state)
    for world in (2, 3):
        for rank in range(world):
            mine = slice(ROWS * rank // world, ROWS * (rank + 1) // world)
            part = objective.prepare(batch.rows(mine), Rng(3), WIDE)
            for j, i in enumerate(range(ROWS)[mine]):
                same_row(whole, part, i, j)
    turned = objective.prepare(batch.map(lambda x: x.flip(0)), Rng(3), WIDE)
    for i in range(ROWS):
        same_row(whole, turned, i, ROWS - 1 - i)


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_draws_otherwise(name):
    objective, _ = cases()[name]
    one, again, other = (objective.prepare(text(), Rng(seed), WIDE) for seed in (3, 3, 4))
    fields = [tuple(b.tensors.get(n) for b in (one, again, other)) for n in (*INPUTS, "targets")]
    same = [torch.equal(a, b) for a, b, _ in fields if a is not None]
    differ = [a.shape != c.shape or not torch.equal(a, c) for a, _, c in fields if a is not None and c is not None]
    assert all(same)
    # what draws nothing is the same for any seed
    assert any(differ) == (objective.kind not in ("causal", "sequence-to-sequence", "auxiliary", "multi-token"))


@pytest.mark.parametrize("name", ["t5-random-spans", "bart-all", "mass"])
def test_batches_prepared_in_any_order_are_the_same(name):
    from kinfolk.data import Batches, open_data

    objective, _ = cases()[name]
    data = open_data("stdlib:megabytes=1")
    batches = Batches(split=data.split("train"), batch_size=4, length=64, seed=1)
    vocabulary = Vocabulary(data.tokenizer.vocab_size)
    runs = [
        {step: objective.prepare(batches.at(step), rng=Rng(3), vocabulary=vocabulary) for step in order}
        for order in (range(4), (2, 0, 3, 1))
    ]
    for here, there in ((run[step] for run in runs) for step in range(4)):
        assert here.tensors.keys() == there.tensors.keys()
        for name, tensor in here.tensors.items():
            assert torch.equal(tensor, there.tensors[name]), name
    assert not bool((runs[0][0].targets == IGNORE).all())
