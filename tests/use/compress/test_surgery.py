"""What is cut out computes what it computes when silenced; nothing cut is nothing changed."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.models.cost import cost
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.use.compress.steps import CompressionStep, clear_weights, parse, take
from kinfolk.use.compress.surgery import CutPlace, keep_heads, keep_layers, keep_neurons, parts, rebuild, with_part
from kinfolk.use.inspect.removal import gated, gates_of

TOY = {"d_model": 24, "n_layers": 4, "n_heads": 3, "d_ff": 40, "vocab_size": 30, "max_len": 32}
MULTI_QUERY = "multi-query"  # no relative, but a choice of any: all heads share one head of keys and values
NAMES = ["gpt2", "vanilla", "roberta", "local", "roformer", "geglu", MULTI_QUERY]


def learner(name, **changes):
    recipe = kf.relative("vanilla" if name == MULTI_QUERY else name, size="tiny", **(TOY | changes))
    if name == MULTI_QUERY:
        model = recipe.model
        for place, part in parts(model):
            if isinstance(part, Attention | CrossAttention):
                model = with_part(model, place, part.replace(n_kv_heads=1))
        recipe = recipe.replace(model=model)
    return Learner(kf.build(recipe, seed=3).double().eval(), recipe.objective, Vocabulary(30))


def batch(learn, n=3):
    tokens = torch.randint(7, 30, (n, 12), generator=torch.Generator().manual_seed(1))
    return learn.prepare(Batch(index=torch.arange(n), tokens=tokens), Rng(0))


def weights(learn):
    return {name: x.detach().clone() for name, x in learn.model.state_dict().items()}


@pytest.mark.parametrize("name", NAMES)
def test_removed_heads_are_silenced_heads(name):
    learn = learner(name)
    given, spec, kept = batch(learn), learn.model.spec, {}
    cut = weights(learn)
    for n, (place, part) in enumerate(parts(spec)):
        if type(part) in (Attention, CrossAttention):
            kept[place] = [[0, 2], [1], [0, 1, 2]][n % 3]
            spec, cut = keep_heads(spec, cut, place, kept[place])
    small = rebuild(spec, cut).eval()
    gates = gates_of(learn.model)
    for place, heads in kept.items():
        gates[place.path] = torch.tensor([float(h in heads) for h in range(3)], dtype=torch.float64)
    with gated(learn.model, gates):
        want = learn.model.run(given).hidden
    torch.testing.assert_close(small.run(given).hidden, want, rtol=1e-10, atol=1e-12)
    assert small.n_params < learn.model.n_params
    assert cost(small.spec, 8).params == small.n_params


def test_a_head_has_the_parameters_that_it_should():
    learn = learner("gpt2")
    spec, cut = keep_heads(learn.model.spec, weights(learn), CutPlace("decoder", 0, 0), [0, 2])
    assert learn.model.n_params - rebuild(spec, cut).n_params == 4 * 24 * 8 + 3 * 8


@pytest.mark.parametrize("name", NAMES)
def test_removed_neurons_are_neurons_that_write_nothing(name):
    learn, silent = learner(name), learner(name)
    given, spec, cut = batch(learn), learn.model.spec, weights(learn)
    for place, part in parts(learn.model.spec):
        if type(part) in (Dense, Gated):
            spec, cut = keep_neurons(spec, cut, place, range(0, part.d_ff, 2))
            silent.model.get_parameter(f"{place.path}.narrow.weight").data[:, 1::2] = 0
    small = rebuild(spec, cut).eval()
    torch.testing.assert_close(small.run(given).hidden, silent.model.run(given).hidden, rtol=1e-10, atol=1e-12)
    assert cost(small.spec, 8).params == small.n_params < learn.model.n_params


def test_layers_that_are_left_run_in_their_order():
    learn = learner("gpt2")
    spec, cut = keep_layers(learn.model.spec, weights(learn), "decoder", [3, 1])
    small, other = rebuild(spec, cut).eval(), learner("gpt2")
    other.model.decoder.order = (1, 3)
    given = batch(learn)
    torch.testing.assert_close(small.run(given).hidden, other.model.run(given).hidden, rtol=1e-12, atol=1e-12)
    assert len(small.spec.decoder.blocks) == 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", ["heads", "ff", "layers", "sparse"])
def test_nothing_cut_is_nothing_changed(name, step):
    learn = learner(name)
    given = batch(learn)
    same = take(CompressionStep(step, 0.0), learn, [given], lambda line: None).eval()
    assert torch.equal(same.run(given).hidden, learn.model.run(given).hidden)


@pytest.mark.parametrize("step", ["heads", "ff", "layers"])
def test_steps_cut_what_they_say(step):
    learn = learner("gpt2")
    said = []
    small = take(CompressionStep(step, 0.5), learn, [batch(learn)], said.append)
    assert said
    counted = {
        "heads": lambda m: sum(p.n_heads for _, p in parts(m) if isinstance(p, Attention)),
        "ff": lambda m: sum(p.d_ff for _, p in parts(m) if isinstance(p, Dense)),
        "layers": lambda m: len(m.decoder.order),
    }[step]
    assert counted(small.spec) == counted(learn.model.spec) / 2


def test_the_head_that_does_nothing_is_the_first_to_go():
    learn = learner("gpt2")
    for path in gates_of(learn.model):
        learn.model.get_submodule(path).out.weight.data[:, 8:16] = 0
    small = take(CompressionStep("heads", 1 / 3), learn, [batch(learn)], lambda line: None).eval()
    assert [p.n_heads for _, p in parts(small.spec) if isinstance(p, Attention)] == [2] * 4
    given = batch(learn)
    torch.testing.assert_close(small.run(given).hidden, learn.model.run(given).hidden, rtol=1e-10, atol=1e-12)


def test_cleared_weights_are_those_of_torch():
    from torch.nn.utils import prune

    learn, other = learner("gpt2"), learner("gpt2")
    sparse = clear_weights(learn, [], 0.3, lambda line: None)
    maps = [m for m in other.model.decoder.modules() if isinstance(m, torch.nn.Linear)]
    prune.global_unstructured([(m, "weight") for m in maps], prune.L1Unstructured, amount=0.3)
    mine = [m.weight for m in sparse.decoder.modules() if isinstance(m, torch.nn.Linear)]
    assert all(torch.equal(a, b.weight) for a, b in zip(mine, maps, strict=True))


@pytest.mark.parametrize("name", ["alibi", "talking-heads", "adaptive-span", "t5", "performer"])
def test_heads_with_numbers_of_their_own_are_refused_by_name(name):
    learn = learner(name, n_heads=4) if name == "alibi" else learner(name)
    with pytest.raises(SpecError, match=r"heads|head"):
        take(CompressionStep("heads", 0.5), learn, [batch(learn)], lambda line: None)


def test_steps_are_read_and_refused():
    assert parse("heads=0.5, ff=0.25") == [CompressionStep("heads", 0.5), CompressionStep("ff", 0.25)]
    assert parse("share=2,int8,int8=weights") == [
        CompressionStep("share", 2),
        CompressionStep("int8"),
        CompressionStep("int8", "weights"),
    ]
    assert [str(step) for step in parse("ff=0.50,share=2,int8")] == ["ff=0.5", "share=2", "int8"]
    for wrong in (
        "head=0.5",
        "heads",
        "heads=1",
        "heads=-1",
        "heads=x",
        "share=0",
        "share=1.5",
        "int8=4",
        "plain=1",
        "",
    ):
        with pytest.raises(SpecError, match="step"):
            parse(wrong)
    learn = learner("gpt2")
    for heads in ([], [3], [-1]):
        with pytest.raises(SpecError, match="leaves nothing"):
            keep_heads(learn.model.spec, weights(learn), CutPlace("decoder", 0, 0), heads)
