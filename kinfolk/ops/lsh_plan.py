"""Plan of LSH attention: sights, and slots and places of tokens sorted by their hashes (Kitaev et al. 2020)."""

import dataclasses
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.device import host
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.spec import Spec

DENSE = 1024
"""Up to this length, and while tiles would hold as many pairs, one masked product is cheaper than sorting."""
INTEGERS = (torch.int16, torch.int32, torch.int64)
"""What places are counted in."""


class BucketSight(Spec):
    """Axis: which keys of its hash bucket a query attends to (LSH attention)."""

    size: PositiveInt = 64


class RecentKeys(BucketSight, kind="recent"):
    """Nearest keys: the last `size` earlier tokens of its bucket, in both directions the next `size` too.

    Strictly causal: the distance to a token of the bucket does not depend on what comes later.
    """


class Chunks(BucketSight, kind="chunks"):
    """Chunks of `size` in the sorted order: its own and the one before, for the first the last (equation 11).

    `within` "bucket" hides tokens of other buckets (equation 16), "chunk" does not (Trax, Hugging Face). Later tokens
    are hidden from earlier ones, but they move the borders of chunks, and so which earlier ones are seen.
    """

    within: Literal["bucket", "chunk"] = "bucket"


@dataclasses.dataclass(frozen=True)
class Looking:
    """Mask and weights of LSH attention: the keys of a round, the direction, and how a pair counts.

    `repeats` "once" counts a pair once, however many rounds found it (appendix A); "each" once per round.
    """

    sight: BucketSight
    direction: str = "past"
    repeats: str = "once"
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name, known in (("direction", ("past", "both")), ("repeats", ("once", "each"))):
            if getattr(self, name) not in known:
                raise SpecError(f"{name}: unknown {getattr(self, name)!r}{suggest(getattr(self, name), known)}")


def scores_per_query(length: int, looking: Looking, n_rounds: int) -> int:
    """Return how many scores a query costs at a length that is a multiple of the tiles."""
    tiles = tiling(looking)
    return length if _short(length, looking, n_rounds) else n_rounds * tiles.width * tiles.side


def _short(length: int, looking: Looking, n_rounds: int) -> bool:
    tiles = tiling(looking)
    return length <= min(DENSE, n_rounds * tiles.width * tiles.side)


def ranks(ids: Tensor) -> Tensor:
    """Return how many earlier entries of the last axis are equal to each."""
    ordered, order = ids.sort(dim=-1, stable=True)
    at = torch.arange(ids.shape[-1], device=ids.device)
    first = torch.where(_starts(ordered), at, 0).cummax(-1).values
    return torch.empty_like(order).scatter_(-1, order, at - first)


class HashPlan(NamedTuple):
    """Plan of LSH attention: each round lays the tokens into slots, so that the keys of a tile are consecutive slots.

    L is a token that sees no other and that none sees. With `union`, the one pass over the tokens in their own order
    holds the pairs of all rounds.
    """

    at_BHrS: Tensor  # the token of each slot
    asks_BHrS: Tensor  # the same, but L in copies, whose queries would count twice in the backward pass
    place_BHrL: Tensor  # the attention mask, see `lsh_attention`
    wrap_BHrL: Tensor | None  # one more place that is seen, from first chunks
    tiles: "Tiles"


class Tiles(NamedTuple):
    """How slots are cut: a tile of `side` queries sees `width` tiles of keys, of which `before` lie before its own."""

    side: int
    width: int
    before: int
    union: bool = False


class _Sorted(NamedTuple):
    """The tokens of each round by document, bucket and position; padding comes last."""

    order_BHrL: Tensor
    run_BHrL: Tensor  # counts the buckets of the sorted order; every pad is alone in one
    document_BL: Tensor  # of the sorted tokens, the same in all rounds
    n_documents: int  # the most that a row can have, padding being one


class _Layout(NamedTuple):
    """Slots and places of the sorted tokens, and for chunks the tile that each tile of slots is filled from."""

    slot_BL: Tensor
    source_BT: Tensor | None
    n_slots: int
    place_BHrL: Tensor
    wrap_BHrL: Tensor | None


def tiling(looking: Looking) -> Tiles:
    """Return how the slots of a round are cut: for `RecentKeys` finer, so that fewer of the pairs are too far apart."""
    if isinstance(looking.sight, Chunks):
        return Tiles(looking.sight.size, width=2, before=1)
    return Tiles(-(-looking.sight.size // 2), width=3 if looking.direction == "past" else 5, before=2)


@torch.no_grad()
def plan(
    buckets_BHrL: Tensor, looking: Looking, keep_BL: Tensor | None, group_BL: Tensor | None
) -> tuple[HashPlan, Tensor]:
    """Return the plan, and of every token and round the slot."""
    length, n_rounds, tiles = buckets_BHrL.shape[3], buckets_BHrL.shape[2], tiling(looking)
    tokens = _sort(buckets_BHrL, looking.sight, keep_BL, group_BL)
    chunks = isinstance(looking.sight, Chunks)
    layout = _chunked(tokens, looking.sight.size) if chunks else _sliding(tokens, looking.sight.size, tiles)
    known = _smallest(layout, looking.sight.size)
    place, wrap = (_by_token(x, tokens.order_BHrL, known) for x in (layout.place_BHrL, layout.wrap_BHrL))
    assert place is not None
    if _short(length, looking, n_rounds):
        at = torch.arange(length, dtype=torch.int32, device=place.device).expand(*buckets_BHrL.shape[:2], 1, length)
        return HashPlan(at, at, place, wrap, Tiles(length, 1, 0, union=True)), at
    slot_BHrL = layout.slot_BL[:, None, None].expand_as(tokens.order_BHrL)
    at = tokens.order_BHrL.new_full((*buckets_BHrL.shape[:3], layout.n_slots), length)
    asks = at = at.scatter_(-1, slot_BHrL, tokens.order_BHrL).int()
    if layout.source_BT is not None:
        by_tile, source = at.unflatten(-1, (-1, tiles.side)), layout.source_BT[:, None, None, :, None]
        at = by_tile.gather(3, source.expand_as(by_tile)).flatten(3)
    slot = _by_token(slot_BHrL, tokens.order_BHrL, torch.int32)
    assert slot is not None
    return HashPlan(at, asks, place, wrap, tiles), slot


def _sort(buckets_BHrL: Tensor, sight: BucketSight, keep_BL: Tensor | None, group_BL: Tensor | None) -> _Sorted:
    n_batch, length = len(buckets_BHrL), buckets_BHrL.shape[-1]
    document_BL = buckets_BHrL.new_zeros(n_batch, length) if group_BL is None else group_BL - group_BL.min()
    if keep_BL is not None:
        # padding counts as one more document, behind all others
        document_BL = torch.where(keep_BL, document_BL, document_BL.max() + 1)
    # the document first, then the bucket: one sort for both
    ids_BHrL = document_BL[:, None, None] * (buckets_BHrL.max() + 1) + buckets_BHrL
    # stable, so that the tokens of a bucket stay in the order of their positions
    sorted_BHrL, order_BHrL = ids_BHrL.sort(dim=-1, stable=True)
    document_BL = document_BL.sort(dim=-1).values
    starts_BHrL = _starts(sorted_BHrL)
    if isinstance(sight, Chunks) and sight.within == "chunk":
        starts_BHrL = _starts(document_BL)[:, None, None].expand_as(starts_BHrL)
    if keep_BL is not None:
        pad_BL = torch.arange(length, device=keep_BL.device) >= keep_BL.sum(1, keepdim=True)
        starts_BHrL = starts_BHrL | pad_BL[:, None, None]
    n_documents = (
        1 + (keep_BL is not None) + (0 if group_BL is None else int(host(group_BL).max() - host(group_BL).min()))
    )
    return _Sorted(order_BHrL, starts_BHrL.cumsum(-1), document_BL, n_documents)


def _sliding(tokens: _Sorted, size: int, tiles: Tiles) -> _Layout:
    """Give each token a place so that it sees those less than `size` + 1 away: no bucket is as near to the next."""
    length = tokens.order_BHrL.shape[-1]
    here_L = torch.arange(length, device=tokens.order_BHrL.device)
    n_slots = (-(-length // tiles.side) + tiles.width - 1) * tiles.side
    slot_BL = (here_L + tiles.before * tiles.side)[None].expand_as(tokens.document_BL)
    return _Layout(slot_BL, None, n_slots, here_L + size * tokens.run_BHrL, None)


def _chunked(tokens: _Sorted, size: int) -> _Layout:
    """Cut every document into chunks, and give each token a place so that it sees its own and one less."""
    starts_BL = _starts(tokens.document_BL)
    here_L = torch.arange(starts_BL.shape[1], device=starts_BL.device)
    begin_BL = torch.where(starts_BL, here_L, 0).cummax(-1).values
    # the last token of the document: from behind, the first
    ends_BL = torch.where(_starts(tokens.document_BL.flip(-1)).flip(-1), here_L, len(here_L))
    end_BL = ends_BL.flip(-1).cummin(-1).values.flip(-1)
    rank_BL = here_L - begin_BL
    # one more tile before every document: its last chunk again, which the first one sees
    tile_BL = (rank_BL % size == 0).cumsum(-1) - 1 + starts_BL.cumsum(-1)
    first_BL, last_BL = tile_BL.gather(-1, begin_BL), tile_BL.gather(-1, end_BL)
    n_tiles = -(-len(here_L) // size) + 1
    if tokens.n_documents > 1:
        # every document may begin a chunk; how many really do is not worth waiting for an accelerator
        n_most = n_tiles + 2 * (tokens.n_documents - 1)
        n_tiles = int(tile_BL.max()) + 1 if tile_BL.device.type == "cpu" else n_most
    # nothing is in tiles that stay as they are and have no tokens
    at_T = torch.arange(n_tiles, device=here_L.device)
    leads_BL = torch.where(last_BL > first_BL, last_BL, first_BL - 1)
    source_BT = at_T.repeat(len(starts_BL), 1).scatter_(-1, first_BL - 1, leads_BL)
    # two more for each bucket: no place of another one is the same or one less
    place_BHrL = tile_BL[:, None, None] + 2 * tokens.run_BHrL
    # the first chunk of a document also sees its last one, if the bucket of a token reaches there
    lead_BHrL = (begin_BL + (last_BL - first_BL) * size)[:, None, None].expand_as(place_BHrL)
    reaches = tokens.run_BHrL == tokens.run_BHrL.gather(-1, lead_BHrL)
    wraps = reaches & ((tile_BL == first_BL) & (last_BL > first_BL))[:, None, None]
    wrap_BHrL: Tensor | None = None
    # hardly any bucket reaches that far, and masks without a second place cost half; elsewhere looking would wait
    if wraps.device.type != "cpu" or torch.compiler.is_compiling() or bool(wraps.any()):
        wrap_BHrL = torch.where(wraps, place_BHrL.gather(-1, lead_BHrL), nowhere(size) - 1)
    return _Layout(tile_BL * size + rank_BL % size, source_BT, n_tiles * size, place_BHrL, wrap_BHrL)


def _smallest(layout: _Layout, size: int) -> torch.dtype:
    """Return integers that hold twice the distance of any two places: masks are as fast as these are small."""
    place, n_tokens = layout.place_BHrL, layout.place_BHrL.shape[-1]
    # the most that there can be; on an accelerator looking would wait
    most = max((size + 2) * (n_tokens + 1), layout.n_slots)
    if place.device.type == "cpu" and not torch.compiler.is_compiling():
        most = max(int(place.max()), layout.n_slots)
    beyond = 2 * most + 8 * size + 8
    return next(t for t in INTEGERS if beyond <= torch.iinfo(t).max)


def nowhere(size: int) -> int:
    """Return a place that no query sees."""
    return -2 * size - 2


def _starts(ordered: Tensor) -> Tensor:
    """Mark entries of the last axis that differ from the one before."""
    return F.pad(ordered[..., 1:] != ordered[..., :-1], (1, 0), value=True)


def _by_token(x_BHrL: Tensor | None, order_BHrL: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Bring what is known of sorted tokens back to the order of the tokens."""
    if x_BHrL is None:
        return None
    return torch.empty_like(order_BHrL, dtype=dtype).scatter_(-1, order_BHrL, x_BHrL.to(dtype))
