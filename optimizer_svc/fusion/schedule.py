"""The schedule while fusion works on it: groups, extern nodes, and who makes what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.program_ir import BufferKind
from optimizer_svc.analysis.extents import likely_elems
from optimizer_svc.analysis.graph_facts import operands, scatter_bases
from optimizer_svc.fusion.dependences import Dependences
from optimizer_svc.fusion.group import Group, seed_group
from optimizer_svc.nest import Nest
from optimizer_svc.passes.choose_materialized import Materialization

_RANDOM_WORDS = ("rand", "bernoulli", "dropout", "multinomial", "normal_", "uniform", "exponential")


class Schedule:
    """Groups and extern nodes by the graph position of what they began with."""

    def __init__(self, chosen: Materialization, nests: Sequence[Nest]) -> None:
        self.chosen = chosen
        self.groups: dict[int, Group] = {}
        self.externs: dict[int, Node] = {}
        self.dependences = Dependences()
        self.maker: dict[int, int] = {}
        self.hints = {s.name: s.hint for s in chosen.facts.graph.symbols if s.hint is not None}
        self._readers: dict[int, set[int]] = {}
        self._operand_sources = {view.source for view in chosen.operand_views.values()}
        self._bases = scatter_bases(chosen.facts)
        self._fill(nests)

    def reading(self, value: int) -> frozenset[int]:
        """Groups that read a value."""
        return frozenset(self._readers.get(value, ()))

    def is_stored(self, value: int) -> bool:
        """True if somebody outside the group that makes a value needs it in memory."""
        kind = self.chosen.storages[value].kind
        if kind is BufferKind.OUTPUT or value in self._operand_sources or value in self._bases:
            return True
        return any(reader != self.maker[value] for reader in self._readers.get(value, ()))

    def replace(self, kept: int, gone: int, group: Group) -> None:
        """Puts a merged group in the place of two."""
        for value in self.groups.pop(gone).placements:
            self.maker[value] = kept
        for value, _ in group.reads:
            self._readers[value].discard(gone)
            self._readers[value].add(kept)
        self.groups[kept] = group
        self.dependences.merge(kept, gone)

    def memory_values(self, group: Group) -> set[int]:
        """Values that a kernel of this group would load or store."""
        loads = {value for value, _ in group.reads if value not in group.placements}
        return loads | {value for value in group.placements if self.is_stored(value)}

    def size_bytes(self, value: int) -> int:
        """Likely bytes of a value."""
        storage = self.chosen.storages[value]
        return likely_elems(storage.shape, self.hints) * storage.dtype.itemsize_bytes

    def _fill(self, nests: Sequence[Nest]) -> None:
        facts = self.chosen.facts
        by_position = {facts.positions[nest.value]: nest for nest in nests}
        last_random: list[int] = []
        for position, node in enumerate(facts.graph.nodes):
            if position in by_position:
                self._add_group(position, by_position[position])
            elif node.op == "extern":
                is_random = any(word in str(node.attr("op")) for word in _RANDOM_WORDS)
                before = [*self._sources(node), *(last_random if is_random else ())]
                self._add_extern(position, node, before)
                last_random = [position] if is_random else last_random

    def _add_group(self, position: int, nest: Nest) -> None:
        group = self.groups[position] = seed_group(nest, position)
        reads = [value for value, _ in group.reads]
        needed = list(reads)
        if nest.scatter is not None:
            needed.append(operands(self.chosen.facts.producers[nest.value])[0])
        self.dependences.add(position, (self.maker[v] for v in needed if v in self.maker))
        for value in reads:
            self._readers.setdefault(value, set()).add(position)
        self.maker[nest.value] = position

    def _add_extern(self, position: int, node: Node, before: list[int]) -> None:
        self.externs[position] = node
        self.dependences.add(position, before)
        for value in node.results:
            self.maker[value] = position

    def _sources(self, node: Node) -> Iterator[int]:
        for value in operands(node):
            source = self.chosen.operand_views[value].source
            if source in self.maker:
                yield self.maker[source]
