"""Shared memory for Gluon's text of row kernels in Triton's interpreter, which has no layouts.

The text becomes Triton's: layouts are left out, and shared memory is a list of blocks. A block that
is read before it was written is an error, as one beyond the end.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

_HEADER = """\
import triton
import triton.language as tl
"""
_CHANGES = (
    (r"import triton\.language as triton_language\n(?:from .*\n)*", _HEADER),
    (r"@gluon\.jit", "@triton.jit"),
    (r"triton_language\.", "tl."),
    (r" +(?:ROW|SHARED): tl\.constexpr = .*\n", ""),
    (r"tl\.set_auto_layout\((.*), ROW\)", r"(\1)"),
    (r"(tl\.full\(.*), ROW\)", r"\1)"),
    (
        r"tl\.allocate_shared_memory\(tl\.\w+, \[(\d+), XBLOCK, RBLOCK\], SHARED\)",
        r"SharedBlocks(\1)",
    ),
)


def in_triton(text: str) -> str:
    """The text for Triton's interpreter."""
    for pattern, replacement in _CHANGES:
        text = re.sub(pattern, replacement, text)
    return text


class SharedBlocks:
    """Blocks of shared memory."""

    def __init__(self, count: int) -> None:
        self._blocks: list[Any] = [None] * count

    def index(self, number: Any) -> _Slot:
        """One of the blocks."""
        return _Slot(self._blocks, int(number))


class _Slot:
    def __init__(self, blocks: list[Any], number: int) -> None:
        if not 0 <= number < len(blocks):
            raise IndexError(f"block {number} of {len(blocks)}")
        self._blocks, self._number = blocks, number

    def load(self, _layout: None) -> Any:
        """The block's values."""
        value = self._blocks[self._number]
        if value is None:
            raise ValueError(f"block {self._number} is read before it was written")
        return value

    def store(self, value: Any) -> None:
        """Fills the block."""
        self._blocks[self._number] = value


def _async_load(slot: _Slot, pointers: Any, mask: Any = None) -> None:
    """A copy that arrives at once; lanes that a mask turns off are zero."""
    from triton import language  # noqa: PLC0415 - the interpreter's

    filled = {} if mask is None else {"mask": mask, "other": 0.0}
    slot.store(language.load(pointers, **filled))


def interpreted_names() -> dict[str, Any]:
    """What the text refers to."""
    copies = SimpleNamespace(
        async_load=_async_load, commit_group=lambda: None, wait_group=lambda _outstanding: None
    )
    return {"SharedBlocks": SharedBlocks, "async_copy": copies, "ROW": None}
