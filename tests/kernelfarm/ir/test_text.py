"""Texts of expressions, graphs, kernels and plans."""

import doctest
import importlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.dtypes import DType
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, symbol
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    ExternCall,
    Launch,
    Plan,
    SymbolSource,
    TensorView,
)
from kernelfarm.ir.text import (
    parse_expr,
    parse_graph,
    parse_kernel,
    print_graph,
    print_kernel,
    print_plan,
)
from tests.support.ir_strategies import (
    GRAPH_FILES,
    KERNEL_FILES,
    SYMBOLS,
    captured_graphs,
    expressions,
)


@given(expressions((*SYMBOLS, "d0", "%7")))
def test_an_expression_parses_back_to_the_same_object(expr: Expr) -> None:
    assert parse_expr(str(expr)) is expr


@pytest.mark.parametrize("path", GRAPH_FILES, ids=lambda path: path.name)
def test_golden_graphs_parse_and_print_unchanged(path: Path) -> None:
    graph = parse_graph(path.read_text())
    assert print_graph(graph) == path.read_text()
    assert parse_graph(print_graph(graph)) == graph


@given(captured_graphs())
def test_any_graph_parses_back_to_an_equal_graph(graph: object) -> None:
    assert parse_graph(print_graph(graph)) == graph


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: path.name)
def test_golden_kernels_parse_and_print_unchanged(path: Path) -> None:
    kernel = parse_kernel(path.read_text())
    assert print_kernel(kernel) == path.read_text()


@given(st.lists(st.text()))
def test_comments_of_any_characters_survive(comments: list[str]) -> None:
    kernel = Kernel("k", (), (), (), (), (), tuple(comments))
    assert parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("graph prims 1\n%0: f33[2] = input\nreturn", 2, "an element type"),
        ("graph prims 1\n%0: f32[2] = input\nreturn %0 %0", 3, "expected ','"),
        ("graph prims 1\n%0: f32[2 = input\nreturn", 2, "','"),
        ("graph prims 1\n%0: f32[2] = add(?)\nreturn", 2, "no token"),
    ],
)
def test_a_wrong_graph_text_is_refused_by_line(text: str, line: int, expected: str) -> None:
    with pytest.raises(MalformedMessageError, match=f"line {line}: .*{expected}"):
        parse_graph(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("param read in0: f32[4]", "expected one of in, out, inout"),
        ("  %1: f32 = 0.5", "expected the definition of %0"),
        ("  %0: f32 = load in0[d0", "expected ']'"),
    ],
)
def test_a_wrong_kernel_text_is_refused_by_line(text: str, expected: str) -> None:
    with pytest.raises(MalformedMessageError, match="line 2") as caught:
        parse_kernel(f"kernel k\n{text}")
    assert expected in str(caught.value)


def test_a_plan_prints_readably() -> None:
    s0 = symbol("s0")
    view = TensorView("tmp0", DType.F32, (s0, as_expr(4)), (as_expr(4), ONE), ZERO)
    plan = Plan(
        target="cpu:x86-64-v4",
        symbols=(SymbolSource("s0", 0, 1),),
        buffers=(
            Buffer("in0", BufferKind.INPUT, DType.F32, 4 * s0),
            Buffer("tmp0", BufferKind.TEMPORARY, DType.F32, 4 * s0, offset_bytes=ZERO),
            Buffer("ext0", BufferKind.EXTERN, DType.F32, s0),
        ),
        arena_bytes=16 * s0,
        kernel_names=("fused_exp",),
        steps=(
            Launch(0, ("in0", "tmp0"), (s0,)),
            ExternCall(3, "aten.mm.default", (view,), (None,), True),
        ),
        outputs=(view, s0, None),
    )
    assert print_plan(plan) == (
        "plan for cpu:x86-64-v4\n"
        "size s0 = extent of axis 1 of input 0\n"
        "arena of 16*s0 bytes\n"
        "buffer in0: f32[4*s0], input 0\n"
        "buffer tmp0: f32[4*s0], temporary at byte 0\n"
        "buffer ext0: f32[s0], extern result\n"
        "kernel fused_exp\n"
        "  0: launch fused_exp(in0, tmp0; s0)\n"
        "  1: unused = extern aten.mm.default(tmp0: f32[s0, 4]@[4, 1]) of captured node 3,"
        " a contraction\n"
        "return tmp0: f32[s0, 4]@[4, 1], {s0}, none\n"
    )


@pytest.mark.parametrize(
    "name", ["kernelfarm.ir.text.tokens", "kernelfarm.ir.text.expr", "kernelfarm.ir.builder"]
)
def test_examples_in_docstrings_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
