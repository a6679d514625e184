"""Appends nodes to a Prims graph that a pass writes anew."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kernelfarm.ir.graph_ir import Arg, Node, Ref, TensorType
from kernelfarm.ir.prim_attrs import normal_attrs
from kernelfarm.ir.prim_rules import infer
from optimizer_svc.analysis.graph_facts import GraphFacts


class PrimsWriter:
    """The nodes so far, with the types of old and new values.

    A new node has the origins and the location of `like`, the node that it replaces. `reserved` are
    numbers of values that are given by `add_as`.
    """

    def __init__(self, facts: GraphFacts, reserved: Collection[int] = ()) -> None:
        self.nodes: list[Node] = []
        self.types = dict(facts.types)
        inputs = (source.value for source in facts.graph.inputs)
        self._next = 1 + max([*self.types, *inputs, *reserved], default=0)

    def fresh(self, tensor: TensorType) -> int:
        """A new value of a type."""
        self._next += 1
        self.types[self._next - 1] = tensor
        return self._next - 1

    def add(self, like: Node, op: str, *values: int, **attrs: Arg) -> int:
        """Appends a prim with a new result, and returns that."""
        made = self._made(like, op, values, attrs)
        result = self.fresh(made.types[0])
        self.nodes.append(replace(made, results=(result,)))
        return result

    def add_as(self, result: int, like: Node, op: str, *values: int, **attrs: Arg) -> None:
        """Appends a prim whose result has a reserved number."""
        made = self._made(like, op, values, attrs)
        self.types[result] = made.types[0]
        self.nodes.append(replace(made, results=(result,)))

    def name_last(self, result: int) -> int:
        """Gives the result of the last prim a reserved number, and returns that."""
        last = self.nodes.pop()
        self.types[result] = last.types[0]
        self.nodes.append(replace(last, results=(result,)))
        return result

    def finish(self, like: Node, op: str, *values: int, **attrs: Arg) -> None:
        """Appends the prim that has the result of `like`, of the same type without strides."""
        made = self._made(like, op, values, attrs)
        (result,), (tensor,) = like.results, like.types
        self.types[result] = replace(tensor, strides=None)
        self.nodes.append(replace(made, results=(result,), types=(self.types[result],)))

    def _made(self, like: Node, op: str, values: tuple[int, ...], attrs: dict[str, Arg]) -> Node:
        args = tuple(Ref(value) for value in values)
        draft = Node(op, args, normal_attrs(attrs), (), (), like.origins, like.location)
        return replace(draft, types=infer(draft, tuple(self.types[v] for v in values)))
