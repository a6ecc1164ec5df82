"""Hyperparameters of training that belong to a recipe: batch, optimiser, schedule, regularisation."""

from typing import Literal

import torch
from torch import nn

from kinfolk.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.optim.groups import Groups, Together
from kinfolk.optim.noise import NoNoise, WeightNoise
from kinfolk.optim.optimiser import AdamW, Optimiser
from kinfolk.optim.schedule import Cosine, Schedule


class Training(Spec):
    """How a recipe is trained.

    steps: updates of the weights.
    batch_size: examples per update, over all processes and micro-batches.
    length: positions per example of running text, or the most that an example of a pair may have.
    order: of running text: "shuffled", or "contiguous", where a row goes on where it ended in the step before, so that
        a model that remembers segments has something to remember; or "documents", shuffled passages of one document,
        and others beside them, for objectives about pairs of sentences.
    cut: what is left of a labelled text longer than that: "head", "tail", or "both", a quarter and three.
    grouping: of pairs and labelled examples: "length" fills a batch with examples of similar length, which saves most
        of the padding, and shuffles the batches; "none" draws every batch from all examples; "auto" is "length" for
        pairs and "none" for labelled examples.
    accumulate: micro-batches a process cuts its share of a batch into; changes memory, not the result.
    groups: which parameters move, how far beside the others, and from when on; all alike unless it says otherwise.
    noise: what happens to weights during a pass; nothing unless it says otherwise.
    clip: largest global norm of the gradient; 0 leaves it alone.
    eval_every, save_every: steps between two validations and two checkpoints; 0: only at the end.
    eval_batches: validation batches per validation; 0: all.
    keep_last: newest checkpoints kept, besides the best.
    metric: the measure that tells the best checkpoint, such as accuracy, macro-f1, mcc or pearson; "": the loss.
    patience: validations without improvement after which training stops; 0: never.
    precision: "auto" takes the format that the device has matrix units for; fp32 on most CPUs. "tf32" is
        fp32 whose products CUDA devices compute with fewer bits; never chosen by "auto".
    compile: "on", or "off", which "auto" is too.
    recompute: "blocks" stores only the input of each block and computes it again in the backward pass.
    """

    steps: PositiveInt = 1000
    batch_size: PositiveInt = 16
    length: PositiveInt = 256
    order: Literal["shuffled", "contiguous", "documents"] = "shuffled"
    cut: Literal["head", "tail", "both"] = "head"
    grouping: Literal["auto", "length", "none"] = "auto"
    accumulate: PositiveInt = 1
    clip: NonNegativeFloat = 1.0
    optimiser: Optimiser = AdamW()
    schedule: Schedule = Cosine(warmup=0.05)
    groups: Groups = Together()
    noise: WeightNoise = NoNoise()
    eval_every: NonNegativeInt = 100
    eval_batches: NonNegativeInt = 16
    save_every: NonNegativeInt = 100
    keep_last: PositiveInt = 2
    metric: str = ""
    patience: NonNegativeInt = 0
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    recompute: Literal["none", "blocks"] = "none"

    def __post_init__(self) -> None:
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
