"""Which convolutions of a graph kernels compute instead of the framework's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ConvolutionChoice:
    """The images of the extern nodes that become prims, by their results, and all their weights.

    `notes` are for the report.
    """

    images: Mapping[int, int] = field(default_factory=dict)
    weights: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def factors(self) -> frozenset[int]:
        """The values that are multiplied in tiles, which memory must hold."""
        return self.weights | frozenset(self.images.values())
