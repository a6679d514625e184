"""Panels that are in memory: a right factor that a client ordered once (`panel_order.py`).

Tiles read them where they are. The panels of the slices of one column of tiles follow each other,
and behind them are those of the next column, so each step of the first tiles asks memory for a
line of the step that is one panel further (`next_panels.py` says why).

Measured on an AMD EPYC with AVX-512, bf16, one thread, weights that no cache holds: 1.01 to 1.04
times as many products in a second for 128 rows, 1.0 for 49, 1.02 to 1.04 for 32, 1.1 for 16.
"""

from __future__ import annotations

from codegen_svc.emitters.llvm.next_panels import LINE_BYTES, write_fetch
from codegen_svc.emitters.llvm.panels import Symbols, address_of, steps_of
from codegen_svc.emitters.llvm.text import I8, I64, PTR, Value, integer
from codegen_svc.emitters.llvm.tiles import ELEMENT_BYTES, TiledProduct
from codegen_svc.emitters.llvm.unit import UnitContext


class StoredPanel:
    """A panel in memory; `fill` and `start` find it, and copy nothing."""

    def __init__(self, context: UnitContext, product: TiledProduct) -> None:
        self._context = context
        self._fn = context.fn
        self._product = product
        self._factor = product.product.right
        self._memory = context.buffers[self._factor.load.param]

    @property
    def alignment(self) -> int:
        """The alignment of its vectors in bytes: memory of a caller has that of its elements."""
        return self._factor.dtype.itemsize_bytes

    def at(self, step: Value, column: Value) -> Value:
        """The address of a lane; a step is a term, or a pair of terms."""
        fn = self._fn
        start = fn.op("mul nuw nsw", step, integer(self._product.width, I64))
        position = fn.op("add nuw nsw", start, column)
        return fn.element(self._product.lane_type, self._memory, position)

    def fill(self, first_column: Value, _count: Value, symbols: Symbols) -> None:
        """Writes the address of the panel that begins at a column and at the symbols' term."""
        columns = self._product.columns.name
        point = {**symbols, columns: first_column}
        self._memory = address_of(self._context, self._factor, point)

    def start(self, count: Value) -> Value:
        """The address of the next panel: behind the present one's `count` terms."""
        fn, product = self._fn, self._product
        steps = steps_of(fn, product, count)[1]
        size = fn.op("mul nuw nsw", steps, integer(product.width * ELEMENT_BYTES, I64))
        return fn.define("ahead", PTR, f"getelementptr {I8}, {self._memory}, {size}")

    @property
    def tiles(self) -> int:
        """How many tiles of a block ask for lines: a step has as many lines as they are."""
        return max(self._step_bytes // LINE_BYTES, 1)

    @property
    def _step_bytes(self) -> int:
        return self._product.width * ELEMENT_BYTES

    def fetch(self, start: Value, tile: Value, step: Value) -> None:
        """Writes the fetch of a step of a tile: its line of the same step of the next panel."""
        fn, step_bytes = self._fn, self._step_bytes
        line = fn.intrinsic("smin", tile, integer(self.tiles - 1, I64))
        offset = fn.op(
            "add nuw nsw",
            fn.op("mul nuw nsw", step, integer(step_bytes, I64)),
            fn.op("mul nuw nsw", line, integer(LINE_BYTES, I64)),
        )
        write_fetch(fn, fn.define("ahead", PTR, f"getelementptr {I8}, {start}, {offset}"))
