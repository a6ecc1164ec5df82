"""K-BERT: facts beside a text, told by positions and by who sees whom; without facts, BERT to the bit."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.annotations import Visible
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.knowledge import Names
from kinfolk.family.assembly import with_mixer
from kinfolk.family.knowing import informed
from kinfolk.layers.adapters import Lora
from kinfolk.objectives.knowledge import Facts, Triples
from kinfolk.objectives.objective import Vocabulary
from tests.objectives.naming import kinds, learnt

TOY = {"d_model": 24, "n_layers": 2, "n_heads": 3, "d_ff": 40, "vocab_size": 40, "max_len": 24, "dropout": 0.0}
FACTS = Facts(Names({(20, 21): ((30, 31), (32,)), (25,): ((33, 34, 35),)}))
ROW = [10, 11, 20, 21, 12, 25, 13]
INDEX = torch.arange(2)


def model():
    return kf.build(kf.relative("k-bert", size="tiny", **TOY), seed=1).double().eval()


def batch(*rows, **more):
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    keep = torch.tensor([[i < len(row) for i in range(width)] for row in rows])
    return Batch(index=torch.arange(len(rows)), tokens=tokens, keep=keep, **more)


def told(given, facts=FACTS, limit=24):
    return facts.inform(given, Vocabulary(40), limit)


def test_nothing_known_is_bert_to_the_bit():
    given = batch(ROW, ROW[:3])
    assert told(given, Facts(Names({}))) is given
    # nothing of what is known is named
    assert told(batch([1, 2, 3])).annotation(Visible) is None
    plain = kf.build(kf.relative("bert", size="tiny", **TOY), seed=1).double().eval()
    assert torch.equal(model().run(told(given, Facts(Names({})))).logits, plain.run(given).logits)


def test_who_is_told_nothing_is_not_moved_by_the_neighbours_facts():
    """A row without names in a batch with them gives what it gives alone."""
    alone = model().run(batch([1, 2, 3, 4])).logits
    both = model().run(told(batch(ROW, [1, 2, 3, 4]))).logits
    torch.testing.assert_close(both[1:, :4], alone, rtol=0, atol=1e-12)


def test_the_batch_is_the_tree():
    given = told(batch(ROW, [25, 9]))
    assert given.tokens.tolist() == [[*ROW, 30, 31, 32, 33, 34, 35], [25, 9, 33, 34, 35, *[0] * 8]]
    assert given.positions[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 4, 5, 4, 6, 7, 8]
    assert given.keep.sum(1).tolist() == [13, 5]
    sees = {i: given.annotation(Visible).pairs_BLM[0, i].nonzero().flatten().tolist() for i in range(13)}
    sentence = list(range(7))
    assert sees[0] == sentence
    assert sees[2] == sees[3] == [*sentence, 7, 8, 9]
    assert sees[7] == sees[8] == [2, 3, 7, 8]
    assert sees[9] == [2, 3, 9]
    assert sees[5] == [*sentence, 10, 11, 12]
    assert not given.annotation(Visible).pairs_BLM[1, 5:].any()
    assert not given.annotation(Visible).pairs_BLM[1, :, 5:].any()


def test_it_is_attention_among_those_who_see_each_other():
    """Against a loop that gives BERT's layers positions and a mask and nothing else."""
    m, given = model(), told(batch(ROW))
    x = m.embedding.table.weight[given.tokens[0]] + m.embedding.position.table.weight[given.positions[0]]
    x = m.embedding.norm(x + m.embedding.segments.weight[0])
    for block in m.encoder.blocks:
        look, think = block.parts
        q, k, v = (y.unflatten(-1, (3, 8)) for y in look.qkv(x).chunk(3, -1))
        heads = []
        for h in range(3):
            scores = q[:, h] @ k[:, h].T / 8**0.5
            scores[~given.annotation(Visible).pairs_BLM[0]] = -torch.inf
            heads.append(scores.softmax(-1) @ v[:, h])
        x = block.residuals[0].norm(x + look.out(torch.cat(heads, -1)))
        x = block.residuals[1].norm(x + think(x[None], None, None)[0][0])
    torch.testing.assert_close(m.run(given).hidden[0], x, rtol=0, atol=1e-12)


def test_a_fact_reaches_its_name_first_and_the_others_through_it():
    m, given = model(), told(batch(ROW))
    changed = given.replace(tokens=given.tokens.clone())
    changed.tokens[0, 8] = 39
    taps = [m.run(b, taps=["hidden"]).taps for b in (given, changed)]
    first, last = (
        (taps[0][f"encoder.{n}.hidden"] - taps[1][f"encoder.{n}.hidden"]).abs().amax(-1)[0] > 0 for n in (0, 1)
    )
    assert first.nonzero().flatten().tolist() == [2, 3, 7, 8]
    assert last[:7].all()
    # a branch of the same name learns of it through the name, a branch of another one not yet
    assert last[9]
    assert not last[10:].any()


def test_targets_and_segments_stay_where_they_are():
    targets = torch.tensor([[IGNORE, 5, IGNORE, IGNORE, IGNORE, 7, IGNORE]])
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    given = told(batch(ROW, targets=targets, segments=segments))
    assert given.targets.tolist() == [[*targets[0].tolist(), *[IGNORE] * 6]]
    assert given.segments.tolist() == [[*segments[0].tolist(), 0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize(("limit", "n"), [(13, 13), (12, 10), (9, 9), (8, 7), (7, 7)])
def test_facts_that_do_not_fit_are_not_read(limit, n):
    given = told(batch(ROW), limit=limit)
    assert given.tokens.shape[1] == n <= limit
    assert given.positions is None or int(given.positions.max()) < limit


def test_few_facts_are_read_where_few_are_asked_for():
    assert told(batch(ROW), Facts(FACTS.names, most=1)).tokens.shape[1] == 12
    assert told(batch(ROW), Facts(FACTS.names, most=0)).annotation(Visible) is None


def test_a_classifier_learns_what_only_the_facts_tell():
    """The class of a name is in a fact about it; of names that were never seen, the facts alone tell it."""
    facts = Facts(Names({name: ((30 + kind,),) for name, kind in kinds().items()}))
    recipe = kf.relative("k-bert", size="tiny", **TOY)
    assert learnt(recipe, facts, lr=3e-3, steps=40) == 1.0
    assert learnt(recipe, None, lr=3e-3, steps=40) < 0.9


def test_models_that_cannot_be_told_are_refused():
    with pytest.raises(SpecError, match=r"encoder of blocks, not by 'decoder'"):
        informed(kf.relative("gpt2", size="tiny"), "facts.tsv")
    with pytest.raises(SpecError, match=r"blocks\[0\]\.parts\[0\] is .*two-stream"):
        informed(kf.relative("xlnet", size="tiny"), "facts.tsv")
    with pytest.raises(SpecError, match="most: -1"):
        Triples(most=-1)
    assert informed(kf.relative("roberta", size="tiny"), "facts.tsv").knowledge == Triples(file="facts.tsv")
    recipe = kf.relative("bert", size="tiny")
    low_rank = with_mixer(recipe.model, lambda look: Lora(part=look, rank=2))
    assert informed(recipe.replace(model=low_rank), "facts.tsv").knowledge.file == "facts.tsv"
