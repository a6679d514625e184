"""Annotations of a product's operands in the Linalg text of the farm's own kernels.

An operand that a loop copies has several buffers in L1, so that the next panel is fetched while one
is multiplied. With the hint `dot_pad_only_k`, only the axis of the sums is filled with zeros: the
other rows and columns of a tile are computed from what the buffer holds, and are not stored.
"""

from __future__ import annotations

from codegen_svc.backends.ascend.linalg_text import indent_of, loaded_blocks, loops_of
from codegen_svc.backends.ascend.scopes import block_mark, padding_mark


def mark_operands(linalg: str, copies: int, *, pads_only_k: bool) -> tuple[str, int]:
    """The text with annotations of its operands, and the number of operands."""
    lines = linalg.splitlines()
    loops = loops_of(lines)
    operands = [block for block in loaded_blocks(lines) if block.is_operand]
    for block in reversed(operands):
        marks = [padding_mark(block)] if pads_only_k else []
        if copies > 1 and any(loop.has(block.line) for loop in loops):
            marks.append(block_mark(block, copies))
        indent = " " * indent_of(lines[block.line])
        lines[block.line + 1 : block.line + 1] = [indent + mark for mark in marks]
    return "\n".join((*lines, "")), len(operands)
