"""Lines for the points of a block."""

from __future__ import annotations

from codegen_svc.emitters.triton.block import Block
from codegen_svc.emitters.triton.index import R_FLAT


def reduction_point_lines(block: Block) -> list[str]:
    """Lines for the mask and the axes of `rindex`."""
    mask = ["rmask = rindex < rnumel"] if block.r_mask else []
    return [*mask, *axis_lines(block, R_FLAT)]


def axis_lines(block: Block, flat: str) -> list[str]:
    """Lines that compute axes from a flat index."""
    recoveries = [r for r in block.writer.recoveries if r.flat == flat]
    return [f"{r.name} = {block.writer.raw_text(r.expr)}" for r in recoveries]
