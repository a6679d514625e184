"""A first compilation before any job, so that no job waits for a toolchain's first use."""

from __future__ import annotations

from codegen_svc.backends.contract import Backend
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, Kernel, Load, Param, Reduce, Store
from kernelfarm.targets import all_targets

_ROWS, _COLUMNS = 8, 64


def warm_up(backend: Backend) -> None:
    """Compiles a small kernel for the vendor's first target and drops the result.

    Raises:
        KernelfarmError: the backend cannot compile it.
    """
    target = next((t for t in all_targets().values() if t.vendor == backend.vendor), None)
    if target is not None:
        backend.build(_exp_of_row_sums(), target)


def _exp_of_row_sums() -> Kernel:
    """in0: (8, 64) -> out0: (8,), f32: the exponential of each row's sum."""
    rows, columns = as_expr(_ROWS), as_expr(_COLUMNS)
    x, r = symbol("x0"), symbol("r0")
    return Kernel(
        name="warm_up",
        params=(
            Param("in0", DType.F32, rows * columns, Access.READ),
            Param("out0", DType.F32, rows, Access.WRITE),
        ),
        sizes=(),
        outer=(Axis("x0", rows),),
        reduction=(Axis("r0", columns),),
        body=(
            Load("in0", x * columns + r),
            Reduce("sum", 0, DType.F32),
            Compute("exp", (1,), DType.F32),
            Store("out0", x, 2),
        ),
    )
