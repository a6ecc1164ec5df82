"""The numbers of a training run that belong to a recipe; where, when and on how many processes do not."""

import torch
from torch import nn

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.spec import Spec
from kinfolk.optim.groups import Groups, Together
from kinfolk.optim.noise import Noise, NoNoise
from kinfolk.optim.optimiser import AdamW, Optimiser
from kinfolk.optim.schedule import Cosine, Schedule

_CHOICES = {
    "precision": ("auto", "fp32", "bf16", "fp16"),
    "compile": ("auto", "on", "off"),
    "recompute": ("none", "blocks"),
    "order": ("shuffled", "contiguous", "documents"),
    "cut": ("head", "tail", "both"),
}


class Training(Spec):
    """How a recipe is trained.

    steps: updates of the weights.
    batch_size: examples per update, over all processes and micro-batches.
    length: positions per example of running text, or the most that an example of a pair may have.
    order: of running text: "shuffled", or "contiguous", where a row goes on where it ended in the step before, so that
        a model that remembers segments has something to remember; or "documents", shuffled passages of one document,
        and others beside them, for objectives about pairs of sentences.
    cut: what is left of a labelled text longer than that: "head", "tail", or "both", a quarter and three.
    accumulate: micro-batches a process cuts its share of a batch into; changes memory, not the result.
    groups: which parameters move, how far beside the others, and from when on; all alike unless it says otherwise.
    noise: what happens to weights during a pass; nothing unless it says otherwise.
    clip: largest global norm of the gradient; 0 leaves it alone.
    eval_every, save_every: steps between two validations and two checkpoints; 0: only at the end.
    eval_batches: validation batches per validation; 0: all.
    keep_last: newest checkpoints kept, besides the best.
    metric: the measure that tells the best checkpoint, such as accuracy, macro-f1, mcc or pearson; "": the loss.
    patience: validations without improvement after which training stops; 0: never.
    precision, compile: "auto" measures a few steps on this device and takes what is fastest.
    recompute: "blocks" stores only the input of each block and computes it again in the backward pass.
    """

    steps: int = 1000
    batch_size: int = 16
    length: int = 256
    order: str = "shuffled"
    cut: str = "head"
    accumulate: int = 1
    clip: float = 1.0
    optimiser: Optimiser = AdamW()
    schedule: Schedule = Cosine(warmup=0.05)
    groups: Groups = Together()
    noise: Noise = NoNoise()
    eval_every: int = 100
    eval_batches: int = 16
    save_every: int = 100
    keep_last: int = 2
    metric: str = ""
    patience: int = 0
    precision: str = "auto"
    compile: str = "auto"
    recompute: str = "none"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "length", "accumulate", "keep_last"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("clip", "eval_every", "eval_batches", "save_every", "patience"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name} must not be negative, got {getattr(self, name)}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise SpecError(f"{name}: unknown choice {getattr(self, name)!r}{suggest(getattr(self, name), known)}")
        if self.recompute != "none" and not isinstance(self.noise, NoNoise):
            raise SpecError(
                f"recompute: {self.recompute!r} would find other weights than the pass had; set it to 'none'"
            )
        if self.batch_size % self.accumulate:
            raise SpecError(
                f"batch_size {self.batch_size} cannot be cut into accumulate = {self.accumulate} equal parts"
            )

    def build_optimiser(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make the optimiser of what moves in a model."""
        return self.optimiser.build(model, self.groups)
