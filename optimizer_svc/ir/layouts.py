"""The layouts of a program's images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optimizer_svc.analysis.index_maps import Index


@dataclass(frozen=True, slots=True)
class Layouts:
    """The strides that values have in memory.

    `strides` has values that kernels or the framework make; `copies` has the strides of the copies
    that extern nodes take instead of an operand, by position of the node and number of the operand.
    `notes` are decisions for the report, one fact a line. Units: strides in elements.
    """

    strides: Mapping[int, Index]
    copies: Mapping[tuple[int, int], Index]
    notes: tuple[str, ...] = ()
