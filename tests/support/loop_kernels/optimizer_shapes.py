"""Loop kernels written by hand, in the shapes that the optimizer produces."""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import IntLike, as_expr, symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import (
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Reduce,
    Statement,
    Store,
)
from tests.support.compiled_kernels import kernel, param

F = DType.F32
D0, D1, R0, R1 = (symbol(n) for n in ("d0", "d1", "r0", "r1"))
ROWS = SizeSymbol("s0", 0, None)
COLUMNS = SizeSymbol("s1", 0, None)


def layer_norm_silu(rows: IntLike, columns: int, dtype: DType = F) -> Kernel:
    """SiLU of LayerNorm over the last axis of (rows, columns), with weight and bias."""
    at = D0 * columns + R0
    body: list[Statement] = []

    def add(statement: Statement) -> int:
        body.append(statement)
        return len(body) - 1

    def load(name: str, index: IntLike) -> int:
        raw = add(Load(name, as_expr(index)))
        return raw if dtype is F else add(Compute("convert", (raw,), F))

    x = load("in0", at)
    scale = add(Literal(F, 1 / columns))
    mean = add(Compute("mul", (add(Reduce("sum", x, F)), scale), F))
    centered = add(Compute("sub", (x, mean), F))
    square = add(Compute("mul", (centered, centered), F))
    variance = add(Compute("mul", (add(Reduce("sum", square, F)), scale), F))
    shifted = add(Compute("add", (variance, add(Literal(F, 1e-5))), F))
    normal = add(Compute("mul", (centered, add(Compute("rsqrt", (shifted,), F))), F))
    scaled = add(Compute("mul", (normal, load("in1", R0)), F))
    y = add(Compute("add", (scaled, load("in2", R0)), F))
    out = add(Compute("mul", (y, add(Compute("sigmoid", (y,), F))), F))
    if dtype is not F:
        out = add(Compute("convert", (out,), dtype))
    add(Store("out0", at, out))
    count = as_expr(rows) * columns
    params = (
        param("in0", dtype, count),
        param("in1", dtype, columns),
        param("in2", dtype, columns),
        param("out0", dtype, count),
    )
    sizes = () if isinstance(rows, int) else (ROWS,)
    return kernel("layer_norm_silu", params, tuple(body), {"d0": rows}, {"r0": columns}, sizes)


def softmax(rows: IntLike, columns: IntLike) -> Kernel:
    """Softmax over the last axis."""
    at = D0 * columns + R0
    body = (
        Load("in0", at),
        Reduce("amax", 0, F),
        Compute("sub", (0, 1), F),
        Compute("exp", (2,), F),
        Reduce("sum", 3, F),
        Compute("div", (3, 4), F),
        Store("out0", at, 5),
    )
    count = as_expr(rows) * columns
    sizes = tuple(s for s, e in ((ROWS, rows), (COLUMNS, columns)) if not isinstance(e, int))
    params = (param("in0", F, count), param("out0", F, count))
    return kernel("softmax", params, body, {"d0": rows}, {"r0": columns}, sizes)


def reduce_last(op: str, dtype: DType, result: DType, rows: IntLike, columns: IntLike) -> Kernel:
    """out0[d0] = reduction of in0[d0, :]."""
    body = (Load("in0", D0 * columns + R0), Reduce(op, 0, result), Store("out0", D0, 1))
    params = (param("in0", dtype, as_expr(rows) * columns), param("out0", result, rows))
    sizes = tuple(s for s, e in ((ROWS, rows), (COLUMNS, columns)) if not isinstance(e, int))
    return kernel(f"{op}_last", params, body, {"d0": rows}, {"r0": columns}, sizes)


def reduce_first(op: str, dtype: DType, result: DType, rows: int, columns: int) -> Kernel:
    """out0[d0] = reduction of in0[:, d0]: the contiguous axis is the outer one."""
    body = (Load("in0", R0 * columns + D0), Reduce(op, 0, result), Store("out0", D0, 1))
    params = (param("in0", dtype, rows * columns), param("out0", result, columns))
    return kernel(f"{op}_first", params, body, {"d0": columns}, {"r0": rows})


def reduce_outer_and_last(rows: int, middle: int, columns: int) -> Kernel:
    """out0[d0] = sum of in0[:, d0, :]."""
    at = R0 * (middle * columns) + D0 * columns + R1
    body = (Load("in0", at), Reduce("sum", 0, F), Store("out0", D0, 1))
    params = (param("in0", F, rows * middle * columns), param("out0", F, middle))
    return kernel("sum_two", params, body, {"d0": middle}, {"r0": rows, "r1": columns})


def cat_last(rows: int, left: int, right: int) -> Kernel:
    """Concatenation along the last axis by masked loads."""
    width = left + right
    i = DType.I64
    body = (
        IndexValue(i, D1),
        Literal(i, left),
        Compute("lt", (0, 1), DType.BOOL),
        Compute("logical_not", (2,), DType.BOOL),
        Load("in0", D0 * left + D1, 2),
        Load("in1", D0 * right + D1 - left, 3),
        Compute("where", (2, 4, 5), F),
        Store("out0", D0 * width + D1, 6),
    )
    params = (
        param("in0", F, rows * left),
        param("in1", F, rows * right),
        param("out0", F, rows * width),
    )
    return kernel("cat", params, body, {"d0": rows, "d1": width})


def embedding(tokens: int, vocabulary: int, width: int) -> Kernel:
    """out0[d0, d1] = in1[in0[d0], d1]."""
    body = (
        Load("in0", D0),
        Indirect("%0", 0, as_expr(vocabulary)),
        Load("in1", symbol("%0") * width + D1),
        Store("out0", D0 * width + D1, 2),
    )
    params = (
        param("in0", DType.I64, tokens),
        param("in1", F, vocabulary * width),
        param("out0", F, tokens * width),
    )
    return kernel("embedding", params, body, {"d0": tokens, "d1": width})
