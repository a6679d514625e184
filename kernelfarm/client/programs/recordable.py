"""Whether a CUDA graph can record the calls of a program: all of its work must be on the GPU.

A recording has kernels and copies on the device alone. The farm's kernels are such, whatever they
replace, so only the operators of extern steps are examined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelfarm.client.pytorch import private
from kernelfarm.client.pytorch.private.inductor import can_record_in_this_thread
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.dtypes import DType
from kernelfarm.ir.graph_ir import Node, TensorType, refs_in
from kernelfarm.ir.program_ir import ExternCall

_BY_INDICES = frozenset(
    {"aten.index_put.default", "aten._unsafe_index_put.default", "aten.index.Tensor"}
)
"""Operators that count the true elements of a mask on the host."""
_MASKS = frozenset({DType.BOOL, DType.U8})


@dataclass(frozen=True, slots=True)
class NotRecorded:
    """Why calls are not recorded; `kind` is the last part of a counter's name."""

    kind: str
    text: str


def obstacle(
    program: BoundProgram, static: Sequence[int], args: Sequence[Any]
) -> NotRecorded | None:
    """What prevents recording a program's calls with such arguments; None if nothing does.

    `static` are the positions of arguments whose memory stays where it is.
    """
    device = program.captured.device
    if device.type != "cuda":
        return NotRecorded("device", f"it runs on {device}, and only GPUs have CUDA graphs")
    return (
        _obstacle_of_thread()
        or _obstacle_of_updates(program, static)
        or _obstacle_of_operators(program)
        or _obstacle_of_arguments(args)
    )


def written_arguments(program: BoundProgram) -> tuple[int, ...]:
    """The positions of the arguments that a program changes."""
    captured = program.captured
    sources = (captured.sources[update.input] for update in captured.graph.updates)
    return tuple(source for source in sources if isinstance(source, int))


def _obstacle_of_thread() -> NotRecorded | None:
    if can_record_in_this_thread():
        return None
    text = f"PyTorch {torch.__version__} records CUDA graphs in one thread alone; expected 2.13"
    return NotRecorded("thread", text)


def _obstacle_of_updates(program: BoundProgram, static: Sequence[int]) -> NotRecorded | None:
    moving = sorted(set(written_arguments(program)) - set(static))
    if not moving:
        return None
    text = (
        f"it changes argument {moving[0]}, which is no parameter or buffer and may lie elsewhere at"
        " the next call; mark it by torch._dynamo.mark_static_address if it does not"
    )
    return NotRecorded("mutated_input", text)


def _obstacle_of_operators(program: BoundProgram) -> NotRecorded | None:
    graph = program.captured.graph
    types = graph.types()
    for step in program.plan.steps:
        if not isinstance(step, ExternCall):
            continue
        target = program.captured.nodes[step.node].target
        if _needs_host(target, graph.nodes[step.node], types):
            return NotRecorded("operator", f"{step.op} needs the host while it runs")
    return None


def _needs_host(target: Any, node: Node, types: Mapping[int, TensorType]) -> bool:
    name = str(target)
    if not private.FORBIDDEN_CUDAGRAPH_OPS.isdisjoint({name, name.rpartition(".")[0]}):
        return True
    if torch.Tag.cudagraph_unsafe in getattr(target, "tags", ()):
        return True
    indices = refs_in(node.args[1]) if node.op in _BY_INDICES else ()
    return any(types[value].dtype in _MASKS for value in indices)


def _obstacle_of_arguments(args: Sequence[Any]) -> NotRecorded | None:
    for number, arg in enumerate(args):
        if isinstance(arg, torch.Tensor):
            if arg.device.type != "cuda":
                text = f"argument {number} is on {arg.device}; a replay reads tensors on the GPU"
                return NotRecorded("cpu_tensor", text)
        elif not isinstance(arg, int):
            text = f"argument {number} is a {type(arg).__name__}; expected tensors and integers"
            return NotRecorded("argument", text)
    return None
