"""The rule that several stores to one buffer, of one kernel or of several, name distinct elements.

A value may be stored in slices (the pieces of a cat). Every store addresses `first + sum of step *
axis`. There must be a period such that the positions of the stores modulo the period are in
disjoint intervals; the rest of a position is a multiple of the period. For a cat along an axis, the
period is the number of elements that the axis spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.atoms import Symbol
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import Access, Kernel, Store, scattering_stores
from kernelfarm.ir.program_ir import Launch, Program

# Positions with size symbols are compared for these values of all symbols: odd, small, large.
_SAMPLE_SIZES = (1, 2, 7, 64)


@dataclass(frozen=True, slots=True)
class _Footprint:
    """The elements `first + sum of step * k` of a store, with 0 <= k < extent for each axis."""

    first: int
    axes: tuple[tuple[int, int], ...]
    where: str


@dataclass(frozen=True, slots=True)
class _Site:
    """A store of a launch."""

    step: int
    launch: Launch
    kernel: Kernel
    store: Store

    @property
    def where(self) -> str:
        """The store's name in messages."""
        return f"step {self.step} ({self.kernel.name})"


def check_stores_are_apart(program: Program) -> None:
    """Checks that no element of a buffer is stored twice, except by updates.

    Raises:
        VerificationError: two stores may name one element.
    """
    plan = program.plan
    sizes = _SAMPLE_SIZES if plan.symbols else (1,)
    for name, sites in _sites(program).items():
        if len(sites) < 2:
            continue
        for size in sizes:
            values = dict.fromkeys((source.symbol for source in plan.symbols), size)
            found = [_footprint(site, name, values) for site in sites]
            _check_apart(name, [print_ for print_ in found if print_ is not None])


def _sites(program: Program) -> dict[str, list[_Site]]:
    """The stores that set elements, by buffer."""
    found: dict[str, list[_Site]] = {}
    stores: dict[int, list[Store]] = {}
    for number, step in enumerate(program.plan.steps):
        if not isinstance(step, Launch) or step.kernel >= len(program.kernels):
            continue
        kernel = program.kernels[step.kernel]
        if step.kernel not in stores:
            stores[step.kernel] = list(_setting(kernel))
        buffers = dict(zip((p.name for p in kernel.params), step.buffers, strict=True))
        for store in stores[step.kernel]:
            site = _Site(number, step, kernel, store)
            found.setdefault(buffers[store.param], []).append(site)
    return found


def _setting(kernel: Kernel) -> Iterator[Store]:
    """The stores to buffers that are only written; a kernel may replace elements that it reads."""
    scattering = scattering_stores(kernel)
    fresh = {param.name for param in kernel.params if param.access is Access.WRITE}
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Store) and number not in scattering and statement.param in fresh:
            yield statement


def _footprint(site: _Site, buffer: str, values: Mapping[str, int]) -> _Footprint | None:
    """The elements of a store; None if there are none, or if the kernel takes no such sizes."""
    names = (size.name for size in site.kernel.sizes)
    given = (size.evaluate(values) for size in site.launch.sizes)
    sizes = dict(zip(names, given, strict=True))
    loops = (*site.kernel.outer, *site.kernel.reduction)
    extents = {axis.name: axis.extent.evaluate(sizes) for axis in loops}
    is_taken = all(
        size.lower <= sizes[size.name] and (size.upper is None or sizes[size.name] <= size.upper)
        for size in site.kernel.sizes
    )
    if not is_taken or any(extent <= 0 for extent in extents.values()):
        return None
    index = site.store.index.substitute(sizes)
    first, axes = index.constant, []
    for name, step in _steps(index, buffer, site.where):
        if name not in extents:
            raise VerificationError(f"plan, {site.where}: {name} is no axis; expected one")
        first += min(step, 0) * (extents[name] - 1)
        if extents[name] > 1:
            axes.append((abs(step), extents[name]))
    return _Footprint(first, tuple(axes), site.where)


def _steps(index: Expr, buffer: str, where: str) -> Iterator[tuple[str, int]]:
    for monomial, coefficient in index.terms:
        (atom, *others) = monomial
        if others or not isinstance(atom, Symbol):
            raise VerificationError(
                f"plan, {where}: position {index} in {buffer}, which is stored in slices;"
                " expected a sum of axes"
            )
        yield atom.name, coefficient


def _check_apart(buffer: str, prints: Sequence[_Footprint]) -> None:
    steps = {step for print_ in prints for step, _ in print_.axes}
    overlap = None
    for period in (None, *sorted(steps, reverse=True)):
        found = _overlap(prints, period)
        if found is None:
            return
        overlap = overlap or found
    first, second = overlap or (prints[0], prints[1])
    raise VerificationError(
        f"plan: {first.where} and {second.where} may store the same elements of {buffer};"
        " expected each element to be stored once"
    )


def _overlap(
    prints: Sequence[_Footprint], period: int | None
) -> tuple[_Footprint, _Footprint] | None:
    """Two stores whose positions may overlap by this period, None if there are none."""
    blocks: dict[tuple[int, int], list[tuple[int, int, _Footprint]]] = {}
    for print_ in prints:
        inner = [a for a in print_.axes if period is None or a[0] % period]
        low = print_.first if period is None else print_.first % period
        high = low + sum(step * (extent - 1) for step, extent in inner)
        if period is not None and high >= period:
            return prints[0], print_
        turn = 0 if period is None else print_.first // period
        turns = sum(a[0] // (period or 1) * (a[1] - 1) for a in print_.axes if a not in inner)
        blocks.setdefault((low, high), []).append((turn, turn + turns, print_))
    ordered = sorted(blocks)
    for one, other in pairwise(ordered):
        if other[0] <= one[1]:
            return blocks[one][0][2], blocks[other][0][2]
    for turns_of in blocks.values():
        turns_of.sort(key=lambda found: found[:2])
        for (_, last, before), (first, _, after) in pairwise(turns_of):
            if first <= last:
                return before, after
    return None
