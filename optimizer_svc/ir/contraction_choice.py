"""Which contractions of one kind kernels compute instead of the framework's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ContractionChoice:
    """The results of the extern nodes that become prims: attention, convolutions, batched products.

    `factors` are what is multiplied in tiles, which memory must hold. `images` has the image of
    each convolution by its result. `notes` are for the report, one fact a line. `rounded` are the
    results of attention whose shares of values are rounded to the values' type. `widened` are the
    results of extern nodes that the library computes in f32. `parts` has the number of parts into
    which a template kernel divides the keys of attention, by its result.
    """

    results: frozenset[int] = frozenset()
    factors: frozenset[int] = frozenset()
    images: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rounded: frozenset[int] = frozenset()
    widened: frozenset[int] = frozenset()
    parts: Mapping[int, int] = field(default_factory=dict)
