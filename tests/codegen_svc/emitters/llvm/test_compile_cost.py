"""How much code LLVM is given to make of a kernel: bounded copies of inlined functions."""

from __future__ import annotations

import pytest

from codegen_svc.backends.cpu.backend import BACKEND
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, Kernel, Load, Param, Reduce, Store
from kernelfarm.targets import target_facts

ROWS, COLUMNS = 12, 8


def functions_of_rows(count: int) -> Kernel:
    """in0 (12, 8) -> out0: `count` tangents of each element over its row's sum."""
    x, r = symbol("x0"), symbol("r0")
    position, size = x * COLUMNS + r, as_expr(ROWS * COLUMNS)
    first = (
        Load("in0", position),
        Reduce("sum", 0, DType.F32),
        Compute("div", (0, 1), DType.F32),
    )
    chain = [Compute("tan", (number + 2,), DType.F32) for number in range(count)]
    return Kernel(
        name=f"tangents_{count}",
        params=(
            Param("in0", DType.F32, size, Access.READ),
            Param("out0", DType.F32, size, Access.WRITE),
        ),
        sizes=(),
        outer=(Axis("x0", as_expr(ROWS)),),
        reduction=(Axis("r0", as_expr(COLUMNS)),),
        body=(*first, *chain, Store("out0", position, count + 2)),
    )


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:aarch64"])
def test_short_loops_over_many_functions_are_not_written_out(target: str) -> None:
    def optimized(count: int) -> str:
        (variant,) = BACKEND.build(functions_of_rows(count), target_facts(target))
        (stage,) = [s for s in variant.stages if s.name == "llir_opt"]
        return stage.content.decode()

    few, many = optimized(2), optimized(9)
    assert len(many) < 2 * len(few), "not once for each of a row's elements, as few are"
