"""Memory for temporaries: one block for each thread and stream, reused from call to call.

A fresh block would cost page faults at each call. A block is as large as the largest program that
ran on the thread; `release` gives it back.
"""

from __future__ import annotations

import threading

import torch

from kernelfarm.errors import InternalError
from kernelfarm.ir.program_ir import ARENA_ALIGNMENT_BYTES

ArenaKey = tuple[torch.device, int]
"""A device and, for accelerators, the stream on which the program runs (0 on a CPU)."""

Blocks = list[torch.Tensor]
"""The blocks of one thread and place that nobody uses now."""


class _ThreadArenas(threading.local):
    def __init__(self) -> None:
        self.blocks: dict[ArenaKey, Blocks] = {}


_thread_arenas = _ThreadArenas()


def blocks_of(key: ArenaKey) -> Blocks:
    """The calling thread's free blocks there; the same list as long as the thread lives."""
    return _thread_arenas.blocks.setdefault(key, [])


def take(blocks: Blocks, device: torch.device, size_bytes: int) -> torch.Tensor:
    """A block of at least this size, as uint8; nobody else has it until it is given back."""
    if blocks:
        block = blocks.pop()
        if block.numel() >= size_bytes:
            return block
    size = -(-size_bytes // ARENA_ALIGNMENT_BYTES) * ARENA_ALIGNMENT_BYTES
    block = torch.empty(size, dtype=torch.uint8, device=device)
    if block.data_ptr() % ARENA_ALIGNMENT_BYTES:
        raise InternalError(f"torch's memory is not aligned to {ARENA_ALIGNMENT_BYTES} bytes")
    return block


def give(blocks: Blocks, block: torch.Tensor) -> None:
    """Gives a block back for the thread's next call."""
    if not blocks:  # one is enough: more are in use only while calls nest
        blocks.append(block)


def release() -> None:
    """Frees the calling thread's blocks."""
    for blocks in _thread_arenas.blocks.values():
        blocks.clear()
