"""Axis Init: weight initialisation (Xavier, scaled normal, Fixup, T5's fan-in)."""

import math
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn

from kinfolk.core.bounds import NonNegativeFloat
from kinfolk.core.spec import Spec
from kinfolk.core.unit_rows import normalise_matrices
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import PartModule


@runtime_checkable
class Draws(Protocol):
    """A module that initialises its own parameters: those that are neither linear layers nor embeddings."""

    def draw(self) -> None:
        """Draw its own parameters; called once, under the model's seed."""


class Init(Spec):
    """Axis: weight initialisation. Norms start as the identity and biases at zero, whatever the kind."""

    def apply(self, model: nn.Module, dims: Dims) -> None:
        """Draw every weight of a model, in the order of its modules."""
        for module in model.modules():
            if isinstance(module, nn.Linear):
                self.linear(module, dims)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                self.embedding(module, dims)
            elif isinstance(module, Draws):
                module.draw()

    def linear(self, module: nn.Linear, dims: Dims) -> None:
        """Draw the matrix of a linear map."""
        raise NotImplementedError

    def embedding(self, module: nn.Embedding, dims: Dims) -> None:
        """Draw a table of vectors."""
        raise NotImplementedError


class Xavier(Init, kind="xavier"):
    r"""Xavier: uniform in $\pm\sqrt{6 / (in + out)}$ for each map (Glorot and Bengio 2010); embeddings $N(0, 1/D)$."""

    def linear(self, module: nn.Linear, dims: Dims) -> None:
        # maps that are packed side by side are drawn as if each were alone
        packs = module.packs if isinstance(module, Linear) else 1
        for matrix in module.weight.chunk(packs):
            nn.init.xavier_uniform_(matrix)

    def embedding(self, module: nn.Embedding, dims: Dims) -> None:
        nn.init.normal_(module.weight, std=dims.d_model**-0.5)


class PackedXavier(Xavier, kind="packed-xavier"):
    r"""Xavier with queries, keys and values of an attention drawn as one matrix: $\pm\sqrt{6 / (D + 3D)}$.

    `torch.nn.Transformer` and fairseq do so. Each of the three maps is smaller by $\sqrt 2$ than under `xavier`, which
    draws it alone, as tensor2tensor, the code of Vaswani et al. 2017, does.
    """

    def apply(self, model: nn.Module, dims: Dims) -> None:
        """Draw as `xavier` does, then the projections of each attention again."""
        super().apply(model, dims)
        for part in (m for m in model.modules() if isinstance(m, PartModule)):
            maps = [m for m in part.children() if isinstance(m, Linear) and m.projects]
            n_out = sum(m.out_features for m in maps)
            for m in maps:
                bound = math.sqrt(6 / (m.in_features + n_out))
                nn.init.uniform_(m.weight, -bound, bound)


class Normal(Init, kind="normal"):
    r"""Normal: $N(0, std)$; with `branches` "scaled", maps that end one of n branches have $std / \sqrt{n}$ (GPT-2)."""

    std: NonNegativeFloat = 0.02
    branches: Literal["plain", "scaled"] = "plain"

    def linear(self, module: nn.Linear, dims: Dims) -> None:
        ends = self.branches == "scaled" and isinstance(module, Linear) and module.ends_branch
        nn.init.normal_(module.weight, std=self.std / math.sqrt(dims.n_sublayers) if ends else self.std)

    def embedding(self, module: nn.Embedding, dims: Dims) -> None:
        nn.init.normal_(module.weight, std=self.std)


class UnitRows(Init, kind="unit-rows"):
    r"""nGPT: $N(0, 1)$ for everything, then unit vectors along the width of the model (Loshchilov et al. 2024)."""

    def apply(self, model: nn.Module, dims: Dims) -> None:
        """Draw as all do, then normalise every matrix."""
        super().apply(model, dims)
        normalise_matrices(model)

    def linear(self, module: nn.Linear, dims: Dims) -> None:
        nn.init.normal_(module.weight)

    def embedding(self, module: nn.Embedding, dims: Dims) -> None:
        nn.init.normal_(module.weight)


class FixupInit(Init, kind="fixup"):
    r"""Fixup: He's normal times $n^{-1/(2m-2)}$ in a branch of m maps, one of n; maps that end a branch are zero.

    Zhang et al. 2019, section 3, for the residual of the same name: one step of gradient descent then moves the
    function about as far at any depth. Embeddings are $N(0, 1/D)$.
    """

    def apply(self, model: nn.Module, dims: Dims) -> None:
        """Draw as all do, then shrink each branch by the number of its maps."""
        super().apply(model, dims)
        for part in (m for m in model.modules() if isinstance(m, PartModule)):
            maps = [m for m in part.modules() if isinstance(m, Linear)]
            in_a_row = sum(m.in_a_row for m in maps)
            for m in maps if in_a_row > 1 else ():
                m.weight.data *= dims.n_branches ** (-1 / (2 * in_a_row - 2))

    def linear(self, module: nn.Linear, dims: Dims) -> None:
        ends = isinstance(module, Linear) and module.ends_branch
        nn.init.normal_(module.weight, std=0.0 if ends else math.sqrt(2 / module.in_features))

    def embedding(self, module: nn.Embedding, dims: Dims) -> None:
        nn.init.normal_(module.weight, std=dims.d_model**-0.5)


class FanIn(Init, kind="fan-in"):
    r"""Fan-in: $N(0, 1/\sqrt{in})$ for each map and $N(0, 1)$ for embeddings (Raffel et al. 2020; its released code).

    Queries whose scores are not divided by $\sqrt{K}$ are drawn smaller by as much instead. Tables that are not as wide
    as the model, of what distances add to scores, are $N(0, 1/\sqrt{D})$.
    """

    def apply(self, model: nn.Module, dims: Dims) -> None:
        """Draw as all do, then shrink the queries of undivided scores."""
        super().apply(model, dims)
        parts: list[Any] = [m for m in model.modules() if isinstance(m, PartModule)]
        for part in parts:
            if getattr(getattr(part, "spec", None), "scale", 0.0) == 1.0:
                # queries come first where they are packed with keys and values
                maps = part.q if hasattr(part, "q") else part.qkv
                maps.weight.data[: part.spec.n_heads * part.d_head] *= part.d_head**-0.5

    def linear(self, module: nn.Linear, dims: Dims) -> None:
        nn.init.normal_(module.weight, std=module.in_features**-0.5)

    def embedding(self, module: nn.Embedding, dims: Dims) -> None:
        nn.init.normal_(module.weight, std=1.0 if module.embedding_dim == dims.d_model else dims.d_model**-0.5)


def seeded(init: Init, model: nn.Module, dims: Dims, seed: int) -> None:
    """Draw all weights from a seed without touching the caller's random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        init.apply(model, dims)
