"""Turns scatters into a view of an input into scatters into the input, which can be in place.

    scatter(reshape(x; (p * r, w)), i, u; dims=[0])
        ->  reshape(scatter(x, i // r, i % r, u; dims=[0, 1]))    for x of shape (p, r, w)
    cat(reshape(scatter(reshape(x[0]), i, u; dims=[0])), x[1:])
        ->  scatter(x, 0, i, u; dims=[0, 1])

Servers write tokens so to the pages of a cache, by one number for a page and a row of it, and to
the keys and the values in one cache. Memory has one layout for each value that a kernel writes:
without this pass, the whole cache would be copied to memory of its own and back. A negative index,
whose quotient is negative, too, counts from the end as before, and one outside of the axis has a
quotient outside of its axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, product_of
from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.graph_facts import (
    GraphFacts,
    exprs_attr,
    graph_facts,
    int_attr,
    ints_attr,
    operands,
)
from optimizer_svc.analysis.index_maps import Index, reshape_groups
from optimizer_svc.analysis.updates import updated_inputs
from optimizer_svc.ir.prims_writer import PrimsWriter
from optimizer_svc.ir.renaming import renamed, with_values


def scatter_into_inputs(graph: Graph) -> Graph:
    """The graph in which updated inputs are scattered into as they are."""
    sources = frozenset(updated_inputs(graph).values())
    if not sources or not any(node.op == "scatter" for node in graph.nodes):
        return graph
    writer = _Writer(graph_facts(graph), sources)
    for node in graph.nodes:
        spend(1)
        writer.write(with_values(node, writer.same))
    if not writer.is_changed:
        return graph
    outputs = tuple(renamed(output, writer.same) for output in graph.outputs)
    return replace(graph, nodes=tuple(writer.nodes), outputs=outputs)


@dataclass(frozen=True, slots=True)
class _Split:
    """An axis into which elements are scattered, as axes of the whole tensor.

    `extents` are those of the axes, of which all but the first one are constant.
    """

    axes: tuple[int, ...]
    extents: Index


@dataclass(frozen=True, slots=True)
class _WrittenSlice:
    """The slice of extent 1 at `start` of an axis of a whole tensor, into which a node scatters."""

    scatter: Node
    whole: int
    axis: int
    start: int


class _Writer(PrimsWriter):
    """Writes nodes anew.

    `wholes` has the scatter into a whole tensor that a scatter's result is a reshape of. `same` has
    those that take the place of reshapes back to the whole tensor, and of cats that restore it.
    """

    def __init__(self, facts: GraphFacts, sources: frozenset[int]) -> None:
        super().__init__(facts)
        self._facts = facts
        self._sources = sources
        self.wholes: dict[int, int] = {}
        self.same: dict[int, int] = {}
        self.is_changed = False

    def write(self, node: Node) -> None:
        """Appends a node, or what takes its place."""
        if node.op == "scatter" and (whole := self._whole(operands(node)[0])) is not None:
            self._write_scatter(node, whole)
            return
        if node.op == "cat" and (written := self._written_slice(node)) is not None:
            made = self._scattered(written.scatter, written.whole, written)
            if made is not None:
                self.same[node.results[0]] = self.wholes[node.results[0]] = made
                return
        if node.op == "reshape" and self.is_changed:
            whole = self._whole(operands(node)[0])
            if whole is not None and self.types[whole].shape == node.types[0].shape:
                self.same[node.results[0]] = whole
                return
        self.nodes.append(node)

    def _write_scatter(self, node: Node, whole: int) -> None:
        """Appends a scatter into an input, or into a result of one."""
        made = None
        if whole == operands(node)[0]:
            self.wholes[node.results[0]] = node.results[0]
        else:
            made = self._scattered(node, whole)
        if made is None:
            self.nodes.append(node)
            return
        self.finish(node, "reshape", made, shape=node.types[0].shape)
        self.wholes[node.results[0]] = made

    def _scattered(
        self, node: Node, whole: int, written: _WrittenSlice | None = None
    ) -> int | None:
        """The scatter into a whole tensor that one into a reshape, or a slice, of it is.

        None if its indices are none of axes of the tensor.
        """
        base, *indices, updates = operands(node)
        shape, viewed = self.types[whole].shape, list(self.types[whole].shape)
        if written is not None:
            viewed[written.axis] = ONE
        splits = _splits(self.types[base].shape, ints_attr(node, "dims"), tuple(viewed))
        if splits is None:
            return None
        taken = tuple(axis for split in splits for axis in split.axes)
        parts = [
            part
            for index, split in zip(indices, splits, strict=True)
            for part in self._parts(node, index, split.extents)
        ]
        if written is not None:
            kind = self.types[parts[0]]
            start = self.add(node, "full", dtype=kind.dtype, shape=kind.shape, value=written.start)
            parts, taken = [start, *parts], (written.axis, *taken)
        rest = tuple(extent for axis, extent in enumerate(shape) if axis not in taken)
        rows = (*self.types[indices[0]].shape, *rest)
        if rows != self.types[updates].shape:
            updates = self.add(node, "reshape", updates, shape=rows)
        made = self.add(node, "scatter", whole, *parts, updates, dims=taken, mode=node.attr("mode"))
        self.wholes[made] = made
        self.is_changed = True
        return made

    def _written_slice(self, node: Node) -> _WrittenSlice | None:
        """The slice of a whole tensor that is written if a cat joins it with the rest of this.

        None for other cats.
        """
        axis, pieces = int_attr(node, "dim"), self._facts.pieces[node.results[0]]
        scatters = [self._own_scatter(piece.value) for piece in pieces]
        found = [at for at, scatter in enumerate(scatters) if scatter is not None]
        if len(found) != 1:
            return None
        piece, scatter = pieces[found[0]], scatters[found[0]]
        assert scatter is not None  # it was found
        bases = [
            self._sliced(operands(scatter)[0] if at in found else each.value, axis, each.start)
            for at, each in enumerate(pieces)
        ]
        whole, is_select = bases[0], (piece.limit - piece.start) is ONE
        if whole is None or set(bases) != {whole} or not (is_select and piece.start.is_constant):
            return None
        if self.types[whole].shape != node.types[0].shape:
            return None
        return _WrittenSlice(scatter, whole, axis, piece.start.constant)

    def _own_scatter(self, value: int) -> Node | None:
        """The scatter that a value is a reshape of, if nothing else reads it."""
        while len(self._facts.consumers[value]) == 1:
            spend(1)
            node = self._facts.producers.get(value)
            if node is None or node.op not in ("reshape", "scatter"):
                return None
            if node.op == "scatter":
                return with_values(node, self.same)
            value = operands(node)[0]
        return None

    def _sliced(self, value: int, axis: int, start: Expr) -> int | None:
        """The whole tensor of which a value is a slice along an axis, or a reshape of one."""
        node = self._facts.producers.get(value)
        while node is not None and node.op == "reshape":
            spend(1)
            node = self._facts.producers.get(operands(node)[0])
        if node is None or node.op != "slice":
            return None
        whole = self._whole(operands(node)[0])
        starts, steps = exprs_attr(node, "starts"), exprs_attr(node, "steps")
        is_here = all(own is (start if at == axis else ZERO) for at, own in enumerate(starts))
        if whole is None or not is_here or any(step is not ONE for step in steps):
            return None
        extents = zip(node.types[0].shape, self.types[whole].shape, strict=True)
        is_whole = all(a is b for at, (a, b) in enumerate(extents) if at != axis)
        return whole if is_whole else None

    def _whole(self, value: int) -> int | None:
        """The input, or the scatter into one, that a value is a reshape of; None if it is none."""
        while value not in self._sources and value not in self.wholes:
            spend(1)
            node = self._facts.producers.get(value)
            if node is None or node.op != "reshape":
                return None
            value = operands(node)[0]
        return self.wholes.get(value, value)

    def _parts(self, node: Node, index: int, extents: Index) -> list[int]:
        """An index as indices of the axes that it joins, of which the first one may be negative."""
        if len(extents) == 1:
            return [index]
        if self.types[index].dtype is not DType.I64:
            index = self.add(node, "convert", index, dtype=DType.I64)
        parts = []
        for axis, extent in enumerate(extents):
            step = product_of(extents[axis + 1 :]).as_int()
            part = index if step == 1 else self._by(node, "floor_div", index, step)
            parts.append(self._by(node, "mod_floor", part, extent.as_int()) if axis else part)
        return parts

    def _by(self, node: Node, op: str, value: int, number: int) -> int:
        shape = self.types[value].shape
        other = self.add(node, "full", dtype=DType.I64, shape=shape, value=number)
        return self.add(node, op, value, other)


def _splits(shape: Index, dims: Sequence[int], whole: Index) -> list[_Split] | None:
    """The axes `dims` of a reshape as axes of the whole tensor; None if others are joined to them.

    Axes behind the first one of each have constant extents, by which an index is divided.
    """
    found: dict[int, _Split] = {}
    if is_empty(whole):
        return None
    for own, old in reshape_groups(shape, whole):
        if own and own[0] in dims:
            extents = tuple(whole[axis] for axis in old)
            is_alone = len(own) == 1 and old and all(e.is_constant for e in extents[1:])
            if not is_alone:
                return None
            found[own[0]] = _Split(tuple(old), extents)
        elif not set(own).isdisjoint(dims):
            return None
    return [found[dim] for dim in dims] if found.keys() >= set(dims) else None
