"""Emitted Triton source computes in Triton's interpreter what the loop kernel states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codegen_svc.emitters.triton.block_sizes import next_power_of_2
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.ir.prims import BOOL_RESULTS, SCALAR_OPS
from tests.support.loop_kernels import emitter_shapes
from tests.support.triton_cases import (
    Array,
    assert_same,
    expected,
    interpreter_case,
    random_array,
    random_buffers,
)
from tests.support.triton_interpreter import run_interpreted

F16, BF16, F32, F64 = DType.F16, DType.BF16, DType.F32, DType.F64
I64, I32, I8, U8, BOOL = DType.I64, DType.I32, DType.I8, DType.U8, DType.BOOL

SIZES = {"s0": 5, "s1": 37}


def _looped(rblock: int, xblock: int = 1) -> Tiling:
    return Tiling(xblock, xblock, rblock, False, 32)


def _held(rblock: int, pieces: int, loads_ahead: int = 0) -> Tiling:
    return Tiling(1, 1, rblock, False, 32, pieces=pieces, loads_ahead=loads_ahead)


def _sub_blocked(xblock: int, xsub: int, rblock: int) -> Tiling:
    return Tiling(xblock, xsub, rblock, rblock > 0, 32)


SMALL_KERNELS: dict[str, tuple[Kernel, Tiling | None]] = {
    "layer_norm_silu": (emitter_shapes.layer_norm_silu(F16, 5, 24), None),
    "layer_norm_silu_looped": (emitter_shapes.layer_norm_silu(F32, 3, 24), _looped(16)),
    "layer_norm_silu_held": (emitter_shapes.layer_norm_silu(F16, 3, 24), _held(8, 3)),
    "layer_norm_silu_held_with_a_part": (emitter_shapes.layer_norm_silu(F32, 3, 24), _held(16, 2)),
    "layer_norm_silu_held_loads_ahead": (
        emitter_shapes.layer_norm_silu(F16, 3, 37),
        _held(8, 5, loads_ahead=2),
    ),
    "layer_norm_silu_held_all_loads_ahead": (
        emitter_shapes.layer_norm_silu(F16, 3, 24),
        _held(8, 3, loads_ahead=3),
    ),
    "layer_norm_silu_sub_blocked": (
        emitter_shapes.layer_norm_silu(F32, 7, 24),
        _sub_blocked(4, 2, 32),
    ),
    "h_sum": (emitter_shapes.h_sum(), None),
    "h_softmax": (emitter_shapes.h_softmax(), None),
    "softmax": (emitter_shapes.softmax(3, 20), None),
    "softmax_looped": (emitter_shapes.softmax(3, 20), _looped(8, 2)),
    "softmax_held": (emitter_shapes.softmax(3, 20), _held(8, 3)),
    "rms_norm_residual_held": (emitter_shapes.rms_norm_residual(3, 20), _held(8, 3)),
    "rms_norm_residual": (emitter_shapes.rms_norm_residual(3, 20), None),
    "rms_norm_residual_looped": (emitter_shapes.rms_norm_residual(3, 20), _looped(8, 2)),
    "rope_cat": (emitter_shapes.rope_cat(), None),
    "random_floats": (emitter_shapes.random_floats(), None),
    "random_floats_sub_blocked": (emitter_shapes.random_floats(), _sub_blocked(64, 16, 0)),
    "rope_cat_sub_blocked": (emitter_shapes.rope_cat(), _sub_blocked(64, 16, 0)),
    "column_mean": (emitter_shapes.column_mean(9, 10), None),
    "column_mean_looped": (emitter_shapes.column_mean(9, 10), _looped(4, 4)),
    "dynamic_softmax": (emitter_shapes.dynamic_softmax(), _looped(16, 2)),
    "dynamic_softmax_held": (emitter_shapes.dynamic_softmax(), _held(16, 3)),
    "dynamic_softmax_held_with_an_empty_piece": (emitter_shapes.dynamic_softmax(), _held(32, 4)),
    "dynamic_add": (emitter_shapes.dynamic_add(), None),
    "dynamic_add_64_bit": (emitter_shapes.dynamic_add(), Tiling(64, 64, 0, False, 64)),
    "padded_shift": (emitter_shapes.padded_shift(), None),
    "transposed_gap": (emitter_shapes.transposed_with_gap(), None),
    "lone_point": (emitter_shapes.lone_point(), None),
    "one_element_behind_a_mask": (emitter_shapes.one_element_behind_a_mask(), None),
    "looked_up_norm": (emitter_shapes.looked_up_norm(), None),
    "looked_up_norms": (emitter_shapes.looked_up_norm(5), None),
}

REDUCTIONS: list[tuple[str, DType, DType]] = [
    ("sum", F32, F32),
    ("sum", F64, F64),
    ("sum", I64, I64),
    ("sum", I32, I32),
    ("prod", F32, F32),
    ("prod", I64, I64),
    ("amax", F32, F32),
    ("amin", F64, F64),
    ("amax", I64, I64),
    ("amin", I8, I8),
    ("amax", U8, U8),
    ("any", BOOL, BOOL),
    ("all", BOOL, BOOL),
    ("argmax", F32, I64),
    ("argmin", F32, I64),
    ("argmax", I32, I64),
    ("argmin", F64, I64),
]


def _run(
    cases: dict[str, tuple[Kernel, dict[str, Array], Tiling | None]],
) -> dict[str, dict[str, Array] | str]:
    launches = [interpreter_case(k, b, SIZES, tiling) for k, b, tiling in cases.values()]
    results = run_interpreted(launches)
    found: dict[str, dict[str, Array] | str] = {}
    for (name, (kernel, _, _)), result in zip(cases.items(), results, strict=True):
        names = [p.name for p in kernel.params]
        found[name] = result if isinstance(result, str) else dict(zip(names, result, strict=True))
    return found


def _check(
    kernel: Kernel, buffers: dict[str, Array], result: dict[str, Array] | str, scale: float = 1.0
) -> None:
    assert not isinstance(result, str), result
    reference = expected(kernel, buffers, SIZES)
    for param in kernel.params:
        if param.access is Access.READ:
            np.testing.assert_array_equal(result[param.name], buffers[param.name])
        else:
            assert_same(param.dtype, result[param.name], reference[param.name], scale)


@pytest.fixture(scope="module")
def small_results() -> Any:
    cases = {
        name: (kernel, random_buffers(kernel, SIZES), tiling)
        for name, (kernel, tiling) in SMALL_KERNELS.items()
    }
    return cases, _run(cases)


@pytest.mark.parametrize("name", SMALL_KERNELS)
def test_source_equals_the_loop_interpreter(name: str, small_results: Any) -> None:
    cases, results = small_results
    kernel, buffers, _ = cases[name]
    _check(kernel, buffers, results[name])


def _special_rows(dtype: DType, width: int) -> Array:
    """Rows with ties, NaN at different places, infinities, and nothing but -inf."""
    rows = np.asarray(random_array(dtype, 6 * width, 3)).reshape(6, width)
    if dtype.is_float:
        rows[1, [2, 5]] = np.nan
        rows[2] = -np.inf
        rows[3] = np.inf
        rows[4, 3:6] = 9.0
        rows[5] = 1.0
    return rows.reshape(-1)


@pytest.fixture(scope="module")
def reduction_results() -> Any:
    cases = {}
    for op, dtype, result in REDUCTIONS:
        kernel = emitter_shapes.reduce_rows(op, 6, 11, dtype, result)
        buffers = {"in0": _special_rows(dtype, 11), "out0": random_array(result, 6, 1)}
        for form, tiling in (("persistent", _sub_blocked(2, 2, 16)), ("looped", _looped(4, 2))):
            cases[f"{op}-{dtype.value}-{form}"] = (kernel, buffers, tiling)
    return cases, _run(cases)


@pytest.mark.parametrize("form", ["persistent", "looped"])
@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op, dtype, _ in REDUCTIONS])
def test_reductions_keep_ties_nan_and_infinities(
    op: str, dtype: DType, form: str, reduction_results: Any
) -> None:
    cases, results = reduction_results
    name = f"{op}-{dtype.value}-{form}"
    kernel, buffers, _ = cases[name]
    _check(kernel, buffers, results[name], scale=4.0)


def test_embedding_indices_wrap_below_zero_and_clamp_beyond_the_end() -> None:
    kernel = emitter_shapes.embedding(6, 11, 4)
    buffers = random_buffers(kernel, {})
    buffers["in0"] = np.array([0, -1, 10, -11, 3, 3], dtype=np.int64)
    beyond = {**buffers, "in0": np.array([0, -1, 99, -99, 3, 3], dtype=np.int64)}
    results = _run({"valid": (kernel, buffers, None), "beyond": (kernel, beyond, None)})
    _check(kernel, buffers, results["valid"])
    assert not isinstance(results["beyond"], str)
    table = buffers["in1"].reshape(11, 4)
    np.testing.assert_array_equal(
        results["beyond"]["out0"].reshape(6, 4), table[[0, 10, 10, 0, 3, 3]]
    )


# Domains where an operation is defined, and the error that its formula may make in units of the
# type's tolerance. The interpreter computes in f32 with NumPy's functions.
_POSITIVE = {"sqrt", "rsqrt", "log", "log2", "log10"}
_UNIT = {"asin", "acos", "atanh"}
_BINARY = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "floor_div",
        "trunc_div",
        "mod_floor",
        "fmod",
        "pow",
        "atan2",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "copysign",
        "bit_and",
        "bit_or",
        "bit_xor",
        "shl",
        "shr_arith",
        "philox",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
    ]
)
_INTEGER_ONLY = frozenset(["bitwise_not", "bit_and", "bit_or", "bit_xor", "shl", "shr_arith"])
_BOOL_OPS = frozenset(
    ["logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not", "bit_xor", "eq"]
)


def _operand_types(op: str, dtype: DType) -> tuple[DType, ...]:
    if op == "where":
        return (BOOL, dtype, dtype)
    return (dtype, dtype) if op in _BINARY else (dtype,)


def _scalar_inputs(op: str, types: tuple[DType, ...]) -> dict[str, Array]:
    buffers = {}
    for position, dtype in enumerate(types):
        values = random_array(dtype, 64, 11 + position)
        if dtype.is_float:
            values[:10] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.5, -3.5]
            values = np.roll(values, 3 * position)
            if op in _UNIT:
                values = np.clip(values, -1, 1)
            if op in _POSITIVE:
                values = np.abs(values)
        elif position == 1 and op not in _BOOL_OPS:
            values = np.where(values == 0, 3, values).astype(values.dtype)
            if op in ("shl", "shr_arith"):
                values = np.abs(values).astype(values.dtype)
        buffers[f"in{position}"] = values
    return buffers


def _scalar_cases() -> dict[str, tuple[Kernel, dict[str, Array], Tiling | None]]:
    cases: dict[str, tuple[Kernel, dict[str, Array], Tiling | None]] = {}
    for op in sorted(SCALAR_OPS - {"convert"}):
        dtypes = [I64, I32] if op in _INTEGER_ONLY else [F32, F64]
        dtypes = [I64] if op == "philox" else dtypes
        if op in ("add", "maximum", "floor_div", "mod_floor", "sign", "abs", "lt"):
            dtypes = [*dtypes, I64, I8]
        if op in _BOOL_OPS:
            dtypes = [*dtypes, BOOL]
        for dtype in dtypes:
            types = _operand_types(op, dtype)
            result = BOOL if op in BOOL_RESULTS else dtype
            kernel = emitter_shapes.scalar_op(op, types, result, 64)
            buffers = {**_scalar_inputs(op, types), "out0": random_array(result, 64, 1)}
            cases[f"{op}-{dtype.value}"] = (kernel, buffers, None)
    return cases


SCALAR_CASES = _scalar_cases()
# Powers of large exponents and inverse functions near their poles lose some digits.
_LOOSE = {"pow-f32": 8.0, "tan-f32": 4.0, "acosh-f32": 8.0, "atanh-f32": 8.0}


@pytest.fixture(scope="module")
def scalar_results() -> Any:
    return _run(SCALAR_CASES)


@pytest.mark.parametrize("name", SCALAR_CASES)
def test_scalar_operations_equal_the_loop_interpreter(name: str, scalar_results: Any) -> None:
    kernel, buffers, _ = SCALAR_CASES[name]
    _check(kernel, buffers, scalar_results[name], _LOOSE.get(name, 2.0))


CONVERSIONS = [
    (F32, I64), (F32, F16), (F16, F32), (BF16, F32), (F32, BF16), (I64, F32), (BOOL, F32),
    (BOOL, I64), (F32, BOOL), (I64, I32), (I32, I8), (U8, F32), (I64, BOOL), (F64, F32),
    (F64, BF16),
]  # fmt: skip


def test_conversions_truncate_round_and_compare_with_zero() -> None:
    cases = {}
    for source, target in CONVERSIONS:
        kernel = emitter_shapes.scalar_op("convert", (source,), target, 32)
        values = random_array(source, 32, 5)
        cases[f"{source.value}-{target.value}"] = (
            replace(kernel, name="fused_convert_77aa"),
            {"in0": values, "out0": random_array(target, 32, 6)},
            None,
        )
    results = _run(cases)
    for name, (kernel, buffers, _) in cases.items():
        _check(kernel, buffers, results[name])


def test_a_persistent_block_is_a_power_of_two_that_holds_the_row() -> None:
    assert [next_power_of_2(n) for n in (1, 2, 3, 100, 128, 129)] == [1, 2, 4, 128, 128, 256]
