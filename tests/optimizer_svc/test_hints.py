"""Sizes at capture are part of no key, so they change neither a program nor an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.graph_jobs import import_graph
from kernelfarm.digest import program_key
from kernelfarm.ir.algebra.expr import Expr, as_expr
from kernelfarm.ir.graph_ir import Graph, Input, Node, Ref
from kernelfarm.targets import target_facts
from kernelfarm.wire import graph_to_proto
from optimizer_svc.pipeline import optimize
from tests.optimizer_svc.hostile_graphs import cat_of, sizes, tensor_of
from tests.support.prims_graphs import Maker, softmax

TARGET = target_facts("cpu:x86-64-v3")
HINTS = ((None, None), (8, 8), (4, 6), (1 << 40, 3))
"""Hints of two sizes: unknown, equal as in a real capture, unequal, absurd."""


def added(first: Expr, second: Expr) -> Graph:
    """`a + b` of vectors of equal sizes. Only the framework knows that they are equal."""
    a, b = tensor_of(first), tensor_of(second)
    node = Node("aten.add.Tensor", (Ref(0), Ref(1)), (), (2,), (a,))
    return Graph("aten", sizes(2)[0], (Input(0, a), Input(1, b)), (node,), (Ref(2),), (a,))


def halved(first: Expr, second: Expr) -> Graph:
    """`x.reshape(s0 // 2, 2)`, which holds only for an even size."""
    wide = tensor_of(first)
    narrow = tensor_of(first // 2, as_expr(2))
    node = Node("aten.reshape.default", (Ref(0), narrow.shape), (), (2,), (narrow,))
    inputs = (Input(0, wide), Input(1, tensor_of(second)))
    return Graph("aten", sizes(2)[0], inputs, (node,), (Ref(2),), (narrow,))


def with_hints(graph: Graph, hints: tuple[int | None, int | None]) -> Graph:
    """The graph with these sizes at capture."""
    pairs = zip(graph.symbols, hints, strict=True)
    return replace(graph, symbols=tuple(replace(size, hint=hint) for size, hint in pairs))


@pytest.mark.parametrize("make", [added, halved])
def test_wrong_hints_give_the_same_key_and_program(make: Callable[..., Graph]) -> None:
    results = set()
    for hints in HINTS:
        graph = with_hints(make(*sizes(2)[1]), hints)
        imported = import_graph(graph_to_proto(graph), 10)
        key = program_key(imported, TARGET.name, ())
        results.add((key, optimize(decompose_to_prims(imported).graph, TARGET).stages))
    assert len(results) == 1


@pytest.mark.parametrize("hint", [2, 200, 1 << 30])
def test_the_optimizer_ignores_hints(hint: int) -> None:
    symbols, (rows, width) = sizes(2)
    make = Maker(symbols)
    x = make.add_input(tensor_of(rows, width))
    graph = make.returning(softmax(make, x, rows, width))
    plain = optimize(graph, TARGET).program
    assert optimize(with_hints(graph, (hint, hint)), TARGET).program == plain


def test_a_graph_without_hints_is_otherwise_equal() -> None:
    graph = cat_of(2)
    assert graph.without_hints() is graph
    assert with_hints(graph, (5, 7)).without_hints() == graph
