"""Structural checks of captured graphs: what a client can get wrong."""

from dataclasses import replace

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.graph_ir import Constant, Graph, Input, Ref, TensorType
from kernelfarm.ir.text import parse_graph
from kernelfarm.ir.verify import check_client_graph
from tests.support.ir_strategies import GOLDEN

TEXT = (GOLDEN / "captured.graph").read_text()


def captured() -> Graph:
    return parse_graph(TEXT)


def test_a_well_formed_capture_passes() -> None:
    check_client_graph(captured())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("aten.mm.default(%0, %5)", "aten.mm.default(%0, %99)", r"node 1 \(aten.mm.default\): uses"
         " value 99, which nothing defines"),
        ("aten.t.default(%3)", "aten.t.default(%6)", r"node 0 \(aten.t.default\): uses value 6,"
         r" which is defined only by node 1 \(aten.mm.default\); expected nodes in topological"),
        ("aten.t.default(%3)", "aten.t.default(%5)", "defined only by node 0 .*cyclic"),
        ("aten.t.default(%3)", "aten.t.default(%4)", "value 4 as a tensor, but it is a symbolic"),
        ("[128], none, none", "[128], [none, %77], none", "node 2 .*value 77"),
        ("%6: f16[s7, 128]@[128, 1] = aten.mm", "%5: f16[s7, 128]@[128, 1] = aten.mm",
         "node 1 .*defines value 5 a second time"),
        ("%2: i64", "%0: i64", "input 2: defines value 0 a second time"),
        ("%8: f32[s7, 1]", "%8: f32[s9, 1]", "node 2 .*symbol s9 is not declared; expected one of:"
         " s7, u0"),
        ("{2*s7}]", "{2*q}]", "node 3 .*symbol q is not declared"),
        ("{3*s7 - 1}", "{3*q - 1}", "output 2: symbol q"),
        ("integer u0", "integer u9", "input 1: symbol u9"),
        ("dtype=f32, pin_memory=false", "pin_memory=false, dtype=f32", "attributes pin_memory,"
         " dtype; expected distinct names in sorted order"),
        ("dtype=f32, pin", "pin_memory=true, pin", "expected distinct names"),
        ("0a00000000000000", "0a0000", "a constant of 11 bytes; expected 16"),
        ("0a00000000000000", "0b00000000000000", "expected [0-9a-f]{64} for its data"),
        ("%2: i64[2]@[1] = c", "%2: i64[s7]@[1] = c", "a constant of symbolic shape"),
        ("at 2", "at 3", "location 3; expected at most 2"),
        ("size u0 from 0", "size s7 from 0", "'s7' is declared twice"),
        ("from 2 to 512", "from 9 to 5", "s7 ranges from 9 to 5"),
        ("return %11: f16[s7, 128]@[128, 1]", "return %11", "output 0: a tensor without a type"),
        ("return %11: f16", "return %11: f32", "output 0: stated as f32.*but its value is f16"),
        ("%12: i64[2]@[1], %13", "%12: i64[3]@[1], %13", r"stated as i64\[3\], but its value is"
         r" i64\[2\]"),
        ("none, {3*s7", "0.5, {3*s7", "output 1: 0.5; expected a tensor, an integer or none"),
    ],
)  # fmt: skip
def test_a_wrong_capture_is_refused_with_what_was_seen(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(InvalidGraphError, match=message):
        check_client_graph(parse_graph(TEXT.replace(old, new)))


def test_a_result_without_a_type_is_refused() -> None:
    graph = captured()
    nodes = (replace(graph.nodes[0], types=()), *graph.nodes[1:])
    with pytest.raises(InvalidGraphError, match=r"node 0 .*0 types for 1 results"):
        check_client_graph(replace(graph, nodes=nodes))


def test_a_node_without_an_operator_is_refused() -> None:
    graph = captured()
    nodes = (replace(graph.nodes[0], op=""), *graph.nodes[1:])
    with pytest.raises(InvalidGraphError, match="no operator name"):
        check_client_graph(replace(graph, nodes=nodes))


def test_a_missing_output_type_is_refused() -> None:
    graph = captured()
    with pytest.raises(InvalidGraphError, match="5 output types for 6 outputs"):
        check_client_graph(replace(graph, output_types=graph.output_types[:-1]))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorType(DType.F32, (as_expr(-1),)), "extent -1; expected 0 or more"),
        (TensorType(DType.F32, (as_expr(2),), (as_expr(-1),)), "stride -1"),
        (TensorType(DType.F32, (as_expr(2),), (as_expr(1), as_expr(1))), "2 strides for 1 axes"),
        (TensorType(DType.F32, (symbol("s0"),)), "symbol s0 is not declared; expected one of: no"),
    ],
)
def test_an_impossible_type_is_refused(tensor: TensorType, message: str) -> None:
    graph = Graph("aten", (), (Input(0, tensor),), (), (Ref(0),), (tensor,))
    with pytest.raises(InvalidGraphError, match=message):
        check_client_graph(graph)


def test_a_constant_above_64_kib_is_refused() -> None:
    tensor = TensorType(DType.U8, (as_expr(65537),))
    constant = Constant(tensor, b"", bytes(65537))
    with pytest.raises(InvalidGraphError, match="65537 bytes; expected at most 65536"):
        check_client_graph(Graph("aten", (), (Input(0, constant),), (), (), ()))


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(InvalidGraphError, match="'torch'; expected 'aten' or 'prims'"):
        check_client_graph(replace(captured(), dialect="torch"))
