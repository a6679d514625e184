"""The results of code generation for one kernel: stages, binary, launch facts, guards."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

from kernelfarm.dtypes import DType
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.algebra.expr import Expr

# CUDA Driver API, cuTensorMapEncodeTiled; a kernel's arguments have extents of 32 bits.
_MAP_STEP_BYTES = 16
_MAX_MAP_EXTENT = (1 << 31) - 1

Number = Union[int, Expr]
"""A number that is known, or that follows from the sizes of a launch."""


@dataclass(frozen=True, slots=True)
class StageText:
    """One stage of a compilation: UTF-8 text, or the bytes of a binary."""

    name: str
    content: bytes
    is_text: bool


class GuardSubject(enum.Enum):
    """The fact that a guard atom compares."""

    SYMBOL = "symbol"
    PARAM_ADDRESS = "param_address"
    PARAM_EXTENT = "param_extent"


class GuardOp(enum.Enum):
    """The comparison of a guard atom."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    DIVISIBLE = "divisible by"


@dataclass(frozen=True, slots=True)
class GuardAtom:
    """One condition on a symbol, by name, or on a buffer, by its parameter's number.

    Units: addresses in bytes, extents in elements.
    """

    subject: GuardSubject
    name: str | int
    op: GuardOp
    operand: int


@dataclass(frozen=True, slots=True)
class TensorMapFacts:
    """A tensor map that a launch makes: hardware copies boxes of the matrix that a buffer holds.

    `buffer` is the buffer's number among the kernel's. Axes are outermost first; the innermost one,
    whose elements are neighbours, has no stride. The matrix begins `offset_bytes` behind the
    buffer's address. A box has each of `steps` elements along an axis, all if there are none.
    Numbers that vary are expressions over the kernel's size symbols.

    Units: `extents` and `box` in elements that are copied, `steps` in elements of the matrix.
    """

    buffer: int
    dtype: DType
    extents: tuple[Number, ...]
    strides_bytes: tuple[Number, ...]
    box: tuple[int, ...]
    swizzle_bytes: int
    offset_bytes: Number = 0
    steps: tuple[int, ...] = ()

    def arguments(self) -> tuple[str, ...]:
        """The words of the binary's arguments for the map: it, its extents and its strides."""
        rank = len(self.extents)
        # Words of their own, which clients that know no offsets or steps refuse.
        word = OFFSET_TENSOR_MAP if self.offset_bytes else TENSOR_MAP
        word = STEPPED_TENSOR_MAP if self.steps else word
        return (word, *(MAP_EXTENT,) * rank, *(MAP_STRIDE,) * rank)

    def spans(self) -> tuple[int, ...]:
        """The elements of the matrix from which a box is copied, along each axis."""
        if not self.steps:
            return self.box
        return tuple(side * step for side, step in zip(self.box, self.steps, strict=True))

    def varies(self) -> bool:
        """True if extents, strides or the offset follow from sizes of a launch."""
        numbers = (*self.extents, *self.strides_bytes, self.offset_bytes)
        return not all(isinstance(number, int) for number in numbers)

    def at(self, sizes: Mapping[str, int]) -> BoundTensorMap:
        """The map for values of the size symbols.

        Raises:
            MalformedMessageError: an extent, a stride or the offset is none that the driver takes.
        """

        def values(numbers: Sequence[Number]) -> tuple[int, ...]:
            return tuple(n if isinstance(n, int) else n.evaluate(sizes) for n in numbers)

        extents, steps = values(self.extents), values((*self.strides_bytes, self.offset_bytes))
        if not all(0 < extent <= _MAX_MAP_EXTENT for extent in extents):
            raise MalformedMessageError(
                f"tensor map of buffer {self.buffer}: extents {extents}; expected 1 to"
                f" {_MAX_MAP_EXTENT} along each axis"
            )
        if any(step < 0 or step % _MAP_STEP_BYTES for step in steps):
            raise MalformedMessageError(
                f"tensor map of buffer {self.buffer}: strides {steps[:-1]}, offset {steps[-1]};"
                f" expected multiples of {_MAP_STEP_BYTES} bytes"
            )
        return BoundTensorMap(self, extents, steps[:-1], steps[-1])


@dataclass(frozen=True, slots=True)
class BoundTensorMap:
    """A tensor map with the numbers of one launch, in the units of its facts."""

    facts: TensorMapFacts
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What a launch needs beyond the binary; zero or empty if it does not apply.

    `grid` is over the kernel's size symbols. `arguments` names the binary's arguments in order:
    `buffer`, `size`, `scratch`, `threads`, and the words of the `tensor_maps`. If
    `programmatic_launch`, the kernel waits itself for the end of the one ahead.

    Units: `spills` in bytes per thread, `registers` per thread, `shared_bytes` per block.
    """

    symbol: str
    grid: tuple[Expr, ...] = ()
    num_warps: int = 0
    warp_size: int = 0
    shared_bytes: int = 0
    registers: int = 0
    spills: int = 0
    xblock_elems: int = 0
    rblock_elems: int = 0
    local_bytes: int = 0
    arguments: tuple[str, ...] = ()
    extras: tuple[tuple[str, str], ...] = ()
    tensor_maps: tuple[TensorMapFacts, ...] = ()
    programmatic_launch: bool = False


TENSOR_MAP, MAP_EXTENT, MAP_STRIDE = "tensor_map", "map_extent", "map_stride"
OFFSET_TENSOR_MAP, STEPPED_TENSOR_MAP = "offset_tensor_map", "stepped_tensor_map"
MAPS = frozenset((TENSOR_MAP, OFFSET_TENSOR_MAP, STEPPED_TENSOR_MAP))
SCRATCH_BYTES = "scratch_bytes_per_program"
"""The extra launch fact of a user's kernel that needs memory: its last buffer has so many bytes for
each program of the grid."""


def scratch_bytes(facts: LaunchFacts) -> int:
    """The bytes of memory that each program of the grid needs beside the kernel's buffers."""
    return int(dict(facts.extras).get(SCRATCH_BYTES, "0"))


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """One variant of one kernel for one target, as a backend returns it.

    If `guard` is empty, the variant may always be launched. `binary_stage` names the stage that is
    loaded. A stub cannot run on the device; `stub_reason` says why.
    """

    binary_stage: str
    stages: tuple[StageText, ...]
    launch: LaunchFacts
    guard: tuple[GuardAtom, ...] = ()
    is_stub: bool = False
    stub_reason: str = ""
    notes: tuple[str, ...] = field(default=())


_SUBJECTS = {
    GuardSubject.SYMBOL: "size {}",
    GuardSubject.PARAM_ADDRESS: "the address of buffer {}",
    GuardSubject.PARAM_EXTENT: "the length of buffer {}",
}
_WORDS = {
    GuardOp.EQ: "is",
    GuardOp.NE: "is not",
    GuardOp.LT: "is less than",
    GuardOp.LE: "is at most",
    GuardOp.GT: "is more than",
    GuardOp.GE: "is at least",
    GuardOp.DIVISIBLE: "is a multiple of",
}


def guard_text(guard: Sequence[GuardAtom]) -> str:
    """The conditions of a guard as a sentence."""
    if not guard:
        return "always"
    return ", ".join(
        f"{_SUBJECTS[atom.subject].format(atom.name)} {_WORDS[atom.op]} {atom.operand}"
        for atom in guard
    )
