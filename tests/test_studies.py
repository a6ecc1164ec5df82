"""Studies of docs/ still fit the code that they study."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.data import Split
from kinfolk.data.batches.batches import Batches

STUDIES = Path(__file__).parents[1] / "docs" / "studies"


# PyTorch's own fast path for padded batches
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_peer_of_translation_is_a_model_that_writes():
    recipe = kf.relative("vanilla", size="tiny", d_model=16, n_heads=2, d_ff=32, n_layers=1, vocab_size=40)
    torch.manual_seed(0)
    peer = runpy.run_path(str(STUDIES / "translation.py"))["Peer"](recipe)
    prompts = [[9, 30, 21], [12]]
    together = kf.generate(peer, prompts, max_new=4, greedy=True, cached=False)
    assert together == [kf.generate(peer, prompt, max_new=4, greedy=True, cached=False) for prompt in prompts]
    assert all(row[0] == peer.generation.start_id for row in together)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.py")), ids=lambda path: path.stem)
def test_every_study_can_be_imported_and_its_data_are_splits(path):
    """Code moves on, and nothing but a study itself would notice that it no longer runs."""
    names = runpy.run_path(str(path))
    assert callable(names["main"])
    own = [value for value in names.values() if isinstance(value, type) and value.__module__ == "<run_path>"]
    assert all(issubclass(kind, Split) for kind in own if hasattr(kind, "lengths"))


def test_the_names_of_functions_make_batches():
    names = runpy.run_path(str(STUDIES / "t5_objectives.py"))
    split = names["Names"]("valid", names["Tokenizer"].byte())
    batch = Batches(split, batch_size=4, length=64).at(0)
    sources, targets = split.lengths(np.arange(len(split)))
    assert batch.source is not None
    assert len(split) == 1000
    assert 0 < targets.max() <= 30
    assert sources.max() > 20
    assert set(batch.source.shape) == {4, batch.source.shape[1]}
