"""Loop kernels that are chains of one function."""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, Kernel, Load, Param, Store


def chain(op: str, count: int, dtype: DType = DType.F32) -> Kernel:
    """out = op(op(... op(in)))."""
    extent, x = as_expr(1024), symbol("x0")
    return Kernel(
        name=f"chain_of_{op}",
        params=(
            Param("in0", dtype, extent, Access.READ),
            Param("out0", dtype, extent, Access.WRITE),
        ),
        sizes=(),
        outer=(Axis("x0", extent),),
        reduction=(),
        body=(
            Load("in0", x),
            *(Compute(op, (number,), dtype) for number in range(count)),
            Store("out0", x, count),
        ),
    )
