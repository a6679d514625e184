"""The cheapest choice between two labels for each node of a network: a minimum cut.

Every cost is at least 0, and belongs to a label of one node or to different labels of two nodes.
Such a choice is a minimum cut, so it is found exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from itertools import pairwise

from kernelfarm.ir.work_budget import spend

FOREVER = 1 << 60
"""The cost of what may not be chosen."""

_FALSE, _TRUE = "false", "true"
_Flow = dict[Hashable, dict[Hashable, int]]


class LabelCosts:
    """Costs of labels, False or True, for nodes that are named by any hashable value."""

    def __init__(self) -> None:
        self._flow: _Flow = {_FALSE: {}, _TRUE: {}}
        self._costs: dict[tuple[Hashable, Hashable], int] = {}

    def add_node(self, node: Hashable) -> None:
        """Adds a node without costs."""
        self._flow.setdefault(node, {})

    def add(self, node: Hashable, *, label: bool, cost: int) -> None:
        """Adds a cost for a node with this label."""
        if label:
            self._connect(_FALSE, node, cost)
        else:
            self._connect(node, _TRUE, cost)

    def add_if_different(self, a: Hashable, b: Hashable, cost: int) -> None:
        """Adds a cost for two nodes with different labels."""
        self._connect(a, b, cost)
        self._connect(b, a, cost)

    def cost_of(self, labels: Mapping[Hashable, bool]) -> int:
        """The cost of a choice."""
        known = {**labels, _FALSE: False, _TRUE: True}
        return sum(cost for (a, b), cost in self._costs.items() if not known[a] and known[b])

    def cheapest(self) -> dict[Hashable, bool]:
        """A label for each node, with the least total cost; False where both cost the same."""
        flow = {node: dict(edges) for node, edges in self._flow.items()}
        while levels := _levels(flow):
            _saturate(flow, levels)
        reached = _leading_to(flow, _TRUE)
        return {node: node in reached for node in self._flow if node not in (_FALSE, _TRUE)}

    def _connect(self, a: Hashable, b: Hashable, cost: int) -> None:
        if a == b or cost <= 0:
            return
        edges, back = self._flow.setdefault(a, {}), self._flow.setdefault(b, {})
        edges[b] = edges.get(b, 0) + cost
        back.setdefault(a, 0)
        self._costs[a, b] = self._costs.get((a, b), 0) + cost


def _levels(flow: _Flow) -> dict[Hashable, int]:
    """The distance of each node from the source; empty if the sink is out of reach."""
    levels: dict[Hashable, int] = {_FALSE: 0}
    pending: deque[Hashable] = deque([_FALSE])
    while pending:
        node = pending.popleft()
        spend(1 + len(flow[node]))
        for other, left in flow[node].items():
            if left > 0 and other not in levels:
                levels[other] = levels[node] + 1
                pending.append(other)
    return levels if _TRUE in levels else {}


def _saturate(flow: _Flow, levels: Mapping[Hashable, int]) -> None:
    """Sends flow along shortest paths until each of them has a full edge."""
    edges = {node: list(flow[node]) for node in levels}
    path: list[Hashable] = [_FALSE]
    while path:
        node = path[-1]
        if node == _TRUE:
            _send(flow, path)
            path = [_FALSE]
        elif not edges[node]:
            path.pop()
            if path:
                edges[path[-1]].pop()
        elif _is_open(flow, levels, node, edges[node][-1]):
            path.append(edges[node][-1])
        else:
            edges[node].pop()
        spend()


def _is_open(flow: _Flow, levels: Mapping[Hashable, int], node: Hashable, other: Hashable) -> bool:
    return flow[node][other] > 0 and levels.get(other) == levels[node] + 1


def _send(flow: _Flow, path: list[Hashable]) -> None:
    sent = min(flow[a][b] for a, b in pairwise(path))
    spend(len(path))
    for a, b in pairwise(path):
        flow[a][b] -= sent
        flow[b][a] += sent


def _leading_to(flow: _Flow, last: Hashable) -> set[Hashable]:
    """The nodes from which more flow could reach the last one."""
    found, pending = {last}, [last]
    while pending:
        node = pending.pop()
        for other in flow[node]:  # each edge has an opposite one
            if other not in found and flow[other][node] > 0:
                found.add(other)
                pending.append(other)
    return found
