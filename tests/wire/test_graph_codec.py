"""Graphs on the wire: exact round trips, and hostile messages."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given

from kernelfarm.errors import (
    CallerError,
    InvalidGraphError,
    MalformedMessageError,
    UnsupportedDTypeError,
    UnsupportedVersionError,
)
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.symbolic import Expr, product_of, symbol
from kernelfarm.ir.text import parse_graph
from kernelfarm.ir.work_budget import work_budget
from kernelfarm.v1 import graph_pb2 as pb
from kernelfarm.wire import expr_from_proto, expr_to_proto, graph_from_proto, graph_to_proto
from kernelfarm.wire.expr import MAX_DEPTH
from tests.ir.ir_strategies import GOLDEN, GRAPH_FILES, captured_graphs, expressions


def through_bytes(graph: Graph) -> Graph:
    data = graph_to_proto(graph).SerializeToString()
    return graph_from_proto(pb.Graph.FromString(data))


@given(expressions())
def test_an_expression_returns_as_the_same_object(expr: Expr) -> None:
    data = expr_to_proto(expr).SerializeToString()
    assert expr_from_proto(pb.Expr.FromString(data), "test") is expr


@pytest.mark.parametrize("path", GRAPH_FILES, ids=lambda path: path.name)
def test_golden_graphs_return_equal(path: Path) -> None:
    graph = parse_graph(path.read_text())
    assert through_bytes(graph) == graph


@given(captured_graphs())
def test_any_captured_graph_returns_equal(graph: Graph) -> None:
    assert through_bytes(graph) == graph


def test_nan_and_infinities_may_be_arguments() -> None:
    text = "graph aten 1\n%0: f32[]@[] = aten.full.default([], nan, -inf)\nreturn %0: f32[]@[]"
    value = through_bytes(parse_graph(text)).nodes[0].args[1]
    assert isinstance(value, float)
    assert value != value  # noqa: PLR0124 (only NaN differs from itself)


def captured() -> pb.Graph:
    return graph_to_proto(parse_graph((GOLDEN / "captured.graph").read_text()))


def nested_call(depth: int, op: pb.ExprOp.ValueType) -> pb.Expr:
    expr = pb.Expr(symbol="s7")
    for _ in range(depth):
        expr = pb.Expr(call=pb.ExprCall(op=op, operands=[expr, pb.Expr(symbol="s7")]))
    return expr


def sum_of(names: list[str]) -> pb.Expr:
    operands = [pb.Expr(symbol=name) for name in names]
    return pb.Expr(call=pb.ExprCall(op=pb.EXPR_OP_ADD, operands=operands))


def product_of_sums() -> pb.Expr:
    factors = [sum_of([f"x{i}_{j}" for j in range(20)]) for i in range(20)]
    return pb.Expr(call=pb.ExprCall(op=pb.EXPR_OP_MUL, operands=factors))


def division(divisor: int) -> pb.Expr:
    operands = [pb.Expr(symbol="s7"), pb.Expr(constant=divisor)]
    return pb.Expr(call=pb.ExprCall(op=pb.EXPR_OP_FLOOR_DIV, operands=operands))


def nested_list(depth: int) -> pb.Argument:
    arg = pb.Argument(integer=1)
    for _ in range(depth):
        arg = pb.Argument(list=pb.ArgumentList(items=[arg]))
    return arg


def set_extent(graph: pb.Graph, expr: pb.Expr) -> None:
    graph.nodes[1].types[0].shape[0].CopyFrom(expr)


Damage = Callable[[pb.Graph], object]

HOSTILE: list[tuple[str, Damage, type[CallerError], str]] = [
    (
        "contract version",
        lambda g: setattr(g, "abi_version", 99),
        UnsupportedVersionError,
        "contract version 99; this farm speaks 1",
    ),
    ("dialect", lambda g: setattr(g, "dialect", "onnx"), InvalidGraphError, "'onnx'; expected"),
    (
        "unknown dtype of a result",
        lambda g: setattr(g.nodes[3].types[0], "dtype", 77),
        UnsupportedDTypeError,
        r"node 3 \(aten.full.default\): dtype number 77; expected one of 1 \(f64\)",
    ),
    (
        "unset dtype of an input",
        lambda g: setattr(g.inputs[0].tensor, "dtype", 0),
        UnsupportedDTypeError,
        r"input 0 \(tokens\): no dtype",
    ),
    (
        "unknown dtype as an argument",
        lambda g: setattr(g.nodes[3].attrs[0].value, "dtype", 99),
        UnsupportedDTypeError,
        "node 3 .*dtype number 99",
    ),
    (
        "argument without a form",
        lambda g: g.nodes[0].args.append(pb.Argument()),
        MalformedMessageError,
        r"node 0 \(aten.t.default\): an argument whose form is not set",
    ),
    (
        "input without a kind",
        lambda g: g.inputs.append(pb.Input(value=99)),
        MalformedMessageError,
        "input 4: its kind is not set",
    ),
    (
        "attribute without a name",
        lambda g: g.nodes[0].attrs.append(pb.Attribute(value=pb.Argument(integer=1))),
        MalformedMessageError,
        "attribute without a name",
    ),
    (
        "lists nested too deeply",
        lambda g: g.nodes[0].args.append(nested_list(20)),
        MalformedMessageError,
        "nested too deeply",
    ),
    (
        "expression without a form",
        lambda g: set_extent(g, pb.Expr()),
        MalformedMessageError,
        "node 1 .*form is not set",
    ),
    (
        "expression of an unknown operation",
        lambda g: set_extent(g, nested_call(1, 42)),  # type: ignore[arg-type]  # on purpose
        MalformedMessageError,
        "operation number 42",
    ),
    (
        "expression nested too deeply",
        lambda g: set_extent(g, nested_call(MAX_DEPTH + 1, pb.EXPR_OP_FLOOR_DIV)),
        MalformedMessageError,
        "nested too deeply",
    ),
    (
        "product that multiplies out",
        lambda g: set_extent(g, product_of_sums()),
        MalformedMessageError,
        "expected at most 1024",
    ),
    (
        "power of a symbol",
        lambda g: set_extent(
            g,
            pb.Expr(call=pb.ExprCall(op=pb.EXPR_OP_MUL, operands=[pb.Expr(symbol="s7")] * 10_000)),
        ),
        MalformedMessageError,
        "expected at most 64",
    ),
    (
        "sum of one operand",
        lambda g: set_extent(g, sum_of(["s7"])),
        MalformedMessageError,
        "ADD of 1 operands; expected two or more",
    ),
    ("division by zero", lambda g: set_extent(g, division(0)), InvalidGraphError, "by 0; expected"),
    ("division by -2", lambda g: set_extent(g, division(-2)), InvalidGraphError, "by -2; expected"),
    (
        "literals that overflow",
        lambda g: set_extent(
            g, pb.Expr(call=pb.ExprCall(op=pb.EXPR_OP_MUL, operands=[pb.Expr(constant=2**62)] * 3))
        ),
        MalformedMessageError,
        "exceed 64 bits",
    ),
    (
        "negative extent",
        lambda g: set_extent(g, pb.Expr(constant=-3)),
        InvalidGraphError,
        r"node 1 \(aten.mm.default\): extent -3; expected 0 or more",
    ),
    (
        "nameless symbol",
        lambda g: set_extent(g, pb.Expr(symbol="")),
        MalformedMessageError,
        "without a name",
    ),
    (
        "65 axes",
        lambda g: g.nodes[1].types[0].shape.extend([pb.Expr(constant=1)] * 63),
        InvalidGraphError,
        "65 axes; expected at most 64",
    ),
    (
        "strides for other axes",
        lambda g: g.nodes[1].types[0].strides.append(pb.Expr(constant=1)),
        InvalidGraphError,
        "3 strides for 2 axes",
    ),
    (
        "too few output types",
        lambda g: g.output_types.pop(),
        InvalidGraphError,
        "5 output types for 6 outputs",
    ),
    (
        "empty range of a symbol",
        lambda g: setattr(g.symbols[0], "lower", 600),
        InvalidGraphError,
        "s7 ranges from 600 to 512",
    ),
]


@pytest.mark.parametrize(
    ("damage", "error", "message"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE]
)
def test_a_hostile_graph_is_refused_with_what_was_seen(
    damage: Damage, error: type[CallerError], message: str
) -> None:
    graph = captured()
    damage(graph)
    start = time.thread_time()  # of the processor: the machine may be busy
    with pytest.raises(error, match=message):
        graph_from_proto(graph)
    assert time.thread_time() - start < 1.0


def test_damaged_bytes_are_refused_or_give_a_checked_graph() -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    data = captured().SerializeToString()
    refused = 0
    for _ in range(800):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            message = pb.Graph.FromString(bytes(damaged[: rng.randint(1, len(damaged))]))
        except DecodeError:
            continue
        try:
            graph_from_proto(message)
        except CallerError:
            refused += 1
    assert refused > 0


def product_of_symbols(count: int) -> pb.Expr:
    """A product of `count` sums, written out: 2**count terms."""
    return expr_to_proto(product_of([symbol(f"s{n}") + 1 for n in range(count)]))


def test_a_large_tree_that_is_repeated_is_decoded_once_and_costs_the_same_steps() -> None:
    first, second = product_of_symbols(10), product_of_symbols(10)
    with work_budget(10_000_000) as cold:
        expr = expr_from_proto(first, "first")
    with work_budget(10_000_000) as warm:
        assert expr_from_proto(second, "second") is expr
    assert warm.used == cold.used > 2**10


def test_a_sum_costs_steps_in_proportion_to_its_terms() -> None:
    used = {}
    for count in (250, 1000):
        message = sum_of([f"of{count}_{n}" for n in range(count)])
        with work_budget(10_000_000) as budget:
            expr_from_proto(message, "a size")
        used[count] = budget.used
    assert used[1000] < 5 * used[250]
