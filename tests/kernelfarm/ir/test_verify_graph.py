"""The verifier reports a violation of each rule of prims."""

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import ONE, as_expr, symbol
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Node, Ref, SizeSymbol, TensorType
from kernelfarm.ir.text import parse_graph
from kernelfarm.ir.verify import verify_graph
from tests.support.ir_strategies import GRAPH_FILES

HEADER = """graph prims 1
size s0 from 1
%0: f32[2, 3]@[3, 1] = input
%1: f32[3, 2]@[2, 1] = input
%2: i64[2, 3]@[3, 1] = input
%3: bool[2, 3]@[3, 1] = input
%4: f32[s0, 3]@[3, 1] = input
%5: c64[2, 3]@[3, 1] = input
"""

BROKEN = [
    ("f32[2, 3] = tanhh(%0)", "'tanhh' is not a prim"),
    ("f32[2, 3] = exp(%0, %0)", "exp: 2 operands; expected 1"),
    ("f32[2, 3] = exp(%0; fast=true)", "exp: attributes fast; expected none"),
    ("f32[2, 3] = convert(%0)", "convert: attributes none; expected dtype"),
    ("f32[2, 3] = add(%0, 1.0)", "add: arguments .*expected values only"),
    ("f32[2, 3] = add(%0, %1)", r"add: shapes \[2, 3\] and \[3, 2\]; expected one shape"),
    ("f32[2, 3] = add(%0, %2)", "add: operands of f32, i64; expected one element type"),
    ("i64[2, 3] = exp(%2)", "exp: operands of i64; expected a float"),
    ("bool[2, 3] = add(%3, %3)", "add: operands of bool; expected a number"),
    ("f32[2, 3] = bit_and(%0, %0)", "bit_and: operands of f32; expected an integer or bool"),
    ("bool[2, 3] = shl(%3, %3)", "shl: operands of bool; expected an integer"),
    ("bool[2, 3] = logical_and(%0, %0)", "logical_and: operands of f32; expected bool"),
    ("i64[2, 3] = div(%2, %2)", "div: operands of i64; expected a float"),
    ("f32[2, 3] = where(%0, %0, %0)", "where: a condition of f32; expected bool"),
    ("f32[2, 3] = eq(%0, %0)", r"eq: a result of f32\[2, 3\]; expected bool\[2, 3\]"),
    ("f32[3, 3] = exp(%0)", r"exp: a result of f32\[3, 3\]; expected f32\[2, 3\]"),
    ("f32[2, 3], %11: f32[2] = exp(%0)", "exp: 2 results; expected 1"),
    ("f32[2, 3] = convert(%0; dtype=5)", "dtype=5; expected an element type"),
    ("c64[2, 3] = convert(%0; dtype=c64)", "convert: a tensor of c64; expected a type that kern"),
    ("u32[2] = iota(; dtype=u32, length={2})", "expected an expression, an integer type"),
    ("c64[3, 2] = permute(%5; dims=[1, 0])", "permute: a tensor of c64; expected a type that kern"),
    ("bool[2, 3] = eq(%5, %5)", "eq: a tensor of c64; expected a type that kernels compute in"),
    ("f32[2] = full(; dtype=f32, shape=[{2}], value=1)", "value=1 of f32; expected .* float"),
    ("i64[2] = full(; dtype=i64, shape=[{2}], value=1.0)", "expected .* int or Expr"),
    ("bool[2] = full(; dtype=bool, shape=[{2}], value=1)", "expected .* bool"),
    ("f32[2] = full(; dtype=f32, shape=[2], value=1.0)", "expected a tuple of expressions"),
    ("f32[2] = full(; dtype=f32, shape=[{-2}], value=1.0)", r"extents of 0 or more"),
    ("f32[2] = iota(; dtype=f32, length={2})", "expected an expression, an integer type"),
    ("f32[5] = reshape(%0; shape=[{5}])", "expected equal numbers of elements"),
    ("f32[s0, 4] = reshape(%4; shape=[{3*s0 + 1}])", "expected equal numbers of elements"),
    ("f32[3, 2] = permute(%0; dims=[1, 1])", "expected distinct axes from 0 to 1"),
    ("f32[3] = permute(%0; dims=[1])", "expected all 2 axes"),
    ("f32[2, 3] = broadcast_in_dim(%0; dims=[1, 0], shape=[{3}, {2}])", "one rising result axis"),
    ("f32[2, 3] = broadcast_in_dim(%0; dims=[0, 1], shape=[{2}, {4}])", "equal or 1"),
    ("f32[2, 2] = slice(%0; limits=[{2}, {4}], starts=[{0}, {2}], steps=[{1}, {1}])", "2:4:1"),
    ("f32[2, 2] = slice(%0; limits=[{2}, {1}], starts=[{0}, {2}], steps=[{1}, {1}])", "2:1:1"),
    ("f32[2, 2] = slice(%0; limits=[{2}, {3}], starts=[{0}, {0}], steps=[{1}, {0}])", "0:3:0"),
    ("f32[2, 2] = slice(%0; limits=[{2}], starts=[{0}], steps=[{1}])", "one for each axis"),
    ("f32[2, 3] = flip(%0; dims=[2])", "distinct axes from 0 to 1"),
    (
        "f32[2, 1, 4] = window(%0; dilations=[{1}], dims=[1], sizes=[{4}], strides=[{1}])",
        "a window that fits",
    ),
    (
        "f32[2, 1, 2] = window(%0; dilations=[{1}], dims=[1], sizes=[{2}], strides=[{0}])",
        "strides and dilations >= 1",
    ),
    (
        "f32[2, 1, 2] = window(%0; dilations=[{1}], dims=[1], sizes=[], strides=[{1}])",
        "one size, stride and dilation each",
    ),
    (
        "f32[2, 2, 1] = window(%0; dilations=[{1}], dims=[1], sizes=[{2}], strides=[{1}])",
        r"a result of f32\[2, 2, 1\]; expected f32\[2, 2, 2\]",
    ),
    ("f32[2, 3] = cat(; dim=0)", "no operands; expected one or more"),
    ("f32[2, 6] = cat(%0, %2; dim=1)", "equal types except for the extent of axis 1"),
    ("f32[2, 5] = cat(%0, %1; dim=1)", "equal types except for the extent of axis 1"),
    ("f32[4, 3] = cat(%0, %0; dim=2)", "dim=2; expected an axis from 0 to 1"),
    ("f32[2, 3] = pad(%0; high=[{0}, {0}], low=[{0}, {-1}], value=0)", "2 sizes of 0 or more"),
    ("f32[2, 3] = pad(%0; high=[{0}, {0}], low=[{0}, {0}], value=none)", "expected a number"),
    ("f32[2, 3] = sum(%0; dims=[])", "expected one or more axes in rising order"),
    ("f32[] = sum(%0; dims=[1, 0])", "expected one or more axes in rising order"),
    ("bool[2] = sum(%3; dims=[1])", "sum: an operand of bool; expected a number"),
    ("bool[2] = any(%0; dims=[1])", "any: an operand of f32; expected bool"),
    ("f32[2] = argmax(%0; dims=[1])", r"a result of f32\[2\]; expected i64\[2\]"),
    ("bool[2, 3] = cumsum(%3; dim=1)", "cumsum: an operand of bool"),
    ("f32[2, 3] = take(%0, %0; dim=0)", "take: an index of f32; expected i32 or i64"),
    ("f32[2, 3] = gather_nd(%0; dims=[])", "a tensor and one or more indices"),
    ("f32[2, 3] = gather_nd(%0, %2; dims=[0, 1])", "one axis for each index"),
    ("f32[2, 3] = gather_along(%1, %2; dim=0)", "no larger on axes other than 0"),
    ('f32[2] = extern(%0; is_contraction=1, node=1, op="x")', "is_contraction, node and op"),
    ('f32[2] = extern(%0; is_contraction=true, node=1, op="x")', "one stride for each axis"),
    (
        'f32[2]@[1] = extern(%0; is_contraction=true, length=2, node=1, op="x")',
        "length=2; expected a size, if stated",
    ),
    (
        'f32[2]@[1] = extern(%0; adjacent=[0, 1], is_contraction=true, node=1, op="x")',
        "adjacent=.*; expected one axis for each operand, if stated",
    ),
    (
        'f32[2]@[1] = extern(%0; adjacent=[-1], is_contraction=true, node=1, op="x")',
        "adjacent=.*; expected one axis for each operand, if stated",
    ),
    ("f32[2, 3] = exp(%9)", "uses value 9, which nothing defines"),
]


@pytest.mark.parametrize(("line", "message"), BROKEN, ids=[line for line, _ in BROKEN])
def test_a_broken_prim_is_refused(line: str, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_graph(parse_graph(f"{HEADER}%10: {line}\nreturn none"))


def test_an_error_names_the_node() -> None:
    text = f"{HEADER}%10: f32[2, 3] = exp(%0)\n%11: i64[2, 3] = exp(%2)\nreturn none"
    with pytest.raises(VerificationError, match="node 1: exp"):
        verify_graph(parse_graph(text))


@pytest.mark.parametrize("path", [p for p in GRAPH_FILES if p.name != "captured.graph"])
def test_well_formed_graphs_pass(path: object) -> None:
    verify_graph(parse_graph(path.read_text()))


def test_a_captured_graph_is_no_prims_graph() -> None:
    path = next(p for p in GRAPH_FILES if p.name == "captured.graph")
    with pytest.raises(VerificationError, match="dialect 'aten'; expected 'prims'"):
        verify_graph(parse_graph(path.read_text()))


def test_symbolic_extents_that_may_be_equal_pass() -> None:
    text = (
        "graph prims 1\nsize a from 1\nsize b from 1\n%0: f32[a] = input\n%1: f32[b] = input\n"
        "%2: f32[a] = add(%0, %1)\nreturn none"
    )
    verify_graph(parse_graph(text))


def test_the_builder_infers_symbolic_types() -> None:
    s0 = symbol("s0")
    builder = GraphBuilder([SizeSymbol("s0", 1, None)])
    x = builder.add_input(TensorType(DType.F32, (s0, as_expr(6)), (as_expr(6), ONE)))
    y = builder.add("slice", x, starts=(0, 1), limits=(s0, 6), steps=(1, 2))
    assert builder.type_of(y) == TensorType(DType.F32, (s0, as_expr(3)))
    z = builder.add("cat", y, y, dim=0)
    assert builder.type_of(z).shape == (2 * s0, as_expr(3))
    assert builder.type_of(builder.add("argmax", z, dims=(0,))).dtype is DType.I64


def test_the_builder_shares_equal_nodes_and_only_those() -> None:
    builder = GraphBuilder()
    zero = builder.add("full", dtype=DType.F32, shape=(2,), value=0)
    assert builder.add("full", value=0.0, shape=(as_expr(2),), dtype=DType.F32) == zero
    assert builder.add("full", dtype=DType.F32, shape=(2,), value=-0.0) != zero
    nan = builder.add("full", dtype=DType.F32, shape=(2,), value=float("nan"))
    assert builder.add("full", dtype=DType.F32, shape=(2,), value=float("nan")) == nan
    assert builder.add("full", dtype=DType.BOOL, shape=(2,), value=0) != builder.add(
        "full", dtype=DType.I64, shape=(2,), value=0
    )


def test_the_builder_never_shares_extern_nodes() -> None:
    builder = GraphBuilder()
    tensor = TensorType(DType.F32, (as_expr(2),), (ONE,))
    x = builder.add_input(tensor)
    first = builder.add_extern("aten.rand_like.default", 0, [x], [tensor], is_contraction=False)
    second = builder.add_extern("aten.rand_like.default", 0, [x], [tensor], is_contraction=False)
    assert first != second


def test_the_builder_records_the_origins_of_nodes() -> None:
    builder = GraphBuilder(locations=("model.py:1",))
    x = builder.add_input(TensorType(DType.F32, (as_expr(2),), (ONE,)))
    with builder.origin(3, 4, location=1):
        y = builder.add("exp", x)
    z = builder.add("exp", y)
    graph = builder.build([Ref(z)], [TensorType(DType.F32, (as_expr(2),), (ONE,))])
    assert [(n.origins, n.location) for n in graph.nodes] == [((3, 4), 1), ((), 0)]
    assert builder.definer_of(x) is None
    assert isinstance(builder.definer_of(y), Node)
    verify_graph(graph)


def test_the_builder_refuses_what_the_verifier_refuses() -> None:
    builder = GraphBuilder()
    x = builder.add_input(TensorType(DType.I64, (as_expr(2),), (ONE,)))
    with pytest.raises(VerificationError, match="exp: operands of i64; expected a float"):
        builder.add("exp", x)
