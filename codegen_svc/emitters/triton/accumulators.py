"""Which sums of a product of matrices one accumulator can hold: those that are only added.

A sum in parts, such as that by a weight whose integers share bytes, needs registers for one part.
"""

from __future__ import annotations

from collections import Counter

from kernelfarm.dtypes import DType
from kernelfarm.ir.contractions import Contraction
from kernelfarm.ir.loop_ir import Compute, Kernel, operands_of


def accumulators(kernel: Kernel, found: Contraction) -> dict[int, int]:
    """The statement that names the accumulator of each sum, and of each addition of sums."""
    uses = Counter(operand for statement in kernel.body for operand in operands_of(statement))
    added: dict[int, tuple[int, ...]] = {s.number: (s.number,) for s in found.sums}
    for number, statement in enumerate(kernel.body):
        if not isinstance(statement, Compute) or statement.op != "add":
            continue
        is_alone = all(operand in added and uses[operand] == 1 for operand in statement.operands)
        if statement.dtype is DType.F32 and is_alone:
            parts = (part for operand in statement.operands for part in added.pop(operand))
            added[number] = (*parts, number)
    return {part: root for root, parts in added.items() for part in parts}
