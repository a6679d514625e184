"""Plans as messages."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError, MalformedMessageError, UnsupportedVersionError
from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr, symbol
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    DrawSeeds,
    ExternCall,
    Launch,
    Plan,
    SymbolSource,
    TensorView,
)
from kernelfarm.v1 import plan_pb2 as pb
from kernelfarm.wire import plan_from_proto, plan_to_proto

S0 = symbol("s0")
VIEW = TensorView("tmp0", DType.F32, (S0, as_expr(4)), (as_expr(4), ONE), 2 * S0 + 1)
PLAN = Plan(
    target="cuda:sm_90a",
    symbols=(SymbolSource("s0", 0, 1), SymbolSource("n", 1, -1)),
    buffers=(
        Buffer("in0", BufferKind.INPUT, DType.F32, 4 * S0, position=3),
        Buffer("const0", BufferKind.CONSTANT, DType.I64, as_expr(2), position=1),
        Buffer("tmp0", BufferKind.TEMPORARY, DType.F32, 4 * S0, offset_bytes=64 * S0),
        Buffer("tmp1", BufferKind.TEMPORARY, DType.F32, S0, offset_bytes=96 * S0, is_apart=True),
        Buffer("ext0", BufferKind.EXTERN, DType.BF16, S0),
        Buffer("ext1", BufferKind.EXTERN, DType.I64, ONE),
        Buffer("out0", BufferKind.OUTPUT, DType.BOOL, ZERO),
    ),
    arena_bytes=128 * S0,
    kernel_names=("fused_exp", "fused_sum"),
    steps=(
        Launch(1, ("in0", "tmp0"), (S0, S0 // 2)),
        ExternCall(3, "aten.mm.default", (VIEW, VIEW), (None, VIEW), True),
        Launch(0, ("tmp0", "out0")),
        DrawSeeds(("ext1",)),
    ),
    outputs=(VIEW, S0 + 1, None),
    kernel_keys=(b"\1" * 32, b"\2" * 32),
)


def test_a_plan_returns_equal() -> None:
    data = plan_to_proto(PLAN).SerializeToString()
    assert plan_from_proto(pb.Plan.FromString(data)) == PLAN


def test_a_plan_without_keys_returns_without_keys() -> None:
    plan = replace(PLAN, kernel_keys=())
    assert plan_from_proto(plan_to_proto(plan)) == plan


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda p: setattr(p, "abi_version", 2), UnsupportedVersionError, "version 2"),
        (lambda p: setattr(p, "arena_alignment_bytes", 3), MalformedMessageError, "of 3 bytes"),
        (lambda p: setattr(p.buffers[0], "kind", 9), MalformedMessageError, "kind number 9"),
        (lambda p: setattr(p.buffers[0], "name", ""), MalformedMessageError, "have none"),
        (lambda p: setattr(p.buffers[0], "name", "tmp0"), MalformedMessageError, "share a name"),
        (lambda p: p.buffers[2].ClearField("offset_bytes"), MalformedMessageError, "is missing"),
        (lambda p: setattr(p.buffers[0], "is_apart", True), MalformedMessageError, "is apart"),
        (lambda p: setattr(p.kernels[0], "key", b"short"), MalformedMessageError, "5 bytes"),
        (lambda p: setattr(p.steps[0].launch, "kernel", 2), MalformedMessageError, "below 2"),
        (lambda p: p.steps[0].launch.buffers.append("x"), MalformedMessageError, "'x' is not"),
        (lambda p: p.steps[3].draw_seeds.buffers.append("x"), MalformedMessageError, "'x' is not"),
        (lambda p: p.steps.append(pb.Step()), MalformedMessageError, "step 4: its form"),
        (lambda p: p.outputs.append(pb.Output()), MalformedMessageError, "output 3: its form"),
        (lambda p: p.outputs[0].view.strides.pop(), MalformedMessageError, "1 strides for 2"),
        (lambda p: setattr(p.symbols[0], "axis", -2), MalformedMessageError, "axis -2"),
        (
            lambda p: setattr(p.outputs[0].view, "buffer", "gone"),
            MalformedMessageError,
            "output 0: buffer 'gone'",
        ),
    ],
)
def test_a_plan_with_a_dangling_reference_is_refused(
    damage: Callable[[pb.Plan], object], error: type[CallerError], message: str
) -> None:
    plan = plan_to_proto(PLAN)
    damage(plan)
    with pytest.raises(error, match=message):
        plan_from_proto(plan)
