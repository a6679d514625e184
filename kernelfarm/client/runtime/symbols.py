"""Reads the sizes of a call from its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import Graph, TensorType

SizeSource = tuple[int, int]
"""An argument's position and an axis; axis -1 means that the argument itself is the size."""


class SymbolReader:
    """Reads each size once, for the plan's symbols and for the captured graph's."""

    def __init__(self, program: BoundProgram) -> None:
        sources: dict[SizeSource, int] = {}

        def number_of(graph_input: int, axis: int) -> int:
            source = program.captured.sources[graph_input]
            if not isinstance(source, int):
                raise InvalidGraphError(f"plan: a symbol read from a held tensor ({graph_input})")
            return sources.setdefault((source, axis), len(sources))

        plan = program.plan.symbols
        traced = symbol_sources(program.captured.graph)
        self._plan = [(s.symbol, number_of(s.input, s.axis)) for s in plan]
        self._traced = [(name, number_of(i, axis)) for name, (i, axis) in traced.items()]
        self._sources = list(sources)

    @property
    def is_static(self) -> bool:
        """True if no size varies."""
        return not self._sources

    def read(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The sizes of a call, in the reader's order."""
        return tuple(
            int(args[position]) if axis < 0 else int(args[position].shape[axis])
            for position, axis in self._sources
        )

    def named(self, values: tuple[int, ...]) -> tuple[dict[str, int], dict[str, int]]:
        """The sizes of `read`, by the plan's symbols and by the captured graph's."""
        return (
            {name: values[number] for name, number in self._plan},
            {name: values[number] for name, number in self._traced},
        )


def symbol_sources(graph: Graph) -> dict[str, tuple[int, int]]:
    """The first input that has each symbol as an extent, and the axis."""
    found: dict[str, tuple[int, int]] = {}
    names = {symbol.name for symbol in graph.symbols}
    for number, source in enumerate(graph.inputs):
        if isinstance(source.kind, str):
            found.setdefault(source.kind, (number, -1))
        elif isinstance(source.kind, TensorType):
            for axis, extent in enumerate(source.kind.shape):
                if str(extent) in names:
                    found.setdefault(str(extent), (number, axis))
    return found
