"""Tensors that an exported program holds twice: as a module's buffer, and as a lifted constant.

`torch.export` lifts what plain Python objects hold (a key-value cache, say) as constants, even if a
module has registered the same tensors as buffers. If such a tensor is written, torch's functional
form of the program fails; and two inputs for one memory would not be what the model means.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

_MODULES_OWN = (InputKind.PARAMETER, InputKind.BUFFER)


def read_constants_as_buffers(program: ExportedProgram) -> None:
    """Makes every use of a constant that is a module's own tensor a use of that tensor."""
    specs = program.graph_signature.input_specs
    owned: dict[object, str] = {}
    for spec in specs:
        if spec.kind in _MODULES_OWN:
            owned.setdefault(_identity(held_tensor(program, spec)), spec.arg.name)
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    doubled = [
        spec
        for spec in specs
        if spec.kind is InputKind.CONSTANT_TENSOR and _identity(held_tensor(program, spec)) in owned
    ]
    for spec in doubled:
        own = owned[_identity(held_tensor(program, spec))]
        _replace(program.graph, nodes[spec.arg.name], nodes[own])
        specs.remove(spec)
    if doubled:
        program.graph_module.recompile()


def held_tensor(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    """The tensor that the program holds for an input; constants are no part of its state."""
    target = str(spec.target)
    held: torch.Tensor | None = program.state_dict.get(target)
    return program.constants[target] if held is None else held


def _identity(tensor: torch.Tensor) -> object:
    """What equals for two tensors that are one: the place, layout and type of their elements."""
    if not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _replace(graph: fx.Graph, double: fx.Node, own: fx.Node) -> None:
    double.replace_all_uses_with(own)
    graph.erase_node(double)
