"""Plans written by hand for tests of the runner; their kernels are interpreted."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr, symbol
from kernelfarm.ir.artifact import LaunchFacts
from kernelfarm.ir.graph_ir import SizeSymbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, Kernel, Load, Param, Store
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    ExternCall,
    Launch,
    Plan,
    SymbolSource,
    TensorView,
)
from tests.kernelfarm.client.runtime.interpreted_loader import InterpretedLoader
from tests.support.traced_graphs import traced_one

F32 = DType.F32


def exprs(*values: int | Expr) -> tuple[Expr, ...]:
    return tuple(as_expr(value) for value in values)


def pointwise(name: str, op: str, size: int | Expr) -> Kernel:
    """out0[i] = op(in0[i])"""
    elems, index = as_expr(size), symbol("d0")
    return Kernel(
        name,
        (Param("in0", F32, elems, Access.READ), Param("out0", F32, elems, Access.WRITE)),
        tuple(SizeSymbol(s, 0, None) for s in sorted(elems.symbols)),
        (Axis("d0", elems),),
        (),
        (Load("in0", index), Compute(op, (0,), F32), Store("out0", index, 1)),
    )


def buffer(name: str, kind: BufferKind, size: int | Expr, **more) -> Buffer:
    return Buffer(name, kind, F32, as_expr(size), **more)


def view(name: str, sizes: tuple, strides: tuple, offset: int = 0) -> TensorView:
    return TensorView(name, F32, exprs(*sizes), exprs(*strides), as_expr(offset))


def program(
    captured: CapturedGraph, plan: Plan, kernels: list[Kernel]
) -> tuple[BoundProgram, InterpretedLoader]:
    loader = InterpretedLoader({kernel.name: kernel for kernel in kernels})
    loaded = tuple(
        (LoadedVariant((), loader.load(name.encode(), LaunchFacts(name))),)
        for name in plan.kernel_names
    )
    return BoundProgram(plan, loaded, captured, loader), loader


def exp_mm_neg():
    """exp in a kernel, mm by torch, neg in a kernel; the product is transposed on its way."""

    def function(x, w):
        return -(x.exp() @ w)

    x, w = torch.randn(4, 3), torch.randn(3, 5)
    captured = capture(make_fx(function)(x, w))
    plan = Plan(
        "cpu:test",
        (),
        (
            buffer("in0", BufferKind.INPUT, 12, position=0),
            buffer("in1", BufferKind.INPUT, 15, position=1),
            buffer("tmp0", BufferKind.TEMPORARY, 12, offset_bytes=as_expr(64)),
            buffer("ext0", BufferKind.EXTERN, 20),
            buffer("out0", BufferKind.OUTPUT, 20, position=0),
        ),
        as_expr(128),
        ("fused_exp", "fused_neg"),
        (
            Launch(0, ("in0", "tmp0")),
            ExternCall(
                1,
                "aten.mm.default",
                (view("tmp0", (4, 3), (3, 1)), view("in1", (3, 5), (5, 1))),
                (view("ext0", (4, 5), (5, 1)),),
                is_contraction=True,
            ),
            Launch(1, ("ext0", "out0")),
        ),
        (view("out0", (4, 5), (5, 1)),),
    )
    kernels = [pointwise("fused_exp", "exp", 12), pointwise("fused_neg", "neg", 20)]
    return function, (x, w), captured, plan, kernels


def dynamic_exp():
    x = torch.randn(7, 3)
    torch._dynamo.mark_dynamic(x, 0)
    captured = traced_one(lambda x: (x.exp(), x.shape[0] * 2), x)
    # The plan's names are its own: it may stem from another client's graph.
    rows = symbol("s0")
    position = next(n for n, s in enumerate(captured.graph.inputs) if not isinstance(s.kind, str))
    plan = Plan(
        "cpu:test",
        (SymbolSource("s0", position, 0),),
        (
            buffer("in0", BufferKind.INPUT, rows * 3, position=position),
            buffer("out0", BufferKind.OUTPUT, rows * 3, position=0),
        ),
        as_expr(0),
        ("fused_exp",),
        (Launch(0, ("in0", "out0"), (rows,)),),
        (view("out0", (rows, 3), (3, 1)), rows * 2),
    )
    return captured, plan, [pointwise("fused_exp", "exp", rows * 3)]


def args_of(captured: CapturedGraph, x: torch.Tensor) -> list:
    return [x.shape[0] if isinstance(s.kind, str) else x for s in captured.graph.inputs]
