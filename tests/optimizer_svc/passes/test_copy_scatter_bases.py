"""A scatter updates memory that nothing else reads."""

from __future__ import annotations

import pytest

from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.loop_ir import Access, Store, StoreMode, scattering_stores
from kernelfarm.ir.program_ir import BufferKind
from tests.optimizer_svc.scatter_graphs import (
    INDEX,
    OPERANDS,
    ROWS,
    X,
    graph_of,
    launches,
    program_of,
)
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

INTO_AN_INPUT = """\
graph prims 1
%0: f32[6, 4]@[4, 1] = input "x"
%1: i64[2]@[1] = input "index"
%2: f32[2, 4]@[4, 1] = input "rows"
%3: f32[6, 4] = scatter(%0, %1, %2; dims=[0], mode="add")
return %3: f32[6, 4]@[4, 1]
"""


@pytest.mark.golden
def test_an_input_as_the_base_is_copied() -> None:
    assert_golden(
        before_and_after("copy-scatter-bases", INTO_AN_INPUT),
        """\
-- before copy-scatter-bases: graph
graph prims 1
%0: f32[6, 4]@[4, 1] = input "x"
%1: i64[2]@[1] = input "index"
%2: f32[2, 4]@[4, 1] = input "rows"
%3: f32[6, 4] = scatter(%0, %1, %2; dims=[0], mode="add")
return %3: f32[6, 4]@[4, 1]
-- after: graph
graph prims 1
%0: f32[6, 4]@[4, 1] = input "x"
%1: i64[2]@[1] = input "index"
%2: f32[2, 4]@[4, 1] = input "rows"
%4: f32[6, 4] = convert(%0; dtype=f32)
%3: f32[6, 4] = scatter(%4, %1, %2; dims=[0], mode="add")
return %3: f32[6, 4]@[4, 1]
""",
    )


INTO_ITS_OWN_BASE = """\
graph prims 1
%0: f32[6, 4]@[4, 1] = input "x"
%1: i64[2]@[1] = input "index"
%2: f32[2, 4]@[4, 1] = input "rows"
%3: f32[6, 4] = neg(%0)
%4: f32[6, 4] = scatter(%3, %1, %2; dims=[0], mode="set")
%5: f32[6, 4] = scatter(%4, %1, %2; dims=[0], mode="add")
return %5: f32[6, 4]@[4, 1]
"""


@pytest.mark.golden
def test_a_base_that_only_the_scatter_reads_stays() -> None:
    assert_golden(
        before_and_after("copy-scatter-bases", INTO_ITS_OWN_BASE),
        """\
-- before copy-scatter-bases: graph
graph prims 1
%0: f32[6, 4]@[4, 1] = input "x"
%1: i64[2]@[1] = input "index"
%2: f32[2, 4]@[4, 1] = input "rows"
%3: f32[6, 4] = neg(%0)
%4: f32[6, 4] = scatter(%3, %1, %2; dims=[0], mode="set")
%5: f32[6, 4] = scatter(%4, %1, %2; dims=[0], mode="add")
return %5: f32[6, 4]@[4, 1]
-- after: graph
the same
""",
    )


def test_an_input_is_copied_before_it_is_scattered_into() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        return [b.add("scatter", x, index, b.add("exp", rows), dims=(0,), mode="add")]

    program = program_of(graph_of(build, *OPERANDS), X, INDEX, ROWS)
    copy, update = launches(program)
    assert not scattering_stores(copy)
    (number,) = scattering_stores(update)
    store = update.body[number]
    assert isinstance(store, Store)
    assert store.mode is StoreMode.ADD
    assert update.param(store.param).access is Access.READ_WRITE
    # Both kernels write the output.
    assert [b.kind for b in program.plan.buffers].count(BufferKind.OUTPUT) == 1
    assert not any(b.kind is BufferKind.TEMPORARY for b in program.plan.buffers)


def test_a_base_that_a_kernel_makes_for_a_scatter_alone_shares_its_memory() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        first = b.add("scatter", b.add("neg", x), index, rows, dims=(0,), mode="set")
        return [b.add("scatter", first, index, rows, dims=(0,), mode="add")]

    # One launch for neg and one for each scatter. All write the output.
    program = program_of(graph_of(build, *OPERANDS), X, INDEX, ROWS)
    assert len(launches(program)) == 3
    assert not any(b.kind is BufferKind.TEMPORARY for b in program.plan.buffers)


def test_a_base_that_others_read_keeps_its_elements() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        base = b.add("exp", x)
        written = b.add("scatter", base, index, rows, dims=(0,), mode="set")
        again = b.add("scatter", base, index, rows, dims=(0,), mode="max")
        return [b.add("add", base, written), b.add("sub", again, base), base]

    program_of(graph_of(build, *OPERANDS), X, INDEX, ROWS)
