"""Instructions that multiply several terms in each lane of vectors and add the products to a sum.

A lane has 32 bits: two bf16, whose sum is f32, or four bytes, whose sum is i32. The facts of a
target name its instructions (`bf16_dots` and `byte_dots` of `LlvmFacts`).

Instructions for pairs of bf16 differ in how they round, and none rounds as two multiply-adds do:

- `vdpbf16ps` (AVX-512) rounds to nearest even after each of two multiply-adds, and takes subnormal
  elements, and gives subnormal sums, as 0.
- `bfdot` (Armv8.6, NEON and SVE) adds both products, which are exact, and then that sum to the
  lane. Both sums are rounded to odd: an inexact one is the neighbour whose last bit is 1. So an
  error is less than a unit in the last place instead of half of one, and its mean is 0. Subnormal
  elements are taken, and subnormal products and sums given, as 0. On processors with FEAT_EBF16 a
  thread may ask for other roundings (FPCR.EBF), whose errors are at most as large; Linux does not.

Source: Arm Architecture Reference Manual, BFDotAdd(), BFMulH() and BFRound() of the shared
pseudocode; Intel's Software Developer's Manual, VDPBF16PS.

Products of bytes are exact; sums of them wrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from codegen_svc.emitters.llvm.text import I8, I32, I64, FunctionText, Value, integer, mangled
from kernelfarm.errors import InternalError
from kernelfarm.targets import LlvmFacts

_BFLOAT: Final = "bfloat"
_PIECE_LANES: Final = 4
"""The lanes of a scalable vector for each 16 bytes that its registers have."""


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """An instruction that multiplies `lane_terms` of type `term` in each lane.

    `intrinsic` is LLVM's name of it, in which {bits} stands for the size of a vector. With
    `takes_unsigned`, bytes of the first factor are unsigned, else all are signed. `is_scalable`:
    LLVM has it for vectors of unknown length alone; those of the kernel fill them.
    """

    intrinsic: str
    term: str
    lane_terms: int
    takes_unsigned: bool = False
    is_scalable: bool = False


@dataclass(frozen=True, slots=True)
class Dots:
    """A processor's instructions for pairs of bf16 and for fours of bytes; None: it has none."""

    pairs: DotInstruction | None = None
    bytes: DotInstruction | None = None


NO_DOTS: Final = Dots()
_PAIRS: Final = {
    "vdpbf16ps": DotInstruction("llvm.x86.avx512bf16.dpbf16ps.{bits}", _BFLOAT, 2),
    "bfdot": DotInstruction("llvm.aarch64.neon.bfdot.v4f32.v8bf16", _BFLOAT, 2),
    "bfdot.sve": DotInstruction("llvm.aarch64.sve.bfdot", _BFLOAT, 2, is_scalable=True),
}
_BYTES: Final = {
    "vpdpbusd": DotInstruction("llvm.x86.avx512.vpdpbusd.{bits}", I8, 4, takes_unsigned=True),
    "sdot": DotInstruction("llvm.aarch64.neon.sdot.v4i32.v16i8", I8, 4),
    "sdot.sve": DotInstruction("llvm.aarch64.sve.sdot.nxv4i32", I8, 4, is_scalable=True),
}


def dots_of(llvm: LlvmFacts) -> Dots:
    """The instructions that the facts of a target name.

    Raises:
        InternalError: the emitter knows no such instruction.
    """
    return Dots(_named(_PAIRS, llvm.bf16_dots), _named(_BYTES, llvm.byte_dots))


def _named(known: dict[str, DotInstruction], name: str | None) -> DotInstruction | None:
    if name is None:
        return None
    if name not in known:
        raise InternalError(
            f"a target's facts name the instruction {name!r}; the emitter knows {sorted(known)}"
        )
    return known[name]


def add_dots(
    fn: FunctionText, dot: DotInstruction, before: Value, first: Value, second: Value
) -> Value:
    """Sums with the products of all terms that each lane of two vectors has.

    Shapes: before: a vector of f32 or i32; first, second: vectors of as many bytes
    """
    if dot.is_scalable:
        return _add_scalable(fn, dot, before, (first, second))
    lanes = lanes_of(before)
    name = dot.intrinsic.format(bits=32 * lanes)
    kind = f"<{dot.lane_terms * lanes} x {dot.term}>"
    sides = [fn.cast("bitcast", side, kind) for side in (first, second)]
    return fn.call_external(name, before.type, before, *sides)


def lanes_of(vector: Value) -> int:
    """The number of a vector's lanes."""
    return int(vector.type[1:].partition(" ")[0])


def _add_scalable(
    fn: FunctionText, dot: DotInstruction, before: Value, sides: tuple[Value, Value]
) -> Value:
    """The same by an instruction for vectors of unknown length; the casts cost no instruction.

    Factors become vectors of lanes first: LLVM knows fixed ones of bf16 in registers of 16 bytes
    alone, and would store longer ones.
    """
    lanes, element = lanes_of(before), _element_of(before)
    terms = f"<vscale x {dot.lane_terms * _PIECE_LANES} x {dot.term}>"
    words = (fn.cast("bitcast", side, f"<{lanes} x {I32}>") for side in sides)
    wide = [fn.cast("bitcast", _lengthened(fn, word), terms) for word in words]
    kind = f"<vscale x {_PIECE_LANES} x {element}>"
    total = fn.call_external(dot.intrinsic, kind, _lengthened(fn, before), *wide)
    name = f"llvm.vector.extract.v{lanes}{mangled(element)}.nxv{_PIECE_LANES}{mangled(element)}"
    return fn.call_external(name, before.type, total, integer(0, I64))


def _lengthened(fn: FunctionText, vector: Value) -> Value:
    """A vector as one of unknown length, which it fills."""
    lanes, element = lanes_of(vector), _element_of(vector)
    kind = f"<vscale x {_PIECE_LANES} x {element}>"
    name = f"llvm.vector.insert.nxv{_PIECE_LANES}{mangled(element)}.v{lanes}{mangled(element)}"
    return fn.call_external(name, kind, Value("poison", kind), vector, integer(0, I64))


def _element_of(vector: Value) -> str:
    """LLVM's type of a vector's elements."""
    return vector.type.rpartition(" ")[2].rstrip(">")
