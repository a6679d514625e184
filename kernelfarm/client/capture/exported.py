"""Exported programs (`torch.export`, `.pt2` files) -> the same graphs as from `torch.compile`.

Parameters, buffers and constants become inputs. Torch's own rules decompose composite operators,
except those that the farm compiles as one operator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx.traceback import preserve_node_meta

from kernelfarm.client.capture.captured import (
    CapturedGraph,
    TracedModule,
    UnsupportedGraphError,
)
from kernelfarm.client.capture.exported_aliases import held_tensor, read_constants_as_buffers
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.pytorch import private
from kernelfarm.client.pytorch.private import OperatorBase, OpOverload
from kernelfarm.client.pytorch.private import _pytree as pytree
from kernelfarm.client.pytorch.private.operators import is_composite
from kernelfarm.errors import CallerError

KEPT_WHOLE = frozenset({torch.ops.aten.scaled_dot_product_attention.default})
"""Composite operators that the farm takes as one: torch would decompose attention by device."""

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """An exported program with its captured graph; maps arguments and results to the graph's."""

    program: ExportedProgram
    captured: CapturedGraph

    def flat_args(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments in the graph's order: tensors that the program holds, and the caller's.

        Raises:
            CallerError: the arguments have a different structure than at the export.
        """
        given, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        if structure != self.program.call_spec.in_spec:
            raise CallerError(
                f"arguments of structure {structure}; "
                f"the model was exported with {self.program.call_spec.in_spec}"
            )
        rest = iter(given)
        return [
            next(rest) if spec.kind is InputKind.USER_INPUT else held_tensor(self.program, spec)
            for spec in self.program.graph_signature.input_specs
        ]

    def results(self, flat: Sequence[Any], args: Sequence[Any]) -> Any:
        """The model's return value, from the flat outputs of a call.

        The program has updated the model's mutated arguments in place; this marks them as changed.
        """
        changed = [
            args[index] for index in written_arguments(self.program.graph_signature).values()
        ]
        torch.autograd.graph.increment_version(t for t in changed if not t.is_inference())
        return pytree.tree_unflatten(flat, self.program.call_spec.out_spec)


def read_pt2(path: Path) -> ExportedModel:
    """The program of a `.pt2` file.

    Raises:
        CallerError: the file does not exist, or is not an exported program.
        UnsupportedGraphError: see `read_exported`.
    """
    if not path.is_file():
        raise CallerError(f"{path}: no such file; expected one made by torch.export.save")
    try:
        with _ignored_torch_warnings():
            program = torch.export.load(path)
    except (RuntimeError, ValueError, KeyError, OSError, BadZipFile) as error:
        raise CallerError(f"{path} is not an exported program: {error}") from error
    return read_exported(program)


def export_model(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ExportedModel:
    """A model or function, exported on this machine for any device.

    Raises:
        UnsupportedGraphError: torch cannot export it as one graph; the message has torch's reason.
    """
    module = model if isinstance(model, torch.nn.Module) else _FunctionModule(model)
    try:
        with _ignored_torch_warnings(), preserve_node_meta():  # for hints
            program = torch.export.export(
                module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes
            )
    except (RuntimeError, private.TorchDynamoException) as error:
        raise UnsupportedGraphError(f"torch.export: {error}") from error
    return read_exported(program)


def read_exported(program: ExportedProgram) -> ExportedModel:
    """The program in functional ATen with its captured graph.

    Raises:
        UnsupportedGraphError: an input or output is not a tensor of the graph, or an operator
            cannot be encoded.
    """
    read_constants_as_buffers(program)
    try:
        with _ignored_torch_warnings(), preserve_node_meta():
            program = program.run_decompositions(dict(_composite_rules()))
    except AssertionError as error:  # raised by torch if arguments share memory
        raise UnsupportedGraphError(
            f"torch.export: {error}; the model may get a tensor that it writes twice (as an"
            " argument and as an attribute of an object): pass it once, register it as a buffer, or"
            ' use torch.compile(model, backend="kernelfarm")'
        ) from error
    signature = program.graph_signature
    for spec in signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT and spec.kind not in _HELD:
            raise UnsupportedGraphError(f"input {spec.arg.name} is a {spec.kind.name}")
    mutations = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
    for out in signature.output_specs:
        if out.kind is not OutputKind.USER_OUTPUT and out.kind not in mutations:
            raise UnsupportedGraphError(f"output {out.arg.name} is a {out.kind.name}")
    return ExportedModel(program, capture_exported(program, program.graph_module))


def capture_exported(program: ExportedProgram, module: TracedModule) -> CapturedGraph:
    """The captured graph of a program's graph, or of one with the same arguments and outputs."""
    signature = program.graph_signature
    names = [str(spec.target or spec.arg.name) for spec in signature.input_specs]
    # Clients of exported graphs may be without the framework: the graph has all outputs.
    return capture(module, names=names, written=written_arguments(signature), copies_arguments=True)


def written_arguments(signature: ExportGraphSignature) -> dict[int, int]:
    """Maps each output that is stored in an argument to the argument's position."""
    by_name = {spec.arg.name: index for index, spec in enumerate(signature.input_specs)}
    by_target = {str(spec.target): index for index, spec in enumerate(signature.input_specs)}
    found = {}
    for number, spec in enumerate(signature.output_specs):
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            found[number] = by_name[str(spec.target)]
        elif spec.kind is OutputKind.BUFFER_MUTATION:
            found[number] = by_target[str(spec.target)]
    return found


class _FunctionModule(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


@lru_cache(maxsize=1)
def _composite_rules() -> dict[OperatorBase, Callable[..., Any]]:
    table: Mapping[OperatorBase, Callable[..., Any]]
    table = torch.export.default_decompositions()
    return {
        op: table[op]
        for op in table
        if isinstance(op, OpOverload)
        and op.namespace == "aten"
        and op not in KEPT_WHOLE
        and is_composite(op)
    }


def _ignored_torch_warnings() -> warnings.catch_warnings[None]:
    # torch 2.13 uses a class that it deprecates itself, at each copy of an exported program.
    return warnings.catch_warnings(action="ignore", category=FutureWarning)
