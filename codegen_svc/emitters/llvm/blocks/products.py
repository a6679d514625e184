"""Products of matrices in a kernel over blocks: tiles of the result stay in registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from codegen_svc.emitters.llvm.blocks.elements import number_type, register_of, store_element
from codegen_svc.emitters.llvm.blocks.program import BlockType, Operation
from codegen_svc.emitters.llvm.blocks.values import (
    ZERO,
    Block,
    Index,
    Scope,
    element_address,
    kept_block,
    over,
    store_block,
)
from codegen_svc.emitters.llvm.blocks.writer import BlockWriter, WriteOperation
from codegen_svc.emitters.llvm.element_types import convert
from codegen_svc.emitters.llvm.text import I32, I64, FunctionText, Value, integer
from codegen_svc.emitters.llvm.unit import write_loop
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError

_COLUMN_VECTORS: Final = 2
_ROWS: Final = {256: 4}
_MOST_ROWS: Final = 8
"""A tile of the result: two vectors of each row, and so many rows by the bits of a vector. AVX2 has
16 registers, of which 8 sums, a row of the right factor and an element of the left one take 11;
AVX-512 and NEON have 32."""
_ELEMENT: Final = {DType.F32: "f32", DType.F64: "f64", DType.I32: "i32"}


def _product(writer: BlockWriter, op: Operation) -> None:
    left, right, added = (writer.block(number) for number in op.operands)
    kind = writer.kind(op.results[0])
    dtype = number_type(kind)
    computed: DType = dtype.compute_dtype
    if len(kind.shape) != 2 or computed not in _ELEMENT:
        raise KernelRejectedError(
            f"a product of {kind.element} with {len(kind.shape)} axes has no code"
        )
    element = _ELEMENT[computed]
    memory = writer.workspace.part(BlockType(kind.shape, element), "product")
    total = BlockType(kind.shape, element)
    bits = writer.vector_bits
    tile = _ROWS.get(bits, _MOST_ROWS), _COLUMN_VECTORS * bits // 8
    tiles = _Tiles(writer.fn, total, left.kind.shape[1], tile)
    left_memory = _as_type(writer, left, element)
    right_memory = _in_strips(writer, right, element, tiles.columns)
    store_block(writer.fn, _converted(writer, added, total), memory)
    tiles.write(left_memory, right_memory, memory)
    product = kept_block(writer.fn, total, memory)
    writer.define(op, product if computed is dtype else _converted(writer, product, kind))


def _as_type(writer: BlockWriter, factor: Block, element: str) -> Value:
    """The memory of a factor's elements in the type of the sums."""
    kind = BlockType(factor.kind.shape, element)
    if factor.memory is not None and factor.kind == kind:
        return factor.memory
    memory = writer.workspace.part(kind, "factor")
    store_block(writer.fn, _converted(writer, factor, kind), memory)
    return memory


def _in_strips(writer: BlockWriter, factor: Block, element: str, columns: int) -> Value:
    """The memory of the right factor, with the rows of each strip of columns one after the other.

    So a tile reads lines of the cache that follow each other, instead of lines a row apart, which
    may all fall into few sets of the first-level cache.
    """
    fn, (inner, width) = writer.fn, factor.kind.shape
    kind = BlockType((width // columns, inner, columns), element)
    memory = writer.workspace.part(kind, "strips")
    found = _converted(writer, factor, BlockType(factor.kind.shape, element))

    def body(index: Index) -> None:
        strip, row, lane = index
        first = ZERO if strip is ZERO else fn.op("mul nuw nsw", strip, integer(columns, I64))
        column = fn.op("add nuw nsw", first, lane)
        value = found.at(Scope(), (row, column))
        store_element(fn, kind, value, element_address(fn, kind, memory, index))

    over(fn, kind.shape, body)
    return memory


def _converted(writer: BlockWriter, block: Block, kind: BlockType) -> Block:
    source, target = number_type(block.kind), number_type(kind)
    if source is target:
        return block
    return Block(
        kind, lambda scope, index: convert(writer.fn, block.at(scope, index), source, target)
    )


class _Tiles:
    """Adds the product of two matrices to a third one; the right one is in strips.

    `tile` has the rows, and the bytes of each row, of the sums that stay in registers.
    """

    def __init__(
        self, fn: FunctionText, kind: BlockType, inner: int, tile: tuple[int, int]
    ) -> None:
        self._fn, self._inner = fn, inner
        self._height, self._width = kind.shape
        self._element = register_of(kind)
        self._is_float = number_type(kind).is_float
        lanes = tile[1] // number_type(kind).itemsize_bytes
        self._rows, self.columns = min(tile[0], self._height), min(lanes, self._width)
        self._align = number_type(kind).itemsize_bytes
        self._vector = f"<{self.columns} x {self._element}>"

    def write(self, left: Value, right: Value, total: Value) -> None:
        fn = self._fn
        bands, strips = self._height // self._rows, self._width // self.columns

        def band(number: Value) -> None:
            first = fn.op("mul nuw nsw", number, integer(self._rows, I64))
            rows = [fn.op("add nuw nsw", first, integer(r, I64)) for r in range(self._rows)]

            def strip(at: Value) -> None:
                column = fn.op("mul nuw nsw", at, integer(self.columns, I64))
                own = self._at(right, at, self._inner * self.columns, ZERO)
                self._tile(rows, column, (left, own, total))

            write_loop(fn, "strip", (ZERO, integer(strips, I64)), strip, is_inner=False)

        write_loop(fn, "band", (ZERO, integer(bands, I64)), band, is_inner=False)

    def _tile(self, rows: list[Value], column: Value, operands: tuple[Value, Value, Value]) -> None:
        fn = self._fn
        left, right, total = operands
        slots = [fn.alloca("sums", self._vector) for _ in rows]
        places = [self._at(total, row, self._width, column) for row in rows]
        for slot, place in zip(slots, places, strict=True):
            fn.store(fn.load(self._vector, place, self._align), slot, self._align)

        def step(number: Value) -> None:
            strip = fn.load(self._vector, self._at(right, number, self.columns, ZERO), self._align)
            for row, slot in zip(rows, slots, strict=True):
                factor = fn.load(
                    self._element, self._at(left, row, self._inner, number), self._align
                )
                before = fn.load(self._vector, slot, self._align)
                fn.store(self._sum(self._spread(factor), strip, before), slot, self._align)

        write_loop(fn, "inner", (ZERO, integer(self._inner, I64)), step, is_inner=False)
        for slot, place in zip(slots, places, strict=True):
            fn.store(fn.load(self._vector, slot, self._align), place, self._align)

    def _at(self, memory: Value, row: Value, width: int, column: Value) -> Value:
        fn = self._fn
        flat = fn.op("add nuw nsw", fn.op("mul nuw nsw", row, integer(width, I64)), column)
        return fn.element(self._element, memory, flat)

    def _spread(self, factor: Value) -> Value:
        """A vector of equal elements."""
        fn, vector = self._fn, self._vector
        one = fn.define("", vector, f"insertelement {vector} poison, {factor}, {I32} 0")
        mask = f"<{self.columns} x i32> zeroinitializer"
        return fn.define("", vector, f"shufflevector {one}, {vector} poison, {mask}")

    def _sum(self, a: Value, b: Value, added: Value) -> Value:
        fn = self._fn
        if self._is_float:
            letter = "f" if self._element == "float" else "d"
            bits = {"f": "f32", "d": "f64"}[letter]
            name = f"llvm.fma.v{self.columns}{bits}"
            return fn.call_external(name, self._vector, a, b, added)
        return fn.op("add", fn.op("mul", a, b), added)


PRODUCTS: Final[Mapping[str, WriteOperation]] = {"tt.dot": _product}
