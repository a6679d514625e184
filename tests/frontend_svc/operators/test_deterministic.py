"""With the option `deterministic`, kernels update elements only if the order does not matter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from frontend_svc import operators
from frontend_svc.decompose.pipeline import Decomposition, decompose_to_prims
from kernelfarm.client.custom_operators import attention  # noqa: F401 -- registers operators
from tests.support.single_operator import Call, captured_graph

TABLE = torch.zeros(6, 4)
ROWS, NUMBERS = torch.ones(3, 4), torch.tensor([1, 4, 1])
IMAGE = torch.ones(1, 2, 8, 8)
ALONG = torch.zeros(3, 4, dtype=torch.int64)

ORDERED = {
    "sums": Call("aten.index_add.default", [TABLE, 0, NUMBERS, ROWS]),
    "sums of half floats": Call("aten.index_add.default", [TABLE.half(), 0, NUMBERS, ROWS.half()]),
    "sums along an axis": Call("aten.scatter_add.default", [TABLE, 0, ALONG, ROWS]),
    "means": Call("aten.scatter_reduce.two", [TABLE, 0, ALONG, ROWS, "mean"]),
    "accumulated values": Call("aten.index_put.default", [TABLE, [NUMBERS], ROWS, True]),
    "gradients of a table": Call(
        "aten.embedding_dense_backward.default", [ROWS, NUMBERS, 6, -1, False]
    ),
    "gradients of an image": Call(
        "aten.upsample_bilinear2d_backward.default",
        [IMAGE, [8, 8], [1, 2, 4, 4], False, None, None],
    ),
    "weights of a histogram": Call(
        "aten.histogram.bin_ct", [ROWS.flatten(), 5], {"weight": ROWS.flatten()}
    ),
    "replaced rows": Call("aten.index_copy.default", [TABLE, 0, NUMBERS, ROWS]),
    "replaced elements": Call("aten.scatter.src", [TABLE, 0, ALONG, ROWS]),
    "written values": Call("aten.index_put.default", [TABLE, [NUMBERS], ROWS]),
    "unpooled elements": Call(
        "aten.max_unpool2d.default",
        [IMAGE, torch.zeros(1, 2, 8, 8, dtype=torch.int64), [16, 16]],
    ),
}
"""Updates whose order changes the result."""

FREE = {
    "sums of integers": Call("aten.index_add.default", [TABLE.long(), 0, NUMBERS, ROWS.long()]),
    "the largest updates": Call("aten.scatter_reduce.two", [TABLE, 0, ALONG, ROWS, "amax"]),
    "a sum of one row": Call("aten.index_add.default", [TABLE, 0, NUMBERS[:1], ROWS[:1]]),
    "one update for each row": Call(
        "aten.scatter_add.default", [TABLE, 1, ALONG[:, :1], ROWS[:, :1]]
    ),
    "a number at positions": Call("aten.scatter.value", [TABLE, 0, ALONG, 2.0]),
    "rows filled with a number": Call("aten.index_fill.int_Scalar", [TABLE, 0, NUMBERS, 2.0]),
    "equal rows": Call("aten.index_put.default", [TABLE, [NUMBERS], ROWS[:1]]),
    "a row at one position": Call("aten.index_put.default", [TABLE, [NUMBERS[:1]], ROWS[:1]]),
    "products": Call("aten.scatter_reduce.two", [TABLE, 0, ALONG, ROWS, "prod"]),
    "counts": Call("aten.histc.default", [ROWS.flatten(), 5, 0, 2]),
    "elements where a mask holds": Call(
        "aten.masked_scatter_backward.default", [ROWS, ROWS > 0, [12]]
    ),
    "repeated numbers": Call("aten.repeat_interleave.Tensor", [NUMBERS], {"output_size": 6}),
}
"""Updates that give the same in every order."""


def _lowered(call: Call, *, needs_fixed_order: bool) -> tuple[Decomposition, set[str]]:
    found = decompose_to_prims(captured_graph(call), needs_fixed_order=needs_fixed_order)
    return found, {node.op for node in found.graph.nodes}


@pytest.mark.parametrize("name", ORDERED)
def test_the_framework_runs_updates_whose_order_matters(name: str) -> None:
    lowered, ops = _lowered(ORDERED[name], needs_fixed_order=True)
    assert ops == {"extern"}
    (report,) = lowered.report
    assert report.outcome.value == "extern" and report.detail.startswith("deterministic: kernels")
    assert "scatter" in _lowered(ORDERED[name], needs_fixed_order=False)[1]


@pytest.mark.parametrize("name", FREE)
def test_kernels_make_updates_whose_order_does_not_matter(name: str) -> None:
    _, ops = _lowered(FREE[name], needs_fixed_order=True)
    assert "scatter" in ops and "extern" not in ops


def test_varying_numbers_of_updates_may_be_several() -> None:
    graph = captured_graph(ORDERED["sums"], is_symbolic=True)
    found = decompose_to_prims(graph, needs_fixed_order=True)
    assert {node.op for node in found.graph.nodes} == {"extern"}


def test_decompositions_update_elements_by_the_builder_that_checks_the_order() -> None:
    folder = Path(operators.__file__).parent
    writing = [p for p in folder.rglob("*.py") if re.search(r'prim\(\s*"scatter"', p.read_text())]
    assert [path.name for path in writing] == ["prims_builder.py"]


def test_no_template_may_compute_the_gradients_of_attention() -> None:
    # A template adds them in no fixed order, and takes only nodes that state a scale.
    heads = torch.zeros(1, 2, 8, 16)
    given = [heads, heads, heads[..., 0], heads, heads, heads, None, False, 0.5, False, False]
    graph = captured_graph(Call("kernelfarm.attention_backward.default", given))
    (node,) = decompose_to_prims(graph, needs_fixed_order=True).graph.nodes
    assert node.op == "extern" and node.attr("scale", None) is None
