"""Sorts: the prim compared with PyTorch, its meaning in kernels, refusals, keys and codecs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfarm.digest import kernel_key
from kernelfarm.errors import MalformedMessageError, VerificationError
from kernelfarm.ir.interpret import run_graph, run_kernel
from kernelfarm.ir.loop_ir import is_ordered_reduction, varying_values
from kernelfarm.ir.text import parse_kernel, print_kernel
from kernelfarm.ir.verify import verify_graph, verify_kernel
from kernelfarm.wire import kernel_from_proto, kernel_to_proto
from tests.kernelfarm.ir.single_prim import TIES, WITH_NAN, graph_of
from tests.support.examples import examples

ZEROS = torch.tensor([[0.0, -0.0, 0.0], [-0.0, 0.0, torch.nan], [torch.inf, -torch.inf, -0.0]])
INPUTS = {
    "nan": WITH_NAN,
    "ties": TIES,
    "zeros": ZEROS,
    "bool": TIES > 3,
}

SORTED = """kernel sorted
param in in0: f32[12]
param out out0: i64[12]
param out out1: f32[12]
for d0 in 2
reduce r0 in 2
reduce r1 in 3
  %0: f32 = load in0[6*d0 + 3*r0 + r1]
  %1: i64 = sort descending %0
  %2 = indirect %1 in 6
  %3: f32 = load in0[6*d0 + %2]
  store out0[6*d0 + 3*r0 + r1] = %1
  store out1[6*d0 + 3*r0 + r1] = %3
"""


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", INPUTS)
def test_an_order_of_positions_equals_pytorch(name: str, descending: bool) -> None:
    x = INPUTS[name]
    for dim in range(x.ndim):
        graph = graph_of("argsort", [x], {"dim": dim, "descending": descending})
        verify_graph(graph)
        (positions,) = run_graph(graph, [x.numpy()])
        reference = torch.sort(x, stable=True, dim=dim, descending=descending).indices
        np.testing.assert_array_equal(positions, reference.numpy())
        assert positions.dtype == np.int64


def test_an_order_of_a_bad_axis_or_without_a_direction_is_refused() -> None:
    with pytest.raises(VerificationError, match="dim=2; expected an axis from 0 to 1"):
        graph_of("argsort", [TIES], {"dim": 2, "descending": False})
    with pytest.raises(VerificationError, match="descending=1; expected a bool"):
        graph_of("argsort", [TIES], {"dim": 0, "descending": 1})


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.lists(
        st.lists(
            st.sampled_from([0.0, -0.0, 1.0, 2.0, np.nan, np.inf, -np.inf]), max_size=6
        ).filter(lambda row: len(row) == 6),
        min_size=2,
        max_size=2,
    ),
    order=st.sampled_from(["ascending", "descending"]),
)
def test_a_sort_in_a_kernel_counts_all_reduction_axes(rows: list[list[float]], order: str) -> None:
    kernel = parse_kernel(SORTED.replace("descending", order))
    verify_kernel(kernel)
    x = np.array(rows, np.float32)
    buffers = {
        "in0": x.reshape(-1),
        "out0": np.zeros(12, np.int64),
        "out1": np.zeros(12, np.float32),
    }
    run_kernel(kernel, buffers, {})
    reference = torch.sort(torch.tensor(x), stable=True, dim=1, descending=order == "descending")
    np.testing.assert_array_equal(buffers["out0"].reshape(2, 6), reference.indices.numpy())
    np.testing.assert_array_equal(buffers["out1"].reshape(2, 6), reference.values.numpy())


def test_a_sort_of_what_does_not_vary_gives_the_positions_themselves() -> None:
    kernel = parse_kernel(
        "kernel same\nparam in in0: i32[2]\nparam out out0: i64[8]\nfor d0 in 2\nreduce r0 in 4\n"
        "  %0: i32 = load in0[d0]\n  %1: i64 = sort ascending %0\n  store out0[4*d0 + r0] = %1\n"
    )
    verify_kernel(kernel)
    assert varying_values(kernel) == {1, 2}
    out = np.full(8, -1)
    run_kernel(kernel, {"in0": np.array([5, 3], np.int32), "out0": out}, {})
    assert out.tolist() == [0, 1, 2, 3] * 2


def test_text_and_messages_keep_a_sort_and_its_direction_is_part_of_the_key() -> None:
    kernel = parse_kernel(SORTED)
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert kernel_from_proto(kernel_to_proto(kernel)) == kernel
    other = parse_kernel(SORTED.replace("descending", "ascending"))
    assert kernel_key(kernel, "cpu:x86-64-v3") != kernel_key(other, "cpu:x86-64-v3")
    assert is_ordered_reduction(kernel.body[1])


def test_a_sort_without_reduction_axes_or_of_a_narrow_float_is_refused() -> None:
    alone = SORTED.replace("reduce r0", "for r0").replace("reduce r1", "for r1")
    with pytest.raises(VerificationError, match="a sort in a kernel without reduction axes"):
        verify_kernel(parse_kernel(alone))
    narrow = SORTED.replace("f32", "bf16")
    with pytest.raises(VerificationError, match="sort computes in bf16; expected operands conv"):
        verify_kernel(parse_kernel(narrow))


def test_a_sort_of_no_direction_is_no_kernel() -> None:
    with pytest.raises(MalformedMessageError, match="expected ascending or descending"):
        parse_kernel(SORTED.replace("sort descending", "sort upwards"))
