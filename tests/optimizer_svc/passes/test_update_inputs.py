"""An update is written into its input in place, unless old elements are read later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Graph, Ref, TensorType, Update, contiguous_strides
from kernelfarm.ir.interpret import run_graph, run_program
from kernelfarm.ir.loop_ir import Access, scattering_stores
from kernelfarm.ir.program_ir import BufferKind, Program
from kernelfarm.ir.text import parse_graph, print_graph
from kernelfarm.ir.verify import verify_program
from kernelfarm.wire.graph import graph_from_proto, graph_to_proto
from optimizer_svc.pipeline import optimize
from tests.support.examples import examples
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after
from tests.support.prims_graphs import TARGET, launches
from tests.support.random_graphs import Case, run_extern
from tests.support.random_updates import updating_cases

REVERSED = """\
graph prims 1
%0: f32[64]@[1] = input "x"
%1: f32[64] = flip(%0; dims=[0])
return %1: f32[64]@[1] into %0
"""


@pytest.mark.golden
def test_an_update_that_reads_other_elements_is_copied_into_its_input() -> None:
    assert_golden(
        before_and_after("update-inputs", REVERSED),
        """\
-- before update-inputs: graph
graph prims 1
%0: f32[64]@[1] = input "x"
%1: f32[64] = flip(%0; dims=[0])
return %1: f32[64]@[1] into %0
-- after: graph
graph prims 1
%0: f32[64]@[1] = input "x"
%1: f32[64] = flip(%0; dims=[0])
%2: f32[64] = convert(%1; dtype=f32)
return %2: f32[64]@[1] into %0
""",
    )


CACHE_UPDATE = """\
graph prims 1
%0: f32[4, 48, 16]@[768, 16, 1] = input "cache"
%1: i64[2]@[1] = input "position"
%2: f32[2, 4, 16]@[64, 16, 1] = input "new"
%3: f32[4, 48, 16] = scatter(%0, %1, %2; dims=[1], mode="set")
return %3: f32[4, 48, 16]@[768, 16, 1] into %0
"""


@pytest.mark.golden
def test_an_update_of_a_cache_at_positions_is_written_in_place() -> None:
    assert_golden(
        before_and_after("update-inputs", CACHE_UPDATE),
        """\
-- before update-inputs: graph
graph prims 1
%0: f32[4, 48, 16]@[768, 16, 1] = input "cache"
%1: i64[2]@[1] = input "position"
%2: f32[2, 4, 16]@[64, 16, 1] = input "new"
%3: f32[4, 48, 16] = scatter(%0, %1, %2; dims=[1], mode="set")
return %3: f32[4, 48, 16]@[768, 16, 1] into %0
-- after: graph
the same
""",
    )


CACHE = (DType.F32, (4, 48, 16))
POSITION = (DType.I64, (2,))
NEW = (DType.F32, (2, 4, 16))
Build = Callable[..., tuple[list[int], list[int | None]]]


def updating(build: Build, *inputs: tuple[DType, tuple[int, ...]]) -> Graph:
    """The graph of `build`, which returns the outputs and, for each, the input that it updates."""
    builder = GraphBuilder()
    kinds = []
    for dtype, shape in inputs:
        extents = tuple(as_expr(n) for n in shape)
        kinds.append(TensorType(dtype, extents, contiguous_strides(extents)))
    outputs, positions = build(builder, *(builder.add_input(kind) for kind in kinds))
    types = [builder.type_of(value) for value in outputs]
    stated = [TensorType(t.dtype, t.shape, contiguous_strides(t.shape)) for t in types]
    graph = builder.build([Ref(value) for value in outputs], stated)
    pairs = (
        (number, position) for number, position in enumerate(positions) if position is not None
    )
    return replace(graph, updates=tuple(Update(*pair) for pair in pairs))


def checked(graph: Graph) -> Program:
    """The program of a graph, after a check that it computes what the graph means."""
    random = np.random.default_rng(0)
    arrays = [_array(random, source.kind) for source in graph.inputs]
    program = optimize(graph, TARGET).program
    verify_program(program)
    for ours, theirs in zip(run_program(program, arrays), run_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return program


def _array(random: np.random.Generator, kind: Any) -> np.ndarray:
    shape = [extent.as_int() for extent in kind.shape]
    if kind.dtype is DType.I64:
        return random.permutation(48)[: shape[0]].astype(np.int64)
    return random.normal(size=shape).astype(np.float32)


def kernels_of(program: Program) -> list[Any]:
    return [program.kernels[launch.kernel] for launch in launches(program)]


def bytes_made(program: Program) -> int:
    """Bytes of all memory that a run needs besides its inputs."""
    made = [b for b in program.plan.buffers if b.kind is BufferKind.OUTPUT]
    sizes = sum(b.size_elems.as_int() * b.dtype.itemsize_bytes for b in made)
    return sizes + program.plan.arena_bytes.as_int()


def _cache_update(b: GraphBuilder, cache: int, position: int, new: int) -> int:
    return b.add("scatter", cache, position, new, dims=(1,), mode="set")


def test_a_cache_is_updated_in_its_own_memory() -> None:
    def build(b: GraphBuilder, *values: int) -> tuple[list[int], list[int | None]]:
        return [_cache_update(b, *values)], [0]

    program = checked(updating(build, CACHE, POSITION, NEW))
    (kernel,) = kernels_of(program)
    assert bytes_made(program) == 0
    assert [p.access for p in kernel.params].count(Access.READ_WRITE) == 1
    # One point for each new element: the kernel does not touch the other elements of the cache.
    assert np.prod([axis.extent.as_int() for axis in kernel.outer]) == 4 * 2 * 16


def test_keys_and_values_with_their_rotation_are_one_kernel() -> None:
    def build(
        b: GraphBuilder, keys: int, values: int, position: int, k: int, v: int
    ) -> tuple[list[int], list[int | None]]:
        turned = b.add("sin", b.add("mul", k, k))
        caches = _cache_update(b, keys, position, turned), _cache_update(b, values, position, v)
        return [*caches], [0, 1]

    program = checked(updating(build, CACHE, CACHE, POSITION, NEW, NEW))
    (kernel,) = kernels_of(program)
    assert len(scattering_stores(kernel)) == 2
    assert bytes_made(program) == 0


def test_a_reader_of_the_new_cache_reads_the_input_s_memory() -> None:
    def build(b: GraphBuilder, *values: int) -> tuple[list[int], list[int | None]]:
        cache = _cache_update(b, *values)
        return [b.add("sum", cache, dims=(2,)), cache], [None, 0]

    program = checked(updating(build, CACHE, POSITION, NEW))
    assert len(launches(program)) == 2
    assert bytes_made(program) == 4 * 48 * 4  # the sums


def test_a_reader_of_the_old_cache_runs_before_the_update() -> None:
    def build(
        b: GraphBuilder, cache: int, position: int, new: int
    ) -> tuple[list[int], list[int | None]]:
        updated = _cache_update(b, cache, position, new)
        return [updated, b.add("sum", b.add("neg", cache), dims=(2,))], [0, None]

    program = checked(updating(build, CACHE, POSITION, NEW))
    assert bytes_made(program) == 4 * 48 * 4


def test_a_value_that_reads_the_old_and_the_new_cache_is_computed_over_the_new_one() -> None:
    def build(
        b: GraphBuilder, cache: int, position: int, new: int
    ) -> tuple[list[int], list[int | None]]:
        updated = _cache_update(b, cache, position, new)
        return [updated, b.add("sub", updated, b.add("neg", cache))], [0, None]

    program = checked(updating(build, CACHE, POSITION, NEW))
    assert bytes_made(program) == 4 * 48 * 16 * 4


def test_an_update_that_reads_other_elements_of_its_cache_is_not_made_in_place() -> None:
    def build(b: GraphBuilder, x: int, position: int) -> tuple[list[int], list[int | None]]:
        rows = b.add("gather_nd", x, position, dims=(1,))
        return [_cache_update(b, x, position, b.add("exp", rows))], [0]

    checked(updating(build, CACHE, POSITION))


VECTOR = (DType.F32, (64,))


def test_a_cache_returned_between_two_updates_keeps_its_elements() -> None:
    def build(b: GraphBuilder, cache: int, *values: int) -> tuple[list[int], list[int | None]]:
        first = _cache_update(b, cache, *values[:2])
        return [first, _cache_update(b, first, *values[2:])], [None, 0]

    program = checked(updating(build, CACHE, POSITION, NEW, POSITION, NEW))
    (returned,) = (b for b in program.plan.buffers if b.kind is BufferKind.OUTPUT)
    assert returned.size_elems.as_int() == 4 * 48 * 16


def test_an_optimizer_step_writes_parameter_and_momentum_in_one_kernel() -> None:
    def build(
        b: GraphBuilder, weight: int, momentum: int, grad: int
    ) -> tuple[list[int], list[int | None]]:
        rate = b.add("full", dtype=DType.F32, shape=b.type_of(weight).shape, value=0.1)
        new = b.add("add", b.add("mul", momentum, rate), grad)
        return [b.add("sub", weight, b.add("mul", new, rate)), new], [0, 1]

    program = checked(updating(build, VECTOR, VECTOR, VECTOR))
    (kernel,) = kernels_of(program)
    assert [p.access for p in kernel.params] == [Access.READ, Access.READ_WRITE, Access.READ_WRITE]
    assert bytes_made(program) == 0


def test_the_kernel_that_reduces_rows_writes_the_running_statistics() -> None:
    def build(b: GraphBuilder, mean: int, x: int) -> tuple[list[int], list[int | None]]:
        return [b.add("add", b.add("neg", mean), b.add("sum", x, dims=(1,)))], [0]

    program = checked(updating(build, (DType.F32, (6,)), (DType.F32, (6, 40))))
    assert len(launches(program)) == 1
    assert bytes_made(program) == 0


def test_a_row_that_is_centred_in_place_is_one_kernel() -> None:
    def build(b: GraphBuilder, x: int) -> tuple[list[int], list[int | None]]:
        sums = b.add("sum", x, dims=(1,))
        shape = b.type_of(x).shape
        return [b.add("sub", x, b.add("broadcast_in_dim", sums, dims=(0,), shape=shape))], [0]

    program = checked(updating(build, (DType.F32, (6, 40))))
    (kernel,) = kernels_of(program)
    assert [p.access for p in kernel.params] == [Access.READ_WRITE]


def test_a_reversed_input_is_computed_in_memory_of_its_own_first() -> None:
    def build(b: GraphBuilder, x: int) -> tuple[list[int], list[int | None]]:
        return [b.add("flip", x, dims=(0,))], [0]

    program = checked(updating(build, VECTOR))
    assert len(launches(program)) == 2
    assert bytes_made(program) == 64 * 4


def test_two_inputs_exchange_their_elements() -> None:
    def build(b: GraphBuilder, x: int, y: int) -> tuple[list[int], list[int | None]]:
        return [y, x], [0, 1]

    checked(updating(build, VECTOR, VECTOR))


def test_a_value_that_is_returned_and_stored_is_two_tensors() -> None:
    def build(b: GraphBuilder, x: int) -> tuple[list[int], list[int | None]]:
        new = b.add("exp", x)
        return [new, new], [None, 0]

    program = checked(updating(build, VECTOR))
    assert len(launches(program)) == 1
    assert bytes_made(program) == 64 * 4


def test_updates_are_part_of_the_text_and_of_the_wire_format() -> None:
    def build(b: GraphBuilder, *values: int) -> tuple[list[int], list[int | None]]:
        return [b.add("neg", values[1]), _cache_update(b, *values)], [None, 0]

    graph = updating(build, CACHE, POSITION, NEW)
    assert parse_graph(print_graph(graph)) == graph
    assert graph_from_proto(graph_to_proto(graph)) == graph


@given(case=updating_cases())
@settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    print_blob=True,
    max_examples=examples(200),
)
def test_a_program_that_updates_its_inputs_computes_what_its_graph_means(case: Case) -> None:
    expected = run_graph(case.graph, case.inputs, run_extern)
    program = optimize(case.graph, TARGET).program
    verify_program(program)
    found = run_program(program, case.inputs, run_extern)
    for reference, got in zip(map(np.asarray, expected), map(np.asarray, found), strict=True):
        rtol = 2e-3 if reference.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(got, reference, rtol=rtol, atol=1e-6)
