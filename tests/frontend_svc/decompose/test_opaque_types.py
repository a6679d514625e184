"""Opaque types: graphs that mix them with prims mean the same before and after every stage.

Captured graphs are generated together with their meaning in NumPy. The Prims graph, the program,
and its plan after encoding and decoding compute the same values. Extern steps are computed by that
meaning, so that a wrong operand or a wrong order of steps is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.decompose.report import NodeOutcome
from kernelfarm.dtypes import KERNEL_DTYPES, DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr, as_expr, symbol
from kernelfarm.ir.graph_ir import Arg, Graph, Input, Node, Ref, SizeSymbol, TensorType
from kernelfarm.ir.interpret import ExternSite, run_graph, run_program
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.ir.verify import verify_graph, verify_program
from kernelfarm.targets import target_facts
from kernelfarm.wire import graph_from_proto, graph_to_proto, plan_from_proto, plan_to_proto
from optimizer_svc.pipeline import optimize
from tests.support.captured_graphs import one_node_graph
from tests.support.examples import examples
from tests.support.small_graphs import tensor

Array = npt.NDArray[Any]
TARGET = target_facts("cpu:x86-64-v3")
NO_DEADLINE = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
OPAQUE = [dtype for dtype in DType if dtype not in KERNEL_DTYPES]
F32, C64, U32, BOOL = DType.F32, DType.C64, DType.U32, DType.BOOL
WIDTH = 4


@dataclass(frozen=True, slots=True)
class Meaning:
    """An operator on (rows, 4) arrays: operand types, result type, and what it computes."""

    op: str
    takes: tuple[DType, ...]
    gives: DType | None
    compute: Callable[..., Array | None]
    attrs: tuple[tuple[str, Arg], ...] = ()


def _pairs_as_numbers(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.complex64).repeat(2, axis=1)


MEANINGS = (
    Meaning("aten.add.Tensor", (F32, F32), F32, np.add),
    Meaning("aten.mul.Tensor", (F32, F32), F32, np.multiply),
    Meaning("aten.neg.default", (F32,), F32, np.negative),
    Meaning("aten.abs.default", (F32,), F32, np.abs),
    Meaning("aten.clone.default", (F32,), F32, np.array),
    Meaning("aten.add.Tensor", (C64, C64), C64, np.add),
    Meaning("aten.mul.Tensor", (C64, F32), C64, np.multiply),
    Meaning("aten.neg.default", (C64,), C64, np.negative),
    Meaning("aten.clone.default", (C64,), C64, np.array),
    Meaning("aten._conj.default", (C64,), C64, np.conj),
    Meaning("aten.complex.default", (F32, F32), C64, lambda re, im: re + np.complex64(1j) * im),
    Meaning("aten.abs.default", (C64,), F32, np.abs),
    Meaning("mylib.as_pairs.default", (F32,), C64, _pairs_as_numbers),
    Meaning("mylib.real.default", (C64,), F32, np.real),
    Meaning("mylib.hash.default", (F32,), U32, lambda x: np.ascontiguousarray(x).view(np.uint32)),
    Meaning("aten.bitwise_xor.Tensor", (U32, U32), U32, np.bitwise_xor),
    Meaning("aten._to_copy.default", (U32,), F32, lambda x: x % 7, (("dtype", F32),)),
    Meaning("mylib.check.default", (F32,), None, lambda x: None),
    Meaning("mylib.check.default", (C64,), None, lambda x: None),
)
NUMPY = {F32: np.float32, C64: np.complex64, U32: np.uint32}


@dataclass(frozen=True, slots=True)
class Case:
    """A captured graph, its inputs, and the meaning of each of its nodes."""

    graph: Graph
    inputs: tuple[Array, ...]
    meanings: tuple[Meaning, ...]

    def run_extern(self, seen: list[int]) -> Callable[[ExternSite, list[Array]], Sequence[Any]]:
        def run(site: ExternSite, operands: list[Array]) -> Sequence[Any]:
            meaning = self.meanings[site.node]
            assert site.op == meaning.op
            assert [operand.dtype for operand in operands] == [NUMPY[d] for d in meaning.takes]
            seen.append(site.node)
            return _results(meaning, operands)

        return run


def _results(meaning: Meaning, operands: Sequence[Array]) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        result = meaning.compute(*operands)
    return () if meaning.gives is None else (np.asarray(result).astype(NUMPY[meaning.gives]),)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows = draw(st.integers(1, 5))
    is_symbolic = draw(st.booleans())
    extent: Expr = symbol("s0") if is_symbolic else as_expr(rows)
    kinds: list[DType] = [F32, C64, *draw(st.lists(st.sampled_from([F32, C64, U32]), max_size=2))]
    inputs = tuple(Input(i, tensor(extent, WIDTH, dtype=kind)) for i, kind in enumerate(kinds))
    nodes: list[Node] = []
    meanings: list[Meaning] = []
    for _ in range(draw(st.integers(1, 12))):
        meaning = draw(st.sampled_from([m for m in MEANINGS if set(m.takes) <= set(kinds)]))
        uses = tuple(
            Ref(draw(st.sampled_from([v for v, kind in enumerate(kinds) if kind is reference])))
            for reference in meaning.takes
        )
        types: tuple[TensorType, ...] = ()
        results: tuple[int, ...] = ()
        if meaning.gives is not None:
            types = (tensor(extent, WIDTH, dtype=meaning.gives),)
            results = (len(kinds),)
            kinds.append(meaning.gives)
        nodes.append(Node(meaning.op, uses, meaning.attrs, results, types))
        meanings.append(meaning)
    returned = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=4))
    symbols = (SizeSymbol("s0", 1, None, rows),) if is_symbolic else ()
    graph = Graph(
        "aten",
        symbols,
        inputs,
        tuple(nodes),
        tuple(Ref(value) for value in returned),
        tuple(tensor(extent, WIDTH, dtype=kinds[value]) for value in returned),
    )
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = tuple(_numbers(numbers, kind, rows) for kind in kinds[: len(inputs)])
    return Case(graph, arrays, tuple(meanings))


def _numbers(numbers: np.random.Generator, kind: DType, rows: int) -> Array:
    shape = (rows, WIDTH)
    if kind is U32:
        return numbers.integers(0, 2**32, shape, dtype=np.uint32)
    values = numbers.integers(-3, 4, shape) / 2
    if kind is C64:
        return (values + 1j * numbers.integers(-3, 4, shape)).astype(np.complex64)
    return values.astype(np.float32)


def _meant(case: Case) -> list[Array]:
    values = list(case.inputs)
    for node, meaning in zip(case.graph.nodes, case.meanings, strict=True):
        operands = [values[arg.value] for arg in node.args if isinstance(arg, Ref)]
        values.extend(_results(meaning, operands))
    return [values[arg.value] for arg in case.graph.outputs if isinstance(arg, Ref)]


@given(case=cases())
@settings(NO_DEADLINE, max_examples=examples(150))
def test_graphs_that_mix_opaque_values_and_prims_mean_the_same_after_every_stage(
    case: Case,
) -> None:
    expected = _meant(case)
    sent = graph_from_proto(graph_to_proto(case.graph))
    assert sent == case.graph
    lowered = decompose_to_prims(sent).graph
    verify_graph(lowered)
    seen: list[int] = []
    _assert_same(run_graph(lowered, case.inputs, case.run_extern(seen)), expected)
    program = optimize(graph_from_proto(graph_to_proto(lowered)), TARGET).program
    verify_program(program)
    assert plan_from_proto(plan_to_proto(program.plan)) == program.plan
    planned: list[int] = []
    _assert_same(run_program(program, case.inputs, case.run_extern(planned)), expected)
    effects = [number for number, m in enumerate(case.meanings) if m.gives is None]
    assert [number for number in planned if number in effects] == effects


def _assert_same(found: Sequence[Any], expected: Sequence[Array]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@given(case=cases())
@settings(NO_DEADLINE, max_examples=examples(50))
def test_every_node_with_an_opaque_tensor_is_extern_with_a_reason(
    case: Case,
) -> None:
    lowered = decompose_to_prims(case.graph)
    for report, meaning in zip(lowered.report, case.meanings, strict=True):
        if report.outcome is NodeOutcome.EXTERN and C64 in (*meaning.takes, meaning.gives):
            assert report.detail == "complex numbers: the framework computes them"
        if report.outcome is NodeOutcome.DECOMPOSED:
            assert {*meaning.takes, meaning.gives} == {F32}


@pytest.mark.parametrize("dtype", OPAQUE, ids=str)
@pytest.mark.parametrize("op", ["aten.add.Tensor", "aten.exp.default", "aten.view.default"])
def test_no_operator_decomposes_on_an_opaque_tensor(op: str, dtype: DType) -> None:
    kind = tensor(2, 3, dtype=dtype)
    args: list[Arg] = [Ref(0), *([Ref(0)] if "add" in op else [(2, 3)] if "view" in op else [])]
    (node,) = decompose_to_prims(one_node_graph(op, [kind], args, kind)).graph.nodes
    assert (node.op, node.attr("op")) == ("extern", op)


def test_an_opaque_type_that_the_results_do_not_state_is_refused_with_what_was_seen() -> None:
    x, attrs = tensor(2, 3), {"dtype": C64}
    graph = one_node_graph("aten._to_copy.default", [x], [Ref(0)], x, **attrs)
    expected = r"node 0 \(aten._to_copy.default\).*a tensor of c64; expected a type that kernels"
    with pytest.raises(InvalidGraphError, match=expected) as caught:
        decompose_to_prims(graph)
    assert caught.value.status == "INVALID_ARGUMENT"


def test_a_check_stays_after_what_it_checks_and_is_never_dropped() -> None:
    x, kind = tensor(2, 3), tensor(2, 3, dtype=BOOL)
    nodes = (
        Node("aten.gt.Scalar", (Ref(0), 0), (), (1,), (kind,)),
        Node("aten.all.default", (Ref(1),), (), (2,), (tensor(dtype=BOOL),)),
        Node("aten._assert_async.msg", (Ref(2), "positive"), (), (), ()),
    )
    lowered = decompose_to_prims(Graph("aten", (), (Input(0, x),), nodes, (Ref(0),), (x,)))
    assert lowered.report[2].outcome is NodeOutcome.EXTERN
    steps = optimize(lowered.graph, TARGET).program.plan.steps
    called = [step.op for step in steps if isinstance(step, ExternCall)]
    assert called == ["aten._assert_async.msg"]
    assert not isinstance(steps[0], ExternCall)
