"""`refuse_leaks` against a probe, over objectives, topologies and patterns: change a target, does its own logit move?

A recipe leaks if the state from which a token is predicted moves with that token, and ignores its input if the logits
do not move with the source. The check has to refuse exactly those, from the description alone.
"""

import functools
import itertools

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.core.annotations import PrefixLength
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.core.spec import choices
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.convolution import LightConv
from kinfolk.layers.mixers.linear_attention import LinearAttention
from kinfolk.layers.mixers.rnn import GRU, LSTM
from kinfolk.models.model import build_model
from kinfolk.objectives.auxiliary import Auxiliary
from kinfolk.objectives.causal import CausalLM
from kinfolk.objectives.denoise import DropTokens, PrefixLM
from kinfolk.objectives.leaks import refuse_leaks
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.masked import MaskedLM
from kinfolk.objectives.mass import MaskedFragment
from kinfolk.objectives.objective import HIDDEN, LATER, Objective, Vocabulary
from kinfolk.objectives.sequence import SequenceToSequence
from kinfolk.objectives.skipgram import SkipGram
from kinfolk.objectives.span import SpanCorruption
from kinfolk.ops.patterns.leaves import (
    Axial,
    Causal,
    Full,
    Global,
    Local1D,
    PerHead,
    Prefix,
    RandomBlocks,
    SameBlock,
    Strided,
    Summary,
    Window,
)

LENGTH, FIRST, SIZE = 24, 20, 120
VOCABULARY = Vocabulary(SIZE, counts=np.ones(SIZE, np.int64))
PATTERNS = {
    "causal": Causal(),
    "window": Window(left=3),
    "and": Causal() & (SameBlock(size=4) | Summary(block=4, width=1)),
    "not called causal": Full() & Window(left=5),
    "per head": PerHead(patterns=(Causal(), Window(left=2))),
    "full": Full(),
    "prefix": Causal() | Prefix(n=4),
    "one ahead": Window(left=3, right=1),
    "late": Causal() | Global(n=1, start=17),
    "blocks": SameBlock(size=3),
    "strided": Strided(stride=5),
    "axial": Axial(width=4),
    "random": Causal() | RandomBlocks(block=2, n=1, among=12),
    "local": Local1D(block=4, memory=2),
    "one head ahead": PerHead(patterns=(Causal(), Full())),
}
OBJECTIVES = {
    "causal": CausalLM(),
    "auxiliary": Auxiliary(of=CausalLM(), n_targets=1),
    "masked": MaskedLM(share=0.3, as_mask=1.0, as_random=0.0),
    "skip-gram": SkipGram(threshold=0.0, window=1),
    "prefix-lm": PrefixLM(rows="one"),
    "prefix-lm of two": PrefixLM(),
    "drop-tokens": DropTokens(share=0.3),
    "span-corruption": SpanCorruption(),
    "masked-fragment": MaskedFragment(at_start=1.0, at_end=0.0, as_mask=1.0, as_random=0.0),
    "sequence-to-sequence": SequenceToSequence(),
}
RELATIVES = {"decoder": "gpt2", "encoder": "roberta", "encoder-decoder": "vanilla"}


def recipe_of(topology, objective, pattern):
    """Return a small model whose last stack attends by a pattern, with no check in between."""
    numbers = {"n_layers": 1, "d_model": 16, "n_heads": 2, "vocab_size": SIZE + objective.extra_ids, "max_len": 64}
    model = kf.relative(RELATIVES[topology], size="tiny", **numbers).model
    side = "encoder" if topology == "encoder" else "decoder"
    stack = getattr(model, side)
    parts = [part.replace(pattern=pattern) if type(part) is Attention else part for part in stack.blocks[0].parts]
    model = model.replace(**{side: stack.replace(blocks=(stack.blocks[0].replace(parts=tuple(parts)),))})
    prompt = "bidirectional" if objective.reads_prefix else "causal"
    return model if topology != "decoder" else model.replace(prompt=prompt)


def states(learner, tokens, index=None):
    """Return the prepared batch and the state before every prediction."""
    index = torch.arange(len(tokens)) if index is None else index
    prepared = learner.prepare(Batch(index=index, tokens=tokens), Rng(3))
    with torch.no_grad():
        return prepared, learner.run(prepared)[0].hidden


def leaks(learner):
    """Change each token of a text: the state from which it is predicted must stay.

    Where tokens are predicted one after the other, so must those from which earlier ones are: a product of
    probabilities is that of the text only if each knows what comes before and nothing else.
    """
    n = LENGTH + 1
    text = torch.arange(FIRST, FIRST + n).repeat(n + 1, 1)
    text[:n] += 50 * torch.eye(n, dtype=torch.long)
    # one example many times, so that all draws are the same; the last row is the text itself
    prepared, hidden = states(learner, text, torch.zeros(n + 1, dtype=torch.long))
    old = torch.arange(FIRST, FIRST + n)[:, None]
    own = (prepared.targets[-1:] == old) & (prepared.targets[:n] == old + 50)
    assert own.any()
    if any(part.targets == LATER for part in learner.objective.parts):
        own = (own.flip(1).cumsum(1).flip(1) > 0) & (prepared.targets[:n] >= 0)
    moved = (hidden[:n] != hidden[-1:]).any(-1)
    return bool((own & moved).any())


def ignores(learner):
    """Tell whether the source of a prepared batch changes nothing."""
    text = torch.arange(FIRST, FIRST + LENGTH + 1).repeat(2, 1)
    prepared, hidden = states(learner, text)
    if prepared.source is None:
        return False
    with torch.no_grad():
        other = learner.run(prepared.replace(source=prepared.source.flip(1)))[0].hidden
    return torch.equal(hidden, other)


def refused(model, objective):
    try:
        refuse_leaks(model, objective)
    except SpecError:
        return True
    return False


def cases():
    for topology, (name, objective), pattern in itertools.product(RELATIVES, OBJECTIVES.items(), PATTERNS):
        if (topology == "encoder-decoder") != objective.needs_encoder and topology != "decoder":
            continue  # without a source an encoder-decoder does not run, and an encoder has nothing to write
        if objective.reads_prefix and topology != "decoder":
            continue
        if topology == "encoder-decoder" and pattern in ("late", "axial", "strided", "random"):
            continue  # targets may be shorter than what these patterns show
        if name == "skip-gram" and pattern not in ("causal", "window", "full"):
            continue  # whether a context is among the pairs that are seen is luck
        if objective.needs_encoder and topology == "decoder" and pattern != "causal":
            continue  # ignored whatever the pattern
        yield topology, name, pattern


@pytest.mark.parametrize("topology", RELATIVES)
def test_exactly_what_leaks_or_ignores_its_input_is_refused(topology):
    verdicts = []
    for _, name, pattern in [case for case in cases() if case[0] == topology]:
        objective = OBJECTIVES[name]
        model = recipe_of(topology, objective, PATTERNS[pattern])
        torch.manual_seed(0)
        learner = Learner(build_model(model).eval(), objective, VOCABULARY)
        wrong = ignores(learner) or leaks(learner)
        assert refused(model, objective) == wrong, (name, pattern)
        verdicts.append(wrong)
    assert True in verdicts
    assert False in verdicts


MIXERS = {
    "lstm": LSTM,
    "gru": GRU,
    "linear": functools.partial(LinearAttention, n_heads=2),
    "light-conv": functools.partial(LightConv, kernel=3, n_heads=2),
}


@pytest.mark.parametrize("direction", ["past", "both", "future"])
@pytest.mark.parametrize("name", MIXERS)
def test_mixers_that_read_backwards_are_refused_where_they_leak(name, direction):
    """In a decoder a module refuses to be built; of an encoder only the objective knows what may be seen."""
    try:
        mixer = MIXERS[name](direction=direction)
    except SpecError:
        assert direction == "future"
        return
    for objective in (OBJECTIVES["causal"], OBJECTIVES["masked"]):
        model = recipe_of("encoder", objective, Causal())
        stack = model.encoder
        parts = [mixer if type(part) is Attention else part for part in stack.blocks[0].parts]
        model = model.replace(encoder=stack.replace(blocks=(stack.blocks[0].replace(parts=tuple(parts)),)))
        torch.manual_seed(0)
        learner = Learner(build_model(model).eval(), objective, VOCABULARY)
        wrong = leaks(learner)
        assert refused(model, objective) == wrong == (objective is OBJECTIVES["causal"] and direction != "past")


@pytest.mark.parametrize("name", ["permuted", "skip-gram", "causal", "denoising"])
def test_an_objective_on_the_wrong_relative_is_refused_when_the_recipe_is_made(name):
    with pytest.raises(SpecError, match=r"objective|see what it is asked for"):
        kf.relative("bert", size="tiny").assigned([f"objective={name}"])


def test_every_objective_says_where_its_targets_are():
    """Of those that say nothing, what is asked for must not be in the row that is read."""
    own = {kind: cls for kind, cls in choices(Objective).items() if cls.__module__.startswith("kinfolk.")}
    silent = {kind for kind, cls in own.items() if cls.targets is Objective.targets}
    labels = {"classify", "classify-apart", "classify-many", "regress", "tag", "span-answer", "reconstruct"}
    masked = {"masked", "sentence-pairs", "replaced-tokens"}
    wrappers = {kind for kind, cls in own.items() if cls.parts is not Objective.parts}
    # of a wrapper its parts are asked
    assert silent - {"unshifted"} == labels | masked | wrappers
    assert MaskedLM().targets == HIDDEN


def test_a_recipe_that_sees_the_future_is_refused_by_name():
    with pytest.raises(
        SpecError, match=r"model\.decoder\.blocks\[0\]\.parts\[0\]\.pattern: 'full' lets position 0 see"
    ):
        kf.relative("gpt2", size="tiny", **{"model.decoder.blocks[*].parts[0].pattern": {"kind": "full"}})


# positions of every kind, sparse and dense patterns, and a reversible stack
READERS = ["gpt2", "alibi", "local", "sparse-strided", "reversible", "gpt2+t5-buckets", "gpt2+xl", "gpt2+rotary"]


@pytest.mark.parametrize("name", READERS)
def test_a_decoder_reads_a_prefix_both_ways_and_is_scored_on_the_rest(name):
    relative, _, position = name.partition("+")
    recipe = kf.relative(relative, size="tiny", vocab_size=SIZE, n_layers=2)
    changes = ["objective=prefix-lm"] + ([f"model.decoder.blocks[*].parts[0].position={position}"] if position else [])
    recipe = recipe.assigned(changes)
    learner = Learner(build_model(recipe.model).double().eval(), recipe.objective, VOCABULARY)
    tokens = torch.arange(FIRST, FIRST + LENGTH + 1).repeat(4, 1)
    prepared, before = states(learner, tokens)
    scored = prepared.targets >= 0
    for row, n in enumerate(prepared.annotation(PrefixLength).length_B.tolist()):
        assert scored[row].nonzero()[0].item() == n - 1
        assert int(scored[row].sum()) == LENGTH - n + 1
        # the last token of the prefix reaches its first, the first token behind it reaches nothing before it
        for at, first in ((n - 1, 0), (n, n)):
            if at == LENGTH or (at == 0):
                continue
            changed = prepared.tokens.clone()
            changed[row, at] += 60
            with torch.no_grad():
                after = learner.run(prepared.replace(tokens=changed))[0].hidden
            moved = (after != before)[row].any(-1)
            reach = min(at - first, 3)  # a window may be narrower than the prefix
            assert bool(moved[at - reach : at + 1].all())
            assert not bool(moved[:first].any())
    # the same prompt is read alike while decoding, with and without a cache
    prompts = [tokens[0, :9].tolist(), tokens[0, 3:8].tolist()]
    model = learner.model
    texts = [kf.generate(model, prompts, max_new=6, greedy=True, cached=cached) for cached in (True, False)]
    assert texts[0] == texts[1]
    alone = kf.generate(model, prompts[1], max_new=6, greedy=True)
    assert alone == texts[0][1]


def test_a_model_that_cannot_read_both_ways_is_refused():
    for name in ("lstm", "performer", "transformer-xl", "synthesizer-dense", "adaptive-span"):
        with pytest.raises(SpecError, match="reads in one direction only"):
            kf.relative(name, size="tiny").assigned(["objective=prefix-lm"])
