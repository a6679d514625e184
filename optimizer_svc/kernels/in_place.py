"""Kernels that store a result in the memory of an operand.

A kernel may do so if it accesses both at one index only, and stores the result once: then each
element is read at the point that replaces it, and at no other. A loop over a row that reads the
operand several times is no obstacle: emitters store to a buffer that is also read in their last
loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import (
    Access,
    Kernel,
    Load,
    Param,
    Sort,
    Statement,
    Store,
    scattering_stores,
)
from optimizer_svc.kernels.guided_sums import renumbered


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A parameter that is written, and one that is read, which may be one; both by position."""

    result: int
    operand: int


def in_place_pairs(kernel: Kernel) -> tuple[Pair, ...]:
    """Every result and operand of a kernel that may share memory, each pair on its own.

    A kernel that sorts has none: it reads rows again while it stores them.
    """
    if any(isinstance(s, Sort) for s in kernel.body):
        return ()
    loads, stores = _only_indices(kernel)
    return tuple(
        Pair(result, operand)
        for result, written in enumerate(kernel.params)
        if written.access is Access.WRITE and stores.get(written.name) is not None
        for operand, read in enumerate(kernel.params)
        if read.access is Access.READ
        and loads.get(read.name) is stores[written.name]
        and read.dtype is written.dtype
        and read.size_elems is written.size_elems
    )


def _only_indices(kernel: Kernel) -> tuple[dict[str, Expr | None], dict[str, Expr | None]]:
    """The index of all loads of a buffer, and that of its only store; None if there are several."""
    scattering = scattering_stores(kernel)
    loads: dict[str, Expr | None] = {}
    stores: dict[str, Expr | None] = {}
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Load):
            index = loads.setdefault(statement.param, statement.index)
            loads[statement.param] = index if index is statement.index else None
        elif isinstance(statement, Store):
            is_first = statement.param not in stores and number not in scattering
            stores[statement.param] = statement.index if is_first else None
    return loads, stores


def stored_in_place(
    kernel: Kernel, pairs: Sequence[Pair]
) -> tuple[Kernel, tuple[tuple[int, ...], ...]]:
    """The kernel with each pair as one parameter, and the old positions of each new parameter.

    Stores to these parameters come last, after all loads of old elements.
    """
    merged = {pair.operand: pair.result for pair in pairs}
    results = set(merged.values())
    kept = [n for n in range(len(kernel.params)) if n not in results]
    order = sorted(kept, key=lambda n: _ORDER.index(_access(kernel, merged, n)))
    names: dict[str, str] = {}
    params: list[Param] = []
    for number in order:
        access = _access(kernel, merged, number)
        name = f"{access.value}{sum(p.access is access for p in params)}"
        params.append(replace(kernel.params[number], name=name, access=access))
        names[kernel.params[number].name] = name
        if number in merged:
            names[kernel.params[merged[number]].name] = name
    late = {kernel.params[number].name for number in results}
    body = tuple(_renamed(s, names) for s in _with_late_stores(kernel.body, late))
    found = replace(kernel, params=tuple(params), body=body)
    positions = tuple((n, merged[n]) if n in merged else (n,) for n in order)
    return found, positions


_ORDER = (Access.READ, Access.READ_WRITE, Access.WRITE)


def _access(kernel: Kernel, merged: Mapping[int, int], number: int) -> Access:
    return Access.READ_WRITE if number in merged else kernel.params[number].access


def _with_late_stores(body: Sequence[Statement], late: set[str]) -> Iterator[Statement]:
    numbers: dict[int, int] = {}
    moved: list[Statement] = []
    count = 0
    for number, statement in enumerate(body):
        if isinstance(statement, Store) and statement.param in late:
            moved.append(statement)
            continue
        numbers[number] = count
        count += 1
        yield renumbered(statement, numbers)
    yield from (renumbered(statement, numbers) for statement in moved)


def _renamed(statement: Statement, names: Mapping[str, str]) -> Statement:
    if isinstance(statement, Load | Store):
        return replace(statement, param=names[statement.param])
    return statement
