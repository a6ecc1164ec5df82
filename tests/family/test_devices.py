"""Every relative on an accelerator that is not there: no tensor on the wrong device, no wait that can be avoided."""

import functools
import itertools

import pytest
import torch

import kinfolk as kf
from kinfolk.core.device import send
from kinfolk.core.rng import Rng
from kinfolk.decoding.decode import generate
from kinfolk.optim import Training
from kinfolk.train.parallel import Team
from kinfolk.train.step import Stepper
from tests.cover import parts, sampled
from tests.family.test_relatives import CAUSAL, NAMES, learner, model, read, tokens
from tests.pretended import DEVICE, moved, pretending

# what depends on data so that it has to be read; with the number of times in a step of training, its loss included
READS = {
    "act-rnn": (
        3,
        "whether all tokens have been pondered over long enough: asked once, and again after twice the steps",
    ),
    "noisy-moe": (3, "how many tokens the router sends to an expert without a capacity: asked once for a layer"),
    "t-dmca": (2, "as noisy-moe"),
    "mixtral": (3, "as noisy-moe"),
    "gpt-oss": (3, "as noisy-moe"),
    "jamba": (2, "as noisy-moe"),
    "qwen3-next": (3, "as noisy-moe"),
    "deepseek-v3": (3, "as noisy-moe, and once in the module that predicts a further token"),
}
# on tensors that only pretend PyTorch's own GRU does not run, and the gradient of its inverse real FFT, which doubles a
# view in place, is wrong; on meta tensors both run
NOT_PRETENDED = {"gru", "rnn-search", "hyena"}
# act-rnn takes 15 seconds
PRETENDED = sampled(
    [x for x in NAMES if x not in NOT_PRETENDED], "waiting", features=parts, marks={"act-rnn": (pytest.mark.long,)}
)
TRAINING = Training(steps=9, batch_size=4, length=34, clip=1.0, precision="fp32", compile="off")


def prepared(name, learn):
    """Return a batch with padding, except of pictures, which are whole."""
    batch = read(name, tokens(4, 34))
    keep = torch.arange(34) < torch.tensor([[34], [31], [34], [22]])
    padded = batch if kf.about(name).input == "image" else batch.replace(keep=keep)
    return learn.prepare(padded, Rng(0))


def stepped(name, team, wait):
    """Make two steps; return their outcomes and the learner."""
    learn = learner(name, torch.float32)
    batch = prepared(name, learn)
    learn = moved(learn) if team.device == DEVICE else learn
    # fused kernels of optimisers know real devices only
    stepper = Stepper(learn, torch.optim.SGD(learn.parameters(), lr=0.01), TRAINING, 0, team)
    outcomes = []
    for step in (1, 2):
        wait(step)
        outcomes.append(stepper.start(batch, step, 9, tokens=7).outcome())
    return outcomes, learn


@pytest.mark.parametrize("name", PRETENDED)
def test_a_step_of_training_waits_once(name):
    """The numbers are real, so that the steps must also come out as they do on the host."""
    wanted, _ = stepped(name, Team(), lambda step: None)
    with pretending() as log:
        found, _ = stepped(name, Team(device=DEVICE), lambda step: log.notes.clear())
        notes, waits, faults = dict(log.notes), log.waits(), log.faults()
    assert not faults
    assert waits <= READS.get(name, (1,))[0], notes
    for one, other in zip(found, wanted, strict=True):
        assert (one.count, one.tokens) == (other.count, other.tokens)
        assert (one.loss, one.grad_norm) == pytest.approx((other.loss, other.grad_norm), rel=2e-3)


@pytest.mark.parametrize(
    "name", sampled([x for x in CAUSAL if x not in NOT_PRETENDED], "waiting decoding", features=parts)
)
@pytest.mark.parametrize("prompts", [[[9, 30, 21], [12, 8, 33]], [[9, 30, 21], [12]]], ids=["in step", "apart"])
def test_a_decoded_token_waits_once(name, prompts):
    wanted = kf.generate(model(name, torch.float32), prompts, max_new=4, greedy=True, stop=(2,))
    seen = []
    # inference mode, in which the function runs, takes no pretended tensors
    with pretending() as log, torch.no_grad():
        m = moved(model(name, torch.float32))
        log.notes.clear()
        stream = functools.partial(note, log, seen)
        found = generate.__wrapped__(m, prompts, max_new=4, greedy=True, stop=(2,), stream=stream)
        faults = log.faults()
    assert not faults
    assert found == wanted
    assert all(later - earlier <= READS.get(name, (1,))[0] for earlier, later in itertools.pairwise(seen)), log.notes


def note(log, seen, newest):
    seen.append(log.waits())


@pytest.mark.parametrize("name", NAMES)
def test_meta_tensors_pass_forwards_and_backwards(name):
    """Nothing is computed: whatever asks for a number, or mixes tensors of two devices, raises."""
    learn = learner(name, torch.float32)
    batch = prepared(name, learn).map(lambda x: send(x, DEVICE))
    learn = learn.to(DEVICE)
    if name in READS:
        with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
            learn(batch)
        return
    loss = learn(batch)
    (loss.total / loss.count + loss.side).backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in learn.parameters())
