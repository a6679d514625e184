"""What the frontend's child processes do: everything whose cost depends on a client's graph.

Arguments and results are bytes (`flow/graph_job_client.py` gives and takes them); the second
argument of each job is JSON that the frontend wrote. A child remembers the last graphs that it
decoded by the request's digest, so a program that is compiled is decoded once.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from frontend_svc.decompose.pipeline import PASSES, decompose_to_prims
from frontend_svc.operators.sorting.ordering import is_sort
from kernelfarm.digest import kernel_key, program_key, program_keys, program_parts
from kernelfarm.errors import InvalidGraphError, MalformedMessageError, MessageTooLargeError
from kernelfarm.internal.v1 import optimizer_service_pb2
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import print_graph
from kernelfarm.ir.work_budget import phase, spend, work_budget
from kernelfarm.targets import all_targets
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire import graph_from_proto, graph_to_proto, kernel_from_proto

CLIENT_DIALECT = "aten"

_BYTES_A_STEP = 64
"""Of a message; parsing makes an object for about so many."""
_REMEMBERED_GRAPHS = 4
_REMEMBERED_BYTES = 8 * 1024 * 1024
"""Of messages; as objects they take some thirty times as much."""

Facts = dict[str, Any]


def import_graph(wire: graph_pb2.Graph, max_nodes: int) -> Graph:
    """Decodes and checks what a client sent.

    Raises:
        MessageTooLargeError: more nodes than we take.
        UnsupportedVersionError: a contract version that we do not speak.
        InvalidGraphError: a rule is broken; the message says which, where, and what was expected.
    """
    if len(wire.nodes) > max_nodes:
        raise MessageTooLargeError(
            f"the graph has {len(wire.nodes)} nodes; this farm takes at most {max_nodes}"
        )
    graph = graph_from_proto(wire)
    if graph.dialect != CLIENT_DIALECT:
        raise InvalidGraphError(f"graph has dialect {graph.dialect!r}; expected {CLIENT_DIALECT!r}")
    return graph.without_hints()


class _Graphs:
    """The graphs that this process decoded last."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[str, tuple[Graph, int]] = OrderedDict()

    def of(self, message: bytes, facts: Facts) -> Graph:
        """A request's graph.

        Raises:
            MalformedMessageError: the bytes are no graph.
            CallerError: it is wrong, see `import_graph`.
        """
        digest: str = facts["digest"]
        known = self._graphs.get(digest)
        if known is not None:
            self._graphs.move_to_end(digest)
            return known[0]
        with phase("decode"):
            graph = import_graph(_parsed(message), facts["max_nodes"])
        if len(message) <= _REMEMBERED_BYTES:
            self._graphs[digest] = graph, len(message)
            while self._is_full():
                self._graphs.popitem(last=False)
        return graph

    def _is_full(self) -> bool:
        held = sum(size for _, size in self._graphs.values())
        return len(self._graphs) > _REMEMBERED_GRAPHS or held > _REMEMBERED_BYTES


_graphs = _Graphs()


def _parsed(message: bytes) -> graph_pb2.Graph:
    spend(len(message) // _BYTES_A_STEP)
    try:
        return graph_pb2.Graph.FromString(message)
    except DecodeError as error:
        raise MalformedMessageError(
            f"a graph of {len(message)} bytes that are no kernelfarm.v1.Graph message"
            f" (truncated, or of another type): {error}"
        ) from error


def _import(message: bytes, facts: Facts) -> list[bytes]:
    """Program keys in the order of the targets, behind what the frontend must know of the graph."""
    graph = _graphs.of(message, facts)
    ops = sorted({node.op for node in graph.nodes})
    known = {
        "nodes": len(graph.nodes),
        "ops": ops,
        "passes": [step.name for step in PASSES],
        "sorts": any(map(is_sort, ops)),
    }
    with phase("program key"):
        keys = program_keys(graph, facts["targets"], _options(facts))
    return [json.dumps(known).encode(), *(keys[target] for target in facts["targets"])]


def _lower(message: bytes, facts: Facts) -> list[bytes]:
    """The Prims graph as a message, the captured graph as text, and what became of each node."""
    graph = _graphs.of(message, facts)
    lowered = decompose_to_prims(
        graph,
        fallback_random=facts["fallback_random"],
        max_sorted_elems=facts["max_sorted_elems"],
    )
    report = "\n".join(
        f"node {node.index} {node.op}: {node.outcome.value} ({node.detail})"
        for node in lowered.report
    )
    prims = graph_to_proto(lowered.graph).SerializeToString(deterministic=True)
    return [prims, print_graph(graph).encode(), report.encode()]


def _parts(message: bytes, facts: Facts) -> list[bytes]:
    """What the program's key is made of, as JSON."""
    graph = _graphs.of(message, facts)
    return [json.dumps(program_parts(graph, facts["target"], _options(facts))).encode()]


def _explain(message: bytes, facts: Facts) -> list[bytes]:
    """A program's key, and what it is made of."""
    graph = _graphs.of(message, facts)
    return [program_key(graph, facts["target"], _options(facts)), *_parts(message, facts)]


def _kernel_keys(message: bytes, facts: Facts) -> list[bytes]:
    """The keys under which workers must have signed the kernels of an optimizer's response."""
    response = optimizer_service_pb2.OptimizeResponse.FromString(message)
    with phase("kernel keys"):
        kernels = map(kernel_from_proto, response.kernels)
        return [kernel_key(kernel, facts["target"]) for kernel in kernels]


def _options(facts: Facts) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in facts["options"])


def _counted(
    job: Callable[[bytes, Facts], list[bytes]],
) -> Callable[[Sequence[bytes]], list[bytes]]:
    """A job that takes no more steps than its facts allow."""

    def run(arguments: Sequence[bytes]) -> list[bytes]:
        message, facts_text = arguments
        facts = json.loads(facts_text)
        with work_budget(facts["max_steps"]):
            return job(message, facts)

    return run


JOBS = {
    "import": _counted(_import),
    "lower": _counted(_lower),
    "parts": _counted(_parts),
    "explain": _counted(_explain),
    "kernel_keys": _counted(_kernel_keys),
}

all_targets()  # read before the first fork
