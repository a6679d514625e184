"""Hand-written loop kernels, compiled, against PyTorch and the interpreter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import Compute, IndexValue, Kernel, Literal, Load, Reduce, Store
from kernelfarm.ir.text import parse_kernel
from tests.support.compiled_kernels import NUMPY, kernel, param, run
from tests.support.loop_kernels.optimizer_shapes import (
    D0,
    D1,
    R0,
    F,
    cat_last,
    embedding,
    layer_norm_silu,
    reduce_first,
    reduce_last,
    reduce_outer_and_last,
    softmax,
)

pytestmark = pytest.mark.usefixtures("each_cpu_target")

S0, S1 = symbol("s0"), symbol("s1")


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1)


def _assert_as_interpreted(
    built: Kernel, buffers: dict[str, np.ndarray], sizes: dict[str, int], rtol: float = 0.0
) -> None:
    expected = {name: array.copy() for name, array in buffers.items()}
    with np.errstate(all="ignore"):
        run_kernel(built, expected, sizes)
    assert run(built, buffers, sizes) == 0
    for name, array in buffers.items():
        np.testing.assert_allclose(
            array.astype(np.float64), expected[name].astype(np.float64), rtol=rtol, err_msg=name
        )


@pytest.mark.parametrize("columns", [1, 7, 16, 128, 1000, 5000])
def test_layer_norm_and_silu_are_within_float32_rounding(columns: int) -> None:
    rows = 5
    x, w, b = _normal(rows, columns), _normal(columns, seed=1), _normal(columns, seed=2)
    out = np.zeros(rows * columns, np.float32)
    built = layer_norm_silu(rows, columns)
    assert run(built, {"in0": _flat(x), "in1": w, "in2": b, "out0": out}) == 0
    wide = [torch.from_numpy(v).double() for v in (x, w, b)]
    exact = torch.nn.functional.silu(
        torch.nn.functional.layer_norm(wide[0], (columns,), wide[1], wide[2], 1e-5)
    )
    np.testing.assert_allclose(out.reshape(rows, columns), exact.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
def test_narrow_layer_norm_rounds_once_at_the_end(dtype: DType) -> None:
    rows, columns = 4, 96
    kind = NUMPY[dtype]
    x, w, b = (
        _normal(*s, seed=k).astype(kind)
        for k, s in enumerate([(rows, columns), (columns,), (columns,)])
    )
    out = np.zeros(rows * columns, kind)
    assert (
        run(
            layer_norm_silu(rows, columns, dtype),
            {"in0": _flat(x), "in1": w, "in2": b, "out0": out},
        )
        == 0
    )
    wide = [torch.from_numpy(v.astype(np.float64)) for v in (x, w, b)]
    exact = torch.nn.functional.silu(
        torch.nn.functional.layer_norm(wide[0], (columns,), wide[1], wide[2], 1e-5)
    ).numpy()
    last_place = 2.0**-11 if dtype is DType.F16 else 2.0**-8
    np.testing.assert_allclose(
        out.astype(np.float64).reshape(rows, columns), exact, rtol=1.01 * last_place, atol=1e-6
    )


@pytest.mark.parametrize("columns", [1, 5, 64, 1023, 4097])
def test_softmax_is_within_float32_rounding(columns: int) -> None:
    x = _normal(6, columns) * 5
    out = np.zeros(x.size, np.float32)
    assert run(softmax(6, columns), {"in0": _flat(x), "out0": out}) == 0
    exact = torch.softmax(torch.from_numpy(x).double(), dim=-1).numpy()
    np.testing.assert_allclose(out.reshape(x.shape), exact, rtol=5e-6)


def test_softmax_of_an_all_inf_row_is_nan_and_its_neighbours_are_not() -> None:
    x = np.array(
        [[-np.inf] * 20, [1.0] * 20, [-np.inf] * 19 + [3.0], [np.nan] + [0.0] * 19], np.float32
    )
    out = np.zeros(x.size, np.float32)
    run(softmax(4, 20), {"in0": _flat(x), "out0": out})
    expected = torch.softmax(torch.from_numpy(x), dim=-1).numpy()
    np.testing.assert_allclose(out.reshape(x.shape), expected, rtol=1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(3, 50), (1, 1), (7, 300), (0, 5), (5, 5000)])
def test_one_binary_serves_every_size(rows: int, columns: int) -> None:
    x = _normal(rows, columns)
    out = np.zeros(x.size, np.float32)
    built = softmax(S0, S1)
    assert run(built, {"in0": _flat(x), "out0": out}, {"s0": rows, "s1": columns}) == 0
    exact = torch.softmax(torch.from_numpy(x).double(), dim=-1).numpy()
    np.testing.assert_allclose(out.reshape(x.shape), exact, rtol=5e-6)


REDUCTIONS = [
    ("sum", DType.F32, DType.F32),
    ("sum", DType.F64, DType.F64),
    ("sum", DType.I64, DType.I64),
    ("sum", DType.I32, DType.I32),
    ("prod", DType.F32, DType.F32),
    ("amax", DType.F32, DType.F32),
    ("amin", DType.F32, DType.F32),
    ("amax", DType.F64, DType.F64),
    ("amin", DType.I8, DType.I8),
    ("amax", DType.U8, DType.U8),
    ("any", DType.BOOL, DType.BOOL),
    ("all", DType.BOOL, DType.BOOL),
    ("argmax", DType.F32, DType.I64),
    ("argmin", DType.F32, DType.I64),
    ("argmax", DType.I32, DType.I64),
    ("argmin", DType.U8, DType.I64),
]


def _reduction_input(dtype: DType, shape: tuple[int, int]) -> np.ndarray:
    generator = np.random.default_rng(5)
    if dtype is DType.BOOL:
        return generator.integers(0, 100, shape) == 0
    if dtype.is_integer:
        info = np.iinfo(NUMPY[dtype])
        return generator.integers(info.min, info.max, shape, dtype=NUMPY[dtype])
    return (1 + generator.standard_normal(shape) / 20).astype(NUMPY[dtype])


@pytest.mark.parametrize("columns", [1, 33, 200])
@pytest.mark.parametrize(("op", "dtype", "result"), REDUCTIONS, ids=str)
def test_row_reduction_agrees_with_the_interpreter(
    op: str, dtype: DType, result: DType, columns: int
) -> None:
    x = _reduction_input(dtype, (4, columns))
    buffers = {"in0": _flat(x), "out0": np.zeros(4, NUMPY[result])}
    rtol = {DType.F32: 3e-6, DType.F64: 1e-13}.get(result, 0.0)
    _assert_as_interpreted(reduce_last(op, dtype, result, 4, S1), buffers, {"s1": columns}, rtol)


@pytest.mark.parametrize(("op", "dtype", "result"), REDUCTIONS, ids=str)
def test_column_reduction_agrees_with_the_interpreter(op: str, dtype: DType, result: DType) -> None:
    rows, columns = 37, 600
    x = _reduction_input(dtype, (rows, columns))
    buffers = {"in0": _flat(x), "out0": np.zeros(columns, NUMPY[result])}
    rtol = {DType.F32: 3e-6, DType.F64: 1e-13}.get(result, 0.0)
    _assert_as_interpreted(reduce_first(op, dtype, result, rows, columns), buffers, {}, rtol)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_arg_reduction_gives_the_first_of_ties_and_the_first_nan(op: str) -> None:
    nan = np.nan
    rows = [[3, 7, 7, 1, 1], [nan, 9, nan, 1, 0], [0, 1, nan, 9, nan], [-np.inf] * 5, [np.inf] * 5]
    x = np.array(rows, np.float32).repeat(9, axis=1)
    out = np.zeros(len(rows), np.int64)
    run(reduce_last(op, F, DType.I64, len(rows), x.shape[1]), {"in0": _flat(x), "out0": out})
    assert out.tolist() == getattr(torch, op)(torch.from_numpy(x), dim=1).tolist()
    columns = np.zeros(len(rows), np.int64)
    transposed = np.tile(np.ascontiguousarray(x.T), (1, 4))
    columns = np.zeros(transposed.shape[1], np.int64)
    run(
        reduce_first(op, F, DType.I64, *transposed.shape),
        {"in0": _flat(transposed), "out0": columns},
    )
    assert columns.tolist() == getattr(torch, op)(torch.from_numpy(transposed), dim=0).tolist()


def test_extremum_of_a_row_with_nan_is_nan() -> None:
    x = _normal(3, 100)
    x[0, 0], x[1, 57], x[2, 99] = np.nan, np.nan, np.nan
    for op in ("amax", "amin"):
        out = np.zeros(3, np.float32)
        run(reduce_last(op, F, F, 3, 100), {"in0": _flat(x), "out0": out})
        assert np.isnan(out).all(), op


def test_empty_reduction_gives_the_identity() -> None:
    out = np.full(3, 7, np.float32)
    run(reduce_last("sum", F, F, 3, S1), {"in0": np.zeros(0, np.float32), "out0": out}, {"s1": 0})
    assert out.tolist() == [0, 0, 0]
    assert not np.signbit(out).any()
    run(reduce_last("prod", F, F, 3, S1), {"in0": np.zeros(0, np.float32), "out0": out}, {"s1": 0})
    assert out.tolist() == [1, 1, 1]


def test_zero_outer_points_write_nothing() -> None:
    out = np.full(1, 7, np.float32)
    x = np.zeros(0, np.float32)
    run(reduce_last("sum", F, F, S0, 5), {"in0": x, "out0": out}, {"s0": 0})
    assert out.tolist() == [7]


@pytest.mark.parametrize("column_wise", [False, True])
def test_a_million_floats_sum_within_float32_rounding(column_wise: bool) -> None:
    count = 1 << 20
    lanes = 32 if column_wise else 1
    x = np.random.default_rng(3).uniform(0, 1, (lanes, count)).astype(np.float32)
    out = np.zeros(lanes, np.float32)
    if column_wise:
        run(reduce_first("sum", F, F, count, lanes), {"in0": _flat(x.T), "out0": out})
    else:
        run(reduce_last("sum", F, F, 1, S1), {"in0": _flat(x), "out0": out}, {"s1": count})
    exact = x.astype(np.float64).sum(axis=1)
    assert np.max(np.abs(out - exact) / exact) < 3e-7


def test_sum_over_an_outer_and_an_inner_axis() -> None:
    x = _normal(6, 20, 33)
    out = np.zeros(20, np.float32)
    run(reduce_outer_and_last(6, 20, 33), {"in0": _flat(x), "out0": out})
    np.testing.assert_allclose(out, x.astype(np.float64).sum(axis=(0, 2)), rtol=1e-4, atol=1e-5)


def test_argmax_over_two_axes_counts_in_the_order_of_the_axes() -> None:
    r1 = symbol("r1")
    x = _normal(5, 4, 6).round(0)
    body = (
        Load("in0", D0 * 24 + R0 + r1 * 4),
        Reduce("argmax", 0, DType.I64),
        Store("out0", D0, 1),
    )
    # Axis r0 (4) steps by 1, axis r1 (6) by 4: the vectorized axis is not the last one.
    built = kernel(
        "argmax2",
        (param("in0", F, x.size), param("out0", DType.I64, 5)),
        body,
        {"d0": 5},
        {"r0": 4, "r1": 6},
    )
    out = np.zeros(5, np.int64)
    run(built, {"in0": _flat(x), "out0": out})
    order = x.reshape(5, 6, 4).transpose(0, 2, 1).reshape(5, 24)
    assert out.tolist() == order.argmax(axis=1).tolist()


def test_masked_loads_concatenate_without_reading_outside() -> None:
    a, b = _normal(9, 5), _normal(9, 70, seed=1)
    out = np.zeros(9 * 75, np.float32)
    assert run(cat_last(9, 5, 70), {"in0": _flat(a), "in1": _flat(b), "out0": out}) == 0
    np.testing.assert_array_equal(out.reshape(9, 75), np.concatenate([a, b], axis=1))


def test_gather_wraps_negative_indices() -> None:
    table = _normal(11, 40)
    tokens = np.array([0, 10, -1, -11, 3], np.int64)
    out = np.zeros(5 * 40, np.float32)
    assert run(embedding(5, 11, 40), {"in0": tokens, "in1": _flat(table), "out0": out}) == 0
    np.testing.assert_array_equal(out.reshape(5, 40), table[tokens])


@pytest.mark.parametrize("bad", [11, -12, 2**62, -(2**62)])
@pytest.mark.parametrize("threads", [1, 4])
def test_index_out_of_bounds_is_reported_and_memory_stays_safe(bad: int, threads: int) -> None:
    count = 4000
    table = _normal(11, 40)
    tokens = np.zeros(count, np.int64)
    tokens[count - 1] = bad
    out = np.zeros(count * 40, np.float32)
    failed = run(
        embedding(count, 11, 40), {"in0": tokens, "in1": _flat(table), "out0": out}, threads=threads
    )
    assert failed == 1


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_change_nothing(threads: int) -> None:
    rows, columns = 203, 515
    x, w, b = _normal(rows, columns), _normal(columns, seed=1), _normal(columns, seed=2)
    built = layer_norm_silu(S0, columns)
    buffers = {"in0": _flat(x), "in1": w, "in2": b}
    results = []
    for count in (1, threads):
        out = np.zeros(rows * columns, np.float32)
        run(built, {**buffers, "out0": out}, {"s0": rows}, threads=count)
        results.append(out)
    np.testing.assert_array_equal(*results)


def test_threads_share_a_long_pointwise_axis_and_three_short_ones() -> None:
    d2 = symbol("d2")
    n = (9, 70, 313)
    size = SizeSymbol("s0", 0, None)
    at = D0 * (70 * 313) + D1 * 313 + d2
    body = (Load("in0", d2 * (9 * 70) + D1 * 9 + D0), Store("out0", at, 0))
    built = kernel(
        "transpose",
        (param("in0", F, 9 * 70 * 313), param("out0", F, 9 * 70 * 313)),
        body,
        {"d0": S0, "d1": 70, "d2": 313},
        sizes=(size,),
    )
    x = _normal(313, 70, 9)
    out = np.zeros(x.size, np.float32)
    run(built, {"in0": _flat(x), "out0": out}, {"s0": 9}, threads=3)
    np.testing.assert_array_equal(out.reshape(n), x.transpose(2, 1, 0))


def test_in_place_softmax_reads_each_element_before_it_is_overwritten() -> None:
    body = softmax(4, 33).body
    renamed = tuple(
        Load("inout0", s.index)
        if isinstance(s, Load)
        else Store("inout0", s.index, s.value)
        if isinstance(s, Store)
        else s
        for s in body
    )
    # A second, plain output makes one more phase read the buffer after the first store could run.
    extra = (*renamed, Compute("add", (0, 4), F), Reduce("sum", 7, F), Store("out0", D0, 8))
    built = kernel(
        "softmax_inplace",
        (param("inout0", F, 4 * 33), param("out0", F, 4)),
        extra,
        {"d0": 4},
        {"r0": 33},
    )
    x = _normal(4, 33)
    buffer, out = _flat(x).copy(), np.zeros(4, np.float32)
    run(built, {"inout0": buffer, "out0": out})
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    total = e.sum(axis=1)
    np.testing.assert_allclose(buffer.reshape(4, 33), e / total[:, None], rtol=5e-6)
    np.testing.assert_allclose(out, wide.sum(axis=1) + 33 * total, rtol=1e-5)


def test_index_expressions_divide_and_wrap_as_integers_do() -> None:
    body = (
        IndexValue(DType.I64, (D0 - 50) // 7),
        IndexValue(DType.I32, (D0 - 50) % 7),
        IndexValue(DType.I64, D0 // S0 + D0 % S0),
        Store("out0", D0, 0),
        Store("out1", D0, 1),
        Store("out2", D0, 2),
    )
    params = (
        param("out0", DType.I64, 100),
        param("out1", DType.I32, 100),
        param("out2", DType.I64, 100),
    )
    built = kernel("indices", params, body, {"d0": 100}, sizes=(SizeSymbol("s0", 1, None),))
    out = [np.zeros(100, np.int64), np.zeros(100, np.int32), np.zeros(100, np.int64)]
    run(built, {f"out{k}": v for k, v in enumerate(out)}, {"s0": 9})
    i = np.arange(100)
    np.testing.assert_array_equal(out[0], (i - 50) // 7)
    np.testing.assert_array_equal(out[1], (i - 50) % 7)
    np.testing.assert_array_equal(out[2], i // 9 + i % 9)


def test_kernel_without_axes_computes_one_element() -> None:
    zero = D0 * 0
    body = (Load("in0", zero), Literal(F, 2.0), Compute("mul", (0, 1), F), Store("out0", zero, 2))
    out = np.zeros(1, np.float32)
    run(
        kernel("scalar", (param("in0", F, 1), param("out0", F, 1)), body),
        {"in0": np.array([21], np.float32), "out0": out},
    )
    assert out.tolist() == [42]


def test_full_reduction_without_outer_axes() -> None:
    body = (Load("in0", R0), Reduce("sum", 0, F), Store("out0", R0 * 0, 1))
    out = np.zeros(1, np.float32)
    x = _normal(10_001)
    run(
        kernel("total", (param("in0", F, 10_001), param("out0", F, 1)), body, None, {"r0": 10_001}),
        {"in0": x, "out0": out},
    )
    np.testing.assert_allclose(out[0], x.astype(np.float64).sum(), rtol=1e-5)


def test_bfloat16_storage_is_read_and_written_bit_by_bit() -> None:
    x = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16)
    body = (
        Load("in0", D0),
        Compute("convert", (0,), F),
        Compute("convert", (1,), DType.BF16),
        Store("out0", D0, 2),
    )
    out = np.zeros(65536, ml_dtypes.bfloat16)
    run(
        kernel(
            "copy_bf16",
            (param("in0", DType.BF16, 65536), param("out0", DType.BF16, 65536)),
            body,
            {"d0": 65536},
        ),
        {"in0": x, "out0": out},
    )
    plain = ~np.isnan(x.astype(np.float32))
    np.testing.assert_array_equal(out.view(np.uint16)[plain], x.view(np.uint16)[plain])
    assert np.isnan(out.astype(np.float32)[~plain]).all()


def _column_statistics(rows: int | str) -> Kernel:
    """Sum, product, largest and number of the largest element of each of 48 columns."""
    size = f"size {rows} from 0\n" if isinstance(rows, str) else ""
    points = f"48*{rows}" if isinstance(rows, str) else f"{48 * rows}"
    return parse_kernel(
        f"kernel columns\n{size}param in in0: f32[{points}]\nparam out out0: f32[48]\n"
        "param out out1: f32[48]\nparam out out2: f32[48]\nparam out out3: i64[48]\n"
        f"for d0 in 48\nreduce r0 in {rows}\n  %0: f32 = load in0[d0 + 48*r0]\n"
        "  %1: f32 = sum %0\n  %2: f32 = prod %0\n  %3: f32 = amax %0\n"
        "  %4: i64 = argmax %0\n  store out0[d0] = %1\n  store out1[d0] = %2\n"
        "  store out2[d0] = %3\n  store out3[d0] = %4\n"
    )


@pytest.mark.parametrize("rows", [1024, 1025, 1152, 2000, "s0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_long_columns_are_summed_in_blocks(rows: int | str, threads: int) -> None:
    for count in (1, 127, 128, 129, 3000) if isinstance(rows, str) else (rows,):
        x = np.random.default_rng(count).uniform(0.9, 1.1, (count, 48)).astype(np.float32)
        out = {f"out{n}": np.zeros(48, np.float32) for n in range(3)}
        buffers = {"in0": _flat(x), **out, "out3": np.zeros(48, np.int64)}
        sizes = {"s0": count} if isinstance(rows, str) else {}
        assert run(_column_statistics(rows), buffers, sizes, threads=threads) == 0
        wide = x.astype(np.float64)
        # A block of 128 terms errs by at most 127 roundings of its sum, in the mean by far fewer.
        np.testing.assert_allclose(buffers["out0"], wide.sum(0), rtol=2e-6)
        np.testing.assert_allclose(buffers["out1"], wide.prod(0), rtol=2e-5)
        np.testing.assert_array_equal(buffers["out2"], x.max(0))
        np.testing.assert_array_equal(buffers["out3"], x.argmax(0))
