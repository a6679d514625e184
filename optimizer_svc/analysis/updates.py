"""Inputs that an output updates, and when kernels may write them in place.

All readers of the old elements must run before the write. Kernels recompute pointwise chains from
the values that they read, so a node is a reader if such a chain leads to it from the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from kernelfarm.ir.graph_ir import Graph, Ref
from kernelfarm.ir.prims import CLIENT_OPS, SCALAR_OPS
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import (
    REDUCE_OPS,
    SCAN_OPS,
    SORT_OPS,
    GraphFacts,
    operands,
    outputs_read,
)

_IN_MEMORY = REDUCE_OPS | SCAN_OPS | SORT_OPS | CLIENT_OPS | {"scatter"}
"""Prims whose results are always stored, so that later nodes do not read their operands again."""


def updated_inputs(graph: Graph) -> dict[int, int]:
    """The input's value for each value that is stored in an input.

    Opaque values are left out: the client stores them, because no kernel can.
    """
    found = {}
    for update in graph.updates:
        output, kind = graph.outputs[update.output], graph.output_types[update.output]
        is_opaque = kind is not None and kind.dtype.is_opaque
        if isinstance(output, Ref) and not is_opaque:
            found[output.value] = graph.inputs[update.input].value
    return found


def scatter_chain(
    facts: GraphFacts, value: int, source: int, returned: Set[int]
) -> tuple[int, ...] | None:
    """Positions, in order, of the scatters that turn an input into a value.

    None unless each of them updates the result of the one before it, which nothing else reads.
    The graph returns none of them but the last one: `returned` are the values that it returns.
    """
    chain: list[int] = []
    while value != source:
        node = facts.producers.get(value)
        if node is None or node.op != "scatter":
            return None
        if chain and (len(facts.consumers[value]) > 1 or value in returned):
            return None
        chain.append(facts.positions[value])
        value = operands(node)[0]
    return tuple(reversed(chain)) or None


@dataclass(frozen=True, slots=True)
class _Write:
    """Positions of the nodes that write an input, in order, and of readers of its old elements."""

    writers: tuple[int, ...]
    readers: frozenset[int]


class InPlaceWrites:
    """Decides which values may be computed in the memory of inputs that they update.

    Each decision takes those before it into account.
    """

    def __init__(self, facts: GraphFacts) -> None:
        self._facts = facts
        self._returned = frozenset(outputs_read(facts.graph))
        self._before: dict[int, set[int]] = {}  # reader of old elements -> writers after it

    def granted(self, value: int, source: int) -> bool:
        """True if the value may be written to the memory of the input that it updates, `source`."""
        write = self._write(value, source)
        if write is None or self._leads_to_readers(write):
            return False
        for reader in write.readers:
            self._before.setdefault(reader, set()).add(write.writers[0])
        return True

    def _write(self, value: int, source: int) -> _Write | None:
        facts = self._facts
        if facts.is_storage(value):
            return None
        writers = scatter_chain(facts, value, source, self._returned)
        if writers is None:
            is_scatter = facts.producers[value].op == "scatter"
            if is_scatter or not reads_own_elements(facts, value, source):
                return None
            writers = (facts.positions[value],)
            return _Write(writers, frozenset(self._readers(value, source, ())) - {writers[0]})
        readers = frozenset(self._readers(value, source, writers))
        return None if readers.intersection(writers) else _Write(writers, readers)

    def _readers(self, value: int, source: int, chain: tuple[int, ...]) -> Iterator[int]:
        facts = self._facts
        seen = {source}
        pending = [source]
        while pending:
            read = pending.pop()
            spend(1 + len(facts.consumers.get(read, ())))
            for position in facts.consumers.get(read, ()):
                node = facts.graph.nodes[position]
                if position in chain and read not in operands(node)[1:]:
                    continue  # it updates the memory of its base without reading it
                yield position
                made = node.results[0] if node.results else None
                if made is None or made in seen or node.op in _IN_MEMORY:
                    continue
                seen.add(made)
                if made != value and made not in self._returned:
                    pending.append(made)

    def _leads_to_readers(self, write: _Write) -> bool:
        """True if a reader of the old elements depends on the values that replace them."""
        facts = self._facts
        seen: set[int] = set()
        pending = [write.writers[0]]
        while pending:
            position = pending.pop()
            spend()
            if position in seen:
                continue
            seen.add(position)
            if position in write.readers:
                return True
            for made in facts.graph.nodes[position].results:
                pending.extend(facts.consumers.get(made, ()))
            pending.extend(self._before.get(position, ()))
        return False


def reads_own_elements(facts: GraphFacts, value: int, source: int) -> bool:
    """True if each element of a value depends only on the input's element at the same index.

    That holds if only pointwise prims, or values that are stored, lie between the input and the
    value.
    """
    seen: set[tuple[int, bool]] = set()
    pending = [(value, True)]
    while pending:
        state = pending.pop()
        spend()
        if state in seen:
            continue
        seen.add(state)
        current, is_own = state
        if current == source and not is_own:
            return False
        node = facts.producers.get(current)
        if node is None or (node.op in _IN_MEMORY and current != value):
            continue
        is_pointwise = node.op in SCALAR_OPS
        pending.extend((operand, is_own and is_pointwise) for operand in operands(node))
    return True
