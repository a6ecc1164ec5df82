"""One file over the whole registry: whatever a relative is, all of this holds for it."""

import functools

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import kinfolk as kf
from kinfolk.core.annotations import NegativeSamples, OtherDocument
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.knowledge import Names
from kinfolk.core.plain import dumps, loads
from kinfolk.core.rng import Rng
from kinfolk.family.making import numbers_of
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import entry
from kinfolk.layers.heads.class_head import JudgingHead
from kinfolk.layers.part import PartModule
from kinfolk.layers.residuals.residual import ResidualModule
from kinfolk.models.block import BlockModule
from kinfolk.models.cost import cost
from kinfolk.objectives.knowledge import Entities, Facts, Lexicon, Triples
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.ops.attention import attend as executor
from tests.cover import sampled
from tests.family.operations import counted_operations

NAMES = kf.relatives()
CAUSAL = [name for name in NAMES if kf.about(name).causal]
PAIRED = [name for name in NAMES if kf.about(name).topology == "encoder-decoder"]
TOY = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "vocab_size": 40, "max_len": 64}
V = TOY["vocab_size"]
LENGTHS = [1, 2, 13]
# more numbers of those who read something else than text, as far as they take them
READS = {"tokens": {}, "image": {"image_width": 4, "channels": 1, "patch": 2, "n_classes": 5, "factor": 2}}


def numbers(name, **changes):
    known = numbers_of(entry(name).function)
    return TOY | {key: n for key, n in READS[kf.about(name).input].items() if key in known} | changes


@functools.cache
def recipe(name):
    return kf.relative(name, size="tiny", **numbers(name))


def model(name, dtype=torch.float64):
    """Return a model away from its beginning, where biases are zero, gains one, and some stacks the identity."""
    m, g = kf.build(recipe(name), seed=1).to(dtype).eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in m.parameters():
            p += 0.05 * torch.randn(p.shape, generator=g, dtype=dtype)
    return m


def tokens(batch, length, seed=0):
    return torch.randint(7, V, (batch, length), generator=torch.Generator().manual_seed(seed))


def run(m, t, keep=None, source=None, **kwargs):
    """Run any topology, with the same draws each time; an encoder-decoder gets a fixed source unless told."""
    torch.manual_seed(0)
    index = torch.arange(len(t))
    if m.spec.topology == "encoder-decoder":
        source = tokens(1, 9, seed=9).expand(len(t), -1) if source is None else source
        return m.run(Batch(index=index, tokens=t, keep=keep, source=source), **kwargs)
    return m.run(Batch(index=index, tokens=t, keep=keep), **kwargs)


def looks_ahead(m):
    return any(wrapper.looks_ahead for wrapper in getattr(m.spec.decoder, "wraps", ()))


def said(x, n):
    """Return what is said of the first n tokens; who judges them all together says it once."""
    return x[:, :n] if x.ndim == 3 else x


def test_no_list_of_cases_has_lost_any():
    """What relatives say of themselves decides which tests they have; the model must say the same."""
    models = {name: recipe(name).model for name in NAMES}
    assert [name for name, m in models.items() if m.decoder is not None] == CAUSAL
    assert [name for name, m in models.items() if m.decoder is not None and m.encoder is not None] == PAIRED
    assert {kf.about(name).input for name in NAMES} == set(READS)
    assert min(map(len, (CAUSAL, PAIRED, [name for name in NAMES if name not in CAUSAL]))) > 10


@pytest.mark.parametrize("name", NAMES)
def test_builds_and_runs_at_any_length(name):
    m = model(name)
    judges = isinstance(m.head, JudgingHead)
    for length in LENGTHS:
        logits = run(m, tokens(2, length)).logits
        each = (2, m.spec.head.n_classes) if judges else (2, length, m.head.n_scores or m.spec.vocab_size)
        assert logits.shape == each
        assert logits.isfinite().all()
    assert m.spec.topology == kf.about(name).topology


@pytest.mark.parametrize("name", NAMES)
def test_survives_toml(name):
    for size in ("tiny", "small", "base"):
        r = kf.relative(name, size=size)
        assert loads(Recipe, dumps(r)) == r


@pytest.mark.parametrize("name", sampled(NAMES, "saving"))
def test_save_and_load_are_bit_equal(name, tmp_path):
    m = model(name, torch.float32)
    kf.save(m, tmp_path / "m")
    again = kf.load(tmp_path / "m").eval()
    assert again.spec == m.spec
    assert torch.equal(run(again, tokens(2, 7)).logits, run(m, tokens(2, 7)).logits)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_the_weights_and_nothing_else_moves(name):
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    a, b, c = kf.build(recipe(name), seed=1), kf.build(recipe(name), seed=1), kf.build(recipe(name), seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = [(x, y, z) for x, y, z in zip(a.parameters(), b.parameters(), c.parameters(), strict=True)]
    assert all(torch.equal(x, y) for x, y, _ in pairs)
    assert any(not torch.equal(x, z) for x, _, z in pairs)


@pytest.mark.parametrize("name", CAUSAL)
def test_nothing_leaks_from_the_future(name):
    m, t = model(name), tokens(2, 17)
    for training in [True] * (not looks_ahead(m)) + [False]:
        before = run(m.train(training), t).logits
        for cut in (1, 8, 16):
            changed = t.clone()
            changed[:, cut:] = tokens(2, 17 - cut, seed=cut)
            # the last digit of a product may depend on who is multiplied along with whom
            torch.testing.assert_close(run(m, changed).logits[:, :cut], before[:, :cut], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_what_stands_there_change_nothing(name):
    m = model(name)
    t = tokens(2, 9)
    alone = run(m, t).logits
    for filler in (0, 11):
        padded = torch.cat([t, torch.full((2, 5), filler)], 1)
        keep = torch.arange(14).expand(2, 14) < 9
        torch.testing.assert_close(said(run(m, padded, keep).logits, 9), alone, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", PAIRED)
def test_source_padding_changes_nothing(name):
    m = model(name)
    t, source = tokens(2, 5), tokens(2, 6, seed=3)
    keep = torch.arange(10).expand(2, 10) < 6
    padded = torch.cat([source, torch.full((2, 4), 11)], 1)
    batch = Batch(index=torch.arange(2), tokens=t, source=padded, source_keep=keep)
    torch.testing.assert_close(m.run(batch).logits, run(m, t, source=source).logits, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_does_not_see_its_neighbours_in_the_batch(name):
    m = model(name)
    t = tokens(3, 11)
    together = run(m, t).logits
    for i in range(3):
        torch.testing.assert_close(run(m, t[i : i + 1]).logits[0], together[i], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PAIRED and kf.about(name).input == "tokens"])
def test_packed_documents_equal_separate_runs(name):
    """Neither pairs nor pictures are packed."""
    m = model(name)
    a, b = tokens(1, 5), tokens(1, 8, seed=1)
    where = torch.tensor([[0] * 5 + [1] * 8])
    positions = torch.tensor([[*range(5), *range(8)]])
    packed = Batch(index=torch.zeros(1), tokens=torch.cat([a, b], 1), document=where, positions=positions)
    got = m.run(packed).logits
    torch.testing.assert_close(got[:, :5], run(m, a).logits, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(got[:, 5:], run(m, b).logits, rtol=1e-9, atol=1e-11)


def read(name, t, first=0):
    """Return rows as data gives them, whole pictures of them, with labels and passages for those who ask."""
    t = t[:, : max(1, t.shape[1] // 32) * 32] if kf.about(name).input == "image" else t
    others, index = tokens(len(t), t.shape[1], seed=7), torch.arange(first, first + len(t))
    return Batch(index=index, tokens=t, annotations=(OtherDocument(others),), labels=index % 2)


# something to find, for those who look names up
KNOWN = {
    type(None): None,
    Triples: Facts(Names({(n,): ((8, 9),) for n in range(10, 40, 3)})),
    Entities: Lexicon(Names({(n, m): ((n, 0.7), (n + 1, 0.3)) for n in range(10, 40, 3) for m in range(7, 40)})),
}


def learner(name, dtype=torch.float64):
    r = recipe(name)
    return Learner(model(name, dtype).train(), r.objective, Vocabulary(V, known=KNOWN[type(r.knowledge)]))


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_finite_gradient(name):
    learn = learner(name)
    batch = learn.prepare(read(name, tokens(4, 60)), Rng(0))
    loss = learn(batch)
    (loss.total / loss.count + loss.side).backward()
    for path, p in learn.named_parameters():
        assert p.grad is not None, path
        assert p.grad.isfinite().all(), path
        assert p.grad.abs().sum() > 0, path


@pytest.mark.parametrize("name", NAMES)
def test_the_fused_loss_is_the_cross_entropy_of_the_logits(name):
    learn = learner(name)
    batch = learn.prepare(read(name, tokens(3, 32)), Rng(0))
    torch.manual_seed(0)
    out, made = learn.run(batch)
    smooth, weight = (getattr(learn.objective, name, n) for name, n in (("label_smoothing", 0.0), ("weight", 1.0)))
    if made.targets is None:
        pytest.skip("scores labels, as tests/objectives hold")
    want = -out.logits.log_softmax(-1)
    gold = made.targets.clamp(min=0)[..., None]
    others = (want.sum(-1) - want.gather(-1, gold)[..., 0]) / (out.logits.shape[-1] - 1)
    per_token = weight * ((1 - smooth) * want.gather(-1, gold)[..., 0] + smooth * others)
    if (negatives := made.annotation(NegativeSamples)) is not None:
        right, wrong = (torch.nn.functional.softplus(sign * out.logits) for sign in (-1, 1))
        per_token = right.gather(-1, gold)[..., 0] + wrong.gather(-1, negatives.tokens_BLC).sum(-1)
    scored = made.targets != IGNORE
    torch.manual_seed(0)
    loss = learn(batch)
    torch.testing.assert_close(loss.total, per_token[scored].sum(), rtol=1e-9, atol=1e-9)
    assert loss.count == scored.sum()
    for total, count in learn.measure(batch).values():
        assert total.isfinite()
        assert 0 < count <= scored.sum()


@pytest.mark.parametrize("name", CAUSAL)
def test_cached_decoding_equals_the_full_pass(name):
    m = model(name)
    t = tokens(2, 13)
    full = run(m, t).logits
    # one by one, mixed, and at once
    for chunks in ((1,) * 13, (5, 1, 1, 6), (13,)):
        state, at, got = m.new_state(2, 13), 0, []
        for n in chunks:
            got.append(run(m, t[:, at : at + n], state=state).logits)
            at += n
        torch.testing.assert_close(torch.cat(got, 1), full, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", sampled(CAUSAL, "rows apart"))
def test_cached_decoding_of_rows_at_different_positions(name):
    m = model(name)
    t, lengths = tokens(3, 12), torch.tensor([3, 7, 1])
    state = m.new_state(3, 20)
    keep = torch.arange(7) < lengths[:, None]
    run(m, t[:, :7].where(keep, 0), keep=keep, state=state)
    for step in range(5):
        nxt = t[torch.arange(3), lengths + step][:, None]
        got = run(m, nxt, state=state).logits[:, 0]
        for row in range(3):
            alone = run(m, t[row : row + 1, : lengths[row] + step + 1]).logits[0, -1]
            torch.testing.assert_close(got[row], alone, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", sampled(CAUSAL, "greedy"))
def test_greedy_text_is_the_same_with_and_without_a_cache(name):
    m = model(name, torch.float32)
    prompts = [[9, 30, 21], [12], [33, 8, 8, 17, 20]]
    cached = kf.generate(m, prompts, max_new=10, greedy=True)
    assert cached == kf.generate(m, prompts, max_new=10, greedy=True, cached=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_closed_form_counts_the_parameters(name):
    assert cost(recipe(name).model, 16).params == model(name).n_params
    odd = kf.relative(name, size="tiny", d_model=24, n_heads=3, d_ff=40, vocab_size=31, max_len=17, n_layers=3)
    assert cost(odd.model, 16).params == kf.build(odd).n_params


@pytest.mark.parametrize("name", sampled(NAMES, "operations"))
def test_the_closed_form_counts_the_operations(name):
    """Against PyTorch's own counter, which counts a causal score matrix as a full one."""
    r = kf.relative(name, size="tiny", d_model=64, n_heads=4, d_ff=256, vocab_size=40, max_len=128)
    m = kf.build(r).eval()
    m.train(looks_ahead(m))  # the closed form is of training
    with counted_operations() as counted, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        logits = run(m, tokens(1, 32), source=tokens(1, 32)).logits
    assert logits.shape[:-1] in ((1,), (1, 32))
    ours = cost(r.model, 32, scored=logits.shape[:-1].numel() / 32).flops_per_token * 32
    assert 0.95 < ours / counted() < 1.06


@pytest.mark.parametrize("name", sampled(NAMES, "activations"))
def test_the_closed_form_counts_what_is_kept_for_the_backward_pass(name):
    r = kf.relative(name, size="tiny", d_model=64, n_heads=4, d_ff=256, vocab_size=40, max_len=128)
    learn = Learner(kf.build(r).train(), r.objective, Vocabulary(V))
    batch = learn.prepare(read(name, tokens(2, 129)), Rng(0))
    kept = {}
    weights = {p.untyped_storage().data_ptr() for p in learn.parameters()}

    def note(x):
        if x.untyped_storage().data_ptr() not in weights and x.is_floating_point():
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        loss = learn(batch)
    measured = sum(s.nbytes() for s in kept.values())
    scored = [float(loss.count / batch.tokens.numel()), batch.n_scored / batch.tokens.numel()]
    n_source = None if batch.source is None else batch.source.shape[1]
    networks = [m for m in (r.model, r.objective.companion(r.model)) if m is not None]
    each = [cost(m, batch.tokens.shape[1], n_source, n) for m, n in zip(networks, scored, strict=False)]
    ours = sum(found.activation_bytes for found in each) * batch.tokens.numel()
    assert 0.8 < ours / measured < 1.25


@pytest.mark.parametrize("name", sampled(NAMES, "recomputing"))
def test_recomputing_blocks_changes_no_gradient(name):
    r = kf.relative(name, size="tiny", **numbers(name, dropout=0.2))
    gradients = []
    for mode in ("none", "blocks"):
        learn = Learner(kf.build(r, seed=1).double().train(), r.objective, Vocabulary(V))
        learn.model.set_recompute(mode)
        torch.manual_seed(5)
        loss = learn(learn.prepare(read(name, tokens(2, 32)), Rng(0)))
        (loss.total + loss.side).backward()
        gradients.append([p.grad for p in learn.parameters()])
    for stored, again in zip(*gradients, strict=True):
        assert torch.equal(stored, again)


def heard(name, taps):
    """Return logits, gradients, bytes that wait for the backward pass, the parts that are called, and taps."""
    m, calls, waiting = kf.build(kf.relative(name, size="tiny", **numbers(name, dropout=0.1)), seed=1).train(), [], {}
    weights = {p.untyped_storage().data_ptr() for p in m.parameters()}
    for path, module in m.named_modules():
        if isinstance(module, BlockModule | PartModule | ResidualModule):
            module.register_forward_hook(functools.partial(lambda path, *_: calls.append(path), path))

    def wait(t):
        if t.untyped_storage().data_ptr() not in weights:
            waiting[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(wait, lambda t: t):
        out = run(m, tokens(2, 16), taps=taps)
    drawn = torch.random.get_rng_state()
    n_bytes = sum(t.untyped_storage().nbytes() for t in waiting.values())
    loss = out.logits.square().mean() + sum(out.side_losses.values())
    grads = torch.autograd.grad(loss, list(m.parameters()), allow_unused=True)
    return [out.logits, drawn, *(g for g in grads if g is not None)], n_bytes, calls, out.taps


@pytest.mark.parametrize("name", sampled(NAMES, "taps"))
def test_listening_changes_nothing_that_runs(name):
    """Output, gradients, random draws, activations that are kept and modules that are called, to the bit."""
    quiet, n_bytes, calls, none = heard(name, False)
    assert none == {}
    for taps in (True, ["hidden"], ["weights"]):
        tensors, n_bytes_heard, calls_heard, found = heard(name, taps)
        assert len(tensors) == len(quiet)
        assert all(map(torch.equal, tensors, quiet))
        assert calls_heard == calls
        # a state that is found again must be kept for one who learns from it
        assert n_bytes_heard == n_bytes
        assert taps == ["weights"] or any(key.endswith(".hidden") for key in found)
        assert taps is True or all(key.endswith(f".{taps[0]}") for key in found)


@pytest.mark.parametrize("name", sampled(NAMES, "long inputs"))
def test_what_long_inputs_are_cut_into_agrees_with_the_whole(name, monkeypatch):
    """Toys are too short to be gathered or cut, so the limits are lowered instead."""
    m, t = model(name), tokens(2, 29)
    keep = torch.arange(29) < torch.tensor([[29], [23]])
    whole = [run(m, t, keep).logits.detach(), run(m, t).logits.detach()]
    for limits in ({"BIAS_PAIRS": 64}, {"BLOCK": 8, "DENSE_PAIRS": 0, "DENSE_SHARE": 2.0}):
        with monkeypatch.context() as patch, torch.no_grad():
            for limit, value in limits.items():
                patch.setattr(executor, limit, value)
            cut = [run(m, t, keep).logits, run(m, t).logits]
        for a, b in zip(whole, cut, strict=True):
            real = (lambda x: x[keep]) if a is whole[0] and a.ndim == 3 else (lambda x: x)
            torch.testing.assert_close(real(a), real(b), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_has_a_place_in_the_family(name):
    about = kf.about(name)
    assert about.name == name
    assert about.parent is None or about.parent in NAMES
    assert about.causal == (recipe(name).model.decoder is not None)
    assert 2000 < about.year < 2030
    assert str(about.year)[:2] in about.paper


PAPER = {"vanilla": 65e6, "vanilla-pre": 65e6, "gpt": 117e6, "gpt2": 124e6, "bert": 110e6}


@pytest.mark.parametrize("name", PAPER)
def test_base_has_the_parameters_of_the_paper(name):
    # the paper of the Transformer rounds generously: 37,000 shared pieces make 63.1 million
    assert cost(kf.relative(name, size="base").model, 16).params == pytest.approx(PAPER[name], rel=0.03)


def test_one_size_is_the_default_everywhere():
    """In Python and on every command line."""
    import inspect

    from kinfolk.cli.main import parser_of, verbs
    from kinfolk.contests import compare
    from kinfolk.contests.acting.recipe import policy
    from kinfolk.family.making import make
    from kinfolk.family.sizes import DEFAULT_SIZE, SIZES

    functions = (make, compare, policy)
    found = {f.__name__: inspect.signature(f).parameters["size"].default for f in functions}
    for verb in verbs():
        # `--size` of a benchmark is another thing: it has no names of sizes in its help
        sized = [a for a in parser_of(verb)._actions if "--size" in a.option_strings and a.default in SIZES]
        found |= {f"kin {verb}": action.default for action in sized}
    assert len(found) > 5
    assert set(found.values()) == {DEFAULT_SIZE}
    assert kf.relative("gpt2") == kf.relative("gpt2", size=DEFAULT_SIZE)


def test_a_number_that_is_nearly_right_is_named():
    """In Python, for one relative on the command line, and for several."""
    from kinfolk.contests.contestants import gather
    from kinfolk.family.making import divided

    ways = (
        lambda: kf.relative("gpt2", n_layer=3),
        lambda: divided(["n_layer=3"], {"n_layers": 2}, "gpt2"),
        lambda: gather(["gpt2"], assignments=["n_layer=3"]),
    )
    for way in ways:
        with pytest.raises(SpecError, match="did you mean 'n_layers'"):
            way()
