"""Loop kernels of one row statistic, with guided reductions (one pass) and without (two)."""

from __future__ import annotations

from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_kernel

ONE_PASS = {
    "softmax_sum": "  %1: {t} = amax %0\n  %2: {t} = softmax_sum %0\n",
    "welford_m2": "  %1: {t} = sum %0\n  %2: {t} = welford_m2 %0\n",
}
TWO_PASSES = {
    "softmax_sum": (
        "  %1: {t} = amax %0\n  %2: {t} = sub %0, %1\n  %3: {t} = exp %2\n  %4: {t} = sum %3\n"
    ),
    "welford_m2": (
        "  %1: {t} = sum %0\n  %2: i64 = index {n}\n  %3: {t} = convert %2\n"
        "  %4: {t} = div %1, %3\n  %5: {t} = sub %0, %4\n  %6: {t} = mul %5, %5\n"
        "  %7: {t} = sum %6\n"
    ),
}
LAYOUTS = {
    # (reduction axes and their extents, position of a point): a row, a column, two axes around it
    "row": ("reduce r0 in width\n", "width*d0 + r0", "width"),
    "column": ("reduce r0 in width\n", "rows*r0 + d0", "width"),
    "split": ("reduce r0 in 3\nreduce r1 in width\n", "rows*width*r0 + width*d0 + r1", "3*width"),
}


def statistic(op: str, dtype: str, layout: str = "row", *, passes: int = 1) -> Kernel:
    """out0: the guide, out1: the statistic of each of `rows` rows of in0."""
    axes, at, points = LAYOUTS[layout]
    body = (ONE_PASS if passes == 1 else TWO_PASSES)[op].format(t=dtype, n=points)
    last = body.count("\n")
    kernel = parse_kernel(
        f"kernel {op}_{layout}\nsize rows from 0\nsize width from 0\n"
        f"param in in0: {dtype}[rows*{points}]\n"
        f"param out out0: {dtype}[rows]\nparam out out1: {dtype}[rows]\n"
        f"for d0 in rows\n{axes}  %0: {dtype} = load in0[{at}]\n{body}"
        f"  store out0[d0] = %1\n  store out1[d0] = %{last}\n"
    )
    verify_kernel(kernel)
    return kernel
