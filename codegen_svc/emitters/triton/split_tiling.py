"""Which rows a block holds partly in registers and partly in its shared memory, and how.

A multiprocessor has as much of both. So it can hold twice as many bytes of rows as in registers
alone, with half as many threads. Percentages are speeds on an H200 as parts of a copy's.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from codegen_svc.emitters.triton.held_loads import bytes_of, held_loads, loads_ahead
from codegen_svc.emitters.triton.row_blocks import is_multiple
from codegen_svc.emitters.triton.tiling import Tiling
from codegen_svc.emitters.triton.two_passes import MOMENTS, in_two_passes
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.loop_ir import (
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Reduce,
    Statement,
    Store,
    varying_values,
)
from kernelfarm.targets import GpuFacts
from kernelfarm.traffic import held_row_bytes

ACCESS_ELEMS = 8
"""Elements of 16 bits that a thread copies at once."""
SLOTS = 4
"""Pieces in shared memory that one iteration of a loop takes, whose weights are loaded together.

LayerNorm of 131,072 elements reaches 79 with 4 and 65 with 2.
"""

_HELD_BYTES = 2
# Pieces in registers by which loads of weights run ahead of the stores: LayerNorm of 131,072
# elements reaches 91 with 4, 87 with 2 and 62 with none, RMSNorm 94, 91 and 67.
_LOADS_AHEAD = 4
# Threads of a multiprocessor: with 128 registers each, rows take half of them.
_THREADS = 512
# Up to here two blocks of half as many threads share a multiprocessor: one loads while the other
# computes.
_SHARING_BYTES = 131072
_FLOATS = (DType.F16, DType.BF16, DType.F32)
_REDUCES = ("sum", "amax", "amin", MOMENTS)


def as_split(kernel: Kernel) -> Kernel:
    """The kernel in the form of rows that are held in registers and shared memory."""
    return in_two_passes(kernel, keeps_moments=True)


def split_tilings(
    kernel: Kernel, gpu: GpuFacts, index_bits: int, width: int, even_sizes: frozenset[str]
) -> tuple[Tiling, ...]:
    """The tilings for rows of at most `width` elements in aligned buffers, the best one first.

    Empty if the kernel or the chip does not suit. `even_sizes` are multiples of `EVEN_SIZE`.
    """
    split = as_split(kernel)
    row_bytes = held_row_bytes(split, width)
    is_long = gpu.least_split_row_bytes <= row_bytes <= gpu.split_row_bytes
    if not is_long or not _has_aligned_rows(split, even_sizes) or not _is_plain(split):
        return ()
    threads = _THREADS // 2 if row_bytes <= _SHARING_BYTES else _THREADS
    piece_elems = threads * ACCESS_ELEMS
    pieces = ceil(width / piece_elems)
    shared = pieces // 2 // SLOTS * SLOTS
    if not shared:
        return ()
    first = Tiling(
        1, 1, piece_elems, False, index_bits, threads // gpu.warp_size, 1,
        pieces=pieces, shared_pieces=shared,
    )  # fmt: skip
    # The first piece in registers is full, so it is not the last one: the loads of weights at the
    # first points of lanes have no mask.
    most = (pieces - 2) // SLOTS * SLOTS
    more = replace(first, shared_pieces=min(shared + SLOTS, most))
    found: tuple[Tiling, ...] = (first, more)
    if loads_ahead(split):
        ahead = [replace(t, loads_ahead=_ahead(t, _LOADS_AHEAD)) for t in found]
        found = (*ahead, replace(more, loads_ahead=_ahead(more, _LOADS_AHEAD // 2)))
    return tuple(dict.fromkeys(found))


def _ahead(tiling: Tiling, most: int) -> int:
    return min(most, tiling.pieces - tiling.shared_pieces)


def least_split_elems(tiling: Tiling) -> int:
    """The fewest elements of a row of varying length: its pieces in registers are full."""
    return (tiling.pieces - tiling.shared_pieces) * tiling.rblock


def split_registers(gpu: GpuFacts) -> int:
    """The registers that a thread may take, so that a multiprocessor has room for all threads."""
    return min(gpu.max_registers, (gpu.registers_per_multiprocessor or 0) // _THREADS)


def _has_aligned_rows(kernel: Kernel, even_sizes: frozenset[str]) -> bool:
    """True if each row that several loops read can be copied by 16 bytes, 8 elements at a time."""
    loads = held_loads(kernel)
    if not loads or len(kernel.reduction) != 1:
        return False
    return all(
        bytes_of(kernel, number) == _HELD_BYTES
        and _begins_aligned(kernel, kernel.body[number], even_sizes)
        for number in loads
    )


def _begins_aligned(kernel: Kernel, load: Statement, even_sizes: frozenset[str]) -> bool:
    if not isinstance(load, Load):
        return False
    parts = load.index.linear_in(kernel.reduction[0].name)
    return parts is not None and parts[0] is ONE and is_multiple(parts[1], ACCESS_ELEMS, even_sizes)


def _is_plain(kernel: Kernel) -> bool:
    """True if all statements are ones that Triton's language of layouts expresses, too."""
    varying = varying_values(kernel)
    return all(_is_plain_statement(kernel, statement, varying) for statement in kernel.body)


def _is_plain_statement(kernel: Kernel, statement: Statement, varying: frozenset[int]) -> bool:
    match statement:
        case Load(param=param, mask=mask):
            return mask is None and kernel.param(param).dtype in _FLOATS
        case Reduce(op=op, operand=operand):
            return op in _REDUCES and operand in varying
        case Compute(dtype=dtype):
            return dtype in (*_FLOATS, DType.BOOL)
        case Store(param=param, index=index):
            known = {axis.name for axis in (*kernel.outer, *kernel.reduction)}
            known |= {size.name for size in kernel.sizes}
            return kernel.param(param).dtype in _FLOATS and index.symbols <= known
        case Literal() | IndexValue():
            return True
        case _:
            return False
