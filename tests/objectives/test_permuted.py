"""Prediction in random order: who sees whom, what leaks, and XLNet itself."""

import numpy as np
import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.annotations import Visible
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.pieces import TokenPieces
from kinfolk.core.rng import Rng
from kinfolk.layers.mixers.two_stream import TwoStreamAttention
from kinfolk.layers.module import Dims
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.permuted import PermutedLM, two_streams
from kinfolk.ops.patterns.leaves import Causal

D, H, K, F, V = 24, 3, 8, 40, 37
TOY = {"d_model": D, "n_layers": 2, "n_heads": H, "d_ff": F, "vocab_size": V, "max_len": 32, "dropout": 0.0}
VOCABULARY = Vocabulary(V)


def tokens(batch, length, seed=0):
    return torch.randint(7, V, (batch, length), generator=torch.Generator().manual_seed(seed))


def model(**numbers):
    m = kf.build(kf.relative("xlnet", size="base", **TOY | numbers)).double().eval()
    torch.manual_seed(0)
    for p in m.parameters():
        nn.init.normal_(p, std=0.3)
    return m


def batch_of(t, rank, segments=None):
    made = two_streams(t, rank, VOCABULARY.mask, VOCABULARY.pad)
    fields = {name: made[name] for name in ("tokens", "targets", "positions")}
    if segments is not None:
        fields["segments"] = segments.gather(1, made["positions"])
    return Batch(index=torch.arange(len(t)), **fields, annotations=(Visible(made["visible"]),))


def test_who_sees_whom_by_hand():
    # targets 1, 3, 4 in the order 4, 1, 3
    made = two_streams(torch.tensor([[20, 21, 22, 23, 24]]), torch.tensor([[-1, 1, -1, 2, 0]]), 6, 0)
    assert made["tokens"].tolist() == [[20, 21, 22, 23, 24, 6, 6, 6]]
    assert made["targets"].tolist() == [[IGNORE] * 5 + [21, 23, 24]]
    assert made["positions"].tolist() == [[0, 1, 2, 3, 4, 1, 3, 4]]
    sees = [set(row.nonzero()[:, 0].tolist()) for row in made["visible"][0]]
    assert sees[:5] == [{0, 2}, {0, 1, 2, 4}, {0, 2}, {0, 1, 2, 3, 4}, {0, 2, 4}]
    assert sees[5:] == [{0, 2, 4}, {0, 1, 2, 4}, {0, 2}]


def test_rows_with_fewer_questions_are_padded():
    made = two_streams(tokens(2, 4), torch.tensor([[-1, 0, 1, -1], [-1, -1, -1, 0]]), 6, 0)
    assert made["tokens"][1, 4:].tolist() == [6, 0]
    assert made["targets"][1, 5] == IGNORE
    assert made["asks"].tolist() == [[True] * 6, [True] * 5 + [False]]


def test_nothing_leaks_to_those_before_in_the_order():
    m, n = model(), 12
    draw = torch.Generator().manual_seed(5)
    rank = torch.full((1, n), -1)
    targets = torch.randperm(n, generator=draw)[:6]
    rank[0, targets] = torch.arange(6)
    t = tokens(1, n)
    batch = batch_of(t, rank)
    before, at = m.run(batch).logits[0, n:], batch.positions[0, n:]
    for order, place in enumerate(targets.tolist()):
        other = t.clone()
        other[0, place] = (t[0, place] - 6) % 30 + 7
        after = m.run(batch_of(other, rank)).logits[0, n:]
        moved = (after - before).abs().amax(-1) > 1e-9
        later = {int(p) for p in targets[order + 1 :]}
        assert {int(p) for p in at[moved]} == later
        assert torch.equal(after[~moved], before[~moved])


def test_in_the_order_of_the_text_content_is_a_causal_decoder():
    m, n = model(), 9
    t = tokens(2, n)
    both = m.run(batch_of(t, torch.arange(n).expand(2, n)))
    causal = torch.ones(n, n, dtype=torch.bool).tril().expand(2, n, n)
    positions = torch.arange(n).expand(2, n)
    alone = m.run(Batch(index=torch.arange(2), tokens=t, annotations=(Visible(causal),), positions=positions))
    torch.testing.assert_close(both.hidden[:, :n], alone.hidden, rtol=1e-12, atol=1e-12)
    # and its questions predict each token from those before it alone
    for cut in (1, 5):
        short = m.run(batch_of(t[:, : cut + 1], torch.arange(cut + 1).expand(2, cut + 1)))
        torch.testing.assert_close(short.hidden[:, -1], both.hidden[:, n + cut], rtol=1e-12, atol=1e-12)


def test_the_number_of_targets_and_their_draw():
    objective = PermutedLM()
    read = Batch(index=torch.arange(5), tokens=tokens(5, 61))
    made = objective.prepare(read, Rng(0), VOCABULARY)
    n = 63
    assert made.tokens.shape[1] == n + 10
    assert ((made.targets != IGNORE).sum(1) == 10).all()
    assert (made.targets[:, :n] == IGNORE).all()
    # content is as it was, a [SEP] in it and the ends behind it
    for row, before in zip(made.tokens[:, :n], read.tokens[:, :60], strict=True):
        assert row[row >= 7].tolist() == before.tolist()
        assert row[-2:].tolist() == [VOCABULARY.sep, VOCABULARY.cls]
        assert (row < 7).sum() == 3
    for i in range(5):
        alone = objective.prepare(read.rows(slice(i, i + 1)), Rng(0), VOCABULARY)
        for name in ("tokens", "targets", "positions", "Visible.pairs_BLM", "segments"):
            assert torch.equal(alone.tensors[name][0], made.tensors[name][i]), name
    assert made.keep is None
    assert made.segments[:, n - 1].tolist() == [2] * 5
    assert made.segments[:, 0].tolist() == [0] * 5
    assert made.segments[:, n - 2].tolist() == [1] * 5


def test_a_row_is_cut_after_a_sentence():
    no = np.zeros(V, dtype=bool)
    stop = np.arange(V) == 30
    vocabulary = Vocabulary(V, pieces=TokenPieces(no, no, stop, ~no, no))
    row = torch.tensor([[8, 9, 30, 10, 11, 12, 13, 14]])
    made = PermutedLM().prepare(Batch(index=torch.arange(1), tokens=row), Rng(0), vocabulary)
    assert made.tokens[0, :10].tolist() == [8, 9, 30, 4, 10, 11, 12, 13, 4, 5]
    assert made.segments[0, :10].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]


def test_padding_changes_nothing():
    m, objective = model(), PermutedLM()
    short = Batch(index=torch.arange(1), tokens=tokens(1, 16))
    keep = torch.arange(22)[None] < 15
    padded = Batch(index=short.index, tokens=torch.cat([short.tokens, tokens(1, 6, seed=4)], 1), keep=keep)
    a, b = (objective.prepare(x, Rng(0), VOCABULARY) for x in (short, padded))
    asked_a, asked_b = a.targets != IGNORE, b.targets != IGNORE
    assert torch.equal(a.targets[asked_a], b.targets[asked_b])
    torch.testing.assert_close(m.run(a).hidden[asked_a], m.run(b).hidden[asked_b], rtol=1e-10, atol=1e-10)


def test_memory_is_what_came_before_and_has_no_gradient():
    m = model(memory=50, n_layers=1)
    t = tokens(2, 16)
    first, second = t[:, :10], t[:, 10:]
    rank = torch.full((2, 6), -1)
    rank[:, [1, 4]] = torch.tensor([1, 0])
    memory = m.new_memory()
    m(first, state=memory)
    memory.settle()
    got = m.run(batch_of(second, rank), memory)
    # with one layer, memory is embeddings: the same as one row whose first part nobody is asked about
    whole = torch.cat([torch.full((2, 10), -1), rank], 1)
    want = m.run(batch_of(t, whole))
    torch.testing.assert_close(got.hidden[:, 6:], want.hidden[:, 16:], rtol=1e-10, atol=1e-10)
    memory.settle()
    assert not memory.parts["0.0"].x_BMD.requires_grad
    assert memory.parts["0.0"].x_BMD.shape[1] == 16
    without = m.run(batch_of(second, rank))
    assert (without.hidden[:, 6:] - got.hidden[:, 6:]).abs().max() > 1e-3
    assert kf.build(kf.relative("bert", size="base", **TOY)).new_memory() is None


def test_a_run_carries_its_memory_from_step_to_step(tmp_path):
    from kinfolk.data import open_data
    from kinfolk.runs.options import RunOptions
    from kinfolk.train.run import train

    small = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "vocab_size": 263, "max_len": 16}
    changes = {"steps": 4, "batch_size": 2, "length": 16, "eval_batches": 2, "precision": "fp32", "compile": "off"}
    recipe = kf.relative("xlnet", size="tiny", **small, **{f"training.{k}": v for k, v in changes.items()})
    result = train(recipe, open_data("stdlib:megabytes=1"), tmp_path / "run", options=RunOptions(quiet=True))
    assert result.valid["permuted-token"] < 7
    assert (tmp_path / "run" / "checkpoints" / "step-000004" / "memory.safetensors").exists()


def test_refusals():
    with pytest.raises(SpecError, match="comes from the batch"):
        TwoStreamAttention(n_heads=H, pattern=Causal()).build(Dims(D, V, 32, 0.0, 2))


# Hugging Face: its tables of distances are made in float32, here in float64


def theirs_of(ours, memory):
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs kinfolk[bench]")
    config = transformers.XLNetConfig(
        vocab_size=V,
        d_model=D,
        n_layer=2,
        n_head=H,
        d_inner=F,
        ff_activation="gelu",
        attn_type="bi",
        dropout=0.0,
        mem_len=memory,
        use_mems_eval=True,
    )
    theirs = transformers.XLNetLMHeadModel(config).double().eval()
    body, table = theirs.transformer, theirs.transformer.positional_embedding
    rates = 1 / 10000 ** (torch.arange(0, D, 2, dtype=torch.float64) / D)
    body.positional_embedding = lambda places, _, batch=None: table(places.double(), rates, batch)
    body.word_embedding.weight.data = ours.embedding.weight.data.clone()
    body.mask_emb.data = ours.embedding.weight.data[VOCABULARY.mask].view(1, 1, D).clone()
    theirs.lm_loss.weight.data = ours.embedding.weight.data.clone()
    theirs.lm_loss.bias.data = ours.head.bias.data.clone()
    for block, layer in zip(ours.encoder.blocks, body.layer, strict=True):
        look, think = block.parts
        for name, weight in zip("qkv", look.qkv.weight.chunk(3), strict=True):
            getattr(layer.rel_attn, name).data = weight.data.T.reshape(D, H, K).clone()
        layer.rel_attn.r.data = look.position.distance.weight.data.T.reshape(D, H, K).clone()
        layer.rel_attn.o.data = look.out.weight.data.reshape(D, H, K).clone()
        layer.rel_attn.r_w_bias.data, layer.rel_attn.r_r_bias.data = look.position.biases.weight.data.view(2, H, K)
        b, same, other = look.position.segments.weight.data.view(3, H, K)
        layer.rel_attn.r_s_bias.data, layer.rel_attn.seg_embed.data = b.clone(), torch.stack([same, other])
        up, down = (x for x in think.modules() if isinstance(x, nn.Linear))
        layer.ff.layer_1.load_state_dict(up.state_dict())
        layer.ff.layer_2.load_state_dict(down.state_dict())
        layer.rel_attn.layer_norm.load_state_dict(block.residuals[0].norm.state_dict())
        layer.ff.layer_norm.load_state_dict(block.residuals[1].norm.state_dict())
    return theirs


@pytest.mark.parametrize("memory", [7, 30])
def test_xlnet_is_theirs_with_permutations_segments_and_memory(memory):
    ours = model(memory=memory)
    theirs, n = theirs_of(ours, memory), 12
    learn = Learner(ours, PermutedLM(), VOCABULARY)
    mine, mems = ours.new_memory(), None
    for step in range(3):
        read = Batch(index=torch.arange(2) + 2 * step, tokens=tokens(2, n - 2, seed=step))
        batch = learn.prepare(read, Rng(0))
        at = batch.positions[:, n:]
        mapping = nn.functional.one_hot(at, n).double()
        # theirs lets content see itself of its own accord; ours says so
        hidden = (~batch.annotation(Visible).pairs_BLM[:, :n]).double()
        hidden = torch.where(torch.eye(n, dtype=torch.bool), 0.0, hidden)
        eye = batch.annotation(Visible).pairs_BLM[:, :n].diagonal(dim1=1, dim2=2)
        assert eye.all()
        asked = hidden.clone()
        for b in range(2):
            for p in at[b].tolist():
                asked[b, p, p] = 1.0
        want = theirs(
            input_ids=batch.tokens[:, :n],
            token_type_ids=batch.segments[:, :n],
            perm_mask=asked,
            target_mapping=mapping,
            mems=mems,
            labels=batch.targets[:, n:].contiguous(),
            use_mems=True,
        )
        mems = want.mems
        loss = learn(batch, mine)
        mine.settle()
        torch.testing.assert_close(loss.total / loss.count, want.loss, rtol=1e-9, atol=1e-9)
        for name, part in mine.parts.items():
            kept = min(memory, n * (step + 1))
            their_BMD = mems[int(name.split(".")[0])].transpose(0, 1)[:, -kept:]
            torch.testing.assert_close(part.x_BMD, their_BMD, rtol=1e-9, atol=1e-9)
