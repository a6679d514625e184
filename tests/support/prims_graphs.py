"""Graphs that several tests use, built prim by prim."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, IntLike, as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Graph, Ref, TensorType, contiguous_strides
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.program_ir import ExternCall, Launch, Program
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize

TARGET = target_facts("cpu:x86-64-v3")


def tensor(*shape: IntLike, dtype: DType = DType.F32) -> TensorType:
    """A type that states no strides."""
    return TensorType(dtype, sizes(*shape))


def tensor_with_strides(*shape: IntLike, dtype: DType = DType.F32) -> TensorType:
    """A type that states row-major strides."""
    return TensorType(dtype, sizes(*shape), contiguous_strides(sizes(*shape)))


def sizes(*shape: IntLike) -> tuple[Expr, ...]:
    """Extents as expressions."""
    return tuple(as_expr(extent) for extent in shape)


class Maker(GraphBuilder):
    """A builder with shorthands for tests."""

    def spread(self, value: int, dims: Sequence[int], *shape: IntLike) -> int:
        """The value broadcast to a shape."""
        return self.add("broadcast_in_dim", value, dims=tuple(dims), shape=sizes(*shape))

    def full(self, number: float, *shape: IntLike) -> int:
        """An f32 value of this shape, filled with one number."""
        return self.add("full", dtype=DType.F32, shape=sizes(*shape), value=float(number))

    def returning(self, *values: int) -> Graph:
        """The graph that returns these values, row-major."""
        return self.build([Ref(v) for v in values], [self.type_of(v) for v in values])


def layer_norm(make: Maker, x: int, weight: int, bias: int) -> int:
    """LayerNorm over the last axis of a 32 x 128 value, as the frontend decomposes it."""
    rows, width = 32, 128
    mean = make.add("div", make.add("sum", x, dims=(1,)), make.full(width, rows))
    centered = make.add("sub", x, make.spread(mean, (0,), rows, width))
    square = make.add("mul", centered, centered)
    variance = make.add("div", make.add("sum", square, dims=(1,)), make.full(width, rows))
    scale = make.add("rsqrt", make.add("add", variance, make.full(1e-5, rows)))
    normal = make.add("mul", centered, make.spread(scale, (0,), rows, width))
    scaled = make.add("mul", normal, make.spread(weight, (1,), rows, width))
    return make.add("add", scaled, make.spread(bias, (1,), rows, width))


def softmax(make: Maker, x: int, rows: IntLike, width: IntLike) -> int:
    """Softmax over the last axis of a matrix."""
    top = make.spread(make.add("amax", x, dims=(1,)), (0,), rows, width)
    power = make.add("exp", make.add("sub", x, top))
    total = make.spread(make.add("sum", power, dims=(1,)), (0,), rows, width)
    return make.add("div", power, total)


def program_of(graph: Graph) -> Program:
    """The verified program of a graph."""
    program = optimize(graph, TARGET).program
    verify_program(program)
    return program


def only_kernel(graph: Graph) -> Kernel:
    """The kernel of a graph whose program is one launch."""
    program = program_of(graph)
    assert len(program.plan.steps) == 1, [type(step).__name__ for step in program.plan.steps]
    (kernel,) = program.kernels
    return kernel


def launches(program: Program) -> list[Launch]:
    """All launches of a program."""
    return [step for step in program.plan.steps if isinstance(step, Launch)]


def extern_calls(program: Program) -> list[ExternCall]:
    """All extern steps of a program."""
    return [step for step in program.plan.steps if isinstance(step, ExternCall)]


def report_of(graph: Graph) -> str:
    """The optimizer's report on a graph."""
    return dict(optimize(graph, TARGET).stages)["report"]
