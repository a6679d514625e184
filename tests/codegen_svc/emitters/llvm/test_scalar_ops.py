"""Every scalar operation on every element type, compiled, against the interpreter and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
import torch

from codegen_svc.emitters.llvm import integer_ops
from kernelfarm.dtypes import KERNEL_DTYPES, DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import Compute, Kernel, Load, Statement, Store
from kernelfarm.ir.prims import BOOL_RESULTS, PRIMS, SCALAR_OPS
from tests.support.compiled_kernels import NUMPY, kernel, param, run

pytestmark = pytest.mark.usefixtures("each_cpu_target")

FLOATS = [d for d in KERNEL_DTYPES if d.is_float]
INTEGERS = [d for d in KERNEL_DTYPES if not d.is_float]
GROUP = 12
SHIFTS = {"shl", "shr_arith"}
DIVISIONS = {"trunc_div", "floor_div", "fmod", "mod_floor"}
# Relative tolerances where an elementary function or a wider intermediate is involved.
TOLERANCE = {DType.F64: 1e-14, DType.F32: 1e-6, DType.F16: 2e-3, DType.BF16: 2e-2}


def _operations(dtype: DType) -> list[str]:
    plain = sorted(
        SCALAR_OPS - {"convert", "where"} - (set() if dtype is DType.I64 else {"philox"})
    )
    if dtype.is_float:
        return [op for op in plain if not op.startswith(("bit", "sh"))]
    general = {"eq", "ne", "lt", "le", "gt", "ge", "logical_not", "isnan", "isinf", "isfinite"}
    general |= {"logical_and", "logical_or", "logical_xor", "signbit"}
    return [op for op in plain if op in general or integer_ops.find(op, dtype)]


def _values(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of operands: special values against each other, then random ones."""
    generator = np.random.default_rng(7)
    if dtype is DType.BOOL:
        grid = np.array([(a, b) for a in (False, True) for b in (False, True)] * 10)
        return np.ascontiguousarray(grid[:, 0]), np.ascontiguousarray(grid[:, 1])
    if dtype.is_float:
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -7.0]
        pairs = [(a, b) for a in special for b in special]
        random = np.stack([generator.normal(0, 3, 150), generator.normal(0, 3, 150)], axis=1)
        grid = np.concatenate([np.array(pairs), random]).astype(NUMPY[dtype])
        return np.ascontiguousarray(grid[:, 0]), np.ascontiguousarray(grid[:, 1])
    info = np.iinfo(NUMPY[dtype])
    special = [info.min, info.min + 1, info.max, 0, 1, 2, 3, 7, info.max // 2]
    special += [-1, -2, -7] if info.min else []
    pairs = [(a, b) for a in special for b in special]
    random = [
        tuple(p) for p in generator.integers(info.min, info.max, (150, 2), dtype=NUMPY[dtype])
    ]
    grid = np.array(pairs + random, dtype=NUMPY[dtype])
    return np.ascontiguousarray(grid[:, 0]), np.ascontiguousarray(grid[:, 1])


def _operands(op: str, dtype: DType) -> list[np.ndarray]:
    a, b = _values(dtype)
    if op in DIVISIONS and not dtype.is_float:
        # The smallest integer by -1 kills PyTorch's process, so it has a test of its own.
        smallest = a == (np.iinfo(b.dtype).min if dtype is not DType.BOOL else -1)
        b = np.where((b == 0) | (smallest & (b == np.asarray(-1).astype(b.dtype))), 1, b).astype(
            b.dtype
        )
    if op in SHIFTS:
        b = (b.astype(np.int64) % (8 * dtype.itemsize_bytes)).astype(b.dtype)
    if op == "pow" and not dtype.is_float:
        b = (b.astype(np.int64) % 5).astype(b.dtype)
    return [a, b][: PRIMS[op].arity]


def _kernel_of(ops: list[str], dtype: DType, counts: list[int]) -> Kernel:
    """Each operation reads its own operands and writes its own output, over one axis."""
    d0 = symbol("d0")
    body: list[Statement] = []
    params = []
    for op, count in zip(ops, counts, strict=True):
        operands = []
        for k in range(PRIMS[op].arity or 0):
            params.append(param(f"in_{op}_{k}", dtype, count))
            body.append(Load(f"in_{op}_{k}", d0))
            if dtype.compute_dtype is not dtype:
                body.append(Compute("convert", (len(body) - 1,), dtype.compute_dtype))
            operands.append(len(body) - 1)
        result = DType.BOOL if op in BOOL_RESULTS else dtype
        body.append(
            Compute(op, tuple(operands), DType.BOOL if op in BOOL_RESULTS else dtype.compute_dtype)
        )
        if result.compute_dtype is not result:
            body.append(Compute("convert", (len(body) - 1,), result))
        body.append(Store(f"out_{op}", d0, len(body) - 1))
        params.append(param(f"out_{op}", result, count))
    return kernel(f"ops_{dtype.value}_{ops[0]}", tuple(params), tuple(body), {"d0": counts[0]})


@lru_cache(maxsize=32)
def _results(dtype: DType) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each operation what the compiled kernel gives and what the interpreter gives."""
    found = {}
    ops = _operations(dtype)
    for start in range(0, len(ops), GROUP):
        group = ops[start : start + GROUP]
        inputs = {f"in_{op}_{k}": v for op in group for k, v in enumerate(_operands(op, dtype))}
        count = len(next(iter(inputs.values())))
        built = _kernel_of(group, dtype, [count] * len(group))
        outputs = [
            {p.name: np.zeros(count, NUMPY[p.dtype]) for p in built.params if p.name not in inputs}
            for _ in range(2)
        ]
        assert run(built, {**inputs, **outputs[0]}) == 0
        with np.errstate(all="ignore"):
            run_kernel(built, {**inputs, **outputs[1]}, {})
        for op in group:
            found[op] = (outputs[0][f"out_{op}"], outputs[1][f"out_{op}"])
    return found


def _assert_close(op: str, dtype: DType, got: np.ndarray, expected: np.ndarray) -> None:
    if got.dtype == np.bool_ or not dtype.is_float:
        bad = np.flatnonzero(got != expected)
    else:
        a, b = got.astype(np.float64), expected.astype(np.float64)
        if dtype is DType.F8E4M3FN:
            # Beyond its range PyTorch saturates, see below, where NumPy's type gives NaN.
            a = np.where(np.isnan(b), b, a)
        tolerance = TOLERANCE.get(dtype, 0.13)
        bad = np.flatnonzero(~np.isclose(a, b, rtol=tolerance, atol=1e-30, equal_nan=True))
    operands = [v[bad[:5]].tolist() for v in _operands(op, dtype)]
    assert not len(bad), f"{op} of {operands}: got {got[bad[:5]]}, expected {expected[bad[:5]]}"


@pytest.mark.parametrize("dtype", KERNEL_DTYPES, ids=str)
def test_operations_agree_with_the_interpreter(dtype: DType) -> None:
    for op, (got, expected) in _results(dtype).items():
        _assert_close(op, dtype, got, expected)


def _torch_of() -> dict[str, Callable[..., torch.Tensor]]:
    same = (
        "neg abs sign reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin"
        " acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid floor ceil trunc"
        " bitwise_not add sub mul pow atan2 maximum minimum fmax fmin fmod copysign isnan isinf"
        " isfinite signbit eq ne lt le gt ge logical_not logical_and logical_or logical_xor"
    )
    table: dict[str, Callable[..., torch.Tensor]] = {n: getattr(torch, n) for n in same.split()}
    table |= {
        "round_even": torch.round,
        "mod_floor": torch.remainder,
        "floor_div": torch.floor_divide,
        "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "div": torch.div,
        "bit_and": torch.bitwise_and,
        "bit_or": torch.bitwise_or,
        "bit_xor": torch.bitwise_xor,
        "shl": torch.bitwise_left_shift,
        "shr_arith": torch.bitwise_right_shift,
    }
    return table


TORCH_OF = _torch_of()


@pytest.mark.parametrize(
    "dtype",
    [d for d in KERNEL_DTYPES if d not in (DType.BF16, DType.F8E4M3FN, DType.F8E5M2, DType.F16)],
    ids=str,
)
def test_operations_agree_with_pytorch(dtype: DType) -> None:
    missing = set(_results(dtype)) - set(TORCH_OF) - {"philox"}  # bits of our own
    assert not missing
    compared = 0
    for op in _results(dtype).keys() - {"philox"}:
        got, _ = _results(dtype)[op]
        operands = [torch.from_numpy(v) for v in _operands(op, dtype)]
        try:
            expected = TORCH_OF[op](*operands)
        except (RuntimeError, NotImplementedError):
            continue  # PyTorch has no such operation on this type; the interpreter judged it
        compared += 1
        reference = DType.BOOL if op in BOOL_RESULTS else dtype
        if expected.numpy().dtype == NUMPY[reference]:
            _assert_close(op, dtype, got, expected.numpy())
    assert compared >= 10


@pytest.mark.parametrize("source", KERNEL_DTYPES, ids=str)
def test_conversions_agree_with_the_interpreter(source: DType) -> None:
    d0 = symbol("d0")
    values, _ = _values(source)
    if source.is_float:
        # Out of an integer's range the result is unspecified.
        safe = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=100.0, neginf=-100.0)
        safe = np.abs(np.clip(safe, -100, 100)).astype(values.dtype)
    else:
        safe = values
    body: list[Statement] = [Load("in_any", d0), Load("in_safe", d0)]
    params = [param("in_any", source, len(values)), param("in_safe", source, len(values))]
    targets = [d for d in KERNEL_DTYPES if d is not source]
    for target in targets:
        body.append(Compute("convert", (0 if target.is_float else 1,), target))
        body.append(Store(f"out_{target.value}", d0, len(body) - 1))
        params.append(param(f"out_{target.value}", target, len(values)))
    built = kernel(f"convert_{source.value}", tuple(params), tuple(body), {"d0": len(values)})
    inputs = {"in_any": values, "in_safe": safe}
    outputs = [
        {f"out_{t.value}": np.zeros(len(values), NUMPY[t]) for t in targets} for _ in range(2)
    ]
    run(built, {**inputs, **outputs[0]})
    with np.errstate(all="ignore"):
        run_kernel(built, {**inputs, **outputs[1]}, {})
    for target in targets:
        got, expected = (o[f"out_{target.value}"] for o in outputs)
        if target is DType.F8E4M3FN:
            # Beyond its range PyTorch saturates, see the next test, and the interpreter gives NaN.
            got = np.where(np.isnan(expected.astype(np.float32)), expected, got)
        np.testing.assert_array_equal(
            got.astype(np.float64), expected.astype(np.float64), err_msg=f"{source} -> {target}"
        )


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats_round_as_pytorch_does(name: str) -> None:
    dtype = {"float16": DType.F16, "bfloat16": DType.BF16}.get(name) or (
        DType.F8E4M3FN if "e4" in name else DType.F8E5M2
    )
    generator = np.random.default_rng(11)
    patterns = generator.integers(0, 2**32, 40_000, dtype=np.uint32).view(np.float32)
    near = (generator.normal(0, 1, 40_000) * 2.0 ** generator.uniform(-26, 17, 40_000)).astype(
        np.float32
    )
    x = np.concatenate(
        [patterns, near, np.array([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 65520], np.float32)]
    )
    d0 = symbol("d0")
    body = (
        Load("in0", d0),
        Compute("convert", (0,), dtype),
        Store("out0", d0, 1),
        Compute("convert", (1,), DType.F32),
        Store("out1", d0, 3),
    )
    params = (
        param("in0", DType.F32, len(x)),
        param("out0", dtype, len(x)),
        param("out1", DType.F32, len(x)),
    )
    narrow, back = np.zeros(len(x), NUMPY[dtype]), np.zeros(len(x), np.float32)
    run(
        kernel(f"round_{name}", params, body, {"d0": len(x)}),
        {"in0": x, "out0": narrow, "out1": back},
    )
    expected = torch.from_numpy(x).to(getattr(torch, name)).to(torch.float32).numpy()
    np.testing.assert_array_equal(back, expected)


def test_where_does_not_mix_in_the_other_branch() -> None:
    d0 = symbol("d0")
    body = (
        Load("in0", d0),
        Load("in1", d0),
        Compute("log", (1,), DType.F32),
        Compute("where", (0, 1, 2), DType.F32),
        Store("out0", d0, 3),
    )
    params = (param("in0", DType.BOOL, 4), param("in1", DType.F32, 4), param("out0", DType.F32, 4))
    out = np.zeros(4, np.float32)
    condition = np.array([True, False, True, False])
    run(
        kernel("where_nan", params, body, {"d0": 4}),
        {"in0": condition, "in1": np.array([-1, -1, 2, 1], np.float32), "out0": out},
    )
    np.testing.assert_array_equal(out, np.array([-1, np.nan, 2, 0], np.float32))


@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d is not DType.BOOL], ids=str)
def test_smallest_integer_by_minus_one_wraps(dtype: DType) -> None:
    if dtype is DType.U8:
        return
    low = np.iinfo(NUMPY[dtype]).min
    a, b = np.array([low], NUMPY[dtype]), np.array([-1], NUMPY[dtype])
    for op in sorted(DIVISIONS):
        out = np.full(1, 77, NUMPY[dtype])
        run(_kernel_of([op], dtype, [1]), {f"in_{op}_0": a, f"in_{op}_1": b, f"out_{op}": out})
        assert out.tolist() == [0 if op in ("fmod", "mod_floor") else low], op


@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d is not DType.BOOL], ids=str)
def test_integer_division_by_zero_gives_zero_and_does_not_trap(dtype: DType) -> None:
    a = np.array([5, 0, np.iinfo(NUMPY[dtype]).min], NUMPY[dtype])
    b = np.zeros(3, NUMPY[dtype])
    for op in sorted(DIVISIONS):
        out = np.full(3, 77, NUMPY[dtype])
        built = _kernel_of([op], dtype, [3])
        run(built, {f"in_{op}_0": a, f"in_{op}_1": b, f"out_{op}": out})
        assert out.tolist() == [0, 0, 0], op


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.U8], ids=str)
def test_shift_by_the_width_or_more_gives_what_pytorch_gives(dtype: DType) -> None:
    width = 8 * dtype.itemsize_bytes
    amounts = [0, 1, width - 1, width, width + 1, 100] + ([-1] if dtype is not DType.U8 else [])
    b = np.array(amounts, NUMPY[dtype])
    a = np.full(len(b), 5 if dtype is DType.U8 else -5, NUMPY[dtype])
    for op in sorted(SHIFTS):
        out = np.zeros(len(b), NUMPY[dtype])
        run(_kernel_of([op], dtype, [len(b)]), {f"in_{op}_0": a, f"in_{op}_1": b, f"out_{op}": out})
        expected = TORCH_OF[op](torch.from_numpy(a), torch.from_numpy(b)).numpy()
        np.testing.assert_array_equal(out, expected, err_msg=op)
