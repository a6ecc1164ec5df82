"""Multi-token prediction: losses of the chain by hand, what evaluation leaves out, and what is refused."""

import pytest
import torch
import torch.nn.functional as F

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.objectives.causal import CausalLM
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.multi_token import MultiToken
from kinfolk.objectives.objective import Vocabulary

TOY = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 16}


def learner(n_modules=2):
    recipe = kf.relative("llama", size="base", **TOY)
    learn = Learner(kf.build(recipe).double(), MultiToken(of=CausalLM(), n_modules=n_modules), Vocabulary(31)).train()
    torch.manual_seed(0)
    for p in learn.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return learn


def prepared(learn, document=None):
    tokens = torch.randint(7, 31, (2, 11), generator=torch.Generator().manual_seed(0))
    return learn.prepare(Batch(index=torch.arange(2), tokens=tokens, document=document), Rng(0))


def test_every_module_reads_the_one_before_it_and_a_later_token():
    """Row by row and target by target, from the definition; no module ever sees its target."""
    learn = learner()
    batch = prepared(learn)
    model, wanted = learn.model, torch.zeros((), dtype=torch.float64)
    states = model.run(batch).hidden
    for k, module in enumerate(learn.partner.chain, start=1):
        rows, losses = [], []
        for b in range(2):
            n = 10 - k
            token = model.embedding(batch.tokens[b : b + 1, k:], Context())
            pair = torch.cat([module.norm_state(states[b : b + 1, :n]), module.norm_token(token)], -1)
            rows.append(module.block(pair @ module.join.weight.T, Context(), None))
            logits = model.head.logits(learn.partner.norms[k - 1](rows[-1]))[0]
            # position i has read tokens up to i + k, and is asked for token i + k + 1
            losses += [F.cross_entropy(logits[i], batch.targets[b, i + k]) for i in range(n)]
        wanted = wanted + 0.15 * torch.stack(losses).mean()
        states = torch.cat(rows)
    loss = learn(batch)
    torch.testing.assert_close(loss.side, wanted, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(x, list(learn.parameters()), allow_unused=True) for x in (loss.side, wanted)]
    for a, b in zip(*gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_no_target_is_taken_from_another_document():
    learn = learner(1)
    document = torch.tensor([[0] * 6 + [1] * 5] * 2)
    changed = prepared(learn, document)
    changed.tokens[:, 6:] = 9
    changed.targets[:, 6:] = 8
    _, first = (learn.run(one)[0].side_losses["target 2"] for one in (prepared(learn, document), changed))
    alone = learn.run(prepared(learn).replace(tokens=changed.tokens[:, 6:], targets=changed.targets[:, 6:]))[0]
    left = prepared(learn)
    left = learn.run(
        left.replace(tokens=left.tokens[:, :6], targets=left.targets[:, :6].index_fill(1, torch.tensor([5]), -100))
    )[0]
    # four targets of the first document, three of the second
    both = (4 * left.side_losses["target 2"] + 3 * alone.side_losses["target 2"]) / 7
    torch.testing.assert_close(first, both, rtol=1e-9, atol=1e-11)


def test_evaluation_knows_nothing_of_it():
    learn = learner().eval()
    batch = prepared(learn)
    output, _ = learn.run(batch)
    assert not output.side_losses
    assert learn.measure(batch).keys() == CausalLM().measure(output, batch).keys()


def test_a_model_without_a_stack_of_its_own_is_refused():
    recipe = kf.relative("vanilla", size="tiny")
    with pytest.raises(SpecError, match="multi-token: needs a decoder alone"):
        Learner(kf.build(recipe), MultiToken(of=CausalLM()), Vocabulary(263))
