"""Guided reductions as two plain ones, for rows in registers: reading them again costs nothing.

softmax_sum(x)  ->  sum(exp(x - amax(x)))
welford_m2(x)   ->  sum((x - mean) * (x - mean)), the mean from sum(x)

Rows that are partly in shared memory keep welford_m2 (`guided.py`): there, one loop less is faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen_svc.emitters.triton.index import numel
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import (
    GUIDES,
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
)

MOMENTS = "welford_m2"


def in_two_passes(kernel: Kernel, *, keeps_moments: bool = False) -> Kernel:
    """The kernel without guided reductions; the same object if it has none.

    `keeps_moments`: welford_m2 stays.
    """
    changed = GUIDES.keys() - ({MOMENTS} if keeps_moments else set())
    if not any(isinstance(s, Reduce) and s.op in changed for s in kernel.body):
        return kernel
    body: list[Statement] = []
    numbers: dict[int, int] = {}
    for number, statement in enumerate(kernel.body):
        renumbered = _renumbered(statement, numbers)
        if isinstance(renumbered, Reduce) and renumbered.op in changed:
            _append_plain(kernel, body, renumbered)
        else:
            body.append(renumbered)
        numbers[number] = len(body) - 1
    return replace(kernel, body=tuple(body))


def _append_plain(kernel: Kernel, body: list[Statement], guided: Reduce) -> None:
    """Appends the reductions that a guided one stands for; the last one has its value."""
    x, dtype = guided.operand, guided.dtype
    guide = Reduce(GUIDES[guided.op], x, dtype)
    if guide not in body:
        body.append(guide)
    at = body.index(guide)
    if guided.op == MOMENTS:
        at = _append_mean(kernel, body, at, dtype)
    body.append(Compute("sub", (x, at), dtype))
    apart = len(body) - 1
    is_softmax = guided.op == "softmax_sum"
    body.append(Compute("exp", (apart,), dtype) if is_softmax else _square(apart, dtype))
    body.append(Reduce("sum", len(body) - 1, dtype))


def _square(number: int, dtype: DType) -> Compute:
    return Compute("mul", (number, number), dtype)


def _append_mean(kernel: Kernel, body: list[Statement], total: int, dtype: DType) -> int:
    """Appends the mean of a sum over all points, and gives its number."""
    points = numel(kernel.reduction)
    if points.is_constant:
        body.append(Literal(dtype, float(points.as_int())))
    else:
        body.append(IndexValue(DType.I64, points))
        body.append(Compute("convert", (len(body) - 1,), dtype))
    body.append(Compute("div", (total, len(body) - 1), dtype))
    return len(body) - 1


def _renumbered(statement: Statement, numbers: Mapping[int, int]) -> Statement:
    match statement:
        case Load(mask=int() as mask, other=int() as other):
            return replace(statement, mask=numbers[mask], other=numbers[other])
        case Compute(operands=operands):
            return replace(statement, operands=tuple(numbers[n] for n in operands))
        case Reduce(operand=operand) | Scan(operand=operand) | Sort(operand=operand):
            return replace(statement, operand=numbers[operand])
        case Indirect(value=value) | Store(value=value):
            return replace(statement, value=numbers[value])
        case _:
            return statement
