"""How many threads hold a row in registers, and in how many pieces.

Percentages are speeds on an H200 as parts of a copy's, for rows of bf16 elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from codegen_svc.emitters.triton.block_sizes import next_power_of_2
from codegen_svc.emitters.triton.held_loads import (
    bytes_of,
    held_loads,
    loads_ahead,
    reads_only,
    within_loops,
)
from codegen_svc.emitters.triton.index import numel
from codegen_svc.emitters.triton.two_passes import in_two_passes
from kernelfarm.ir.loop_ir import Kernel, Store
from kernelfarm.targets import GpuFacts
from kernelfarm.traffic import held_row_bytes

_ACCESS_BYTES = 16
_MIN_THREADS = 128
# Bytes of a block of a cluster: for 131,072 elements, softmax reaches 91 by 4 such blocks and 86
# by 8 smaller ones, RMSNorm, which also loads weights, 70 and 89.
_CLUSTER_BLOCK_BYTES = 65536
# Masks of all pieces take registers: up to here two programs of more threads are faster. LayerNorm
# and SiLU over varying rows of 16,384 elements reach 91 with 128 bytes of a thread and 73 with 256,
# of 32,768 elements 64 and 87.
_SHORT_VARYING_BYTES = 32768
_VARYING_THREAD_BYTES = 128
# With accesses of half as many bytes, more rows end near the end of a piece. Of 50,304 elements,
# softmax reaches 81 in 7 pieces and 84 in 13, RMSNorm, which also loads weights, 99 and 91.
_MOST_PADDING = 1.125


@dataclass(frozen=True, slots=True)
class HeldShape:
    """A row is held by `blocks` blocks of `threads`, in `pieces` of `piece_elems` elements.

    What the last loop loads beside it is loaded `loads_ahead` pieces ahead.
    """

    blocks: int
    threads: int
    piece_elems: int
    pieces: int
    loads_ahead: int


def held_shape(kernel: Kernel, gpu: GpuFacts, width: int) -> HeldShape | None:
    """The shape for rows of at most `width` elements; None if the chip cannot hold them.

    Rows are held if several loops read them.
    """
    kernel = in_two_passes(kernel)
    loads = held_loads(kernel)
    row_bytes = held_row_bytes(kernel, width)
    if not loads or row_bytes > max(gpu.held_row_bytes, gpu.cluster_row_bytes):
        return None
    reads_only_rows = reads_only(kernel, loads)
    blocks, threads = _blocks_and_threads(kernel, gpu, row_bytes, reads_only_rows=reads_only_rows)
    piece_elems = blocks * threads * _ACCESS_BYTES // max(bytes_of(kernel, n) for n in loads)
    if reads_only_rows and ceil(width / piece_elems) * piece_elems > _MOST_PADDING * width:
        piece_elems //= 2
    pieces = ceil(width / piece_elems)
    ahead = min(gpu.loads_ahead, pieces) if loads_ahead(kernel) else 0
    return HeldShape(blocks, threads, piece_elems, pieces, ahead)


def _blocks_and_threads(
    kernel: Kernel, gpu: GpuFacts, row_bytes: int, *, reads_only_rows: bool
) -> tuple[int, int]:
    """The blocks of a program and the threads of each, a power of two."""
    stores = any(isinstance(each, Store) for each in within_loops(kernel))
    blocks = 1 if row_bytes <= gpu.held_row_bytes else gpu.cluster_blocks
    if reads_only_rows and gpu.cluster_blocks > 1:
        # A loop that stores nothing leaves room for a second row, which hides its loads.
        most = gpu.held_row_bytes if stores else _two_rows_bytes(gpu)
        needed = next_power_of_2(ceil(row_bytes / _CLUSTER_BLOCK_BYTES))
        blocks = min(needed, gpu.cluster_blocks) if row_bytes > most else 1
    per_thread = gpu.row_thread_bytes if reads_only_rows else gpu.held_thread_bytes
    if not numel(kernel.reduction).is_constant and row_bytes <= _SHORT_VARYING_BYTES:
        per_thread = _VARYING_THREAD_BYTES
    threads = next_power_of_2(ceil(row_bytes / blocks / per_thread))
    return blocks, max(_MIN_THREADS, min(threads, gpu.max_threads_per_block))


def _two_rows_bytes(gpu: GpuFacts) -> int:
    """The bytes of a row of which a multiprocessor's registers hold two, and what they need."""
    return (gpu.registers_per_multiprocessor or 0) * 4 * 7 // 16
