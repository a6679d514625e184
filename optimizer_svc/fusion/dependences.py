"""The dependences of kernels and extern calls: a graph that stays acyclic while nodes merge."""

from __future__ import annotations

from collections.abc import Iterable

from kernelfarm.ir.work_budget import spend

MAX_VISITS = 4000
"""The most nodes that one search for a path visits; groups further apart are not fused."""


class Dependences:
    """Nodes, with edges from the maker of a value to its readers.

    Every node has a level above those of its predecessors, so that a search for a path between two
    nodes visits only nodes with levels between theirs.
    """

    def __init__(self) -> None:
        self._after: dict[int, set[int]] = {}
        self._before: dict[int, set[int]] = {}
        self._level: dict[int, int] = {}

    def add(self, node: int, before: Iterable[int]) -> None:
        """Adds a node, with the nodes that it depends on."""
        found = {other for other in before if other != node}
        spend(1 + len(found))
        self._after[node] = set()
        self._before[node] = found
        self._level[node] = 1 + max((self._level[other] for other in found), default=-1)
        for other in found:
            self._after[other].add(node)

    def order(self, first: int, last: int) -> None:
        """Orders a node after another one on which it does not depend; no path may lead back."""
        if first != last:
            self._after[first].add(last)
            self._before[last].add(first)
            self._raise_levels(first)

    def readers(self, node: int) -> frozenset[int]:
        """The nodes that directly depend on a node."""
        return frozenset(self._after[node])

    def sources(self, node: int) -> frozenset[int]:
        """The nodes that a node directly depends on."""
        return frozenset(self._before[node])

    def level(self, node: int) -> int:
        """An upper bound of the longest path that leads to a node."""
        return self._level[node]

    def is_path_around(self, first: int, last: int) -> bool:
        """True if `last` depends on `first` through a third node, or if the search is too long."""
        limit = self._level[last]
        spend(1 + len(self._after[first]))
        pending = [n for n in self._after[first] if n != last and self._level[n] < limit]
        seen = set(pending)
        while pending:
            following = self._after[pending.pop()]
            spend(1 + len(following))
            for other in following:
                if other == last or len(seen) > MAX_VISITS:
                    return True
                if other not in seen and self._level[other] < limit:
                    seen.add(other)
                    pending.append(other)
        return False

    def merge(self, kept: int, gone: int) -> None:
        """Merges two nodes into the first; no path through a third node may connect them."""
        before = (self._before[kept] | self._before.pop(gone)) - {kept, gone}
        after = (self._after[kept] | self._after.pop(gone)) - {kept, gone}
        spend(1 + len(before) + len(after))
        for other in before:
            self._after[other].discard(gone)
            self._after[other].add(kept)
        for other in after:
            self._before[other].discard(gone)
            self._before[other].add(kept)
        self._before[kept], self._after[kept] = before, after
        self._level[kept] = max(self._level[kept], self._level.pop(gone))
        self._raise_levels(kept)

    def _raise_levels(self, node: int) -> None:
        pending = [node]
        while pending:
            current = pending.pop()
            least = self._level[current] + 1
            spend(1 + len(self._after[current]))
            for other in self._after[current]:
                if self._level[other] < least:
                    self._level[other] = least
                    pending.append(other)
