"""Whether an index through several views has grown too large, so that a value should be stored.

A reshape that splits an axis repeats the position for each new axis, in a quotient or a remainder.
Through several such reshapes with permutes between, an index grows exponentially unless it
simplifies.
"""

from __future__ import annotations

from collections.abc import Collection

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, symbol
from kernelfarm.ir.algebra.simplify import Bounds, Range, simplify
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import GATHER_OPS, VIEW_OPS, GraphFacts, operands
from optimizer_svc.analysis.index_maps import Index, operand_index, reshape_groups

MAX_RESHAPES_UNSEEN = 4
"""Reshapes that split axes after which the index is computed and measured: most simplify."""
MAX_INDEX_TERMS = 256
"""The most terms and factors of an index; real models stay below 100."""


class IndexComplexity:
    """Visits a graph in order; counts the reshapes between each value and memory."""

    def __init__(self, facts: GraphFacts, stored: Collection[int]) -> None:
        self._facts = facts
        self._stored = stored
        self._unseen: dict[int, int] = {}
        self._next: dict[int, int] = {}
        # The index in memory over the value's own axes, if it was computed and is small.
        self._known: dict[int, Index] = {}

    def is_too_complex(self, node: Node) -> bool:
        """True if the node's operand should be stored because its index is too large."""
        value = node.results[0]
        inlined = [v for v in operands(node) if v not in self._stored and v in self._unseen]
        spend(1 + len(inlined))
        nearest = max(inlined, key=self._unseen.__getitem__, default=None)
        takes_apart = node.op == "reshape" and self._splits_axis(node)
        self._unseen[value] = int(takes_apart)
        if nearest is None:
            return False
        self._next[value] = nearest
        self._unseen[value] += self._unseen[nearest]
        if self._unseen[value] <= MAX_RESHAPES_UNSEEN:
            return False
        index = self._index_in_memory(value)
        if index is not None:
            self._known[value] = index
            self._unseen[value] = 0
            return False
        # The operand is stored, so the count starts again at this node.
        self._unseen[value] = int(takes_apart)
        del self._next[value]
        return True

    def _splits_axis(self, node: Node) -> bool:
        old = self._facts.types[operands(node)[0]].shape
        return any(len(parts) > 1 for _, parts in reshape_groups(node.types[0].shape, old))

    def _index_in_memory(self, value: int) -> Index | None:
        """The index in memory over the value's own axes; None if it is too large or unknown."""
        shape = self._facts.types[value].shape
        index: Index = tuple(
            ZERO if extent is ONE else symbol(f"x{axis}") for axis, extent in enumerate(shape)
        )
        ranges = {f"x{k}": Range(ZERO, extent - 1) for k, extent in enumerate(shape)}
        bounds = Bounds({**self._facts.bounds.ranges, **ranges})
        try:
            while value in self._next:
                node = self._facts.producers[value]
                if node.op in GATHER_OPS:
                    return None
                value, index = self._next[value], self._step(node, index, bounds)
                if sum(part.parts for part in index) > MAX_INDEX_TERMS:
                    return None
                if value in self._known:
                    return self._through_known(value, index, bounds)
        except InvalidGraphError:  # larger than any expression may be
            return None
        return index

    def _step(self, node: Node, index: Index, bounds: Bounds) -> Index:
        if node.op not in VIEW_OPS:
            return index
        return operand_index(node, index, self._facts.types[operands(node)[0]].shape, bounds)

    def _through_known(self, value: int, index: Index, bounds: Bounds) -> Index | None:
        values = {f"x{axis}": part for axis, part in enumerate(index)}
        whole = tuple(simplify(p.substitute(values), bounds) for p in self._known[value])
        return whole if sum(part.parts for part in whole) <= MAX_INDEX_TERMS else None
