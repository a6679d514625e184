"""Removes lifted constants of an exported program that are also buffers of a module.

`torch.export` lifts tensors of plain Python objects (a key-value cache, for example) as constants,
even if a module has registered the same tensors as buffers. If the model writes such a tensor,
torch cannot make the program functional; and two inputs for one memory would be wrong.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

_MODULES_OWN = (InputKind.PARAMETER, InputKind.BUFFER)


def read_constants_as_buffers(program: ExportedProgram) -> None:
    """Replaces each constant that is also a module's tensor by that tensor, in place."""
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
    """The tensor that the program holds for an input: from its state, else from its constants."""
    target = str(spec.target)
    held: torch.Tensor | None = program.state_dict.get(target)
    return program.constants[target] if held is None else held


def _identity(tensor: torch.Tensor) -> object:
    """A value that is equal for tensors with the same address, layout, type and device."""
    if not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _replace(graph: fx.Graph, double: fx.Node, own: fx.Node) -> None:
    double.replace_all_uses_with(own)
    graph.erase_node(double)
