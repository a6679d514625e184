"""A kernel's loads and stores as numbers: how far each moves along each axis, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.algebra.simplify import Bounds
from kernelfarm.ir.loop_ir import Indirect, Kernel, Load, Store, index_of, operands_of

LIKELY_SIZE = 509
"""The size that a symbol is taken to have; a prime, so that different products of sizes differ."""

_PROBES = 9


@dataclass(frozen=True, slots=True)
class AccessPattern:
    """The accesses of one buffer that move alike.

    `steps` has the bytes between accesses at neighbouring points, for each axis along which they
    move. If an index is not linear in an axis, the step is the mean over its first points.
    """

    param: str
    item_bytes: int
    buffer_bytes: int
    steps: tuple[tuple[str, float], ...]
    is_store: bool


@dataclass(frozen=True, slots=True)
class KernelAccesses:
    """The access patterns of a kernel, and the extents of its axes."""

    extents: Mapping[str, int]
    patterns: tuple[AccessPattern, ...]

    @property
    def stores(self) -> tuple[AccessPattern, ...]:
        """The patterns of the stores."""
        return tuple(p for p in self.patterns if p.is_store)


def kernel_accesses(kernel: Kernel, sizes: Bounds | None = None) -> KernelAccesses:
    """The accesses of a kernel; `sizes` has the ranges of its size symbols if it lists none.

    Equal patterns are one: the taps of a window read the same sectors.
    """
    axes = (*kernel.outer, *kernel.reduction)
    values = _likely_sizes(kernel, sizes or Bounds())
    extents = {axis.name: max(1, axis.extent.estimate(values)) for axis in axes}
    probe = _Probe(extents, values, _jumps(kernel, values))
    params = {param.name: param for param in kernel.params}
    found: dict[AccessPattern, None] = {}
    for statement in kernel.body:
        if not isinstance(statement, Load | Store) or statement.param not in params:
            continue  # the verifier and the emitters refuse unknown parameters
        param = params[statement.param]
        item = param.dtype.itemsize_bytes
        steps = probe.steps(statement.index)
        size = max(1, param.size_elems.estimate(values))
        pattern = AccessPattern(
            param.name,
            item,
            item * size,
            tuple((name, item * step) for name, step in steps if step),
            isinstance(statement, Store),
        )
        found[pattern] = None
    return KernelAccesses(extents, tuple(found))


@dataclass(frozen=True, slots=True)
class _Jump:
    """An indirect index: the axes along which it changes, and by how much."""

    axes: frozenset[str]
    elems: int


@dataclass(frozen=True, slots=True)
class _Probe:
    """Steps of index expressions along the axes of one kernel."""

    extents: Mapping[str, int]
    sizes: Mapping[str, int]
    jumps: Mapping[str, _Jump]

    def steps(self, index: Expr) -> list[tuple[str, float]]:
        """The mean distance of neighbouring points along each axis, in elements."""
        symbols = index.symbols
        jumps = {name: jump for name, jump in self.jumps.items() if name in symbols}
        moving = symbols.union(*(jump.axes for jump in jumps.values()))
        return [(a, self._step(index, a, jumps)) for a in self.extents if a in moving]

    def _step(self, index: Expr, axis: str, jumps: Mapping[str, _Jump]) -> float:
        jumping = {name: jump.elems for name, jump in jumps.items() if axis in jump.axes}
        origin = {**self.sizes, **dict.fromkeys((*self.extents, *jumps), 0)}
        if not jumping:
            coefficient = index.coefficient_of(axis)
            if coefficient is not None:
                return abs(coefficient.estimate(origin))
        probes = min(_PROBES, self.extents[axis])
        moved = [
            index.estimate({**origin, axis: n, **{k: n * jump for k, jump in jumping.items()}})
            for n in range(probes)
        ]
        return sum(abs(b - a) for a, b in pairwise(moved)) / max(1, probes - 1)


def _likely_sizes(kernel: Kernel, sizes: Bounds) -> dict[str, int]:
    ranges: dict[str, tuple[int, int | None]] = {}
    for name, found in sizes.ranges.items():
        if found.lower.is_constant and (found.upper is None or found.upper.is_constant):
            upper = None if found.upper is None else found.upper.constant
            ranges[name] = found.lower.constant, upper
    ranges |= {size.name: (size.lower, size.upper) for size in kernel.sizes}
    return {
        name: max(lower, LIKELY_SIZE if upper is None else min(LIKELY_SIZE, upper))
        for name, (lower, upper) in ranges.items()
    }


def _jumps(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, _Jump]:
    """The indirect indices by symbol. They are random: two are a third of their extent apart."""
    names = frozenset(axis.name for axis in (*kernel.outer, *kernel.reduction))
    changing: list[frozenset[str]] = []
    found: dict[str, _Jump] = {}
    if not any(isinstance(s, Indirect) for s in kernel.body):
        return found
    for statement in kernel.body:
        index = index_of(statement)
        symbols = frozenset() if index is None else index.symbols
        axes = (symbols & names).union(
            *(changing[n] for n in operands_of(statement)),
            *(found[name].axes for name in symbols if name in found),
        )
        changing.append(axes)
        if isinstance(statement, Indirect):
            elems = statement.extent.estimate({**sizes, **dict.fromkeys(names, 0)}) // 3
            found[statement.symbol] = _Jump(axes, max(1, elems))
    return found
