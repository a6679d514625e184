"""Cuts the products of matrices out of a captured graph, each with what belongs to it.

A fragment is a graph of its own: a product, the views that make its operands, and the pointwise
operators behind it that read only it and values that do not depend on it, such as a bias, an
activation, a residual or a gate. A weight that pointwise operators compute from arguments, such as
one of integers, is a part, too. What clients measure of a fragment holds for the product in the
whole graph, because kernels fuse at most this with a product, except for other products that share
its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from kernelfarm.client.capture.captured import CapturedGraph, ModuleOutput
from kernelfarm.client.pytorch.private import OpOverload
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import (
    Arg,
    Graph,
    Input,
    Node,
    Ref,
    TensorType,
    tensor_type_of,
    uses_of,
)
from kernelfarm.ir.product_choice import PRODUCT_OPS

MAX_FRAGMENT_NODES: Final = 32
"""Later pointwise operators do not decide who computes a product."""
MAX_FRAGMENTS: Final = 256
"""Different fragments of a graph; further ones are not tuned."""
MAX_INPUT_BYTES: Final = 2 * 1024**3
"""Of the inputs of a fragment: who measures it needs so much memory, and that of the results."""

_VIEWS: Final = frozenset(
    {
        "aten._unsafe_view.default",
        "aten.alias.default",
        "aten.expand.default",
        "aten.permute.default",
        "aten.reshape.default",
        "aten.squeeze.default",
        "aten.squeeze.dim",
        "aten.squeeze.dims",
        "aten.t.default",
        "aten.transpose.int",
        "aten.unsqueeze.default",
        "aten.view.default",
    }
)
_CONVERSION: Final = "aten._to_copy.default"


@dataclass(frozen=True, slots=True)
class ProductFragment:
    """A product as a graph of its own; `nodes` are the products of the whole graph that equal it.

    They are numbers of captured nodes, in ascending order.
    """

    nodes: tuple[int, ...]
    captured: CapturedGraph

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The types of its inputs, in order; `captured.sources` has the content of constants."""
        found = (tensor_type_of(source) for source in self.captured.graph.inputs)
        return tuple(kind for kind in found if kind is not None)


@dataclass(frozen=True, slots=True)
class FoundFragments:
    """The fragments of a graph, and why other products have none: a reason for each of them."""

    fragments: tuple[ProductFragment, ...]
    refused: tuple[str, ...]


def product_fragments(captured: CapturedGraph) -> FoundFragments:
    """The fragments of a captured graph, equal ones once, in the order of their first products."""
    cutter = _Cutter(captured)
    found: dict[Graph, tuple[list[int], CapturedGraph]] = {}
    refused = []
    for number, node in enumerate(captured.graph.nodes):
        if node.op not in PRODUCT_OPS:
            continue
        cut = cutter.cut(number)
        if isinstance(cut, str):
            refused.append(cut)
        elif cut.graph in found:
            found[cut.graph][0].append(number)
        elif len(found) == MAX_FRAGMENTS:
            refused.append("many")
        else:
            found[cut.graph] = [number], cut
    fragments = (ProductFragment(tuple(nodes), cut) for nodes, cut in found.values())
    return FoundFragments(tuple(fragments), tuple(refused))


class _Cutter:
    """Cuts fragments out of one captured graph."""

    def __init__(self, captured: CapturedGraph) -> None:
        self._captured = captured
        self._graph = captured.graph
        self._types = captured.graph.types()
        self._makers = {
            result: number
            for number, node in enumerate(captured.graph.nodes)
            for result in node.results
        }
        self._inputs = {
            source.value: (source, at)
            for source, at in zip(captured.graph.inputs, captured.sources, strict=True)
        }
        self._readers: dict[int, list[int]] = {}
        for number, node in enumerate(captured.graph.nodes):
            for value in dict.fromkeys(uses_of(node)):
                self._readers.setdefault(value, []).append(number)
        self._returned = {out.value for out in captured.graph.outputs if isinstance(out, Ref)}

    def cut(self, product: int) -> CapturedGraph | str:
        """The fragment of a product, or the reason why there is none."""
        node = self._graph.nodes[product]
        operands = [arg.value for arg in node.args if isinstance(arg, Ref)]
        if len(operands) != len([*uses_of(node)]):
            return "operands"
        if node.types[0].dtype.is_opaque:
            return "types"
        before = {*self._views_of(operands)}
        before |= self._weight(operands[-1], before | {product})
        behind = self._behind(product, MAX_FRAGMENT_NODES - 1 - len(before))
        made = self._made(sorted({*before, product, *behind}), {product, *behind})
        if any(map(_has_symbols, made.graph.nodes)) or any(map(_varies, made.graph.inputs)):
            return "sizes"
        if self._reads_packed(made.graph, before, product, behind):
            return "packed"
        return "memory" if _input_bytes(made.graph) > MAX_INPUT_BYTES else made

    def _views_of(self, values: Iterable[int]) -> Iterator[int]:
        """The views that make values, as numbers of nodes."""
        for value in values:
            at = self._makers.get(value)
            while at is not None and self._graph.nodes[at].op in _VIEWS:
                yield at
                at = self._makers.get(next(uses_of(self._graph.nodes[at])))

    def _weight(self, value: int, known: set[int]) -> set[int]:
        """The nodes that compute a weight from arguments alone; none if there is more in it."""
        pending, found = [value], set[int]()
        while pending:
            at = self._makers.get(pending.pop())
            if at is None or at in found:
                continue
            if not (self._is_pointwise(at) or self._graph.nodes[at].op in _VIEWS):
                return set()
            found.add(at)
            if len(found | known) > MAX_FRAGMENT_NODES // 2:
                return set()
            pending += uses_of(self._graph.nodes[at])
        return found

    def _behind(self, product: int, most: int) -> set[int]:
        """The pointwise operators and views behind a product, without views at the end."""
        inside = {*self._graph.nodes[product].results}
        outside: set[int] = set()
        found: set[int] = set()
        for number in self._dependents(product):
            node = self._graph.nodes[number]
            is_known = self._is_pointwise(number) or node.op in _VIEWS
            if is_known and len(found) < most and outside.isdisjoint(uses_of(node)):
                found.add(number)
                inside.update(node.results)
            else:
                outside.update(node.results)
        return self._without_last_views(found)

    def _dependents(self, product: int) -> Iterator[int]:
        """The nodes that depend on a product, in order, as far as its fragment may need them."""
        reached = {*self._graph.nodes[product].results}
        last = min(len(self._graph.nodes), product + 1 + 8 * MAX_FRAGMENT_NODES)
        for number in range(product + 1, last):
            node = self._graph.nodes[number]
            if not reached.isdisjoint(uses_of(node)):
                reached.update(node.results)
                yield number

    def _without_last_views(self, found: set[int]) -> set[int]:
        """Nodes without the views that no other one of them reads: memory has what they view."""
        kept = set(found)
        for number in sorted(found, reverse=True):
            node = self._graph.nodes[number]
            readers = (r for result in node.results for r in self._readers.get(result, ()))
            if node.op in _VIEWS and kept.isdisjoint(readers):
                kept.remove(number)
        return kept

    def _is_pointwise(self, number: int) -> bool:
        node, target = self._graph.nodes[number], self._captured.nodes[number].target
        if len(node.results) != 1 or not isinstance(target, OpOverload):
            return False
        return node.op == _CONVERSION or torch.Tag.pointwise in target.tags

    def _made(self, numbers: Sequence[int], computing: set[int]) -> CapturedGraph:
        """The graph of some nodes; its outputs are what others read of the `computing` ones."""
        nodes = [self._graph.nodes[number] for number in numbers]
        made_here = {result for node in nodes for result in node.results}
        read = dict.fromkeys(value for node in nodes for value in uses_of(node))
        given = [value for value in read if value not in made_here]
        order = [*given, *(result for node in nodes for result in node.results)]
        names = {value: number for number, value in enumerate(order)}
        returned = [names[value] for value in self._stored(numbers, computing)]
        types = {names[value]: self._types[value] for value in order}
        graph = Graph(
            self._graph.dialect,
            (),
            tuple(self._input(value, names[value]) for value in given),
            tuple(_renamed(node, number, names) for number, node in enumerate(nodes)),
            tuple(map(Ref, returned)),
            tuple(types[value] for value in returned),
            abi_version=self._graph.abi_version,
        )
        sources = self._sources(given)
        return CapturedGraph(
            graph,
            sources,
            tuple(self._captured.nodes[number] for number in numbers),
            self._captured.device,
            tuple(map(ModuleOutput, range(len(returned)))),
        )

    def _stored(self, numbers: Sequence[int], computing: set[int]) -> list[int]:
        """The values that are in memory behind the fragment: what other nodes read of it."""
        inside = set(numbers)
        found: dict[int, None] = {}
        for number in sorted(computing):
            for result in self._graph.nodes[number].results:
                is_read = not inside.issuperset(self._readers.get(result, ()))
                if is_read or result in self._returned:
                    found[self._viewed(result, computing)] = None
        return [*found] or [self._graph.nodes[max(computing)].results[0]]

    def _viewed(self, value: int, computing: set[int]) -> int:
        """What a value views, or the value itself."""
        at = self._makers[value]
        while at in computing and self._graph.nodes[at].op in _VIEWS:
            value = next(uses_of(self._graph.nodes[at]))
            at = self._makers[value]
        return value

    def _input(self, value: int, name: int) -> Input:
        """An input of a fragment: a constant stays one."""
        known = self._inputs.get(value)
        if known is not None and isinstance(known[1], torch.Tensor):
            return Input(name, known[0].kind)
        return Input(name, self._types[value])

    def _sources(self, given: Sequence[int]) -> tuple[int | torch.Tensor, ...]:
        """Where inputs are: positions among the arguments of a call, or tensors of the graph."""
        found: list[int | torch.Tensor] = []
        position = 0
        for value in given:
            _, at = self._inputs.get(value, (None, position))
            if isinstance(at, torch.Tensor):
                found.append(at)
            else:
                found.append(position)
                position += 1
        return tuple(found)

    def _reads_packed(
        self, graph: Graph, before: Iterable[int], product: int, behind: Iterable[int]
    ) -> bool:
        """True if a fragment reads an argument in a layout of the framework's library."""
        numbers = (*before, product, *behind)
        read = {value for number in numbers for value in uses_of(self._graph.nodes[number])}
        positions = (self._inputs[value][1] for value in read if value in self._inputs)
        return any(at in self._captured.packed for at in positions if isinstance(at, int))


def _renamed(node: Node, number: int, names: dict[int, int]) -> Node:
    """A node of the fragment, without what is part of no key."""

    def renamed(arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(names[arg.value])
        return tuple(map(renamed, arg)) if isinstance(arg, tuple) else arg

    return replace(
        node,
        args=tuple(map(renamed, node.args)),
        attrs=tuple((name, renamed(arg)) for name, arg in node.attrs),
        results=tuple(names[result] for result in node.results),
        origins=(number,),
        location=0,
    )


def _has_symbols(node: Node) -> bool:
    """True if a size of a node varies between calls."""
    args: Arg = (*node.args, *(arg for _, arg in node.attrs))
    return any(map(_is_sized, node.types)) or _any_in(args, _is_varying)


def _varies(source: Input) -> bool:
    """True if an input is a size, or a size of it varies between calls."""
    kind = tensor_type_of(source)
    return kind is None or _is_sized(kind)


def _is_sized(kind: TensorType) -> bool:
    return any(map(_is_varying, (*kind.shape, *(kind.strides or ()))))


def _is_varying(arg: Arg) -> bool:
    return isinstance(arg, Expr) and not arg.is_constant


def _any_in(arg: Arg, is_found: Callable[[Arg], bool]) -> bool:
    return any(_any_in(item, is_found) for item in arg) if isinstance(arg, tuple) else is_found(arg)


def _input_bytes(graph: Graph) -> int:
    """The memory of a fragment's inputs, if each has its own."""
    kinds = (tensor_type_of(source) for source in graph.inputs)
    return sum(
        math.prod(extent.as_int() for extent in kind.shape) * kind.dtype.itemsize_bytes
        for kind in kinds
        if kind is not None
    )
