"""Traces Dynamo graphs for capture; used by the backend, the benchmarks and the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kernelfarm.client.capture.decompose_fused import decompose_fused
from kernelfarm.client.capture.exporting_state import patch_is_exporting
from kernelfarm.client.capture.inline_regions import inline_regions
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.preserve_attention import preserve_attention
from kernelfarm.client.pytorch.private import aot_autograd

if TYPE_CHECKING:
    from kernelfarm.client.capture.joint_graph import TargetOf

GraphCompiler = Callable[[fx.GraphModule, Sequence[Any]], Any]
"""Called by AOT Autograd with each functional graph; returns a boxed function."""

patch_is_exporting()


def no_target(_: torch.device) -> None:
    """For graphs that are traced for no target in particular."""


def traced(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler: GraphCompiler,
    inference_compiler: GraphCompiler | None = None,
    backward_compiler: GraphCompiler | None = None,
    *,
    target_of: TargetOf = no_target,
) -> Callable[..., Any]:
    """Traces a Dynamo graph, whose attention is preserved, and compiles the resulting graphs.

    `compiler` compiles forward graphs, and those for which no other compiler is given. Training
    graphs depend on the target of their programs.
    """
    decompose_fused(gm)
    return aot_autograd(
        fw_compiler=compiler,
        bw_compiler=backward_compiler or compiler,
        inference_compiler=inference_compiler or compiler,
        partition_fn=partial(_partition, target_of=target_of),
        keep_inference_input_mutations=True,
    )(gm, example_inputs)


def _partition(joint: fx.GraphModule, inputs: Any, *, target_of: TargetOf, **options: Any) -> Any:
    """`partition`, whose modules only training needs."""
    from kernelfarm.client.capture.partition import partition  # noqa: PLC0415

    return partition(joint, inputs, target_of, **options)


def backend_around(compiler: GraphCompiler, target_of: TargetOf = no_target) -> GraphCompiler:
    """A backend for `torch.compile` that traces as kernelfarm's, and calls `compiler` per graph."""

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        inline_regions(gm)
        preserve_attention(gm)
        order = InputOrder(gm)
        compiled = traced(order.module, order.of(example_inputs), compiler, target_of=target_of)
        return order.called_as_before(compiled)

    return backend
