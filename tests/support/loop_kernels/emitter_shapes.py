"""Loop kernels written by hand, one for each shape of code that the emitter produces."""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, IntLike, as_expr, symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import (
    Access,
    Axis,
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Param,
    Reduce,
    Statement,
    Store,
)

F16, BF16, F32, F64 = DType.F16, DType.BF16, DType.F32, DType.F64
I32, I64, BOOL = DType.I32, DType.I64, DType.BOOL
D0, D1, R0 = symbol("d0"), symbol("d1"), symbol("r0")


class Body:
    """Collects statements; every method returns the number of the value it adds."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []

    def add(self, statement: Statement) -> int:
        self.statements.append(statement)
        return len(self.statements) - 1

    def load(
        self, param: str, index: IntLike, mask: int | None = None, other: int | None = None
    ) -> int:
        return self.add(Load(param, as_expr(index), mask, other))

    def literal(self, dtype: DType, value: float | int) -> int:
        return self.add(Literal(dtype, value))

    def position(self, dtype: DType, expr: Expr) -> int:
        return self.add(IndexValue(dtype, expr))

    def compute(self, op: str, *operands: int, dtype: DType = F32) -> int:
        return self.add(Compute(op, operands, dtype))

    def reduce(self, op: str, operand: int, dtype: DType = F32) -> int:
        return self.add(Reduce(op, operand, dtype))

    def indirect(self, name: str, value: int, extent: IntLike) -> Expr:
        self.add(Indirect(name, value, as_expr(extent)))
        return symbol(name)

    def store(self, param: str, index: IntLike, value: int) -> int:
        return self.add(Store(param, as_expr(index), value))

    def load_f32(
        self, param: str, index: IntLike, mask: int | None = None, other: int | None = None
    ) -> int:
        return self.compute("convert", self.load(param, index, mask, other))

    def store_as(self, dtype: DType, param: str, index: IntLike, value: int) -> int:
        return self.store(param, index, self.compute("convert", value, dtype=dtype))


def param(name: str, dtype: DType, size: IntLike) -> Param:
    access = {"out": Access.WRITE, "ino": Access.READ_WRITE}.get(name[:3], Access.READ)
    return Param(name, dtype, as_expr(size), access)


def kernel(
    name: str,
    params: list[Param],
    outer: dict[str, IntLike],
    reduction: dict[str, IntLike],
    body: Body,
    *,
    sizes: tuple[SizeSymbol, ...] = (),
    comments: tuple[str, ...] = (),
) -> Kernel:
    def axes(extents: dict[str, IntLike]) -> tuple[Axis, ...]:
        return tuple(Axis(key, as_expr(value)) for key, value in extents.items())

    return Kernel(
        name, tuple(params), sizes, axes(outer), axes(reduction), tuple(body.statements), comments
    )


def layer_norm_silu(dtype: DType = F16, rows: int = 32, width: int = 128) -> Kernel:
    b, at = Body(), D0 * width + R0
    x = b.load_f32("in0", at)
    count = b.literal(F32, float(width))
    mean = b.compute("div", b.reduce("sum", x), count)
    centered = b.compute("sub", x, mean)
    variance = b.compute("div", b.reduce("sum", b.compute("mul", centered, centered)), count)
    scale = b.compute("rsqrt", b.compute("add", variance, b.literal(F32, 1e-5)))
    normal = b.compute("mul", centered, scale)
    y = b.compute("add", b.compute("mul", normal, b.load_f32("in1", R0)), b.load_f32("in2", R0))
    silu = b.compute("mul", y, b.compute("sigmoid", y))
    b.store_as(dtype, "out0", at, silu)
    params = [
        param("in0", dtype, rows * width),
        param("in1", dtype, width),
        param("in2", dtype, width),
    ]
    params.append(param("out0", dtype, rows * width))
    comments = ("native_layer_norm: model.py:12", "silu: model.py:13")
    return kernel(
        "fused_native_layer_norm_silu_5e1f",
        params,
        {"d0": rows},
        {"r0": width},
        b,
        comments=comments,
    )


def h_sum(rows: int = 4, inner: int = 8, dtype: DType = F32) -> Kernel:
    """ceil(a) + floor(b), summed over the last axis."""
    b, at = Body(), D0 * inner + R0
    total = b.compute(
        "add", b.compute("ceil", b.load_f32("in0", at)), b.compute("floor", b.load_f32("in1", at))
    )
    b.store_as(dtype, "out0", D0, b.reduce("sum", total))
    params = [
        param("in0", dtype, rows * inner),
        param("in1", dtype, rows * inner),
        param("out0", dtype, rows),
    ]
    return kernel(
        "fused_ceil_floor_add_sum_11aa",
        params,
        {"d0": rows},
        {"r0": inner},
        b,
        comments=("ceil", "floor", "add", "sum"),
    )


def h_softmax(rows: int = 4, dtype: DType = F32) -> Kernel:
    """softmax over the one axis, times 10, cubed."""
    b = Body()
    x = b.load_f32("in0", R0)
    e = b.compute("exp", b.compute("sub", x, b.reduce("amax", x)))
    p = b.compute("mul", b.compute("div", e, b.reduce("sum", e)), b.literal(F32, 10.0))
    b.store_as(dtype, "out0", R0, b.compute("pow", p, b.literal(F32, 3.0)))
    params = [param("in0", dtype, rows), param("out0", dtype, rows)]
    return kernel(
        "fused_softmax_mul_pow_22bb",
        params,
        {},
        {"r0": rows},
        b,
        comments=("_softmax", "mul", "pow"),
    )


def softmax(rows: int, width: int, dtype: DType = F32) -> Kernel:
    b, at = Body(), D0 * width + R0
    x = b.load_f32("in0", at)
    e = b.compute("exp", b.compute("sub", x, b.reduce("amax", x)))
    b.store_as(dtype, "out0", at, b.compute("div", e, b.reduce("sum", e)))
    params = [param("in0", dtype, rows * width), param("out0", dtype, rows * width)]
    return kernel(
        "fused_softmax_33cc", params, {"d0": rows}, {"r0": width}, b, comments=("_softmax",)
    )


def log_sum_exp(rows: int, width: int, dtype: DType = F32) -> Kernel:
    """Two loops read a row, and neither stores its elements."""
    b = Body()
    x = b.load_f32("in0", D0 * width + R0)
    most = b.reduce("amax", x)
    total = b.reduce("sum", b.compute("exp", b.compute("sub", x, most)))
    b.store("out0", D0, b.compute("add", b.compute("log", total), most))
    params = [param("in0", dtype, rows * width), param("out0", F32, rows)]
    return kernel("fused_logsumexp_5c1d", params, {"d0": rows}, {"r0": width}, b)


def rms_norm_residual(rows: int = 6, width: int = 96, dtype: DType = BF16) -> Kernel:
    """inout0 += in0, then its RMS norm scaled by in1: two outputs, one in place."""
    b, at = Body(), D0 * width + R0
    x = b.compute("add", b.load_f32("inout0", at), b.load_f32("in0", at))
    b.store_as(dtype, "inout0", at, x)
    mean = b.compute("div", b.reduce("sum", b.compute("mul", x, x)), b.literal(F32, float(width)))
    scale = b.compute("rsqrt", b.compute("add", mean, b.literal(F32, 1e-6)))
    b.store_as(
        dtype, "out0", at, b.compute("mul", b.compute("mul", x, scale), b.load_f32("in1", R0))
    )
    params = [param("in0", dtype, rows * width), param("in1", dtype, width)]
    params += [param("inout0", dtype, rows * width), param("out0", dtype, rows * width)]
    return kernel(
        "fused_add_rms_norm_44dd",
        params,
        {"d0": rows},
        {"r0": width},
        b,
        comments=("add", "rms_norm"),
    )


def rope_cat(rows: int = 5, half: int = 16, dtype: DType = F32) -> Kernel:
    """cat([-x[:, half:], x[:, :half]], 1) * sin, by masked loads."""
    width = 2 * half
    b = Body()
    is_low = b.compute("lt", b.position(I64, D1), b.literal(I64, half), dtype=BOOL)
    is_high = b.compute("logical_not", is_low, dtype=BOOL)
    zero = b.literal(dtype, 0.0)
    high = b.compute("neg", b.load_f32("in0", D0 * width + D1 + half, is_low, zero))
    low = b.load_f32("in0", D0 * width + D1 - half, is_high, zero)
    rotated = b.compute("where", is_low, high, low)
    b.store_as(dtype, "out0", D0 * width + D1, b.compute("mul", rotated, b.load_f32("in1", D1)))
    params = [
        param("in0", dtype, rows * width),
        param("in1", dtype, width),
        param("out0", dtype, rows * width),
    ]
    return kernel(
        "fused_cat_neg_mul_55ee",
        params,
        {"d0": rows, "d1": width},
        {},
        b,
        comments=("slice", "neg", "cat", "mul"),
    )


def padded_shift(rows: int = 4, width: int = 10) -> Kernel:
    """in0 shifted right by one; the first column comes from in1, a value computed per row."""
    b = Body()
    first = b.compute("mul", b.load("in1", D0), b.literal(F32, 2.0))
    zero, position = b.literal(I64, 0), b.position(I64, D1)
    is_inner = b.compute("gt", position, zero, dtype=BOOL)
    b.store("out0", D0 * width + D1, b.load("in0", D0 * width + D1 - 1, is_inner, first))
    params = [param("in0", F32, rows * width), param("in1", F32, rows)]
    params.append(param("out0", F32, rows * width))
    return kernel("fused_cat_mul_dd77", params, {"d0": rows, "d1": width}, {}, b)


def embedding(rows: int = 7, words: int = 11, width: int = 24, dtype: DType = F32) -> Kernel:
    b = Body()
    word = b.indirect("t0", b.load("in0", D0), words)
    b.store("out0", D0 * width + D1, b.load("in1", word * width + D1))
    params = [
        param("in0", I64, rows),
        param("in1", dtype, words * width),
        param("out0", dtype, rows * width),
    ]
    return kernel(
        "fused_embedding_66ff", params, {"d0": rows, "d1": width}, {}, b, comments=("embedding",)
    )


def column_mean(rows: int = 40, columns: int = 70, dtype: DType = F32) -> Kernel:
    b = Body()
    total = b.reduce("sum", b.load_f32("in0", R0 * columns + D0))
    b.store_as(dtype, "out0", D0, b.compute("div", total, b.literal(F32, float(rows))))
    params = [param("in0", dtype, rows * columns), param("out0", dtype, columns)]
    return kernel("fused_mean_7711", params, {"d0": columns}, {"r0": rows}, b, comments=("mean",))


def reduce_rows(op: str, rows: int, width: int, dtype: DType, result: DType) -> Kernel:
    b = Body()
    value = b.load("in0", D0 * width + R0)
    work = dtype.compute_dtype
    if work is not dtype:
        value = b.compute("convert", value, dtype=work)
    b.store("out0", D0, b.reduce(op, value, dtype=result))
    params = [param("in0", dtype, rows * width), param("out0", result, rows)]
    return kernel(f"fused_{op}_8822", params, {"d0": rows}, {"r0": width}, b, comments=(op,))


def dynamic_softmax(dtype: DType = F32) -> Kernel:
    """Rows and width both vary between calls."""
    rows, width = symbol("s0"), symbol("s1")
    b, at = Body(), D0 * width + R0
    x = b.load_f32("in0", at)
    e = b.compute("exp", b.compute("sub", x, b.reduce("amax", x)))
    b.store_as(dtype, "out0", at, b.compute("div", e, b.reduce("sum", e)))
    params = [param("in0", dtype, rows * width), param("out0", dtype, rows * width)]
    sizes = (SizeSymbol("s0", 2, None, 8), SizeSymbol("s1", 2, None, 64))
    return kernel(
        "fused_softmax_9933",
        params,
        {"d0": rows},
        {"r0": width},
        b,
        sizes=sizes,
        comments=("_softmax",),
    )


def dynamic_add(dtype: DType = F16) -> Kernel:
    rows = symbol("s0")
    b, at = Body(), D0 * 48 + D1
    b.store_as(dtype, "out0", at, b.compute("add", b.load_f32("in0", at), b.load_f32("in1", D1)))
    params = [
        param("in0", dtype, rows * 48),
        param("in1", dtype, 48),
        param("out0", dtype, rows * 48),
    ]
    return kernel(
        "fused_add_aa44",
        params,
        {"d0": rows, "d1": 48},
        {},
        b,
        sizes=(SizeSymbol("s0", 2, None, 8),),
        comments=("add",),
    )


def floor_of_quotient() -> Kernel:
    b = Body()
    quotient = b.compute("div", b.load_f32("in0", D0), b.load_f32("in1", D0))
    b.store_as(F16, "out0", D0, b.compute("floor", quotient))
    params = [param(name, F16, 64) for name in ("in0", "in1", "out0")]
    return kernel("fused_div_floor_ee88", params, {"d0": 64}, {}, b, comments=("div", "floor"))


def transposed_with_gap() -> Kernel:
    """out[j, i] = in[i, 2*j] of a 6 x 14 buffer: strides, a step, and division of flat indices."""
    b = Body()
    b.store("out0", D0 * 6 + D1, b.load("in0", D1 * 14 + D0 * 2))
    params = [param("in0", F32, 84), param("out0", F32, 42)]
    return kernel("fused_permute_cc66", params, {"d0": 7, "d1": 6}, {}, b, comments=("permute",))


def lone_point() -> Kernel:
    """No axes, and two stores: as a counter of a cache's length."""
    b = Body()
    value = b.load("in0", 0)
    b.store("out0", 0, value)
    b.store("out1", 0, b.compute("add", value, b.literal(I64, 1), dtype=I64))
    params = [param(name, I64, 1) for name in ("in0", "out0", "out1")]
    return kernel("fused_add_1d1d", params, {}, {}, b, comments=("add",))


def one_element_behind_a_mask(width: int = 20) -> Kernel:
    """out[i] = in[0] where i >= 8, else in[i]: a mask over more points than the position."""
    b = Body()
    is_late = b.compute("ge", b.position(I64, D0), b.literal(I64, 8), dtype=BOOL)
    late = b.load("in0", 0, is_late, b.literal(F32, 0.0))
    b.store("out0", D0, b.compute("where", is_late, late, b.load("in1", D0)))
    params = [param("in0", F32, 1), param("in1", F32, width), param("out0", F32, width)]
    return kernel("fused_where_2e2e", params, {"d0": width}, {}, b, comments=("where",))


def element_by_row(width: int = 100, rows: int = 20) -> Kernel:
    """out[i] = sum over j of (in[i] where j < 7, else 0.25): the mask varies where in does not."""
    b = Body()
    early = b.compute("lt", b.position(I64, R0), b.literal(I64, 7), dtype=BOOL)
    x = b.load("in0", D0, early, b.literal(F32, 0.25))
    b.store("out0", D0, b.reduce("sum", x))
    params = [param("in0", F32, rows), param("out0", F32, rows)]
    return kernel("fused_where_sum_7a7a", params, {"d0": rows}, {"r0": width}, b)


def element_by_column(width: int = 100, rows: int = 20) -> Kernel:
    """out[i] = sum over j of (in[j] where i < 7 and j is even): as above, along the other axis."""
    b = Body()
    is_top = b.compute("lt", b.position(I64, D0), b.literal(I64, 7), dtype=BOOL)
    bit = b.compute("bit_and", b.position(I64, R0), b.literal(I64, 1))
    is_even = b.compute("eq", bit, b.literal(I64, 0), dtype=BOOL)
    x = b.load(
        "in0", R0, b.compute("logical_and", is_top, is_even, dtype=BOOL), b.literal(F32, 0.0)
    )
    b.store("out0", D0, b.reduce("sum", x))
    params = [param("in0", F32, width), param("out0", F32, rows)]
    return kernel("fused_where_sum_7b7b", params, {"d0": rows}, {"r0": width}, b)


def looked_up_norm(rows: int = 1, words: int = 11, width: int = 64) -> Kernel:
    """Rows of a table by index, each divided by its sum of squares: one row at a time."""
    b = Body()
    word = b.indirect("t0", b.load("in0", D0), words)
    x = b.load("in1", word * width + R0)
    total = b.reduce("sum", b.compute("mul", x, x))
    b.store("out0", D0 * width + R0, b.compute("div", x, total))
    params = [
        param("in0", I64, rows),
        param("in1", F32, words * width),
        param("out0", F32, rows * width),
    ]
    return kernel("fused_gather_sum_3f3f", params, {"d0": rows}, {"r0": width}, b)


def scalar_op(op: str, operand_types: tuple[DType, ...], result: DType, count: int) -> Kernel:
    b = Body()
    values = [b.load(f"in{i}", D0) for i in range(len(operand_types))]
    b.store("out0", D0, b.compute(op, *values, dtype=result))
    params = [param(f"in{i}", dtype, count) for i, dtype in enumerate(operand_types)]
    params.append(param("out0", result, count))
    return kernel(f"fused_{op}_bb55", params, {"d0": count}, {}, b, comments=(op,))


def random_floats(rows: int = 6, width: int = 37) -> Kernel:
    """Random bits and the fractions that they make, from one seed, by the element's position."""
    b = Body()
    seed = b.load("in0", 0)
    position = b.position(I64, width * D0 + D1)
    bits = b.compute("philox", seed, position, dtype=I64)
    b.store("out0", width * D0 + D1, bits)
    word = b.compute("convert", bits, dtype=I32)
    high = b.compute("shr_arith", word, b.literal(I32, 8), dtype=I32)
    whole = b.compute("bit_and", high, b.literal(I32, 0xFFFFFF), dtype=I32)
    wide = b.compute("convert", whole, dtype=F32)
    b.store("out1", width * D0 + D1, b.compute("mul", wide, b.literal(F32, 2.0**-24)))
    count = rows * width
    params = [param("in0", I64, 1), param("out0", I64, count), param("out1", F32, count)]
    return kernel("fused_random_5eed", params, {"d0": rows, "d1": width}, {}, b)


ALL: dict[str, Kernel] = {
    "layer_norm_silu": layer_norm_silu(),
    "h_sum": h_sum(),
    "h_softmax": h_softmax(),
    "softmax": softmax(9, 100),
    "wide_softmax": softmax(3, 20000, F16),
    "clustered_softmax": softmax(3, 100000, F16),
    "long_softmax": softmax(3, 600000, F16),
    "rms_norm_residual": rms_norm_residual(),
    "wide_rms_norm_residual": rms_norm_residual(2, 18000),
    "rope_cat": rope_cat(),
    "embedding": embedding(),
    "column_mean": column_mean(),
    "tall_column_mean": column_mean(3000, 70),
    "argmax": reduce_rows("argmax", 5, 77, F32, I64),
    "dynamic_softmax": dynamic_softmax(),
    "dynamic_add": dynamic_add(),
    "lone_point": lone_point(),
    "random_floats": random_floats(),
    "one_element_behind_a_mask": one_element_behind_a_mask(),
    "element_by_row": element_by_row(),
    "element_by_column": element_by_column(),
    "looked_up_norm": looked_up_norm(),
    "looked_up_norms": looked_up_norm(9),
}
