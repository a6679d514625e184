"""The results of code generation for one kernel: stages, binary, launch facts, guards."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr


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
    buffer's address.

    Units: `extents` and `box` in elements.
    """

    buffer: int
    dtype: DType
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int
    offset_bytes: int = 0

    def arguments(self) -> tuple[str, ...]:
        """The words of the binary's arguments for the map: it, its extents and its strides."""
        rank = len(self.extents)
        # Its own word, which clients that know no offsets refuse.
        word = OFFSET_TENSOR_MAP if self.offset_bytes else TENSOR_MAP
        return (word, *(MAP_EXTENT,) * rank, *(MAP_STRIDE,) * rank)


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What a launch needs beyond the binary; zero or empty if it does not apply.

    `grid` is over the kernel's size symbols. `arguments` names the binary's arguments in order:
    `buffer`, `size`, `scratch`, `threads`, and the words of the `tensor_maps`.

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


TENSOR_MAP, MAP_EXTENT, MAP_STRIDE = "tensor_map", "map_extent", "map_stride"
OFFSET_TENSOR_MAP = "offset_tensor_map"
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
