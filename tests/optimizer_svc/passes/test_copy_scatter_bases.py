"""A scatter updates memory that nobody else reads."""

from __future__ import annotations

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
    # Both write the output itself.
    assert [b.kind for b in program.plan.buffers].count(BufferKind.OUTPUT) == 1
    assert not any(b.kind is BufferKind.TEMPORARY for b in program.plan.buffers)


def test_what_a_kernel_makes_for_a_scatter_alone_is_not_copied() -> None:
    def build(b: GraphBuilder, x: int, index: int, rows: int) -> list[int]:
        first = b.add("scatter", b.add("neg", x), index, rows, dims=(0,), mode="set")
        return [b.add("scatter", first, index, rows, dims=(0,), mode="add")]

    # neg, and an update for each scatter, all in the output.
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
