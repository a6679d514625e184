"""Positions of a directed graph's nodes in layers, so that every edge points down.

A node's layer is the longest path to it. An edge that spans several layers passes through one point
in each of them. Sweeps order each layer by the mean position of its neighbours.

Source: Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system
structures", 1981.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 6
"""Sweeps over all layers; further ones change little."""
_MAX_POINTS = 40_000
"""Points of long edges; beyond it, long edges are straight."""


@dataclass(frozen=True, slots=True)
class LayeredLayout:
    """For each node its layer and its position in units of a column; for each edge its columns.

    `bends` has the column of an edge in each layer between those of its ends.
    """

    layers: tuple[int, ...]
    columns: tuple[float, ...]
    bends: tuple[tuple[float, ...], ...]
    width: float


def layered_layout(count: int, edges: Sequence[tuple[int, int]]) -> LayeredLayout:
    """The layout of nodes 0 to count-1; each edge goes from a smaller number to a larger one."""
    layer = [0] * count
    for first, second in sorted(edges, key=lambda edge: edge[1]):
        layer[second] = max(layer[second], layer[first] + 1)
    spans = [layer[second] - layer[first] - 1 for first, second in edges]
    has_bends = sum(spans) <= _MAX_POINTS
    chains: list[list[int]] = []
    layer_of = list(layer)
    links: list[tuple[int, int]] = []
    for (first, second), span in zip(edges, spans, strict=True):
        points = range(len(layer_of), len(layer_of) + (span if has_bends else 0))
        layer_of.extend(layer[first] + 1 + step for step in range(len(points)))
        chains.append(list(points))
        if has_bends or not span:
            path = [first, *points, second]
            links.extend(pairwise(path))
    columns = _columns(layer_of, links)
    return LayeredLayout(
        tuple(layer),
        tuple(columns[:count]),
        tuple(tuple(columns[point] for point in chain) for chain in chains),
        max(columns, default=0.0) + 1,
    )


def _columns(layer_of: Sequence[int], links: Sequence[tuple[int, int]]) -> list[float]:
    """A column for each point: its layer's points are at least one column apart."""
    rows: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for point, number in enumerate(layer_of):
        rows[number].append(point)
    above: list[list[int]] = [[] for _ in layer_of]
    below: list[list[int]] = [[] for _ in layer_of]
    for first, second in links:
        above[second].append(first)
        below[first].append(second)
    column = [0.0] * len(layer_of)
    for row in rows:
        _spread(row, column)
    for sweep in range(_SWEEPS):
        is_down = sweep % 2 == 0
        neighbours = above if is_down else below
        for row in rows if is_down else reversed(rows):
            for point in row:
                near = neighbours[point]
                if near:
                    column[point] = sum(column[n] for n in near) / len(near)
            row.sort(key=lambda point: (column[point], point))
            _spread(row, column)
    least = min(column, default=0.0)
    return [position - least for position in column]


def _spread(row: Sequence[int], column: list[float]) -> None:
    """Moves the points of a sorted row apart, and keeps their mean."""
    if not row:
        return
    wished = sum(column[point] for point in row)
    edge = float("-inf")
    for point in row:
        edge = column[point] = max(column[point], edge + 1)
    shift = (sum(column[point] for point in row) - wished) / len(row)
    for point in row:
        column[point] -= shift
