"""Every relative learns a toy task that only the context solves."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.annotations import NegativeSamples
from kinfolk.core.rng import Rng
from kinfolk.layers.part import Mixer
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.measures.measure import measure_of
from kinfolk.objectives.objective import Vocabulary
from tests.cover import parts, sampled
from tests.family.test_relatives import NAMES, V, read, recipe, tokens

# these learn or do not at the higher rate, as a processor rounds
UNSTEADY = {"act-rnn", "t5", "t5-v1-1", "deberta", "deberta-v2", "rnn-search", "distilbert", "roberta", "bigbird"}
UNSTEADY |= {"deltanet", "funnel", "kda", "linformer", "longformer", "mamba", "image-transformer-logistic", "roformer"}
LEARNERS = sampled(NAMES, "learning", features=parts, marks={"act-rnn": (pytest.mark.long,)})


def toy(again):
    """Return eight phases of a line that repeats: of eight tokens, or of four tokens that come twice `again`."""
    line = tokens(1, 4, seed=4).repeat_interleave(2, 1) if again else tokens(1, 8, seed=4)
    return torch.stack([row.roll(-i) for i, row in enumerate(line.repeat(8, 8))])[:, :49]


def learns(name, learn, text, n_steps=2000):
    """Train until losses are below 0.5 nats; return nothing then, else what they are."""
    # at the higher rate steady relatives take half the steps
    optimiser = torch.optim.AdamW(learn.parameters(), lr=3e-3 if name in UNSTEADY else 1e-2)
    measures = {}
    for step in range(n_steps):
        batch = learn.prepare(read(name, text, 8 * step), Rng(0))
        if batch.segments is not None:
            pytest.skip("passages cut at random places take longer; docs/studies/pretraining.py has them")
        loss = learn.train()(batch)
        optimiser.zero_grad()
        (loss.total / loss.count + loss.side).backward()
        optimiser.step()
        if step % 10 == 9:
            with torch.no_grad():
                measures = learn.eval().measure(batch)
            if learn.objective.companion(learn.model.spec) is not None:
                # what a companion says is not what the model is for
                measures = dict(list(measures.items())[:1])
            # of a gold answer and some wrong ones each is worth a loss
            negatives = batch.annotation(NegativeSamples)
            limit = 0.5 if negatives is None else 0.5 * (1 + negatives.tokens_BLC.shape[-1])
            if all(total / count < limit for kind, (total, count) in measures.items() if not measure_of(kind).higher):
                return None
    return measures


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_learns_its_toy_task(name):
    """A line of four tokens, each twice, again and again: what comes next is in the context, not in the last token.

    To a causal model the last token and its position leave two answers, 0.69 nats; how far others need more than that
    was not tried.
    """
    learn = Learner(kf.build(recipe(name), seed=1).train(), recipe(name).objective, Vocabulary(V))
    # a mixture of logistics takes longer than this to be sure of two numbers
    assert learns(name, learn, toy(again=name != "image-transformer-logistic")) is None


def test_the_toy_task_is_not_learnt_without_attention():
    learn = Learner(kf.build(recipe("gpt2"), seed=1).train(), recipe("gpt2").objective, Vocabulary(V))
    for block in learn.model.decoder.blocks:
        for part in block.parts:
            if isinstance(getattr(part, "spec", None), Mixer):
                part.register_forward_hook(lambda module, given, made: (made[0] * 0.0, *made[1:]))
    total, count = learns("gpt2", learn, toy(again=True), 200)["next-token"]
    assert 0.6 < total / count < 0.8
