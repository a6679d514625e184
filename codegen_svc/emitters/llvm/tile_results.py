"""What a kernel computes from the sums of a product in tiles, and its stores: a function.

    for each row, for each column: what the kernel computes from the sums, and its stores

It is a function of its own, because its constants and addresses would take registers of the loop
over terms, which needs nearly all of them.
"""

from __future__ import annotations

from dataclasses import replace

from codegen_svc.emitters.llvm.index import IndexWriter, bounds_of
from codegen_svc.emitters.llvm.panels import Symbols
from codegen_svc.emitters.llvm.text import I32, I64, PTR, FunctionText, Value, integer
from codegen_svc.emitters.llvm.tiles import ELEMENT_BYTES, TiledProduct
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, range_arguments, write_loop
from codegen_svc.emitters.llvm.values import Scope, ValueWriter
from kernelfarm.errors import InternalError

# Symbols for the position of a result among the sums. They are no identifiers, so no axis has them.
_ROW, _LANE = "sums.row", "sums.lane"
_BOUNDS = ("row.first", "row.count", "column.first", "column.count")


class TileResults:
    """A function that computes successive rows and columns of results from their sums."""

    def __init__(self, context: UnitContext, product: TiledProduct) -> None:
        self._context = context
        self._product = product
        self._symbols = [
            *(size.name for size in context.kernel.sizes),
            *(axis.name for axis in product.product.others),
        ]
        self._name = f"{context.kernel.name}.results"
        self._write()

    def call(
        self,
        sums: Value,
        rows: tuple[Value, Value],
        columns: tuple[Value, Value],
        symbols: Symbols,
    ) -> None:
        """Writes a call for the first row and column and the number of each.

        `sums` is the address of the first row's sums, `symbols` has the point of the other axes.
        """
        fn = self._context.fn
        given = [symbols[name] for name in self._symbols]
        buffers = [self._context.buffers[param.name] for param in self._context.kernel.params]
        failed = fn.call(self._name, I32, *buffers, *given, sums, *rows, *columns, wish="failed")
        slot = self._context.failed
        fn.store(fn.op("or", failed, fn.load(I32, slot, 8)), slot, 8)

    def _write(self) -> None:
        """Writes the function."""
        context, product = self._context, self._product
        buffers = [text for text, _ in range_arguments(context.kernel)[: len(context.buffers)]]
        numbers = [f"{I64} %{name}" for name in (*self._symbols, *_BOUNDS)]
        at = len(self._symbols)
        arguments = [*buffers, *numbers[:at], f"{PTR} noalias nocapture %sums", *numbers[at:]]
        fn = FunctionText(
            context.fn.module,
            f"define internal {I32} @{self._name}({', '.join(arguments)}) noinline",
        )
        for name in (*context.buffers, *self._symbols, "sums", *_BOUNDS):
            fn.name(name)
        failed = fn.alloca("failed", I32)
        fn.store(integer(0, I32), failed, 8)
        index = IndexWriter(fn, bounds_of(context.kernel))
        own = replace(context, fn=fn, index=index, failed=failed)
        sums, width = Value("%sums", PTR), integer(product.width, I64)

        def read_sum(number: int, scope: Scope) -> Value:
            start = fn.op("mul nuw nsw", scope.symbols[_ROW], width)
            position = fn.op("add nuw nsw", start, scope.symbols[_LANE])
            kind = product.sum_type
            return fn.load(kind, fn.element(kind, sums, position), ELEMENT_BYTES)

        writer = own.value_writer(read_sum, _no_scan, lambda number, value, scope: None)
        symbols = {name: Value(f"%{name}", I64) for name in self._symbols}
        self._write_loops(own, writer, symbols)
        fn.emit(f"ret {fn.load(I32, failed, 8, wish='any_failed')}")
        fn.finish()

    def _write_loops(self, own: UnitContext, writer: ValueWriter, symbols: Symbols) -> None:
        fn, product = own.fn, self._product
        first_row, rows, first_column, columns = (Value(f"%{name}", I64) for name in _BOUNDS)

        def row(at: Value) -> None:
            point = fn.op("add nuw nsw", first_row, at, wish=product.rows.name)
            scope = Scope({**symbols, product.rows.name: point, _ROW: at})

            def lane(number: Value) -> None:
                column = fn.op("add nuw nsw", first_column, number, wish=product.columns.name)
                inner = scope.inner(**{product.columns.name: column, _LANE: number})
                writer.store_all(own.schedule.final_stores, inner)

            bounds = (ZERO_I64, columns)
            # The vectors of a row together, operation by operation: an activation is a long chain
            # of operations, each of which waits for the one before.
            write_loop(fn, "lane", bounds, lane, is_inner=True, lanes=product.width)

        write_loop(fn, "row", (ZERO_I64, rows), row, is_inner=False)


def _no_scan(number: int, scope: Scope) -> Value:
    raise InternalError(f"scan {number} in a product in tiles; expected sums of products alone")
