"""Speculative decoding writes what the model writes alone, in fewer passes."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.decoding.engines.speculative import DraftModel, PromptLookup, SpeculativeEngine, speculative

PROMPT = [5, 9, 13, 9, 13, 7]
HOW = [{"greedy": True}, {"seed": 3}, {"seed": 4, "temperature": 0.7, "top_k": 9}, {"greedy": True, "stop": (11,)}]


def built(name: str, seed: int, **sizes: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = kf.build(kf.relative(name, size="tiny", vocab_size=40, max_len=64, **sizes), seed=seed).double().eval()
    with torch.no_grad():
        # away from the initialisation, where every position says nearly the same
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed + p.numel())) * 0.05)
    return model


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["gpt2", "llama", "alibi", "qwen3"])
def test_the_text_is_that_of_the_model_alone(name, how):
    model = built(name, 0)
    alone = kf.generate(model, PROMPT, max_new=30, **how)
    for proposer in (DraftModel(built("gpt2", 1, n_layers=1)), DraftModel(model), PromptLookup()):
        for ahead in (1, 4):
            assert kf.generate(SpeculativeEngine(model, proposer, ahead), PROMPT, max_new=30, **how) == alone


def test_a_perfect_draft_saves_passes():
    model = built("gpt2", 0)
    engine = SpeculativeEngine(model, DraftModel(model), ahead=4)
    kf.generate(engine, PROMPT, max_new=31, greedy=True)
    # the prompt, then 30 tokens by passes of five
    assert engine.passes == 1 + 6


def test_a_useless_draft_costs_no_further_pass():
    class Wrong:
        def propose(self, tokens, n):
            return [39] * n

    engine = SpeculativeEngine(built("gpt2", 0), Wrong(), ahead=4)
    out = kf.generate(engine, PROMPT, max_new=20, greedy=True)
    assert 39 not in out[len(PROMPT) :]
    assert engine.passes == 20


def test_a_draft_is_used_for_one_text_after_another():
    model, proposer = built("gpt2", 0), DraftModel(built("gpt2", 1, n_layers=1))
    for prompt in (PROMPT, PROMPT[:2], [*PROMPT, 3, 4], [1]):
        engine = SpeculativeEngine(model, proposer)
        assert kf.generate(engine, prompt, 20, greedy=True) == kf.generate(model, prompt, 20, greedy=True)


def test_several_sequences_are_decoded_without_guesses():
    model = built("gpt2", 0)
    rows = [PROMPT, PROMPT[:3], [1, 2]]
    engine = SpeculativeEngine(model, DraftModel(model))
    assert kf.generate(engine, rows, 12, seed=1) == kf.generate(model, rows, 12, seed=1)


def test_lookup_continues_the_latest_occurrence_of_the_longest_suffix():
    lookup = PromptLookup(longest=2)
    assert lookup.propose([1, 2, 8, 1, 2, 9, 4, 1, 2], 2) == [9, 4]
    assert lookup.propose([1, 2, 3], 4) == []
    assert lookup.propose([7], 4) == []


@pytest.mark.parametrize("name", ["lstm", "performer", "mamba"])
def test_a_state_that_cannot_go_back_is_refused(name):
    model = built(name, 0)
    with pytest.raises(SpecError, match="cannot go back to an earlier position"):
        kf.generate(SpeculativeEngine(model, PromptLookup()), PROMPT, max_new=50, greedy=True)


def test_an_encoder_decoder_and_a_later_position_are_refused():
    with pytest.raises(SpecError, match="encoder-decoder"):
        SpeculativeEngine(built("vanilla", 0), PromptLookup())
    state = built("gpt2", 0).new_state(1, 8)
    with pytest.raises(ShapeError, match="cannot be rewound to 3"):
        state.rewind(3)


def test_a_run_is_the_draft_and_another_vocabulary_is_refused(tmp_path):
    model, other = built("gpt2", 0), kf.build(kf.relative("gpt2", size="tiny", vocab_size=41), seed=0)
    kf.save(built("gpt2", 1, n_layers=1).float(), tmp_path / "draft")
    engine = speculative(model.float(), str(tmp_path / "draft"), 2)
    assert isinstance(engine.proposer, DraftModel)
    with pytest.raises(SpecError, match="it has 40 tokens, the model 41"):
        speculative(other, str(tmp_path / "draft"))
    with pytest.raises(SpecError, match="at least 1"):
        speculative(model, "lookup", 0)
