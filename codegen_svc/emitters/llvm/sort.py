"""Sorting a row: keys with the order of the elements, packed with positions, and their merge sort.

An element becomes a signed integer of the same order. A word is that integer above the element's
position. All words differ, so every sort of them is stable. A word has 64 bits if keys have at most
32 and rows fewer than 2^32 elements, else 128. Rows that are too long for the stack are in memory
that each thread allocates once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from codegen_svc.emitters.llvm.index import IndexWriter, bounds_of
from codegen_svc.emitters.llvm.lane_axis import SCRATCH_BYTES
from codegen_svc.emitters.llvm.schedule import value_dtype
from codegen_svc.emitters.llvm.text import (
    DOUBLE,
    I1,
    I32,
    I64,
    PTR,
    FunctionText,
    ModuleText,
    Value,
    bits_type,
    floating,
    integer,
)
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, product_of
from kernelfarm.ir.loop_ir import Kernel, Sort

NO_MEMORY: Final = 2
"""The return value of a kernel if there is no memory for its rows."""

_I128: Final = "i128"
_MAX_POSITIONS: Final = 2**32


@dataclass(frozen=True, slots=True)
class SortRow:
    """One sort statement: its operand's type, the type of its words, and their address."""

    sort: Sort
    operand_dtype: DType
    word: str
    words: Value


class SortRows:
    """The rows that a kernel sorts, with a spare row that sorting needs."""

    def __init__(self, fn: FunctionText, kernel: Kernel) -> None:
        self._fn = fn
        self._extent = product_of([axis.extent for axis in kernel.reduction])
        self._heap: Value | None = None
        sorts = {n: s for n, s in enumerate(kernel.body) if isinstance(s, Sort)}
        dtypes = {n: value_dtype(kernel, s.operand) for n, s in sorts.items()}
        words = {n: _word_type(dtype, self._extent, kernel) for n, dtype in dtypes.items()}
        self.rows: dict[int, SortRow] = {}
        if not sorts:
            return
        sizes = {size.name: Value(f"%{size.name}", I64) for size in kernel.sizes}
        self._count = IndexWriter(fn, bounds_of(kernel)).write(self._extent, sizes)
        widths = [_bytes_of(word) for word in words.values()]
        offsets = self._allocated([*widths, max(widths)])
        self._spare = offsets.pop()
        for (number, sort), offset in zip(sorts.items(), offsets, strict=True):
            self.rows[number] = SortRow(sort, dtypes[number], words[number], offset)

    def put(self, number: int, value: Value, flat: Value) -> None:
        """Packs the operand at one point into the row of a sort."""
        fn, row = self._fn, self.rows[number]
        fn.topic = f"sort{number}"
        key = _ordered_key(fn, value, row.operand_dtype)
        if row.sort.descending:
            key = fn.op("xor", key, integer(-1, key.type))
        half = integer(_bytes_of(row.word) * 4, row.word)
        above = fn.op("shl", fn.cast("sext", key, row.word), half)
        position = fn.cast("zext", flat, row.word)
        word = fn.op("or", above, position)
        fn.store(word, fn.element(row.word, row.words, flat), 8)

    def sort(self, number: int) -> None:
        """Sorts a row that has been filled."""
        row = self.rows[number]
        name = _sort_function(self._fn.module, row.word)
        self._fn.emit(f"call void @{name}({row.words}, {self._spare}, {self._count})")

    def position(self, number: int, rank: Value) -> Value:
        """The position (i64) of the element of a rank in a sorted row."""
        fn, row = self._fn, self.rows[number]
        fn.topic = f"sorted{number}"
        word = fn.load(row.word, fn.element(row.word, row.words, rank), 8)
        low = fn.cast("trunc", word, I32 if row.word == I64 else I64)
        return fn.cast("zext", low, I64)

    def free(self) -> None:
        """Frees the memory; no row may be read or sorted afterwards."""
        if self._heap is not None:
            self._fn.emit(f"call void @free({self._heap})")

    def _allocated(self, widths: list[int]) -> list[Value]:
        """The address of each row; `widths` are the bytes of its words, which keep rows aligned."""
        fn = self._fn
        total_bytes = sum(widths)
        if self._extent.is_constant and self._extent.constant * total_bytes <= SCRATCH_BYTES:
            count = max(self._extent.constant, 1)
            return [fn.alloca("words", f"[{count} x i{8 * width}]") for width in widths]
        fn.module.declare("malloc", PTR, (I64,))
        fn.module.declare("free", "void", (PTR,))
        size = fn.op("mul", self._count, integer(total_bytes, I64), wish="rows.bytes")
        heap = self._heap = fn.call("malloc", PTR, size, wish="rows.memory")
        # For no bytes malloc may return null; then there is no row to sort.
        missing = fn.compare("icmp", "eq", heap, Value("null", PTR), wish="is_missing")
        is_needed = fn.compare("icmp", "ne", size, integer(0, I64), wish="is_wanted")
        is_short = fn.op("and", missing, is_needed, wish="is_short")
        refused, granted = fn.name("no_memory"), fn.name("with_memory")
        fn.branch_if(is_short, refused, granted)
        fn.start_block(refused)
        fn.emit(f"ret i32 {NO_MEMORY}")
        fn.start_block(granted)
        offsets, before = [], 0
        for width in widths:
            offset = fn.op("mul", self._count, integer(before, I64), wish="words.at")
            offsets.append(fn.element("i8", heap, offset, wish="words"))
            before += width
        return offsets


def _word_type(dtype: DType, extent: Expr, kernel: Kernel) -> str:
    _, most = bounds_of(kernel).interval(extent)
    is_short = most is not None and most < _MAX_POSITIONS
    return I64 if is_short and dtype.itemsize_bytes <= 4 else _I128


def _bytes_of(word: str) -> int:
    return int(word[1:]) // 8


def _ordered_key(fn: FunctionText, value: Value, dtype: DType) -> Value:
    """A signed integer of 32 or 64 bits with the element's order; NaN last, both zeros equal."""
    if not dtype.is_float:
        wide = I64 if dtype is DType.I64 else I32
        is_unsigned = value.type == I1 or dtype is DType.U8
        return fn.cast("zext" if is_unsigned else "sext", value, wide)
    kind = bits_type(value.type)
    top = (1 << (63 if value.type == DOUBLE else 31)) - 1
    bits = fn.cast("bitcast", value, kind)
    turned = fn.op("xor", bits, integer(top, kind))
    is_negative = fn.compare("icmp", "slt", bits, integer(0, kind))
    key = fn.select(is_negative, turned, bits)
    zero = fn.compare("fcmp", "oeq", value, floating(0.0, value.type))
    key = fn.select(zero, integer(0, kind), key)
    is_nan = fn.compare("fcmp", "uno", value, value)
    return fn.select(is_nan, integer(top, kind), key)


def _sort_function(module: ModuleText, word: str) -> str:
    """The name of the function that sorts words, which is added to the module once."""
    name = f"kf_sort.{word}"
    text = _SORT.replace("WORD", word).replace("BYTES", str(_bytes_of(word)))
    if text not in module.functions:
        module.functions.append(text)
    module.declare("llvm.smin.i64", I64, (I64, I64))
    module.declare("llvm.memcpy.p0.p0.i64", "void", (PTR, PTR, I64, I1))
    return name


# Runs of 16 are sorted by insertion, then merged in pairs, alternately into the spare row and back.
# The sorted row ends where it began, so the next sort can use the spare row too. The inner merge
# has no branch that depends on a comparison.
_SORT: Final = """define internal void @kf_sort.WORD(ptr noalias %row, ptr noalias %spare, i64 %n) {
entry:
  br label %runs
runs:
  %low = phi i64 [ 0, %entry ], [ %high, %run.end ]
  %has_run = icmp slt i64 %low, %n
  br i1 %has_run, label %run, label %widths
run:
  %above = add nsw i64 %low, 16
  %high = call i64 @llvm.smin.i64(i64 %above, i64 %n)
  %second = add nsw i64 %low, 1
  br label %insert
insert:
  %i = phi i64 [ %second, %run ], [ %i.next, %put ]
  %has_i = icmp slt i64 %i, %high
  br i1 %has_i, label %take, label %run.end
take:
  %x.at = getelementptr inbounds WORD, ptr %row, i64 %i
  %x = load WORD, ptr %x.at, align 8
  br label %shift
shift:
  %j = phi i64 [ %i, %take ], [ %before, %move ]
  %has_before = icmp sgt i64 %j, %low
  br i1 %has_before, label %look, label %put
look:
  %before = add nsw i64 %j, -1
  %y.at = getelementptr inbounds WORD, ptr %row, i64 %before
  %y = load WORD, ptr %y.at, align 8
  %is_later = icmp sgt WORD %y, %x
  br i1 %is_later, label %move, label %put
move:
  %hole = getelementptr inbounds WORD, ptr %row, i64 %j
  store WORD %y, ptr %hole, align 8
  br label %shift
put:
  %place = getelementptr inbounds WORD, ptr %row, i64 %j
  store WORD %x, ptr %place, align 8
  %i.next = add nsw i64 %i, 1
  br label %insert
run.end:
  br label %runs
widths:
  %from = phi ptr [ %row, %runs ], [ %to, %width.end ]
  %to = phi ptr [ %spare, %runs ], [ %from, %width.end ]
  %width = phi i64 [ 16, %runs ], [ %double, %width.end ]
  %has_two = icmp slt i64 %width, %n
  br i1 %has_two, label %pairs, label %done
pairs:
  %left = phi i64 [ 0, %widths ], [ %end, %pair.end ]
  %has_pair = icmp slt i64 %left, %n
  br i1 %has_pair, label %pair, label %width.end
pair:
  %middle.full = add nsw i64 %left, %width
  %middle = call i64 @llvm.smin.i64(i64 %middle.full, i64 %n)
  %end.full = add nsw i64 %middle, %width
  %end = call i64 @llvm.smin.i64(i64 %end.full, i64 %n)
  br label %merge
merge:
  %a = phi i64 [ %left, %pair ], [ %a.next, %pick ]
  %b = phi i64 [ %middle, %pair ], [ %b.next, %pick ]
  %k = phi i64 [ %left, %pair ], [ %k.next, %pick ]
  %has_a = icmp slt i64 %a, %middle
  %has_b = icmp slt i64 %b, %end
  %has_both = and i1 %has_a, %has_b
  br i1 %has_both, label %pick, label %pair.end
pick:
  %a.at = getelementptr inbounds WORD, ptr %from, i64 %a
  %b.at = getelementptr inbounds WORD, ptr %from, i64 %b
  %a.word = load WORD, ptr %a.at, align 8
  %b.word = load WORD, ptr %b.at, align 8
  %is_b = icmp slt WORD %b.word, %a.word
  %word = select i1 %is_b, WORD %b.word, WORD %a.word
  %k.at = getelementptr inbounds WORD, ptr %to, i64 %k
  store WORD %word, ptr %k.at, align 8
  %b.step = zext i1 %is_b to i64
  %b.next = add nsw i64 %b, %b.step
  %a.more = add nsw i64 %a, 1
  %a.next = sub nsw i64 %a.more, %b.step
  %k.next = add nsw i64 %k, 1
  br label %merge
pair.end:
  %a.left = sub nsw i64 %middle, %a
  %a.bytes = mul nsw i64 %a.left, BYTES
  %a.from = getelementptr inbounds WORD, ptr %from, i64 %a
  %a.to = getelementptr inbounds WORD, ptr %to, i64 %k
  call void @llvm.memcpy.p0.p0.i64(ptr %a.to, ptr %a.from, i64 %a.bytes, i1 false)
  %b.left = sub nsw i64 %end, %b
  %b.bytes = mul nsw i64 %b.left, BYTES
  %b.from = getelementptr inbounds WORD, ptr %from, i64 %b
  %b.to = getelementptr inbounds WORD, ptr %a.to, i64 %a.left
  call void @llvm.memcpy.p0.p0.i64(ptr %b.to, ptr %b.from, i64 %b.bytes, i1 false)
  br label %pairs
width.end:
  %double = shl nsw i64 %width, 1
  br label %widths
done:
  %is_away = icmp ne ptr %from, %row
  br i1 %is_away, label %bring, label %end.of.sort
bring:
  %bytes = mul nsw i64 %n, BYTES
  call void @llvm.memcpy.p0.p0.i64(ptr %row, ptr %spare, i64 %bytes, i1 false)
  br label %end.of.sort
end.of.sort:
  ret void
}"""
