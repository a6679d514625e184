"""The optimizer's API: a Prims graph in, loop kernels and a plan out."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc.aio

from kernelfarm.errors import InvalidGraphError, VerificationError
from kernelfarm.internal.v1 import optimizer_service_pb2 as api
from kernelfarm.internal.v1.optimizer_service_pb2_grpc import (
    OptimizerServiceServicer,
    add_OptimizerServiceServicer_to_server,
)
from kernelfarm.ir.verify import verify_graph
from kernelfarm.service.logs import get_logger
from kernelfarm.service.server import Door, Registration, serve
from kernelfarm.targets import all_targets, target_facts
from kernelfarm.wire import graph_from_proto, kernel_to_proto, plan_to_proto
from optimizer_svc.pipeline import PASSES, optimize
from optimizer_svc.settings import OptimizerSettings
from optimizer_svc.toolchain import toolchain

SERVICE_NAME = "kernelfarm.internal.v1.OptimizerService"
GRAPH_DIALECT = "prims"

Context = grpc.aio.ServicerContext[object, object]


class OptimizerService(OptimizerServiceServicer):
    """Answers the optimizer's RPC; the work runs in threads, so that health is answered."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    async def Optimize(
        self, request: api.OptimizeRequest, context: Context
    ) -> api.OptimizeResponse:
        """Optimizes one graph for one target."""
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._pool, optimize_message, request)
        get_logger().info(
            "graph_optimized",
            target=request.target,
            nodes=len(request.graph.nodes),
            kernels=len(response.kernels),
            steps=len(response.plan.steps),
        )
        return response

    async def GetToolchain(
        self, request: api.GetToolchainRequest, context: Context
    ) -> api.GetToolchainResponse:
        """Tells what optimizes here."""
        return _made_by()


def optimize_message(request: api.OptimizeRequest) -> api.OptimizeResponse:
    """Decodes, checks, optimizes, encodes.

    Raises:
        InvalidGraphError: the graph breaks a rule of the Prims dialect.
        UnknownTargetError: no such target.
    """
    facts = target_facts(request.target)
    graph = graph_from_proto(request.graph)
    if graph.dialect != GRAPH_DIALECT:
        raise InvalidGraphError(f"dialect {graph.dialect!r}; expected {GRAPH_DIALECT!r}")
    try:
        verify_graph(graph)
    except VerificationError as error:  # here it is the caller's graph, not ours
        raise InvalidGraphError(str(error)) from error
    optimized = optimize(graph, facts)
    return api.OptimizeResponse(
        kernels=[kernel_to_proto(kernel) for kernel in optimized.program.kernels],
        plan=plan_to_proto(optimized.program.plan),
        stages=[api.TextStage(name=name, text=text) for name, text in optimized.stages],
        made_by=_made_by(),
    )


def _made_by() -> api.GetToolchainResponse:
    return api.GetToolchainResponse(toolchain=toolchain(), passes=[step.name for step in PASSES])


async def serve_optimizer(settings: OptimizerSettings) -> None:
    """Serves until SIGTERM."""
    toolchain()
    all_targets()  # read now: the first request should not wait for files
    with ThreadPoolExecutor(settings.optimizer_threads, thread_name_prefix="optimize") as pool:
        add = partial(add_OptimizerServiceServicer_to_server, OptimizerService(pool))
        await serve(
            [Door(settings.optimizer_listen, settings.room_server_tls())],
            [Registration(SERVICE_NAME, add)],
            settings,
        )
