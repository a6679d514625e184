"""Reads what the recording of a graph needs to know from its trace."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx

from kernelfarm.client.programs.cuda_graphs import GraphUse, TracedFacts, TrainingStep
from kernelfarm.client.pytorch.private import TracingContext, count_tangents
from kernelfarm.client.pytorch.private.tracing import is_static_input


@dataclass(frozen=True, slots=True)
class RecordedUse:
    """Which graph of a model AOT Autograd passes to a compiler; `step` is shared by a pair."""

    use: GraphUse
    step: TrainingStep = field(default_factory=TrainingStep)

    def facts(self, graph: fx.GraphModule, made: fx.Graph | None = None) -> TracedFacts:
        """The facts of a graph of AOT Autograd, while its tracing context is active.

        `made`: the graph that was made of it, with constants behind its arguments.
        """
        static = (*self._static(graph), *_constants(graph, made))
        return TracedFacts(self.use, static, _origins(graph.graph), self.step)

    def facts_of_recorded(self, graph: fx.Graph, module: fx.GraphModule) -> TracedFacts:
        """The facts of a graph that was recorded from Dynamo's graph `module`.

        It may have constants behind the arguments of that one.
        """
        static = (*static_inputs(module), *_constants(module, graph))
        return TracedFacts(self.use, static, _origins(graph), self.step)

    def _static(self, graph: fx.GraphModule) -> tuple[int, ...]:
        if self.use is GraphUse.BACKWARD:
            return tuple(range(count_tangents(graph)))
        context = TracingContext.try_get()
        if context is None or context.fw_metadata is None:
            return ()
        return tuple(context.fw_metadata.static_input_indices)


def static_inputs(graph: fx.GraphModule) -> tuple[int, ...]:
    """The positions of a Dynamo graph's inputs that keep their memory, as AOT Autograd sees it."""
    inputs = graph.graph.find_nodes(op="placeholder")
    return tuple(number for number, node in enumerate(inputs) if is_static_input(node))


def _constants(before: fx.GraphModule, made: fx.Graph | None) -> range:
    """The positions of the arguments that a graph has behind those of the one before it."""
    count = len(before.graph.find_nodes(op="placeholder"))
    return range(count, count if made is None else len(made.find_nodes(op="placeholder")))


def _origins(graph: fx.Graph) -> tuple[str | None, ...]:
    """The source code of each result of a graph, as far as the trace has it."""
    results = graph.output_node().args[0]
    items = results if isinstance(results, list | tuple) else (results,)
    return tuple(item.stack_trace if isinstance(item, fx.Node) else None for item in items)
