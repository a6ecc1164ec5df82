"""Studies of docs/ still fit the code that they study."""

import runpy
from pathlib import Path

import pytest
import torch

import kinfolk as kf

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
