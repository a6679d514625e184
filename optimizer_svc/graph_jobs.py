"""The jobs of the optimizer's child processes: a Prims graph in, loop kernels and a plan out."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from kernelfarm.errors import InvalidGraphError, MalformedMessageError, VerificationError
from kernelfarm.internal.v1 import optimizer_service_pb2 as api
from kernelfarm.ir.check_graph import PRIMS_DIALECT
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice
from kernelfarm.ir.verify import verify_prims
from kernelfarm.ir.work_budget import phase, spend, work_budget
from kernelfarm.targets import all_targets, target_facts
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire import graph_from_proto, plan_to_proto
from kernelfarm.wire.any_kernel import any_kernel_to_proto
from optimizer_svc.pipeline import PASSES, optimize
from optimizer_svc.toolchain import toolchain

_BYTES_A_STEP = 64
"""Bytes of a message for one step of the work budget: parsing makes about one object for them."""


def made_by() -> api.GetToolchainResponse:
    """The toolchain and the passes."""
    return api.GetToolchainResponse(toolchain=toolchain(), passes=[step.name for step in PASSES])


def optimize_message(
    message: bytes,
    target: str,
    products: ProductChoice = ProductChoice.AUTO,
    node_choices: Sequence[NodeChoice] = (),
) -> api.OptimizeResponse:
    """The response for a graph: decodes, checks, optimizes and encodes.

    Raises:
        MalformedMessageError: the bytes are no graph.
        InvalidGraphError: the graph breaks a rule of the Prims dialect.
        UnknownTargetError: no such target.
    """
    facts = target_facts(target)
    with phase("decode"):
        graph = graph_from_proto(_parsed(message), PRIMS_DIALECT)
    try:
        verify_prims(graph)
    except VerificationError as error:  # the caller's mistake, not a bug
        raise InvalidGraphError(str(error)) from error
    optimized = optimize(graph, facts, products, node_choices)
    return api.OptimizeResponse(
        kernels=[any_kernel_to_proto(kernel) for kernel in optimized.program.all_kernels],
        plan=plan_to_proto(optimized.program.plan),
        stages=[api.TextStage(name=name, text=text) for name, text in optimized.stages],
        made_by=made_by(),
    )


def _parsed(message: bytes) -> graph_pb2.Graph:
    spend(len(message) // _BYTES_A_STEP)
    try:
        return graph_pb2.Graph.FromString(message)
    except DecodeError as error:
        raise MalformedMessageError(
            f"{len(message)} bytes that are no kernelfarm.v1.Graph message: {error}"
        ) from error


def _optimize(arguments: Sequence[bytes]) -> list[bytes]:
    """The response, and the number of its kernels and steps."""
    message, target, max_steps, products, stated = arguments
    pairs = (text.split(":") for text in stated.decode().split())
    choices = [NodeChoice(int(node), ProductChoice(choice)) for node, choice in pairs]
    with work_budget(int(max_steps)):
        choice = ProductChoice(products.decode())
        response = optimize_message(message, target.decode(), choice, choices)
    counts = (len(response.kernels), len(response.plan.steps))
    return [response.SerializeToString(), *(b"%d" % count for count in counts)]


def _toolchain(arguments: Sequence[bytes]) -> list[bytes]:
    return [made_by().SerializeToString()]


JOBS = {"optimize": _optimize, "toolchain": _toolchain}

# Computed before the first fork, so that children share them.
toolchain()
all_targets()
