"""Scans and scatters: prims against PyTorch, their meaning in kernels, what is refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.digest import kernel_key
from kernelfarm.errors import MalformedMessageError, VerificationError
from kernelfarm.internal.v1 import loops_pb2 as pb
from kernelfarm.ir.interpret import run_graph, run_kernel
from kernelfarm.ir.loop_ir import scattering_stores, varying_values
from kernelfarm.ir.prims import SCAN_OPS
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_graph, verify_kernel
from kernelfarm.wire import kernel_from_proto, kernel_to_proto
from tests.kernelfarm.ir.single_prim import TIES, WITH_NAN, X, graph_of
from tests.support.ir_strategies import GOLDEN

INFINITE = X.clone()
INFINITE[:, 0] = -torch.inf
INFINITE[1, 1, 2] = torch.inf

TORCH_SCANS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": lambda x, dim: x.cummax(dim).values,
    "cummin": lambda x, dim: x.cummin(dim).values,
    "cummax_index": lambda x, dim: x.cummax(dim).indices,
    "cummin_index": lambda x, dim: x.cummin(dim).indices,
    "logcumsumexp": torch.logcumsumexp,
}


@pytest.mark.parametrize("op", SCAN_OPS)
@pytest.mark.parametrize("x", [X, WITH_NAN, INFINITE, TIES], ids=["x", "nan", "inf", "ties"])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_scan_equals_pytorch(op: str, x: torch.Tensor, dim: int) -> None:
    if op == "logcumsumexp" and not x.is_floating_point():
        pytest.skip("integers have no logcumsumexp")
    graph = graph_of(op, [x], {"dim": dim})
    verify_graph(graph)
    (actual,) = run_graph(graph, [x.numpy()])
    expected = TORCH_SCANS[op](x, dim).numpy()
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_a_scan_of_bool_is_refused() -> None:
    with pytest.raises(VerificationError, match="cumprod: an operand of bool; expected a number"):
        graph_of("cumprod", [X > 0], {"dim": 0})
    with pytest.raises(VerificationError, match="logcumsumexp: an operand of i64"):
        graph_of("logcumsumexp", [TIES], {"dim": 0})


PICKS = torch.tensor([[0, 1, -1], [1, 1, 0]])
MODES = {"set": None, "add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", [X, WITH_NAN], ids=["x", "nan"])
def test_a_scatter_along_one_axis_equals_pytorch(mode: str, base: torch.Tensor) -> None:
    # Updates that repeat an index hold one value in mode set: PyTorch states no order there.
    flat = torch.full((2, 6, 4), 7.5) if mode == "set" else torch.randn(2, 6, 4)
    updates = flat.reshape(2, 2, 3, 4).permute(1, 2, 0, 3).contiguous()
    graph = graph_of("scatter", [base, PICKS, updates], {"dims": (1,), "mode": mode})
    verify_graph(graph)
    (actual,) = run_graph(graph, [base.numpy(), PICKS.numpy(), updates.numpy()])
    index = (PICKS % 3).reshape(1, 6, 1).expand(2, 6, 4)
    if mode == "set":
        expected = base.scatter(1, index, flat)
    else:
        expected = base.scatter_reduce(1, index, flat, MODES[mode])
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-5)


def test_a_scatter_at_two_indices_equals_index_put() -> None:
    i, j = torch.tensor([0, 1, 0]), torch.tensor([3, -1, 3])
    updates = torch.randn(3, 3)
    graph = graph_of("scatter", [X, i, j, updates], {"dims": (0, 2), "mode": "add"})
    (actual,) = run_graph(graph, [x.numpy() for x in (X, i, j, updates)])
    expected = X.permute(0, 2, 1).index_put((i, j), updates, accumulate=True).permute(0, 2, 1)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-6)


def test_the_last_of_equal_indices_is_kept() -> None:
    index, updates = torch.tensor([1, 0, 1]), torch.tensor([10.0, 20.0, 30.0])
    base = torch.zeros(3)
    graph = graph_of("scatter", [base, index, updates], {"dims": (0,), "mode": "set"})
    (actual,) = run_graph(graph, [x.numpy() for x in (base, index, updates)])
    assert actual.tolist() == [20, 30, 0]


@pytest.mark.parametrize("bad", [-4, 3])
def test_a_scatter_outside_its_extent_is_an_error(bad: int) -> None:
    index, base = torch.tensor([bad]), torch.zeros(3)
    graph = graph_of("scatter", [base, index, torch.ones(1)], {"dims": (0,), "mode": "add"})
    with pytest.raises(IndexError, match=f"scatter: index {bad}"):
        run_graph(graph, [base.numpy(), index.numpy(), np.ones(1, np.float32)])


@pytest.mark.parametrize(
    ("inputs", "attrs", "message"),
    [
        ([X, TIES], {"dims": (0,), "mode": "set"}, "2 operands; expected a tensor, one or more"),
        ([X, PICKS, X], {"dims": (0,), "mode": "xor"}, "mode='xor'; expected one of set, add"),
        ([X, PICKS, X], {"dims": (0, 1), "mode": "set"}, "for 1 indices; expected one axis for"),
        ([X, PICKS, X], {"dims": (0,), "mode": "set"}, r"expected f32\[2, 3, 3, 4\]"),
        ([X > 0, PICKS, X], {"dims": (0,), "mode": "add"}, "scatter add: elements of bool"),
        ([X, X, X], {"dims": (0,), "mode": "set"}, "an index of f32; expected i32 or i64"),
    ],
)
def test_a_scatter_that_breaks_a_rule_is_refused(
    inputs: list[torch.Tensor], attrs: dict[str, object], message: str
) -> None:
    with pytest.raises(VerificationError, match=message):
        graph_of("scatter", inputs, attrs)


def test_scans_of_a_kernel_run_along_all_reduction_axes() -> None:
    kernel = parse_kernel((GOLDEN / "running.kernel").read_text())
    verify_kernel(kernel)
    assert {3, 4, 5, 6} <= varying_values(kernel)
    x = np.random.default_rng(0).normal(size=(5, 12)).astype(np.float32)
    buffers = {
        "in0": x.reshape(-1),
        "out0": np.zeros(60, np.float32),
        "out1": np.zeros(60, np.int64),
        "out2": np.zeros(5, np.float32),
    }
    run_kernel(kernel, buffers, {"s0": 5})
    sums = np.cumsum(x - x.max(1, keepdims=True), 1, dtype=np.float64)
    np.testing.assert_allclose(buffers["out0"].reshape(5, 12), sums, rtol=1e-5)
    index = torch.from_numpy(x).cummax(1).indices.numpy()
    np.testing.assert_array_equal(buffers["out1"].reshape(5, 12), index)
    np.testing.assert_allclose(buffers["out2"], sums.min(1), rtol=1e-5)


def test_scatters_of_a_kernel_update_point_by_point() -> None:
    kernel = parse_kernel((GOLDEN / "histogram.kernel").read_text())
    verify_kernel(kernel)
    assert scattering_stores(kernel) == {3, 4}
    ids = np.array([3, -1, 3], np.int64)
    weight = np.arange(12, dtype=np.float32)
    buffers = {
        "ids": ids,
        "weight": weight,
        "total": np.ones(32, np.float32),
        "last": np.full(8, -1, np.float32),
    }
    run_kernel(kernel, buffers, {"n": 3})
    total = np.ones((8, 4), np.float32)
    np.add.at(total, ids, weight.reshape(3, 4))
    np.testing.assert_array_equal(buffers["total"].reshape(8, 4), total)
    assert buffers["last"].tolist() == [-1, -1, -1, 11, -1, -1, -1, 7]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=12))
def test_a_scatter_counts_points_over_which_nothing_varies(pairs: list[tuple[int, int]]) -> None:
    kernel = parse_kernel(
        "kernel k\nsize n from 0\nparam in at: i64[n]\nparam in by: i64[n]\n"
        "param inout sums: i64[5]\nfor i in n\nfor twice in 2\n  %0: i64 = load at[i]\n"
        "  k = indirect %0 in 5\n"
        "  %2: i64 = load by[i]\n  store add sums[k] = %2\n"
    )
    verify_kernel(kernel)
    sums = [0] * 5
    for at, by in pairs:
        sums[at] += 2 * by
    buffers = {
        "at": np.array([at for at, _ in pairs], np.int64),
        "by": np.array([by for _, by in pairs], np.int64),
        "sums": np.zeros(5, np.int64),
    }
    run_kernel(kernel, buffers, {"n": len(pairs)})
    assert buffers["sums"].tolist() == sums


HISTOGRAM = (GOLDEN / "histogram.kernel").read_text()
RUNNING = (GOLDEN / "running.kernel").read_text()


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (HISTOGRAM, "inout total", "out total", "scatters to total, which is only written"),
        (
            HISTOGRAM + "  store total[4*bin + k] = %2\n",
            "x",
            "x",
            "accesses total, to which statement 3",
        ),
        (HISTOGRAM, "= %2\n", "= %0\n", "stores i64 to total; expected f32"),
        (
            HISTOGRAM.replace("f32", "f16"),
            "x",
            "x",
            "store add: elements of f16; expected a type of arithmetic",
        ),
        (RUNNING, "scan cumsum", "scan cumxor", "scan 'cumxor'; expected one of cumsum, cumprod"),
        (RUNNING, "%5: i64 = scan", "%5: f32 = scan", "gives f32; expected i64"),
        (RUNNING, "reduce r0 in 3\nreduce r1 in 4", "for r0 in 3\nfor r1 in 4", "does not vary"),
        (
            RUNNING.replace("f32 = amax", "f32 = neg").replace("f32 = amin", "f32 = neg"),
            "reduce r0 in 3\nreduce r1 in 4",
            "for r0 in 3\nfor r1 in 4",
            "scan cumsum in a kernel without reduction axes",
        ),
        (RUNNING, "store out0[12*d0 + 4*r0 + r1]", "store out0[d0]", "stores %3, which varies"),
    ],
)
def test_a_kernel_that_breaks_a_rule_is_refused(
    text: str, old: str, new: str, message: str
) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_kernel(parse_kernel(text.replace(old, new, 1)))


def test_the_mode_of_a_store_is_part_of_the_key_and_of_the_message() -> None:
    kernels = [
        parse_kernel(HISTOGRAM.replace("store add", f"store {mode}".rstrip()))
        for mode in ("", "add", "mul", "min", "max")
    ]
    assert len({kernel_key(kernel, "cpu:x86-64-v4") for kernel in kernels}) == len(kernels)
    assert [kernel_from_proto(kernel_to_proto(kernel)) for kernel in kernels] == kernels


def test_an_unknown_store_mode_is_refused() -> None:
    message = kernel_to_proto(parse_kernel(HISTOGRAM))
    message.body[3].store.mode = 9
    with pytest.raises(MalformedMessageError, match="statement 3: store mode number 9"):
        kernel_from_proto(message)
    message.body[3].store.mode = pb.STORE_MODE_SET
    assert kernel_from_proto(message) == parse_kernel(HISTOGRAM.replace("store add", "store"))
    with pytest.raises(MalformedMessageError, match="a store of mode sub; expected one of set"):
        parse_kernel(HISTOGRAM.replace("store add", "store sub"))
