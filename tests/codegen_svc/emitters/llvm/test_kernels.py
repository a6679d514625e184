"""Hand-written loop kernels, compiled, against PyTorch and the interpreter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import Compute, IndexValue, Literal, Load, Reduce, Store
from tests.support.compiled_kernels import NUMPY, kernel, param, run
from tests.support.loop_kernels.optimizer_shapes import (
    D0,
    D1,
    F,
    cat_last,
    embedding,
    layer_norm_silu,
    softmax,
)

pytestmark = pytest.mark.usefixtures("each_cpu_target")

S0, S1 = symbol("s0"), symbol("s1")


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1)


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
