import pytest
import torch

from kinfolk.bench import mixer_peers, mixers

# a length that every peer takes: BigBird wants twelve blocks of 64, Longformer a multiple of its window
SIZES = {"length": 1024, "d_model": 32, "n_heads": 2, "backward": True, "steps": 1}


@pytest.mark.parametrize("who", mixers.CONTESTANTS, ids=lambda who: who.name)
@pytest.mark.filterwarnings("ignore")
def test_every_layer_runs_forward_and_backward(who):
    if who.missing:
        pytest.skip(who.missing)
    torch.manual_seed(0)
    layer = mixers.MixerLayer(who.settings, SIZES) if not who.peer else mixer_peers.layer(who, SIZES)
    x = torch.randn(1, SIZES["length"], SIZES["d_model"], requires_grad=True)
    y = layer(x)
    assert y.shape == x.shape
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0
    work = mixers.prepare(who, SIZES | {"backward": False})
    work.step()
    assert work.parameters == sum(p.numel() for p in layer.parameters())


def test_rivals_take_part_and_do_the_same_amount():
    names = {who.name: who for who in mixers.CONTESTANTS}
    assert len(names) == len(mixers.CONTESTANTS)
    for who in mixers.CONTESTANTS:
        assert not who.rival or names[who.rival].peer


def test_the_dense_layer_is_gpt2s():
    torch.manual_seed(0)
    gpt2 = next(who for who in mixers.CONTESTANTS if who.settings.get("relative") == "gpt2")
    ours, dense = mixers.MixerLayer(gpt2.settings, SIZES).double(), mixer_peers.DensePeer({}, SIZES).double()
    dense.inputs.load_state_dict(ours.mixer.qkv.state_dict())
    dense.out.load_state_dict(ours.mixer.out.state_dict())
    x = torch.randn(1, 50, SIZES["d_model"], dtype=torch.float64)
    torch.testing.assert_close(ours(x), dense(x), rtol=1e-10, atol=1e-12)
