"""Sorts that decompose: all on processors; rows that fit in a block on accelerators."""

from __future__ import annotations

import pytest
import torch

from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.operators.core.registry import sorts_rows
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.check_graph import PRIMS_DIALECT
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import target_facts
from tests.support.operator_samples.tensors import normal
from tests.support.single_operator import Call, captured_graph


def _ops(graph: Graph, target: str) -> set[str]:
    facts = target_facts(target)
    result = decompose_to_prims(graph, max_sorted_elems=facts.max_sorted_elems).graph
    assert result.dialect == PRIMS_DIALECT
    return {node.op for node in result.nodes}


@pytest.mark.parametrize("target", ["cuda:sm_90a", "rocm:gfx942", "ascend:910b"])
def test_accelerators_sort_rows_that_a_block_holds(target: str) -> None:
    most = target_facts(target).max_sorted_elems
    assert most is not None
    fits = captured_graph(Call("aten.sort.default", [torch.zeros(2, most)]))
    assert "argsort" in _ops(fits, target)
    longer = captured_graph(Call("aten.sort.default", [torch.zeros(2, most + 1)]))
    assert _ops(longer, target) == {"extern"}


def test_processors_sort_rows_of_any_length() -> None:
    longer = captured_graph(Call("aten.sort.default", [torch.zeros(2, 100_000)]))
    assert "argsort" in _ops(longer, "cpu:x86-64-v3")
    any_length = captured_graph(Call("aten.topk.default", [normal(4, 9), 3]), is_symbolic=True)
    assert "argsort" in _ops(any_length, "cpu:aarch64")
    assert _ops(any_length, "cuda:sm_90a") == {"extern"}


def test_a_row_that_is_too_long_is_named_as_the_reason() -> None:
    graph = captured_graph(Call("aten.sort.default", [torch.zeros(3, 5000)]))
    (report,) = decompose_to_prims(graph, max_sorted_elems=1024).report
    assert "rows of 5000 elements; the target sorts at most 1024" in report.detail


def test_only_operators_that_sort_depend_on_how_a_target_sorts() -> None:
    assert sorts_rows("aten.topk.default") and sorts_rows("aten.median.dim")
    assert not sorts_rows("aten.add.Tensor") and not sorts_rows("aten.no_such.op")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("aten.topk.default(%0, 7)", "the first 7 of 4 elements"),
        ("aten.topk.default(%0, -1)", "the first -1 of 4 elements"),
    ],
)
def test_more_elements_than_a_row_has_are_refused(line: str, message: str) -> None:
    text = (
        'graph aten 1\n%0: f32[3, 4]@[4, 1] = input "x"\n'
        f"%1: f32[3, 4], %2: i64[3, 4] = {line} from [0]\nreturn %1: f32[3, 4]@[4, 1]\n"
    )
    with pytest.raises(InvalidGraphError, match=message):
        decompose_to_prims(parse_graph(text))
