"""Which contractions of one kind kernels compute instead of the framework's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kernelfarm.ir.algebra.expr import Expr
from optimizer_svc.analysis.page_tables import PagedOperands

Index = tuple[Expr, ...]


class WinogradValues(NamedTuple):
    """Values of a convolution by Winograd's algorithm, for t tiles of all images.

    `stacked` is the transformed image, `transformed` a view of it: the left factors of 16 products.

    Shapes: (16, n, tiles down, tiles right, c), (16, t, c), (16, t, k)
    """

    stacked: int
    transformed: int
    products: int


class ScoreValues(NamedTuple):
    """Values of attention that memory may hold, a number for each query and key.

    `products` are those of queries and keys, `scores` are scaled and masked.
    """

    products: int
    scores: int
    shares: int


class GradientValues(NamedTuple):
    """Values in memory of gradients of attention, of which a product reads one after the other.

    `shares` are the weights of values, `scores` the gradients of scores before they are scaled. If
    pairs are multiplied, `keys` are the keys as rows of terms. `queries` are the gradients of the
    queries before they are scaled and their axes have their order. `mask` is the gradient of a
    mask: a sum before its axes have their order, or, if memory holds it, a number for each score.
    b: batch, g: heads of keys, h: heads of a group, q: queries, s: keys, d: width of a head

    Shapes:
        shares and scores: (b, g, h, s, q); keys: (b, g, d, s)
        queries: (b, q, g, h, d), or (b, g, h, d, q) if pairs are multiplied
        mask: those axes of (b, g, h, s, q) that are not summed, or (b, g, h, q, s)
    """

    shares: int
    scores: int
    keys: int
    queries: int
    mask: int


@dataclass(frozen=True, slots=True)
class ContractionChoice:
    """The results of the extern nodes that become prims: attention, convolutions, batched products.

    `factors` are what is multiplied in tiles, which memory must hold. `images` has the image of
    each convolution by its result. `notes` are for the report, one fact a line. `rounded` are the
    results of attention whose shares of values are rounded to the values' type. `widened` are the
    results of extern nodes that the library computes in f32. `parts` has the number of parts into
    which a template kernel divides the keys of attention, by its result; `pages` says where keys
    and values are that it reads in pages of a cache. `whole` are the results of attention, and of
    its gradients, that template kernels compute alone; for those `by_heads`,
    prims sum the gradients of keys over the heads of queries, and `mask_parts` has the number of
    parts in which the gradient of a mask is summed, if it is read. `transformed` has the values in
    memory of a convolution by Winograd's algorithm, by its result; `strides` has those of values
    that are not row-major there, or that would not be in memory. `weights` has the weight of a
    depthwise convolution that prims compute, by its result: a value (down, across, channels).
    `rows` has the image of a convolution that a GPU computes, by its result: a value (pixels,
    channels), or (images, down, across, channels), whose rows memory holds. Convolutions by windows
    have `weights`, too: values (results, down, across, channels). The pixels of the first
    `split_taps` axes of their windows are slices of the sum. Memory holds those that are `stored`.
    `masked` has the scores of attention whose kernels read no keys that a mask hides, by its
    result: a value in memory, whose `strides` are stated. `gradients` has the values in memory of
    gradients of attention, by the first one; for those in `mask_gradients`, that of the mask is
    read, too. What reads values in `ends` is in other kernels. `saving` are the results of
    attention whose log-sum-exps are read, too. `scores` has the values of attention of several
    queries that may be in memory, by its result; `causal` are those results in which later keys are
    hidden.
    """

    results: frozenset[int] = frozenset()
    factors: frozenset[int] = frozenset()
    images: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rounded: frozenset[int] = frozenset()
    widened: frozenset[int] = frozenset()
    parts: Mapping[int, int] = field(default_factory=dict)
    pages: Mapping[int, PagedOperands] = field(default_factory=dict)
    whole: frozenset[int] = frozenset()
    by_heads: frozenset[int] = frozenset()
    mask_parts: Mapping[int, int] = field(default_factory=dict)
    transformed: Mapping[int, WinogradValues] = field(default_factory=dict)
    strides: Mapping[int, Index] = field(default_factory=dict)
    weights: Mapping[int, int] = field(default_factory=dict)
    rows: Mapping[int, int] = field(default_factory=dict)
    split_taps: Mapping[int, int] = field(default_factory=dict)
    stored: frozenset[int] = frozenset()
    masked: Mapping[int, int] = field(default_factory=dict)
    gradients: Mapping[int, GradientValues] = field(default_factory=dict)
    mask_gradients: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    saving: frozenset[int] = frozenset()
    scores: Mapping[int, ScoreValues] = field(default_factory=dict)
    causal: frozenset[int] = frozenset()

    @property
    def blocked(self) -> frozenset[int]:
        """Values that kernels may compute in blocks."""
        gradients = (v for own in self.gradients.values() for v in (own.shares, own.scores))
        return frozenset((*gradients, *(v for own in self.scores.values() for v in own)))

    @property
    def causal_scores(self) -> frozenset[int]:
        """Those of the scores of causal attention."""
        own = self.causal & self.scores.keys()
        return frozenset(value for result in own for value in self.scores[result])

    @property
    def turned_causal_scores(self) -> frozenset[int]:
        """Those of its gradients, whose rows are keys."""
        own = (self.gradients[result] for result in self.causal & self.gradients.keys())
        return frozenset(v for made in own for v in (made.shares, made.scores))

    @property
    def with_all_results(self) -> frozenset[int]:
        """The first results of nodes of which prims compute others, too."""
        return self.whole | self.saving | self.gradients.keys()
