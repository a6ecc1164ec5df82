"""Adaptive input embeddings and adaptive softmax: frequent words wide, rare words narrow (Baevski and Auli 2019).

Both cut the vocabulary at the same kind of ids and need it sorted, frequent words first. The i-th cluster after the
first has vectors of width d_model / divisor ** i.
"""

import itertools

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.cost import Cost, linear
from kinfolk.core.device import host, known_on_host, send
from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.embedding import EmbeddingModule, Outward, Tokens, TokensModule
from kinfolk.layers.heads.head import Head, NormalisedHead, Tie
from kinfolk.layers.module import Dims, Linear, Module, borrow
from kinfolk.ops.cross_entropy import cross_entropy, token_losses


def cluster_sizes(cutoffs: tuple[int, ...], vocab_size: int) -> list[int]:
    """Return how many words each cluster has."""
    bounds = (0, *cutoffs, vocab_size)
    if any(first >= stop for first, stop in itertools.pairwise(bounds)):
        raise SpecError(f"cutoffs: {list(cutoffs)} must rise, above 0 and below the vocabulary's {vocab_size}")
    return [stop - first for first, stop in itertools.pairwise(bounds)]


def cluster_widths(cutoffs: tuple[int, ...], divisor: int, widths: tuple[int, ...], d_model: int) -> list[int]:
    """Return how wide each cluster is: as said, or narrower by `divisor` from one to the next."""
    if widths and len(widths) != len(cutoffs) + 1:
        raise SpecError(f"widths: {len(widths)} are given, but {len(cutoffs)} cutoffs make {len(cutoffs) + 1} clusters")
    return list(widths) or [max(1, d_model // divisor**i) for i in range(len(cutoffs) + 1)]


class Adaptive(Tokens, kind="adaptive"):
    """Adaptive input embeddings: a table per cluster and a map to the model's width (Baevski and Auli 2019, section 3).

    A cluster as wide as the model has no map. `widths` overrides what `divisor` says.
    """

    cutoffs: tuple[PositiveInt, ...]
    divisor: PositiveInt = 4
    widths: tuple[PositiveInt, ...] = ()

    def build(self, dims: Dims) -> EmbeddingModule:
        return _Adaptive(self, dims)

    def table_cost(self, dims: Dims) -> Cost:
        total = Cost()
        for size, width in zip(cluster_sizes(self.cutoffs, dims.vocab_size), self._widths(dims), strict=True):
            total += Cost(params=size * width)
            if width != dims.d_model:
                share = size / dims.vocab_size
                total += linear(width, dims.d_model, False).scaled(share)
        return total

    def _widths(self, dims: Dims) -> list[int]:
        return cluster_widths(self.cutoffs, self.divisor, self.widths, dims.d_model)


class _Clusters(Module):
    """Tables and projections of the clusters; one as wide as the model has no projection."""

    def __init__(self, spec: Adaptive, dims: Dims) -> None:
        super().__init__()
        sizes = cluster_sizes(spec.cutoffs, dims.vocab_size)
        widths = cluster_widths(spec.cutoffs, spec.divisor, spec.widths, dims.d_model)
        self.d_model = dims.d_model
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n, width in zip(sizes, widths, strict=True))
        self.maps = nn.ModuleList(
            nn.Identity() if width == dims.d_model else Outward(width, dims.d_model) for width in widths
        )
        self.register_buffer("cutoffs", torch.tensor(spec.cutoffs, dtype=torch.long), persistent=False)
        self.cutoffs: Tensor
        # on the host wherever the module is
        self.bounds = torch.tensor(spec.cutoffs, dtype=torch.long)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        tokens = tokens_BL.reshape(-1).contiguous()
        if torch.compiler.is_exporting() or not known_on_host(tokens_BL):
            cluster = torch.bucketize(tokens, self.cutoffs, right=True)
            return self._all(tokens, cluster).view(*tokens_BL.shape, -1)
        device, ids = tokens.device, host(tokens_BL).reshape(-1).contiguous()
        cluster = torch.bucketize(ids, self.bounds, right=True)
        order = cluster.argsort(stable=True)
        counts = torch.bincount(cluster, minlength=len(self.tables)).tolist()
        firsts = [0, *self.bounds.tolist()]
        vectors = [
            outer(table(ids - first))
            for table, outer, ids, first in zip(
                self.tables, self.maps, tokens[send(order, device)].split(counts), firsts, strict=True
            )
        ]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return torch.cat(vectors)[send(back, device)].unflatten(0, tokens_BL.shape)

    def _all(self, tokens: Tensor, cluster: Tensor) -> Tensor:
        """Look every token up in every table: a graph cannot be told how many tokens are in each."""
        found: Tensor = self.tables[0].weight.new_zeros(tokens.shape[0], self.d_model)  # type: ignore[operator]
        first = 0
        for i, (table, outer) in enumerate(zip(self.tables, self.maps, strict=True)):
            assert isinstance(table, nn.Embedding)
            rows = outer(table((tokens - first).clamp(0, table.num_embeddings - 1)))
            found, first = torch.where((cluster == i)[:, None], rows, found), first + table.num_embeddings
        return found


class _Adaptive(TokensModule):
    table: _Clusters

    def __init__(self, spec: Adaptive, dims: Dims) -> None:
        super().__init__(spec, dims, _Clusters(spec, dims))
        self.cut = spec.cutoffs

    @property
    def weight(self) -> Tensor:
        """The table as if it were one: what every word becomes."""
        return torch.cat([outer(table.weight) for table, outer in zip(self.table.tables, self.table.maps, strict=True)])

    def pieces(self, cutoffs: tuple[int, ...]) -> list[tuple[Tensor, Tensor | None]]:
        if cutoffs != self.cut:
            raise SpecError(f"cutoffs: a tied head must cut at {list(self.cut)} as the embedding, not {list(cutoffs)}")
        pairs = zip(self.table.tables, self.table.maps, strict=True)
        return [(table.weight, outer.weight if isinstance(outer, Outward) else None) for table, outer in pairs]  # type: ignore[misc]


class AdaptiveSoftmax(Head, kind="adaptive-softmax"):
    r"""Adaptive softmax: $p(w) = p(c)\,p(w \mid c)$ for rare words, $p(w)$ at once for others (Grave et al. 2017).

    One softmax is over the words of the first cluster and the other clusters, and each of these has one over its words,
    made for those tokens only whose target is there. "untied": tables of its own, of the widths that `divisor` or
    `widths` says, behind a map; a cluster as wide as the model has no map, so `divisor` 1 is the form without
    projections. "tied": the embedding's tables and maps, which must be cut alike if they are cut.
    """

    cutoffs: tuple[PositiveInt, ...]
    divisor: PositiveInt = 4
    widths: tuple[PositiveInt, ...] = ()
    weights: Tie = "untied"

    def build(self, dims: Dims, embedding: EmbeddingModule) -> NormalisedHead:
        return _AdaptiveSoftmax(self, dims, embedding)

    def cost(self, dims: Dims) -> Cost:
        d, sizes = dims.d_model, cluster_sizes(self.cutoffs, dims.vocab_size)
        widths = cluster_widths(self.cutoffs, self.divisor, self.widths, d)
        total, own = linear(d, len(self.cutoffs), False), linear(d, sizes[0], False, kept=False)
        for size, width in zip(sizes[1:], widths[1:], strict=True):
            # as often as its words if all were as frequent, which rare ones are not
            inward = linear(d, width, False) if width != d else Cost()
            own += (inward + linear(width, size, False)).scaled(size / dims.vocab_size)
        return total + (own if self.weights == "untied" else Cost(0, own.flops, own.kept))


class _AdaptiveSoftmax(NormalisedHead):
    def __init__(self, spec: AdaptiveSoftmax, dims: Dims, embedding: EmbeddingModule) -> None:
        super().__init__()
        self.cutoffs, self.n_classes = spec.cutoffs, dims.vocab_size
        self.n_first, self.bounds = (
            spec.cutoffs[0] if spec.cutoffs else dims.vocab_size,
            (*spec.cutoffs, dims.vocab_size),
        )
        sizes = cluster_sizes(spec.cutoffs, dims.vocab_size)
        self.clusters = Linear(dims.d_model, len(spec.cutoffs), bias=False) if spec.cutoffs else None
        self.tables, self.maps = nn.ModuleList(), nn.ModuleList()
        if spec.weights == "untied":
            widths = cluster_widths(spec.cutoffs, spec.divisor, spec.widths, dims.d_model)
            # frequent words and the other clusters share one softmax over states as they are
            widths[0] = dims.d_model
            for size, width in zip(sizes, widths, strict=True):
                self.tables.append(Linear(width, size, bias=False))
                wide = width == dims.d_model
                self.maps.append(nn.Identity() if wide else Linear(dims.d_model, width, bias=False))
        else:
            # refuses now what it would refuse at the first step
            embedding.pieces(spec.cutoffs)
        borrow(self, "embedding", embedding)

    def log_probs(self, x_LD: Tensor) -> Tensor:
        first, *rare = self._pieces()
        log_probs = nn.functional.linear(x_LD, self._first(first)).log_softmax(-1)
        words = [log_probs[:, : self.n_first]]
        for c, (table, inward) in enumerate(rare):
            inside = nn.functional.linear(_inward(x_LD, inward), table).log_softmax(-1)
            words.append(inside + log_probs[:, self.n_first + c, None])
        return torch.cat(words, -1)

    def total(self, x_LD: Tensor, targets_L: Tensor) -> Tensor:
        first, *rare = self._pieces()
        total = cross_entropy(x_LD, self._first(first), None, self._first_targets(targets_L), 1.0, 0.0)
        for c, (table, inward) in enumerate(rare):
            where, inside = self._inside(targets_L, c)
            total = total + cross_entropy(_inward(x_LD[where], inward), table, None, inside, 1.0, 0.0)
        return total

    def each(self, x_LD: Tensor, targets_L: Tensor) -> Tensor:
        first, *rare = self._pieces()
        losses_L = token_losses(x_LD, self._first(first), None, self._first_targets(targets_L))
        for c, (table, inward) in enumerate(rare):
            where, inside = self._inside(targets_L, c)
            losses_L[where] += token_losses(_inward(x_LD[where], inward), table, None, inside)
        return losses_L

    def _pieces(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return each cluster's table [n, width] and the matrix [D, width] that leads to it, if there is one."""
        if not len(self.tables):
            return self.embedding.pieces(self.cutoffs)
        pairs = zip(self.tables, self.maps, strict=True)
        return [(table.weight, outer.weight.mT if isinstance(outer, Linear) else None) for table, outer in pairs]  # type: ignore[misc]

    def _first(self, piece: tuple[Tensor, Tensor | None]) -> Tensor:
        """Return the output layer of frequent words and clusters: [n + clusters, D]."""
        words = piece[0] if piece[1] is None else piece[0] @ piece[1].mT
        return words if self.clusters is None else torch.cat([words, self.clusters.weight])

    def _first_targets(self, targets_L: Tensor) -> Tensor:
        """Replace rare words by their clusters."""
        out_L = targets_L
        for c, first in enumerate(self.cutoffs):
            out_L = torch.where(targets_L >= first, self.n_first + c, out_L)
        return out_L

    def _inside(self, targets_L: Tensor, c: int) -> tuple[Tensor, Tensor]:
        """Return which targets are in a rare cluster, and which of its words they are."""
        ids_L = host(targets_L)
        where = send(((ids_L >= self.bounds[c]) & (ids_L < self.bounds[c + 1])).nonzero()[:, 0], targets_L.device)
        return where, targets_L[where] - self.bounds[c]


def _inward(x_LD: Tensor, inward: Tensor | None) -> Tensor:
    return x_LD if inward is None else nn.functional.linear(x_LD, inward.mT)
