"""Whether the rounding of a kernel's results hides the error of Triton's plain division.

Plain division errs by 2 units in the last place of f32, far less than the rounding of f16 and bf16
results. Exact division costs a softmax on an H200 5 to 20% of its speed.
"""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import (
    GUIDES,
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
)

# These keep a small relative error about as small; a floor or a comparison may amplify it.
_SMOOTH = frozenset(
    [
        "neg",
        "abs",
        "add",
        "sub",
        "mul",
        "div",
        "reciprocal",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "sigmoid",
        "tanh",
        "erf",
        "sin",
        "cos",
        "maximum",
        "minimum",
        "where",
        "convert",
        "isnan",
        "pow",
    ]
)
_SMOOTH_REDUCTIONS = frozenset(
    (
        *("sum", "prod", "amax", "amin", *GUIDES),
        *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
    )
)
NARROW_FLOATS = frozenset((DType.F16, DType.BF16))
"""The floats that kernels store but do not compute in."""


def hides_division_errors(kernel: Kernel) -> bool:
    """True if the kernel stores only f16 and bf16, and applies only smooth operations to floats."""
    dtypes = {param.name: param.dtype for param in kernel.params}
    for statement in kernel.body:
        if isinstance(statement, Store) and dtypes.get(statement.param) not in NARROW_FLOATS:
            return False
        if isinstance(statement, Reduce | Scan) and statement.op not in _SMOOTH_REDUCTIONS:
            return False
        if isinstance(statement, Sort):
            return False
        if isinstance(statement, Compute) and not is_smooth(kernel, statement):
            return False
    return True


def is_smooth(kernel: Kernel, compute: Compute) -> bool:
    """True for smooth operations, and for operations on integers and bools only."""
    operands = [value_dtype(kernel, kernel.body[number]) for number in compute.operands]
    if not any(dtype is not None and dtype.is_float for dtype in operands):
        return True
    return compute.op in _SMOOTH and (compute.dtype.is_float or compute.op == "isnan")


def value_dtype(kernel: Kernel, statement: Statement) -> DType | None:
    """Element type of a statement's value, None if it has none."""
    match statement:
        case Load(param=name):
            return next((p.dtype for p in kernel.params if p.name == name), None)
        case Literal(dtype=dtype) | IndexValue(dtype=dtype):
            return dtype
        case Compute(dtype=dtype) | Reduce(dtype=dtype) | Scan(dtype=dtype) | Sort(dtype=dtype):
            return dtype
        case _:
            return None
