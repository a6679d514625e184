"""Copies of a block of the rows that all results of a unit read, for sums in vectors.

The vectors of a step are beside each other, row after row. Rows in memory that are a multiple of
4 KiB apart compete for the same sets of the first-level cache, with each other and with weights.
"""

from __future__ import annotations

from itertools import accumulate

from codegen_svc.emitters.llvm.schedule import value_dtype
from codegen_svc.emitters.llvm.text import I8, I64, Value, integer
from codegen_svc.emitters.llvm.unit import UnitContext, write_loop
from codegen_svc.emitters.llvm.vector_loads import STEP
from codegen_svc.emitters.llvm.vector_sums import VectorSums
from kernelfarm.ir.loop_ir import Load


class CopiedRows:
    """The copies of the present block, on the stack. They are bytes: copies have the same types."""

    def __init__(self, context: UnitContext, sums: VectorSums) -> None:
        self._context = context
        self._fn = context.fn
        self._sums = sums
        dtypes = [value_dtype(context.kernel, number) for number in sums.rows]
        self._sizes = [sums.vector_terms * dtype.itemsize_bytes for dtype in dtypes]
        self._offsets = [0, *accumulate(self._sizes)]
        self._vectors = sums.division.block_steps * sums.division.vectors
        lines = -(-self._offsets[-1] * self._vectors // sums.vector_bytes)
        kind = f"<{sums.vector_bytes} x {I8}>"
        self._memory = self._fn.alloca("rows", kind, max(2, lines))

    def fill(self, first: Value, last: Value, symbols: dict[str, Value]) -> None:
        """Writes the copy of a block of vectors; `symbols` holds the unit's other axes."""
        fn, kernel = self._fn, self._context.kernel

        def copy(at: Value) -> None:
            targets = self.places(fn.op("sub nuw nsw", at, first))
            for number, size in zip(self._sums.rows, self._sizes, strict=True):
                load, base = kernel.body[number], self._sums.loads[number].base
                assert isinstance(load, Load)  # `vector_sums` has found it
                position = self._context.index.write(base, {**symbols, STEP: at})
                item = value_dtype(kernel, number).itemsize_bytes
                offset = fn.op("mul nsw", position, integer(item, I64))
                source = fn.element(I8, self._context.buffers[load.param], offset)
                kind = f"<{size} x {I8}>"
                fn.store(fn.load(kind, source, item), targets[number], item)

        write_loop(fn, "copied", (first, last), copy, is_inner=False, is_unrolled=False)

    def places(self, vector: Value) -> dict[int, Value]:
        """The addresses of a vector of each load, by its number in the block."""
        fn = self._fn
        first = fn.op("mul nuw nsw", vector, integer(self._offsets[-1], I64))
        return {
            number: fn.element(I8, self._memory, fn.op("add nuw nsw", first, integer(offset, I64)))
            for number, offset in zip(self._sums.rows, self._offsets[:-1], strict=True)
        }
