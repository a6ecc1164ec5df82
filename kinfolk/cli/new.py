"""`kin new`: write a plugin file that runs: a relative, a task, or a mixer with its operator and naive reference."""

import argparse
import json
import keyword
import re
from pathlib import Path

from kinfolk.core.errors import DataError, SpecError

EPILOG = """\
examples:
  kin new relative my-gpt2         my_gpt2.py: GPT-2 with one thing changed
  kin new task stars               stars.py: labels in an order, with a loss and a metric of its own
  kin new operator decay           decay.py: a causal mixer with its naive reference, and a relative that uses it

Every file is a plugin: pass it to any verb with --plugin, and change it until it is yours."""

RELATIVE = '''\
"""{name}: GPT-2 with one thing changed. Use it with --plugin {file}."""

from kinfolk.core.paths import set_path
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.norms.norm import RMSNorm


@relative(
    "{name}",
    parent="gpt2",
    year={year},
    paper="unpublished",
    changes="RMSNorm instead of layer norm",
)
def {identifier}(**numbers: int | float) -> Recipe:
    """Say here what changes, and why. `kin diff gpt2 {name} --plugin {file}` shows what it did."""
    recipe = gpt2(**numbers)
    for path in ("model.decoder.norm", "model.decoder.blocks[*].residual.norm"):
        recipe = set_path(recipe, path, RMSNorm())
    return recipe.replace(name="{name}")
'''

OPERATOR = '''\
"""{name}: a causal mixer y_t = a y_(t-1) + (1 - a) x_t per channel, its reference, and GPT-2 with it.

Use it with --plugin {file}; `python {file}` compares the operator with its reference.
"""

import torch
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.paths import set_path
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.module import Dims
from kinfolk.layers.part import Mixer, PartModule


def {identifier}(x_BLD: Tensor, decay_D: Tensor, start_BD: Tensor) -> Tensor:
    """Exponential moving average over positions, without a loop over them. Cost: O(L^2) per channel, fine below 1k."""
    position = torch.arange(x_BLD.shape[1], device=x_BLD.device)
    age_LM = (position[:, None] - position).clamp(min=0)
    weight_DLM = (1 - decay_D)[:, None, None] * decay_D[:, None, None] ** age_LM * (position[:, None] >= position)
    carried_BLD = decay_D ** (position[:, None] + 1) * start_BD[:, None]
    return torch.einsum("dlm,bmd->bld", weight_DLM, x_BLD) + carried_BLD


def naive(x_BLD: Tensor, decay_D: Tensor, start_BD: Tensor) -> Tensor:
    """The definition as a plain loop: what the operator is tested against."""
    y_BD, outputs = start_BD, []
    for t in range(x_BLD.shape[1]):
        y_BD = decay_D * y_BD + (1 - decay_D) * x_BLD[:, t]
        outputs.append(y_BD)
    return torch.stack(outputs, dim=1)


class Carried:
    """State of incremental decoding: the last average of every example."""

    def __init__(self, y_BD: Tensor) -> None:
        self.y_BD = y_BD

    def select(self, rows_B: Tensor) -> None:
        """Make example i a copy of example `rows[i]`."""
        self.y_BD = self.y_BD[rows_B]


class {camel}(Mixer, kind="{name}"):
    """y_t = a y_(t-1) + (1 - a) x_t, with one learned decay a for each channel."""

    def build(self, dims: Dims) -> PartModule:
        return _{camel}(dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        return Cost(params=dims.d_model, flops=4.0 * dims.d_model * shape.length, kept=dims.d_model)


class _{camel}(PartModule):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.logit_D = nn.Parameter(torch.linspace(-2.0, 4.0, dims.d_model))

    def forward(self, x_BLD: Tensor, ctx: Context, state: Carried | None) -> tuple[Tensor, Carried | None]:
        start_BD = torch.zeros_like(x_BLD[:, 0]) if state is None else state.y_BD
        y_BLD = {identifier}(x_BLD, torch.sigmoid(self.logit_D), start_BD)
        return y_BLD, None if state is None else Carried(y_BLD[:, -1])

    def new_state(self, batch_size: int, max_len: int) -> Carried:
        return Carried(self.logit_D.new_zeros(batch_size, self.logit_D.shape[0]))


@relative(
    "{name}-gpt2",
    parent="gpt2",
    year={year},
    paper="unpublished",
    changes="moving averages instead of attention",
)
def {identifier}_gpt2(**numbers: int | float) -> Recipe:
    """GPT-2 whose mixers are replaced."""
    recipe = set_path(gpt2(**numbers), "model.decoder.blocks[*].parts[0]", {camel}())
    return recipe.replace(name="{name}-gpt2")


if __name__ == "__main__":
    torch.manual_seed(0)
    inputs = torch.randn(2, 7, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    start = torch.randn(2, 3, dtype=torch.float64)
    torch.testing.assert_close({identifier}(*inputs, start), naive(*inputs, start), rtol=0, atol=1e-12)
    print("equal to the reference")
'''

TASK = '''\
"""{name}: classification with a metric of its own. Use it with --plugin {file}.

    kin train bert --data labelled:task={name}:FILE.csv --steps 200 --out runs/{name} --plugin {file}
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.core.batch import Batch
from kinfolk.models.model import Output
from kinfolk.objectives.measures.measure import Measure
from kinfolk.objectives.objective import Loss, Objective, side_loss
from kinfolk.objectives.supervised import Labels
from kinfolk.objectives.tasks.classify import Classification
from kinfolk.objectives.tasks.task import TableColumns


class {camel}Loss(Labels, kind="{name}-loss"):
    """Cross-entropy; change it here."""

    def loss(self, output: Output, batch: Batch) -> Loss:
        total = self.example_losses(output.logits, batch).sum()
        return Loss(total, torch.tensor(len(batch.labels)), side_loss(output))

    def example_losses(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch.labels, reduction="none")


class {camel}(Classification, kind="{name}"):
    """The class of a text. Columns, head, answers and tally are those of classification; override what differs."""

    objectives: ClassVar[tuple[type[Objective], ...]] = ({camel}Loss,)

    @classmethod
    def in_columns(cls, columns: TableColumns) -> bool:
        """No table implies this task: name it in the data."""
        return False


def surely_right(output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sum of the probabilities of the right classes, and how many examples there are."""
    chances = output.logits.softmax(-1).gather(1, batch.labels[:, None])
    return chances.sum(), torch.tensor(len(chances))


Measure(
    name="{name}-probability",
    meaning="mean probability of the right class",
    higher=True,
    unit="share",
    objectives=("{name}-loss",),
    sums=surely_right,
)
'''

TEMPLATES = {"relative": RELATIVE, "task": TASK, "operator": OPERATOR}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument("what", choices=sorted(TEMPLATES), help="what the file adds")
    parser.add_argument("name", metavar="NAME", help="in lower case with hyphens: my-gpt2")
    parser.add_argument("--out", metavar="FILE.py", help="the file to write (default: NAME.py here)")


def run(args: argparse.Namespace) -> int:
    """Write the file, unless there is one."""
    file = write(args.what, args.name, args.out)
    trial = f"{args.name}-gpt2" if args.what == "operator" else args.name
    relative, data = ("bert", f"labelled:task={args.name}:FILE.csv") if args.what == "task" else (trial, "stdlib")
    command = f"kin train {relative} --data {data} --steps 20 --out runs/{trial} --plugin {file}"
    print(json.dumps({"file": str(file), "try": command}) if args.json else f"wrote {file}; try: {command}")
    return 0


def write(what: str, name: str, out: str | None = None) -> Path:
    """Write a plugin of a kind under a name and return its path; an existing file is never overwritten."""
    import datetime

    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise SpecError(f"name: {name!r} is not in lower case with hyphens, such as my-gpt2")
    identifier = name.replace("-", "_")
    file = Path(out or f"{identifier}.py")
    camel = "".join(word.capitalize() for word in name.split("-"))
    year = datetime.date.today().year
    text = TEMPLATES[what].format(name=name, identifier=identifier, camel=camel, file=file.name, year=year)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise DataError(f"{file}: exists already; name another file with --out") from None
    return file
