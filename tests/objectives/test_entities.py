"""KnowBERT: what names may mean beside a text, on any BERT; where nothing is named, BERT to the bit."""

import dataclasses

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.core.annotations import Mentions
from kinfolk.core.batch import Batch
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.knowledge import Names
from kinfolk.core.rng import Rng
from kinfolk.family.knowing import informed, knowledgeable, with_entities
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.objectives.knowledge import Entities, Lexicon
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.supervised import Classify
from tests.objectives.naming import kinds, learnt

TOY = {"d_model": 24, "n_layers": 2, "n_heads": 3, "d_ff": 40, "vocab_size": 40, "max_len": 24, "dropout": 0.0}
LEXICON = Lexicon(Names({(20, 21): ((3, 0.7), (1, 0.3)), (25,): ((2, 1.0),)}))


def batch(*rows, **more):
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    keep = torch.tensor([[i < len(row) for i in range(width)] for row in rows])
    return Batch(index=torch.arange(len(rows)), tokens=tokens, keep=keep, **more)


def told(given, lexicon=LEXICON):
    return lexicon.inform(given, Vocabulary(40), 24)


def test_a_batch_says_what_it_names():
    given = told(batch([10, 20, 21, 11, 25], [9, 9], [25, 9, 9]))
    assert given.annotation(Mentions).spans_BS2.tolist() == [[[1, 2], [4, 4]], [[-1, -1]] * 2, [[0, 0], [-1, -1]]]
    assert given.annotation(Mentions).entities_BSC.tolist() == [[[3, 1], [2, -1]], [[-1, -1]] * 2, [[2, -1], [-1, -1]]]
    assert torch.equal(given.annotation(Mentions).priors_BSC[0], torch.tensor([[0.7, 0.3], [1.0, 0.0]]))
    few = told(batch([20, 21]), Lexicon(LEXICON.names, most=1))
    assert few.annotation(Mentions).entities_BSC.tolist() == [[[3]]]
    plain = batch([9, 9])
    assert told(plain) is plain


def test_nothing_named_is_bert_to_the_bit():
    """All weights but the new ones are those of a BERT that was there before, and so are the answers."""
    plain = kf.build(kf.relative("bert", size="tiny", **TOY), seed=3).eval()
    knows = knowledgeable(plain, n_entities=5, d_entity=8, n_heads=2).eval()
    assert knows.n_params > plain.n_params
    given = batch([10, 11, 12], [9])
    assert torch.equal(knows.run(told(given)).logits, plain.run(given).logits)
    # a row that names nothing, beside one that does
    both = batch([10, 20, 21], [9, 12, 13])
    got, want = knows.run(told(both)).logits, plain.run(both).logits
    assert torch.equal(got[1], want[1])
    assert not torch.allclose(got[0], want[0])


def test_an_imported_bert_looks_at_entities(tmp_path):
    plain = kf.build(kf.relative("bert", size="tiny", **TOY), seed=3).eval()
    knows = knowledgeable(kf.from_hf(kf.to_hf(plain, tmp_path)), n_entities=5, d_entity=8, n_heads=2).eval()
    given = batch([10, 11, 12])
    assert torch.equal(knows.run(given).logits, plain.run(given).logits)
    with pytest.raises(kf.KinfolkError, match=r"encoder\.blocks"):
        kf.to_hf(knows, tmp_path / "again")


def planted(n, seed):
    """Texts that name one of two things; a word before it tells which, and the class is what is known of that thing."""
    draw = np.random.default_rng(seed)
    clue, name, filler = draw.integers(2, size=n), draw.integers(4, size=n), draw.integers(7, 10, size=n)
    tokens = torch.from_numpy(np.stack([np.full(n, 5), filler, 10 + clue, 20 + name], 1))
    return tokens, torch.from_numpy(clue)


def test_the_linker_finds_what_the_context_says():
    """Of two candidates of each name the right one is told by a word: on other texts, every link is right."""
    lexicon = Lexicon(Names({(20 + n,): ((2 * n, 0.5), (2 * n + 1, 0.5)) for n in range(4)}))
    recipe = kf.relative("knowbert", size="tiny", n_entities=8, d_entity=16, **TOY)
    recipe = recipe.replace(model=recipe.model.replace(head=ClassHead(n_classes=2)), objective=Classify())
    learner = Learner(kf.build(recipe, seed=0), recipe.objective, Vocabulary(40, known=lexicon))
    optimiser = torch.optim.AdamW(learner.parameters(), lr=3e-3)
    right = []
    for step in range(61):
        tokens, clue = planted(64, step)
        read = Batch(index=torch.arange(64), tokens=tokens, labels=clue)
        named = learner.prepare(read, Rng(0))
        made = named.annotate(dataclasses.replace(named.annotation(Mentions), links_BS=clue[:, None]))
        if step == 60:
            with torch.no_grad():
                out = learner.model.eval().run(named, taps=["links"])
            weights = next(x for name, x in out.taps.items() if name.endswith("links"))
            right = weights[:, 0].argmax(-1) == clue
            break
        loss = learner.train()(made)
        assert loss.side > 0
        optimiser.zero_grad()
        # by the links alone: the class would teach the same
        loss.side.backward()
        optimiser.step()
    assert right.all()


def test_what_only_the_entity_tells_is_learnt():
    """Classes of names that are spelt by chance, known only by what they mean: BERT learns none of it for new names."""
    lexicon = Lexicon(Names({name: ((kind, 1.0),) for name, kind in kinds().items()}))
    recipe = kf.relative("knowbert", size="tiny", n_entities=2, d_entity=8, **TOY)
    assert learnt(recipe, lexicon, lr=5e-3, steps=60) == 1.0
    assert learnt(recipe, None, lr=5e-3, steps=60) < 0.9


def test_what_cannot_be_told_is_refused():
    with pytest.raises(SpecError, match="no part of the model looks at entities"):
        Entities(file="x").fits(kf.relative("bert", size="tiny").model)
    with pytest.raises(SpecError, match="not of 'decoder'"):
        with_entities(kf.relative("gpt2", size="tiny").model, n_entities=3)
    with pytest.raises(SpecError, match="after: 7 is not one of the 2 layers"):
        with_entities(kf.relative("bert", size="tiny", n_layers=2).model, n_entities=3, after=7)
    with pytest.raises(SpecError, match="most: 0"):
        Entities(most=0)
    with pytest.raises(ShapeError, match="encoder-decoder"):
        LEXICON.inform(batch([1], source=torch.ones(1, 1, dtype=torch.long)), Vocabulary(40), None)
    assert informed(kf.relative("knowbert", size="tiny"), "e.tsv").knowledge == Entities(file="e.tsv")
