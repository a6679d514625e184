"""Outputs of programs."""

from __future__ import annotations

from kernelfarm.ir.program_ir import Program, TensorView


def output_view(program: Program, position: int) -> TensorView:
    """The output at a position, which must be a tensor."""
    found = program.plan.outputs[position]
    assert isinstance(found, TensorView)
    return found
