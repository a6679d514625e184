"""The units of weighted sums of windows: a row of results, for a block of channels.

    for each vector of the block's channels:
        for each tile of the row:
            for each row of the window that is within the image:
                for each column of the image that the tile reads:
                    sums of the tile += column * weights of the window's columns, in registers
            sums of the row, on the stack = those of the tile
    results of the row from its sums, by a function (`window_results.py`)

Each sum adds its products in the order of the window, whatever the number of threads.
"""

from __future__ import annotations

from codegen_svc.emitters.llvm.element_types import memory_type
from codegen_svc.emitters.llvm.next_panels import LINE_BYTES, write_fetch
from codegen_svc.emitters.llvm.text import FLOAT, I32, I64, PTR, Value, integer
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from codegen_svc.emitters.llvm.window_results import WindowResults
from codegen_svc.emitters.llvm.window_tiles import BLOCK, TiledWindows, TileRun, vector_type
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr, ceil_div, floor_div, maximum, minimum
from kernelfarm.ir.loop_ir import Load, Store
from kernelfarm.ir.window_sums import WindowFactor, WindowSum

_Symbols = dict[str, Value]
_SLOT_BYTES = 8
"""Sums of a tile are slots that LLVM keeps in registers."""
_FETCHES_TOGETHER = 4
"""Fetches are a tenth of the time of small windows, half of which is their loop."""


class WindowSumWriter:
    """Writes units of sums of windows."""

    def __init__(self, context: UnitContext, tiled: TiledWindows) -> None:
        self._context = context
        self._fn = context.fn
        self._tiled = tiled
        pixels = tiled.windows.pixels.extent.constant
        self._sums = {
            each.number: self._fn.alloca("sums", FLOAT, max(2, pixels * tiled.row_channels))
            for each in tiled.windows.sums
        }
        self._results = WindowResults(context, tiled)

    def begin(self, sizes: _Symbols) -> None:
        """Writes what precedes all units: nothing."""

    def close(self) -> None:
        """Writes what follows all units: nothing."""

    def write(self, symbols: _Symbols) -> None:
        """Writes one unit; `symbols` holds its block, the other outer axes and the sizes."""
        fn, tiled = self._fn, self._tiled
        self._fetch_ahead(symbols)
        rows = {each.number: self._window_rows(each, symbols) for each in tiled.windows.sums}
        first = fn.op("mul nuw nsw", symbols[BLOCK], integer(tiled.block_channels, I64))
        if tiled.whole_channels:
            self._write_vectors(first, rows, symbols)
        for piece in tiled.pieces:
            if tiled.blocks == 1:
                self._write_row(integer(piece.first, I64), first, piece.lanes, (rows, symbols))
        if tiled.blocks > 1 and tiled.pieces:
            self._write_last_pieces(first, rows, symbols)
        self._results.call(self._sums, first, symbols)

    def _fetch_ahead(self, symbols: _Symbols) -> None:
        """Asks memory for what the next line reads and stores: each block for its share of a row.

        A block reads and stores pieces of lines, which no processor fetches by itself.
        """
        windows, kernel = self._tiled.windows, self._context.kernel
        if windows.lines is None or windows.down is None:
            return
        one, last = integer(1, I64), integer(windows.down.extent.constant - 1, I64)
        following = self._fn.op("add nuw nsw", symbols[windows.lines.name], one, wish="line.next")
        zeros = [
            a.name for a in (windows.pixels, windows.channels, windows.across) if a is not None
        ]
        point = {**symbols, **dict.fromkeys(zeros, ZERO_I64)}
        point |= {windows.lines.name: following, windows.down.name: last}
        for each in windows.sums:
            image = each.image
            if image.along > windows.window_columns * image.across:
                continue  # windows leave out a part of the row
            start = _place(self._context, image.load, image.dtype, point)
            self._fetch_share(start, image.along * image.dtype.itemsize_bytes, symbols)
        for number in self._context.schedule.final_stores:
            store = kernel.body[number]
            assert isinstance(store, Store)
            found = store.index.linear_in(windows.pixels.name)
            if found is not None and found[0].is_constant:
                dtype = kernel.param(store.param).dtype
                start = _place(self._context, store, dtype, point)
                self._fetch_share(start, found[0].constant * dtype.itemsize_bytes, symbols)

    def _fetch_share(self, start: Value, pixel_bytes: int, symbols: _Symbols) -> None:
        """Fetches a block's share of the row of so many bytes for a pixel of a result."""
        fn, tiled = self._fn, self._tiled
        row_bytes = tiled.windows.pixels.extent.constant * abs(pixel_bytes)
        lines = -(-row_bytes // (LINE_BYTES * tiled.blocks))
        own = fn.op("mul nuw nsw", symbols[BLOCK], integer(lines * LINE_BYTES, I64))
        first = fn.define("ahead", PTR, f"getelementptr i8, {start}, {own}")

        def fetch(number: Value) -> None:
            at = fn.op("mul nuw nsw", number, integer(LINE_BYTES, I64))
            write_fetch(fn, fn.define("line", PTR, f"getelementptr i8, {first}, {at}"))

        bounds = (ZERO_I64, integer(lines, I64))
        write_loop(fn, "fetch", bounds, fetch, is_inner=True, together=_FETCHES_TOGETHER)

    def _write_vectors(
        self, first: Value, rows: dict[int, tuple[Value, Value]], symbols: _Symbols
    ) -> None:
        """Writes the loop over the vectors of a block."""
        fn, tiled = self._fn, self._tiled
        lanes = integer(tiled.lanes, I64)
        left = fn.op("sub nsw", integer(tiled.whole_channels, I64), first, wish="channels.left")
        vectors = fn.op("sdiv", left, lanes, wish="vectors.left")
        most = integer(tiled.block_vectors, I64)
        count = fn.intrinsic("smin", vectors, most, wish="vectors")

        def vector(number: Value) -> None:
            own = fn.op("mul nuw nsw", number, lanes)
            channel = fn.op("add nuw nsw", first, own, wish="channel")
            self._write_row(channel, first, tiled.lanes, (rows, symbols))

        write_loop(fn, "vector", (ZERO_I64, count), vector, is_inner=False, is_unrolled=False)

    def _write_last_pieces(
        self, first: Value, rows: dict[int, tuple[Value, Value]], symbols: _Symbols
    ) -> None:
        """Writes shorter vectors, which only the last block has."""
        fn, tiled = self._fn, self._tiled
        last, end = fn.name("pieces"), fn.name("pieces.end")
        number = integer(tiled.blocks - 1, I64)
        fn.branch_if(fn.compare("icmp", "eq", symbols[BLOCK], number, wish="is_last"), last, end)
        fn.start_block(last)
        for piece in tiled.pieces:
            self._write_row(integer(piece.first, I64), first, piece.lanes, (rows, symbols))
        fn.branch(end)
        fn.start_block(end)

    def _write_row(
        self,
        channel: Value,
        first: Value,
        lanes: int,
        of_unit: tuple[dict[int, tuple[Value, Value]], _Symbols],
    ) -> None:
        """Writes the sums of a row for `lanes` channels from one on; `first` is the block's."""
        fn, windows = self._fn, self._tiled.windows
        rows, symbols = of_unit
        own = fn.op("sub nsw", channel, first, wish="channel.own")
        point = {**symbols, windows.channels.name: channel}
        for each in windows.sums:
            kept = fn.element(FLOAT, self._sums[each.number], own)
            for run in self._tiled.runs[each.number]:
                tile = _Tile(self._context, self._tiled, (each, run), lanes)

                def write(
                    number: Value,
                    tile: _Tile = tile,
                    run: TileRun = run,
                    kept: Value = kept,
                    bounds: tuple[Value, Value] = rows[each.number],
                ) -> None:
                    before = fn.op("mul nuw nsw", number, integer(run.pixels, I64))
                    pixel = fn.op("add nuw nsw", before, integer(run.first, I64), wish="pixel")
                    tile.write(pixel, bounds, kept, point)

                if run.count == 1:
                    write(ZERO_I64)
                else:
                    bounds = (ZERO_I64, integer(run.count, I64))
                    write_loop(fn, "tile", bounds, write, is_inner=False, is_unrolled=False)

    def _window_rows(self, each: WindowSum, symbols: _Symbols) -> tuple[Value, Value]:
        """The rows of the window that are within the image, for a row of results."""
        down = self._tiled.windows.down
        low: Expr = as_expr(0)
        high: Expr = as_expr(1) if down is None else down.extent
        for position in each.rows:
            step, rest = (as_expr(0), position)
            if down is not None:
                parts = position.linear_in(down.name)
                assert parts is not None  # `find_window_sums` has asked
                step, rest = parts
            if step.constant > 0:
                low = maximum(low, ceil_div(-rest, step))
            elif step.constant < 0:
                high = minimum(high, floor_div(rest, -step) + 1)
            else:  # all rows, or none
                high = minimum(high, maximum(rest + 1, 0) * high)
        index = self._context.index
        return index.write(low, symbols), index.write(high, symbols)


class _Tile:
    """Writes tiles of a run, for vectors of some lanes."""

    def __init__(
        self,
        context: UnitContext,
        tiled: TiledWindows,
        of_run: tuple[WindowSum, TileRun],
        lanes: int,
    ) -> None:
        self._context = context
        self._fn = context.fn
        self._tiled = tiled
        self._sum, self._run = of_run
        self._lanes = lanes
        self._vector = vector_type(lanes)
        self._products = self._by_column()

    def _by_column(self) -> dict[int, list[tuple[int, int]]]:
        """The pixels and columns of the window that meet, by the offset of their element."""
        windows, each, run = self._tiled.windows, self._sum, self._run
        found: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(run.pixels):
            for at in range(windows.window_columns):
                if each.has_pixel(windows, run.first + pixel, at):
                    offset = pixel * each.image.along + at * each.image.across
                    found.setdefault(offset, []).append((pixel, at))
        return dict(sorted(found.items()))

    def write(
        self, pixel: Value, rows: tuple[Value, Value], kept: Value, symbols: _Symbols
    ) -> None:
        """Writes the tile of some pixels, whose sums go to those of their row at `kept`."""
        fn, windows = self._fn, self._tiled.windows
        slots = [fn.alloca("total", self._vector) for _ in range(self._run.pixels)]
        for slot in slots:
            fn.store(Value("zeroinitializer", self._vector), slot, _SLOT_BYTES)
        point = {**symbols, windows.pixels.name: pixel}
        if windows.across is not None:
            point[windows.across.name] = ZERO_I64

        def row(number: Value) -> None:
            down = {} if windows.down is None else {windows.down.name: number}
            self._write_row({**point, **down}, slots)

        write_loop(fn, "down", rows, row, is_inner=False, is_unrolled=False)
        step = self._tiled.row_channels
        for number, slot in enumerate(slots):
            at = fn.op("add nuw nsw", pixel, integer(number, I64))
            place = fn.element(FLOAT, kept, fn.op("mul nuw nsw", at, integer(step, I64)))
            fn.store(fn.load(self._vector, slot, _SLOT_BYTES), place, 4)

    def _write_row(self, point: _Symbols, slots: list[Value]) -> None:
        """Writes the products of a row of the window."""
        fn = self._fn
        image, weight = self._sum.image, self._sum.weight
        start, weights = (
            _place(self._context, each.load, each.dtype, point) for each in (image, weight)
        )
        known: dict[int, Value] = {}
        name = f"llvm.fma.v{self._lanes}f32"
        for offset, products in self._products.items():
            column = self._load(image, start, offset)
            for pixel, at in products:
                if at not in known:
                    known[at] = self._load(weight, weights, at * weight.across)
                before = fn.load(self._vector, slots[pixel], _SLOT_BYTES)
                total = fn.call_external(name, self._vector, column, known[at], before)
                fn.store(total, slots[pixel], _SLOT_BYTES)

    def _load(self, factor: WindowFactor, start: Value, offset: int) -> Value:
        """A vector of a factor as f32, so many elements behind an address."""
        fn, dtype = self._fn, factor.dtype
        kind = memory_type(dtype)
        place = fn.define("p", start.type, f"getelementptr {kind}, {start}, {I64} {offset}")
        found = fn.load(f"<{self._lanes} x {kind}>", place, dtype.itemsize_bytes)
        if dtype is DType.F32:
            return found
        if dtype is DType.F16:
            return fn.cast("fpext", found, self._vector)
        words = f"<{self._lanes} x {I32}>"
        sixteen = Value(f"<{', '.join([f'{I32} 16'] * self._lanes)}>", words)
        bits = fn.op("shl", fn.cast("zext", found, words), sixteen)
        return fn.cast("bitcast", bits, self._vector)


def _place(context: UnitContext, access: Load | Store, dtype: DType, point: _Symbols) -> Value:
    """The address of an element at a point; outside an image if columns are there."""
    at = context.index.write(access.index, point)
    base = context.buffers[access.param]
    kind = memory_type(dtype)
    return context.fn.define("place", base.type, f"getelementptr {kind}, {base}, {at}")
