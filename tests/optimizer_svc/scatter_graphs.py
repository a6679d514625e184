"""Graphs with scans and scatters, and their programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Graph, Ref, TensorType, contiguous_strides
from kernelfarm.ir.interpret import run_graph, run_program
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.program_ir import Launch, Program
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize

TARGET = target_facts("cpu:x86-64-v3")


def graph_of(build: Callable[..., list[int]], *inputs: tuple[DType, tuple[int, ...]]) -> Graph:
    builder = GraphBuilder()
    values = []
    for dtype, shape in inputs:
        extents = tuple(as_expr(n) for n in shape)
        values.append(builder.add_input(TensorType(dtype, extents, contiguous_strides(extents))))
    outputs = build(builder, *values)
    types = [builder.type_of(value) for value in outputs]
    stated = [TensorType(t.dtype, t.shape, contiguous_strides(t.shape)) for t in types]
    return builder.build([Ref(value) for value in outputs], stated)


def program_of(graph: Graph, *arrays: np.ndarray) -> Program:
    """The program of a graph, after a check that it computes what the graph means."""
    program = optimize(graph, TARGET).program
    verify_program(program)
    got, reference = run_program(program, list(arrays)), run_graph(graph, list(arrays))
    for ours, theirs in zip(got, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    return program


def launches(program: Program) -> list[Kernel]:
    return [program.kernels[s.kernel] for s in program.plan.steps if isinstance(s, Launch)]


X = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)


INDEX = np.array([5, 0, 5, -1], np.int64)


ROWS = np.random.default_rng(1).normal(size=(4, 40)).astype(np.float32)


OPERANDS = ((DType.F32, (6, 40)), (DType.I64, (4,)), (DType.F32, (4, 40)))
