"""The jobs of the frontend's child processes: all work whose cost depends on a client's graph.

Arguments and results are bytes (`flow/graph_job_client.py` writes and reads them). The second
argument of each job is JSON that the frontend wrote. A child caches the last graphs that it decoded
by the digest of their requests, so a graph is usually decoded once for all jobs of a request.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from frontend_svc.decompose.pipeline import PASSES, decompose_to_prims
from frontend_svc.flow.compile_options import CompileOptions
from frontend_svc.operators.core.registry import sorts_rows
from kernelfarm.digest import kernel_key, program_identity
from kernelfarm.errors import MalformedMessageError, MessageTooLargeError
from kernelfarm.internal.v1 import optimizer_service_pb2
from kernelfarm.ir.check_graph import ATEN_DIALECT
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.product_choice import check_node_choices
from kernelfarm.ir.text import print_graph
from kernelfarm.ir.work_budget import phase, spend, work_budget
from kernelfarm.targets import all_targets
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire import graph_from_proto, graph_to_proto
from kernelfarm.wire.any_kernel import any_kernel_from_proto

_BYTES_A_STEP = 64
"""Bytes of a message that count as one step: parsing makes one object of about as many."""
_CACHED_GRAPHS = 4
_CACHED_BYTES = 8 * 1024 * 1024
"""Bytes of the messages whose graphs are cached; as objects they take some thirty times as much."""

Facts = dict[str, Any]


def import_graph(wire: graph_pb2.Graph, max_nodes: int) -> Graph:
    """Decodes and checks the graph that a client sent.

    Raises:
        MessageTooLargeError: more nodes than this farm accepts.
        UnsupportedVersionError: a contract version that this farm does not support.
        InvalidGraphError: a broken rule, with its node and what was expected.
    """
    if len(wire.nodes) > max_nodes:
        raise MessageTooLargeError(
            f"the graph has {len(wire.nodes)} nodes; this farm accepts at most {max_nodes}"
        )
    return graph_from_proto(wire, ATEN_DIALECT).without_hints()


class _GraphCache:
    """The graphs that this process decoded last."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[str, tuple[Graph, int]] = OrderedDict()

    def of(self, message: bytes, facts: Facts) -> Graph:
        """A request's graph.

        Raises:
            MalformedMessageError: the bytes are no graph.
            CallerError: the graph is wrong, see `import_graph`.
        """
        digest: str = facts["digest"]
        known = self._graphs.get(digest)
        if known is not None:
            self._graphs.move_to_end(digest)
            return known[0]
        with phase("decode"):
            graph = import_graph(_parsed(message), facts["max_nodes"])
        if len(message) <= _CACHED_BYTES:
            self._graphs[digest] = graph, len(message)
            while self._is_full():
                self._graphs.popitem(last=False)
        return graph

    def _is_full(self) -> bool:
        held = sum(size for _, size in self._graphs.values())
        return len(self._graphs) > _CACHED_GRAPHS or held > _CACHED_BYTES


_graphs = _GraphCache()


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
    """The facts of the graph as JSON, then its program keys in the order of the targets."""
    graph = _graphs.of(message, facts)
    ops = sorted({node.op for node in graph.nodes})
    options = CompileOptions.from_json(facts["options"])
    check_node_choices(graph, options.node_choices)
    with phase("program key"):
        identity = program_identity(graph, options.key_pairs())
        keys = [identity.key(target) for target in facts["targets"]]
    known = {
        "nodes": len(graph.nodes),
        "ops": ops,
        "passes": [step.name for step in PASSES],
        "sorts": any(map(sorts_rows, ops)),
        "key_parts": identity.shared_parts,
    }
    return [json.dumps(known).encode(), *keys]


def _decompose(message: bytes, facts: Facts) -> list[bytes]:
    """The Prims graph as a message, the captured graph as text, and the outcome of each node."""
    graph = _graphs.of(message, facts)
    lowered = decompose_to_prims(
        graph,
        fallback_random=facts["fallback_random"],
        max_sorted_elems=facts["max_sorted_elems"],
        needs_fixed_order=facts["needs_fixed_order"],
    )
    report = "\n".join(
        f"node {node.index} {node.op}: {node.outcome.value} ({node.detail})"
        for node in lowered.report
    )
    prims = graph_to_proto(lowered.graph).SerializeToString(deterministic=True)
    return [prims, print_graph(graph).encode(), report.encode()]


def _kernel_keys(message: bytes, facts: Facts) -> list[bytes]:
    """The keys for which workers must have signed the kernels of an optimizer response."""
    response = optimizer_service_pb2.OptimizeResponse.FromString(message)
    with phase("kernel keys"):
        kernels = map(any_kernel_from_proto, response.kernels)
        return [kernel_key(kernel, facts["target"]) for kernel in kernels]


def _counted(
    job: Callable[[bytes, Facts], list[bytes]],
) -> Callable[[Sequence[bytes]], list[bytes]]:
    """A job that raises WorkBudgetError if it takes more steps than its facts allow."""

    def run(arguments: Sequence[bytes]) -> list[bytes]:
        message, facts_text = arguments
        facts = json.loads(facts_text)
        with work_budget(facts["max_steps"]):
            return job(message, facts)

    return run


def _program_page(arguments: Sequence[bytes]) -> list[bytes]:
    """The page of a program: facts as JSON, its content and manifest, then its stages' texts."""
    from kernelfarm.pages.farm_pages import cached_program_page  # noqa: PLC0415 -- rarely needed

    facts, content, manifest, *blobs = arguments
    return [cached_program_page(json.loads(facts), content, manifest, blobs)]


JOBS = {
    "program_page": _program_page,
    "import": _counted(_import),
    "decompose": _counted(_decompose),
    "kernel_keys": _counted(_kernel_keys),
}

all_targets()  # so that the files are read before the first fork
