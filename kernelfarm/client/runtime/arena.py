"""Memory for temporaries: one block for each thread and stream, reused by later calls.

A new block would cost page faults at each call. A block is as large as the largest arena that a
program on the thread needed; `release` frees it. Calls that a CUDA graph records have blocks of
their own.
"""

from __future__ import annotations

import threading

import torch

from kernelfarm.errors import InternalError
from kernelfarm.ir.program_ir import ARENA_ALIGNMENT_BYTES

ArenaKey = tuple[torch.device, int]
"""A device, and the stream on which the program runs; 0 on a CPU."""

Blocks = list[torch.Tensor]
"""The blocks of one thread and key that no call is using."""


class _ThreadArenas(threading.local):
    def __init__(self) -> None:
        self.blocks: dict[ArenaKey, Blocks] = {}


_thread_arenas = _ThreadArenas()


def blocks_of(key: ArenaKey) -> Blocks:
    """The calling thread's free blocks of a key; the same list object for the thread's lifetime."""
    return _thread_arenas.blocks.setdefault(key, [])


def take(blocks: Blocks, device: torch.device, size_bytes: int) -> torch.Tensor:
    """A block for exclusive use until `give`.

    Shapes: (n,) with n >= `size_bytes`, uint8, aligned to `ARENA_ALIGNMENT_BYTES`.
    """
    if blocks:
        block = blocks.pop()
        if block.numel() >= size_bytes:
            return block
    size = -(-size_bytes // ARENA_ALIGNMENT_BYTES) * ARENA_ALIGNMENT_BYTES
    block = torch.empty(size, dtype=torch.uint8, device=device)
    if block.data_ptr() % ARENA_ALIGNMENT_BYTES:
        raise InternalError(
            f"torch returned memory at {block.data_ptr():#x}; expected an address that is a"
            f" multiple of {ARENA_ALIGNMENT_BYTES}"
        )
    return block


def give(blocks: Blocks, block: torch.Tensor) -> None:
    """Returns a block for the thread's next call."""
    if not blocks:  # one is enough: only nested calls use more
        blocks.append(block)


def release() -> None:
    """Frees the calling thread's blocks."""
    for blocks in _thread_arenas.blocks.values():
        blocks.clear()
