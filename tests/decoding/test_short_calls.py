"""Short calls compute what the forward passes of their classes compute, in fewer calls."""

import contextlib
import sys
from pathlib import Path

import pytest
import torch

import kinfolk as kf
from kinfolk.core.errors import ShapeError
from kinfolk.decoding.engines import short_calls
from kinfolk.decoding.engines.direct_calls import direct_calls

PACKAGE = str(Path(kf.__file__).parent)

RELATIVES = [
    "gpt2",
    "gpt",
    "vanilla-pre",
    "llama",
    "shared",
    "layer-drop",
    "local",
    "alibi",
    "talking-heads",
    "reversible",
]


def model(name="gpt2", **numbers):
    return kf.build(kf.relative(name, size="tiny", **numbers), seed=0).eval()


def logits(network, prompt, steps):
    """Return the logits of a prompt and of some tokens after it, one at a time."""
    source = (prompt,) if network.spec.topology == "encoder-decoder" else ()
    state = network.new_state(len(prompt), prompt.shape[1] + steps)
    with torch.inference_mode(), direct_calls(network):
        said = [network(*source, prompt, state=state).logits]
        said += [network(prompt[:, :1] + i, state=state).logits for i in range(steps)]
    return said


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", RELATIVES)
def test_outputs_are_those_of_the_long_calls_to_the_last_bit(name, rows, monkeypatch):
    network = model(name)
    prompt = torch.randint(5, 50, (rows, 7), generator=torch.Generator().manual_seed(0))
    short = logits(network, prompt, 3)
    monkeypatch.setattr(short_calls, "SHORT", {})
    assert all(torch.equal(a, b) for a, b in zip(short, logits(network, prompt, 3), strict=True))


def test_grouped_queries_and_a_scale_are_kept(monkeypatch):
    recipe = kf.relative("gpt2", size="tiny", n_layers=1)
    for path, value in (("n_kv_heads", 1), ("scale", 0.3)):
        recipe = kf.core.paths.set_path(recipe, f"model.decoder.blocks[*].parts[0].{path}", value)
    network, prompt = kf.build(recipe, seed=0).eval(), torch.tensor([[5, 6, 7]])
    short = logits(network, prompt, 2)
    monkeypatch.setattr(short_calls, "SHORT", {})
    assert all(torch.equal(a, b) for a, b in zip(short, logits(network, prompt, 2), strict=True))


def test_a_token_of_a_plain_layer_takes_few_calls():
    def calls(n_layers):
        network, count = model(n_layers=n_layers), 0
        state = network.new_state(1, 4)

        def profile(frame, event, _):
            nonlocal count
            count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

        with torch.inference_mode(), direct_calls(network):
            network(torch.tensor([[5, 6]]), state=state)
            sys.setprofile(profile)
            try:
                network(torch.tensor([[7]]), state=state)
            finally:
                sys.setprofile(None)
        return count

    assert calls(3) - calls(2) <= 16


@pytest.mark.parametrize("name", ["gpt2", "gpt"])
def test_a_listener_hears_every_layer(name):
    network = model(name, n_layers=2)
    heard = []
    for calls in (direct_calls(network), contextlib.nullcontext()):
        state = network.new_state(1, 4)
        with torch.inference_mode(), calls:
            network(torch.tensor([[5, 6]]), state=state)
            heard.append(network(torch.tensor([[7]]), state=state, taps=["hidden", "weights"]).taps)
    assert sum(name.endswith("hidden") for name in heard[0]) == 2
    assert sum(name.endswith("weights") for name in heard[0]) == 2
    assert heard[0].keys() == heard[1].keys()


@pytest.mark.parametrize("name", ["gpt2", "gpt"])
def test_a_model_in_training_drops_out_as_without_short_calls(name):
    recipe = kf.relative(name, size="tiny", n_layers=1, dropout=0.5)
    network, tokens, found = kf.build(recipe, seed=0).train(), torch.tensor([[7]]), []
    for calls in (direct_calls(network), contextlib.nullcontext()):
        torch.manual_seed(0)
        with torch.no_grad(), calls:
            found.append(network(tokens, state=network.new_state(1, 4)).logits)
    assert torch.equal(*found)


def test_a_full_cache_is_refused():
    network = model(n_layers=1)
    state = network.new_state(1, 2)
    with torch.inference_mode(), direct_calls(network):
        network(torch.tensor([[5, 6]]), state=state)
        with pytest.raises(ShapeError, match="position 2 does not fit"):
            network(torch.tensor([[7]]), state=state)
