"""The RPCs of the optimizer: a Prims graph in, loop kernels and a plan out."""

from __future__ import annotations

from functools import partial

import grpc.aio

from kernelfarm.internal.v1 import optimizer_service_pb2 as api
from kernelfarm.internal.v1.optimizer_service_pb2_grpc import (
    OptimizerServiceServicer,
    add_OptimizerServiceServicer_to_server,
)
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.endpoint import state_build
from kernelfarm.service.process_pool.pool import ProcessPool, WorkItem
from kernelfarm.service.server import Listener, ServiceRegistration, serve
from kernelfarm.v1 import compile_service_pb2
from kernelfarm.wire.product_choice import node_choices_from_proto, product_choice_from_proto
from optimizer_svc.settings import OptimizerSettings

SERVICE_NAME = "kernelfarm.internal.v1.OptimizerService"

Context = grpc.aio.ServicerContext[object, object]


class OptimizerService(OptimizerServiceServicer):
    """The RPCs of the optimizer; child processes do the work and end it if a call is cancelled."""

    def __init__(self, pool: ProcessPool, max_steps: int) -> None:
        self._pool = pool
        self._max_steps = b"%d" % max_steps
        self._toolchain = b""

    async def Optimize(  # type: ignore[override] # ready bytes, which the edge passes
        self, request: api.OptimizeRequest, context: Context
    ) -> bytes:
        """Optimizes one graph for one target."""
        choice = product_choice_from_proto(request.products).value.encode()
        by_node = node_choices_from_proto(request.product_choices)
        choices = " ".join(f"{found.node}:{found.choice.value}" for found in by_node).encode()
        parts = (request.graph, request.target.encode(), self._max_steps, choice, choices)
        is_warm_up = request.priority == compile_service_pb2.PRIORITY_WARM_UP
        item = WorkItem("optimize", parts, request.tenant, is_warm_up=is_warm_up)
        response, kernels, steps = await self._pool.run(item)
        get_logger().info(
            "graph_optimized",
            target=request.target,
            graph_bytes=len(request.graph),
            kernels=int(kernels),
            steps=int(steps),
        )
        return response

    async def GetToolchain(  # type: ignore[override] # as in `Optimize`
        self, request: api.GetToolchainRequest, context: Context
    ) -> bytes:
        """The toolchain and the passes, from a child process, which has imported them."""
        if not self._toolchain:
            (self._toolchain,) = await self._pool.run(WorkItem("toolchain", ()))
            made_by = api.GetToolchainResponse.FromString(self._toolchain)
            state_build("optimizer", made_by.toolchain)
        return self._toolchain


async def serve_optimizer(settings: OptimizerSettings) -> None:
    """Serves until SIGTERM; cancels calls that are not done within the grace period."""
    limits = settings.pool_limits(settings.optimizer_processes)
    pool = ProcessPool("optimizer_svc.graph_jobs", limits)
    service = OptimizerService(pool, settings.max_work_steps)
    try:
        await pool.start()
        add = partial(add_OptimizerServiceServicer_to_server, service)
        await serve(
            [Listener(settings.optimizer_listen, settings.internal_server_tls())],
            [ServiceRegistration(SERVICE_NAME, add)],
            settings,
        )
    finally:
        await pool.close()
