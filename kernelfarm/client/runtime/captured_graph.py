"""Runs a captured graph operator by operator, for graphs without a program and without a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.pytorch.private.tracing import mark_boxed
from kernelfarm.client.runtime.extern_node import ExternNode
from kernelfarm.client.runtime.results import in_strides, module_outputs
from kernelfarm.client.runtime.symbols import symbol_sources
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import Arg, Ref, uses_of


class CapturedGraphRunner:
    """Runs the operators of a graph one after the other, as PyTorch does without a compiler."""

    def __init__(self, captured: CapturedGraph) -> None:
        self._captured = captured
        self._symbols = symbol_sources(captured.graph)
        self._nodes: dict[tuple[int, ...], list[ExternNode]] = {}

    def boxed(self) -> Callable[[list[Any]], Sequence[Any]]:
        """A function that takes a list of arguments and clears it."""

        def run(args: list[Any]) -> Sequence[Any]:
            results = self(args)
            args.clear()
            return results

        mark_boxed(run)
        return run

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The module's outputs for the arguments of the traced module."""
        captured, graph = self._captured, self._captured.graph
        sizes = {name: self._size(args, *found) for name, found in self._symbols.items()}
        values: dict[int, torch.Tensor] = {}
        for given, source in zip(graph.inputs, captured.sources, strict=True):
            values[given.value] = args[source] if isinstance(source, int) else source
        for node, extern in zip(graph.nodes, self._externs(sizes), strict=True):
            found = extern.run([values[value] for value in uses_of(node)])
            for value, result in zip(node.results, found, strict=False):
                if result is not None:
                    values[value] = result
        outputs = [_output(arg, values, sizes) for arg in graph.outputs]
        for update in graph.updates:
            source = captured.sources[update.input]
            if isinstance(source, int):
                args[source].detach().copy_(outputs[update.output])
        for number, kind in enumerate(graph.output_types):
            if kind is not None and kind.strides is not None:
                strides = tuple(stride.evaluate(sizes) for stride in kind.strides)
                outputs[number] = in_strides(outputs[number], strides)
        made = module_outputs(captured, sizes)
        return outputs if made is None else made(outputs, args)

    def _size(self, args: Sequence[Any], number: int, axis: int) -> int:
        source = self._captured.sources[number]
        if not isinstance(source, int):
            raise InvalidGraphError(f"a size read from a held tensor ({number})")
        return int(args[source]) if axis < 0 else int(args[source].shape[axis])

    def _externs(self, sizes: dict[str, int]) -> list[ExternNode]:
        key = tuple(sizes.values())
        found = self._nodes.get(key)
        if found is None:
            self._nodes.clear()  # one set of sizes: this is the slow way, not a second runtime
            found = self._nodes[key] = [ExternNode(node, sizes) for node in self._captured.nodes]
        return found


def _output(arg: Arg, values: dict[int, torch.Tensor], sizes: dict[str, int]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.value]
    evaluate = getattr(arg, "evaluate", None)
    return arg if evaluate is None else evaluate(sizes)
