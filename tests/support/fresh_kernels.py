"""Small kernels that differ in content, so that each has a key of its own."""

from __future__ import annotations

import itertools

from kernelfarm.dtypes import DType
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, Kernel, Load, Param, Store
from kernelfarm.wire import kernel_to_proto

_extents = itertools.count(1000)


def fresh_kernel(name: str) -> loops_pb2.Kernel:
    """out = -in over an extent that no other kernel of this process has."""
    extent = as_expr(next(_extents))
    x = symbol("x0")
    kernel = Kernel(
        name=name,
        params=(
            Param("in0", DType.F32, extent, Access.READ),
            Param("out0", DType.F32, extent, Access.WRITE),
        ),
        sizes=(),
        outer=(Axis("x0", extent),),
        reduction=(),
        body=(Load("in0", x), Compute("neg", (0,), DType.F32), Store("out0", x, 1)),
    )
    return kernel_to_proto(kernel)
