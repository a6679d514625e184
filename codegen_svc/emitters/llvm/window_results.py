"""What a kernel computes from the sums of windows, and its stores: a function for a row of results.

    for each pixel, for each channel of a block: what the kernel computes from the sums, its stores

It is a function of its own, because its constants and addresses would take registers of the sums.
The last block has one of its own if it has fewer channels than others.
"""

from __future__ import annotations

from dataclasses import replace

from codegen_svc.emitters.llvm.index import IndexWriter, bounds_of
from codegen_svc.emitters.llvm.text import FLOAT, I32, I64, PTR, FunctionText, Value, integer
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, range_arguments, write_loop
from codegen_svc.emitters.llvm.values import Scope
from codegen_svc.emitters.llvm.window_tiles import BLOCK, TiledWindows
from kernelfarm.errors import InternalError

_Symbols = dict[str, Value]
# Symbols for the position of a result among the sums. They are no identifiers, so no axis has them.
_PIXEL, _LANE = "sums.pixel", "sums.lane"
_FIRST = "channel.first"
_TOGETHER = 4
"""Vectors of channels that are computed together: operations wait for the ones before."""


class WindowResults:
    """Functions that compute the results of a row from their sums."""

    def __init__(self, context: UnitContext, tiled: TiledWindows) -> None:
        self._context = context
        self._tiled = tiled
        self._symbols = [
            *(size.name for size in context.kernel.sizes),
            *(axis.name for axis in tiled.windows.others),
        ]
        self._names = {
            channels: self._write(channels)
            for channels in sorted({self._full_channels, tiled.last_channels})
        }

    @property
    def _full_channels(self) -> int:
        return min(self._tiled.block_channels, self._tiled.windows.channels.extent.constant)

    def call(self, sums: dict[int, Value], first: Value, symbols: _Symbols) -> None:
        """Writes a call for the block of channels from `first` on.

        `sums` are the addresses of the first pixel's sums, `symbols` has the point of the other
        axes.
        """
        fn, tiled = self._context.fn, self._tiled
        if len(self._names) == 1:
            self._call(self._full_channels, sums, first, symbols)
            return
        last, other, end = (fn.name(f"results.{part}") for part in ("last", "other", "end"))
        number = integer(tiled.blocks - 1, I64)
        fn.branch_if(fn.compare("icmp", "eq", symbols[BLOCK], number, wish="is_last"), last, other)
        for label, channels in ((last, tiled.last_channels), (other, self._full_channels)):
            fn.start_block(label)
            self._call(channels, sums, first, symbols)
            fn.branch(end)
        fn.start_block(end)

    def _call(self, channels: int, sums: dict[int, Value], first: Value, symbols: _Symbols) -> None:
        fn = self._context.fn
        given = [symbols[name] for name in self._symbols]
        buffers = [self._context.buffers[param.name] for param in self._context.kernel.params]
        addresses = [sums[each.number] for each in self._tiled.windows.sums]
        name = self._names[channels]
        failed = fn.call(name, I32, *buffers, *given, *addresses, first, wish="failed")
        slot = self._context.failed
        fn.store(fn.op("or", failed, fn.load(I32, slot, 8)), slot, 8)

    def _write(self, channels: int) -> str:
        """Writes the function for a block of so many channels; the result is its name."""
        context = self._context
        name = f"{context.kernel.name}.results{channels}"
        buffers = [text for text, _ in range_arguments(context.kernel)[: len(context.buffers)]]
        addresses = {each.number: f"sums{each.number}" for each in self._tiled.windows.sums}
        arguments = [
            *buffers,
            *(f"{I64} %{symbol}" for symbol in self._symbols),
            *(f"{PTR} noalias nocapture readonly %{address}" for address in addresses.values()),
            f"{I64} %{_FIRST}",
        ]
        fn = FunctionText(
            context.fn.module, f"define internal {I32} @{name}({', '.join(arguments)}) noinline"
        )
        for each in (*context.buffers, *self._symbols, *addresses.values(), _FIRST):
            fn.name(each)
        failed = fn.alloca("failed", I32)
        fn.store(integer(0, I32), failed, 8)
        index = IndexWriter(fn, bounds_of(context.kernel))
        own = replace(context, fn=fn, index=index, failed=failed)
        self._write_loops(
            own, {n: Value(f"%{text}", PTR) for n, text in addresses.items()}, channels
        )
        fn.emit(f"ret {fn.load(I32, failed, 8, wish='any_failed')}")
        fn.finish()
        return name

    def _write_loops(self, own: UnitContext, sums: dict[int, Value], channels: int) -> None:
        fn, windows = own.fn, self._tiled.windows
        step = integer(self._tiled.row_channels, I64)

        def read_sum(number: int, scope: Scope) -> Value:
            start = fn.op("mul nuw nsw", scope.symbols[_PIXEL], step)
            position = fn.op("add nuw nsw", start, scope.symbols[_LANE])
            return fn.load(FLOAT, fn.element(FLOAT, sums[number], position), 4)

        writer = own.value_writer(read_sum, _no_scan, lambda number, value, scope: None)
        symbols = {name: Value(f"%{name}", I64) for name in self._symbols}
        first = Value(f"%{_FIRST}", I64)

        def pixel(at: Value) -> None:
            scope = Scope({**symbols, windows.pixels.name: at, _PIXEL: at})

            def lane(number: Value) -> None:
                channel = fn.op("add nuw nsw", first, number, wish=windows.channels.name)
                inner = scope.inner(**{windows.channels.name: channel, _LANE: number})
                writer.store_all(own.schedule.final_stores, inner)

            for start, end, lanes in self._loops(channels):
                bounds = (integer(start, I64), integer(end, I64))
                write_loop(fn, "lane", bounds, lane, is_inner=True, lanes=lanes)

        extent = integer(windows.pixels.extent.constant, I64)
        write_loop(fn, "pixel", (ZERO_I64, extent), pixel, is_inner=False, is_unrolled=False)

    def _loops(self, channels: int) -> list[tuple[int, int, int]]:
        """The channels of a block in loops: first, end, and how many are computed together.

        Whole vectors have no masks. The channels behind them are one vector, as short as they are.
        """
        whole = channels // self._tiled.lanes * self._tiled.lanes
        found = [(0, whole, self._lanes(whole))] if whole else []
        rest = channels - whole
        return [*found, (whole, channels, 1 << (rest - 1).bit_length())] if rest else found

    def _lanes(self, channels: int) -> int:
        """The channels that are computed together, of whole vectors."""
        lanes = self._tiled.lanes
        together = [lanes << at for at in reversed(range(_TOGETHER.bit_length()))]
        return next(each for each in together if channels % each == 0)


def _no_scan(number: int, scope: Scope) -> Value:
    raise InternalError(f"scan {number} in sums of windows; expected weighted sums alone")
