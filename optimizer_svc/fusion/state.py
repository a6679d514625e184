"""The state of fusion: groups, extern nodes, and the makers and readers of values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.program_ir import BufferKind
from optimizer_svc.analysis.extents import likely_elems, likely_sizes
from optimizer_svc.analysis.graph_facts import operands, scatter_bases
from optimizer_svc.analysis.storages import StorageId
from optimizer_svc.fusion.dependences import Dependences
from optimizer_svc.ir.group import Group, seed_group
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.nest import Nest

_RANDOM_WORDS = (
    "rand", "rng_state", "bernoulli", "dropout", "multinomial", "normal", "uniform", "exponential",
    "cauchy", "geometric", "rrelu_with", "poisson", "binomial",
)  # fmt: skip


class FusionState:
    """Groups and extern nodes, named by the graph position of their first node."""

    def __init__(self, chosen: Materialization, nests: Sequence[Nest]) -> None:
        self.chosen = chosen
        self.groups: dict[int, Group] = {}
        self.externs: dict[int, Node] = {}
        self.dependences = Dependences()
        self.maker: dict[int, int] = {}
        self.likely = likely_sizes(chosen.facts.graph.symbols)
        self._readers: dict[int, set[int]] = {}
        self._slices: dict[int, list[int]] = {}
        for value, stored_slice in chosen.slices.items():
            self._slices.setdefault(stored_slice.value, []).append(value)
        self._operand_sources = {view.source for view in chosen.operand_views.values()}
        self._bases = scatter_bases(chosen.facts)
        self._fill(nests)
        self._order_overwrites()

    def reading(self, value: int) -> frozenset[int]:
        """The groups that read a value."""
        return frozenset(self._readers.get(value, ()))

    def is_stored(self, value: int) -> bool:
        """True if a value is needed in memory outside of the group that makes it."""
        kind = self.chosen.storages[value].kind
        is_kept = kind in (BufferKind.OUTPUT, BufferKind.INPUT)
        if is_kept or value in self._operand_sources or value in self._bases:
            return True
        if value in self.chosen.slices:
            return True
        return any(reader != self.maker[value] for reader in self._readers.get(value, ()))

    def replace(self, kept: int, gone: int, group: Group) -> None:
        """Replaces two groups by their merged group."""
        for value in self.groups.pop(gone).positions:
            self.maker[value] = kept
        for value, _ in group.reads:
            self._readers[value].discard(gone)
            self._readers[value].add(kept)
        self.groups[kept] = group
        self.dependences.merge(kept, gone)

    def storage_ids(self, group: Group) -> set[StorageId]:
        """The storages that a kernel of this group would load from or store to."""
        values = {value for value, _ in group.reads if value not in group.positions}
        values.update(value for value in group.positions if self.is_stored(value))
        return {self.chosen.storages[value].storage_id for value in values}

    def sliced_values(self, group: Group) -> set[int]:
        """The values of which the group stores slices."""
        parts = self.chosen.slices
        return {parts[value].value for value in group.positions if value in parts}

    def size_bytes(self, value: int) -> int:
        """The likely size of a value in bytes."""
        tensor = self.chosen.facts.types[value]
        return likely_elems(tensor.shape, self.likely) * tensor.dtype.itemsize_bytes

    def _fill(self, nests: Sequence[Nest]) -> None:
        facts = self.chosen.facts
        by_position = {facts.positions[nest.value]: nest for nest in nests}
        last_ordered: list[int] = []  # random numbers and effects keep the graph's order
        for position, node in enumerate(facts.graph.nodes):
            if position in by_position:
                self._add_group(position, by_position[position])
            elif node.op == "extern":
                is_ordered = _is_ordered(node)
                before = [*self._sources(node), *(last_ordered if is_ordered else ())]
                self._add_extern(position, node, before)
                last_ordered = [position] if is_ordered else last_ordered

    def _order_overwrites(self) -> None:
        """Orders the kernels that write to an input after all readers of its old elements."""
        storages = self.chosen.storages
        writers: dict[int, set[int]] = {}
        for value, maker in self.maker.items():
            storage = storages.get(value)
            if storage is not None and storage.kind is BufferKind.INPUT:
                writers.setdefault(storage.position, set()).add(maker)
        if not writers:
            return
        for reader, value in self._reads():
            source = storages[value]
            if source.kind is BufferKind.INPUT and value not in self.maker:
                for writer in writers.get(source.position, ()):
                    self.dependences.order(reader, writer)

    def _reads(self) -> Iterator[tuple[int, int]]:
        """Each reader, with a value that it reads in memory."""
        for name, group in self.groups.items():
            yield from ((name, value) for value, _ in group.reads)
        for name, node in self.externs.items():
            for value in operands(node):
                yield name, self.chosen.operand_views[value].source

    def _add_group(self, position: int, nest: Nest) -> None:
        group = self.groups[position] = seed_group(nest, position)
        reads = [value for value, _ in group.reads]
        needed = list(reads)
        if nest.scatter is not None:
            needed.append(operands(self.chosen.facts.producers[nest.value])[0])
        self.dependences.add(position, [maker for v in needed for maker in self._makers(v)])
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
            yield from self._makers(self.chosen.operand_views[value].source)

    def _makers(self, value: int) -> Iterator[int]:
        """The makers of a value, or of its slices."""
        for made in self._slices.get(value, (value,)):
            if made in self.maker:
                yield self.maker[made]


def _is_ordered(node: Node) -> bool:
    is_random = any(word in str(node.attr("op")) for word in _RANDOM_WORDS)
    return is_random or not node.results
