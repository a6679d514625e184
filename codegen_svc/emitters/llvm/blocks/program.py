"""A kernel over blocks as data: operations on values of fixed shape, as Triton's front end gives.

Grammar:

    Program   ::= name, params: [Value id], types: {Value id: BlockType}, body: [Operation]
    Operation ::= name, operands: [Value id], results: [Value id], words, attributes, regions
    Region    ::= params: [Value id], body: [Operation]
    BlockType ::= shape: [integer], element; a number has an empty shape

Each value is defined once and has a number of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from kernelfarm.dtypes import DType

_DTYPES = {
    "i1": DType.BOOL,
    "i8": DType.I8,
    "i16": DType.I16,
    "i32": DType.I32,
    "i64": DType.I64,
    "f16": DType.F16,
    "bf16": DType.BF16,
    "f32": DType.F32,
    "f64": DType.F64,
    "f8E4M3FN": DType.F8E4M3FN,
    "f8E5M2": DType.F8E5M2,
}
_POINTER = "!tt.ptr<"


@dataclass(frozen=True, slots=True)
class BlockType:
    """The shape of a value, and its element type as the text names it."""

    shape: tuple[int, ...]
    element: str

    @property
    def elems(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def dtype(self) -> DType | None:
        """The element type of numbers; None for pointers and for types that processors lack."""
        return _DTYPES.get(self.element)

    @property
    def pointee(self) -> DType | None:
        """The element type that pointers point to; None if they are no pointers to numbers."""
        if not self.element.startswith(_POINTER):
            return None
        return _DTYPES.get(self.element.removeprefix(_POINTER).partition(">")[0].partition(",")[0])

    @property
    def is_pointer(self) -> bool:
        """True for pointers."""
        return self.element.startswith(_POINTER)


@dataclass(frozen=True, slots=True)
class Region:
    """Operations inside of another one."""

    params: tuple[int, ...]
    body: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation; `words` is its text without operands' types."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    words: str = ""
    attributes: str = ""
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Program:
    """A kernel; its parameters are pointers and numbers."""

    name: str
    params: tuple[int, ...]
    types: Mapping[int, BlockType]
    body: tuple[Operation, ...] = field(repr=False)

    @cached_property
    def use_counts(self) -> Mapping[int, int]:
        """How often each value is an operand."""
        return Counter(number for op in walk(self.body) for number in op.operands)

    @cached_property
    def users(self) -> Mapping[int, tuple[Operation, ...]]:
        """The operations that have a value as an operand."""
        found: dict[int, list[Operation]] = {}
        for op in walk(self.body):
            for number in dict.fromkeys(op.operands):
                found.setdefault(number, []).append(op)
        return {number: tuple(ops) for number, ops in found.items()}


def walk(body: Sequence[Operation]) -> Iterator[Operation]:
    """Every operation in order, also those in regions."""
    for op in body:
        yield op
        for region in op.regions:
            yield from walk(region.body)
