"""Suites of generated tasks: the Long Range Arena with its published table, MAD's six tasks, and MQAR.

Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, with the scores of its repository, which
replaced those of the paper. Two tasks are read from other data here, because nothing is downloaded: passages of the
standard library replace film reviews and papers that cite each other, drawn shapes replace CIFAR-10.
"""

import dataclasses
from collections.abc import Mapping

from kinfolk.contests.settings import require

PAPER = "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv:2011.04006"


FIRST = (
    "bert",
    "local",
    "linear",
    "reformer",
    "sparse-strided",
    "linformer",
    "performer",
    "synthesizer-factorized",
    "longformer",
    "bigbird",
)
"""Who takes part unless others are named: the published rows that are relatives here."""

COLUMNS = ("listops", "text", "retrieval", "image", "pathfinder")
PUBLISHED: dict[str, tuple[float, float, float, float, float]] = {
    "Transformer": (36.37, 64.27, 57.46, 42.44, 71.40),
    "Local Attention": (15.82, 52.98, 53.39, 41.46, 66.63),
    "Linear Transformer": (16.13, 65.90, 53.09, 42.34, 75.30),
    "Reformer": (37.27, 56.10, 53.40, 38.07, 68.50),
    "Sparse Transformer": (17.07, 63.58, 59.59, 44.24, 71.71),
    "Sinkhorn Transformer": (33.67, 61.20, 53.83, 41.23, 67.45),
    "Linformer": (35.70, 53.94, 52.27, 38.56, 76.34),
    "Performer": (18.01, 65.40, 53.82, 42.77, 77.05),
    "Synthesizer": (36.99, 61.68, 54.67, 41.61, 69.45),
    "Longformer": (35.63, 62.85, 56.89, 42.22, 69.71),
    "BigBird": (36.05, 64.02, 59.29, 40.83, 74.87),
}
"""Accuracies in per cent, in the order of `COLUMNS`."""

_RELATIVES = {
    "Transformer": ("bert", "roberta", "vanilla", "vanilla-pre"),
    "Local Attention": ("local",),
    "Linear Transformer": ("linear",),
    "Reformer": ("reformer", "reformer-lsh"),
    "Sparse Transformer": ("sparse-strided", "sparse-fixed"),
    "Linformer": ("linformer",),
    "Performer": ("performer",),
    "Longformer": ("longformer",),
    "BigBird": ("bigbird",),
}
"""Relatives by their published row, without those of the Synthesizer, which are recognised by their names."""

NOT_COMPARABLE = (
    "Not comparable with ours: the published models have 1 to 6 layers of width 32 to 512 and were trained for 5,000 "
    "to 20,000 steps or 200 epochs; text, retrieval and image are other data here; and some of theirs have settings of "
    "their own (on ListOps the Performer has 2 random features and the Linformer rank 16). Orders may agree, numbers "
    "need not."
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a suite comes from: the paper, how far ours may be held against it, who takes part unless others are named.

    rows: published accuracies in per cent, in the order of `columns`; none where a paper shows curves only.
    """

    paper: str
    note: str
    first: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)


LRA = Origin(PAPER, NOT_COMPARABLE, FIRST, COLUMNS, PUBLISHED)
MAD = Origin(
    "Poli et al. 2024, Mechanistic Design and Scaling of Hybrid Architectures, arXiv:2403.17844",
    "The paper has four layers of width 128, 200 epochs of 12,800 examples (256 for memorisation), a grid of rates and "
    "weight decays, and shows the scores as figures; the mean over tasks is its MAD score.",
    ("llama", "mamba2", "gated-deltanet", "gla", "hyena"),
)
MQAR = Origin(
    "Arora et al. 2023, Zoology: Measuring and Improving Recall in Efficient Language Models, arXiv:2312.04927",
    "The paper (figure 2) has two layers of width 64 to 512, 100,000 examples and the best of four rates, and shows "
    "curves: attention is right everywhere, gated convolutions and RWKV need a width that grows with the length.",
    ("llama", "gated-deltanet", "deltanet", "gla"),
)


@dataclasses.dataclass(frozen=True)
class Arena:
    """Tasks by the name of their column, the lengths at which speed and memory are measured, and rows of a step there.

    valid: examples of a validation.
    """

    name: str
    tasks: dict[str, str]
    lengths: tuple[int, ...]
    rows: int
    valid: int
    origin: Origin = LRA


ARENAS = {
    "lra": Arena(
        "lra",
        {
            "listops": "listops",
            "text": "text",
            "retrieval": "retrieval",
            "image": "shapes",
            "pathfinder": "pathfinder",
        },
        (1024, 2048, 3072, 4096),
        2,
        320,
    ),
    "lra-small": Arena(
        "lra-small",
        {
            "listops": "listops:length=64,shortest=16,depth=5",
            "text": "text:length=200",
            "retrieval": "retrieval:length=200",
            "image": "shapes:size=16",
            "pathfinder": "pathfinder:size=24,length=4,distractors=2",
        },
        (128, 256),
        4,
        320,
    ),
    "mad": Arena(
        "mad",
        {
            "recall": "in-context-recall",
            "noisy": "noisy-recall",
            "fuzzy": "fuzzy-recall",
            "copying": "selective-copying",
            "compression": "compression",
            "memorisation": "memorisation",
        },
        (),
        4,
        1280,
        MAD,
    ),
    "mad-small": Arena(
        "mad-small",
        {
            "recall": "in-context-recall:length=32",
            "noisy": "noisy-recall:length=32",
            "fuzzy": "fuzzy-recall:length=48",
            "copying": "selective-copying:length=32,copied=4",
            "compression": "compression:length=16",
            "memorisation": "memorisation:vocab=64",
        },
        (),
        4,
        320,
        MAD,
    ),
    "mqar": Arena(
        "mqar",
        {f"{k} pairs": f"mqar:length={n},pairs={k},vocab=8192" for n, k in ((64, 4), (128, 8), (256, 16), (512, 64))},
        (),
        4,
        1024,
        MQAR,
    ),
    "mqar-small": Arena(
        "mqar-small",
        {f"{k} pairs": f"mqar:length={max(32, 4 * k)},pairs={k},vocab=256" for k in (4, 8, 16)},
        (),
        4,
        320,
        MQAR,
    ),
}


def arena(name: str) -> Arena:
    """Return a suite by its name."""
    require("suite", name, ARENAS)
    return ARENAS[name]


def row_of(relative: str) -> str:
    """Return the published row of a relative; most have none."""
    if relative.startswith("synthesizer"):
        return "Synthesizer"
    return next((row for row, relatives in _RELATIVES.items() if relative in relatives), "")


def average(scores: tuple[float, ...]) -> float:
    """Return the mean over tasks."""
    return sum(scores) / len(scores)
