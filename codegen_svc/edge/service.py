"""The gRPC edge of the code generators."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import grpc.aio

from codegen_svc.celery_app import JobQueue
from codegen_svc.cost_estimate import estimated_cost_s
from codegen_svc.edge.dispatch import Dispatcher
from codegen_svc.edge.jobs import KernelJob
from codegen_svc.settings import CodegenSettings
from kernelfarm.cache import EdgeCache, SigningPolicy, Space
from kernelfarm.cache.farm_reports import FarmReports
from kernelfarm.digest import kernel_key
from kernelfarm.end_task import end_task
from kernelfarm.errors import (
    InvalidGraphError,
    KernelLimitError,
    KernelRejectedError,
    MalformedMessageError,
    UnavailableError,
    VerificationError,
)
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.internal.v1.codegen_service_pb2_grpc import (
    CodegenServiceServicer,
    add_CodegenServiceServicer_to_server,
)
from kernelfarm.ir.verify.any_kernel import check_kernel
from kernelfarm.service.call_names import current_request_id
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.endpoint import added_collector, state_build
from kernelfarm.service.server import Listener, ServiceRegistration, serve
from kernelfarm.targets import TargetFacts, all_targets, target_facts, vendor_facts
from kernelfarm.v1 import compile_service_pb2, manifest_pb2
from kernelfarm.wire.any_kernel import any_kernel_from_proto
from kernelfarm.wire.job import job_to_bytes

SERVICE_NAME = "kernelfarm.internal.v1.CodegenService"
_REPORT_QUEUES_S = 2.0
# Of requests that arrive together, so many kernels of one are read, then those of the next.
_READ_TOGETHER = 32
_MAX_REFUSAL_CHARS = 400
"""What a response repeats of a toolchain's message; a program may have many of them."""


class CodegenService(CodegenServiceServicer):
    """The RPCs of the code generation service."""

    def __init__(self, dispatcher: Dispatcher, cache: EdgeCache) -> None:
        self._dispatcher = dispatcher
        self._cache = cache
        # Those of warm-ups have a lock of their own, so that users do not wait for them.
        self._reading = {is_warm_up: asyncio.Lock() for is_warm_up in (False, True)}

    async def BuildKernels(
        self, request: pb.BuildKernelsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[pb.BuildKernelsResponse]:
        """Streams each kernel's artifacts as soon as they exist; the first failure ends it."""
        jobs = await self._jobs(request)
        alternatives = frozenset(request.alternatives)
        builds = [
            asyncio.create_task(self._build(i, job, can_be_refused=i in alternatives))
            for i, job in enumerate(jobs)
        ]
        try:
            for build in asyncio.as_completed(builds):
                yield await build
        finally:
            await asyncio.gather(*map(end_task, builds))

    async def GetToolchains(
        self, request: pb.GetToolchainsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.GetToolchainsResponse:
        """The targets of every vendor for which a worker has reported."""
        reports = {report.queue: report for report in await self._cache.worker_reports()}
        return pb.GetToolchainsResponse(
            targets=[
                compile_service_pb2.TargetCapability(
                    target=target.name,
                    toolchain=reports[target.vendor].toolchain,
                    makes_runnable_binaries=reports[target.vendor].makes_runnable_binaries,
                )
                for target in all_targets().values()
                if target.vendor in reports
            ]
        )

    async def _jobs(self, request: pb.BuildKernelsRequest) -> list[KernelJob]:
        """The request's jobs.

        Requests are read one after the other. If they were read side by side, all would be done at
        about the same time, and workers would wait until then.
        """
        if not request.kernels:
            raise MalformedMessageError(
                "BuildKernelsRequest without kernels; expected at least one"
            )
        target = target_facts(request.target)
        jobs: list[KernelJob] = []
        for first in range(0, len(request.kernels), _READ_TOGETHER):
            kernels = request.kernels[first : first + _READ_TOGETHER]
            async with self._reading[_is_warm_up(request)]:
                jobs += await asyncio.to_thread(_jobs, request, kernels, target)
        return jobs

    async def _build(
        self, index: int, job: KernelJob, *, can_be_refused: bool
    ) -> pb.BuildKernelsResponse:
        try:
            found = await self._dispatcher.find_or_build(job)
        except KernelRejectedError as error:
            if not can_be_refused:
                raise
            # One line, because it becomes one of the program's report.
            refusal = " ".join(str(error).split())[:_MAX_REFUSAL_CHARS]
            return pb.BuildKernelsResponse(
                index=index, refusal=refusal, is_limit=isinstance(error, KernelLimitError)
            )
        return pb.BuildKernelsResponse(
            index=index,
            caused_job=found.caused_job,
            signed=[
                manifest_pb2.SignedVariant(
                    manifest=manifest_pb2.Manifest.FromString(variant.manifest_bytes),
                    content=variant.content,
                )
                for variant in found.variants
            ],
        )


async def serve_codegen(settings: CodegenSettings) -> None:
    """Serves until SIGTERM; calls in progress then have the drain's grace period to finish."""
    trust = SigningPolicy(keyring=settings.keyring(), verified_bytes=settings.verified_bytes)
    queue = JobQueue(settings)
    async with EdgeCache(
        settings.cache_url, namespace=settings.namespace, space=Space.KERNELS, signing=trust
    ) as cache:
        dispatcher = Dispatcher(cache, queue, settings)
        service = CodegenService(dispatcher, cache)
        add = partial(add_CodegenServiceServicer_to_server, service)
        ahead = asyncio.create_task(_connect_ahead(queue, cache))
        reporting = asyncio.create_task(_report_queues(dispatcher, cache))
        try:
            listener = Listener(settings.codegen_listen, settings.internal_server_tls())
            state_build("codegen")
            with added_collector(dispatcher.metrics):
                await serve([listener], [ServiceRegistration(SERVICE_NAME, add)], settings)
        finally:
            await end_task(ahead)
            await end_task(reporting)
            await dispatcher.abandon()
            queue.close()


async def _connect_ahead(queue: JobQueue, cache: EdgeCache) -> None:
    """Connects to broker and cache and reads the chips' facts before the first request."""
    all_targets()
    try:
        await queue.connect()
        await cache.worker_reports()
    except UnavailableError as error:
        get_logger().warning("connect_failed", message=str(error))


async def _report_queues(dispatcher: Dispatcher, cache: EdgeCache) -> None:
    """Stores this edge's view of its queues every few seconds, for the farm's page."""
    reports = FarmReports(cache.client, cache.redis_keys)
    edge = f"{socket.gethostname()}:{os.getpid()}"
    while True:
        with suppress(UnavailableError):  # the next report may succeed; nothing depends on it
            await reports.report_queues(edge, await dispatcher.queue_reports())
        await asyncio.sleep(_REPORT_QUEUES_S)


def _is_warm_up(request: pb.BuildKernelsRequest) -> bool:
    return request.priority == compile_service_pb2.PRIORITY_WARM_UP


def _jobs(
    request: pb.BuildKernelsRequest, kernels: Sequence[loops_pb2.Kernel], target: TargetFacts
) -> list[KernelJob]:
    """The jobs for some kernels of a request."""
    return [
        replace(
            _job(kernel, target),
            is_warm_up=_is_warm_up(request),
            request_id=current_request_id(),
            namespace=request.namespace,
            salt=request.salt,
        )
        for kernel in kernels
    ]


def _job(message: loops_pb2.Kernel, target: TargetFacts) -> KernelJob:
    kernel = any_kernel_from_proto(message)
    try:
        check_kernel(kernel)
    except VerificationError as error:
        # Here it is the sender's mistake. If one of our passes made the kernel, it is a bug of the
        # service that sent it.
        raise InvalidGraphError(f"kernel {kernel.name}: {error}") from error
    return KernelJob(
        key=kernel_key(kernel, target.name),
        name=kernel.name,
        target=target.name,
        queue=target.vendor,
        job=job_to_bytes(message, target.name),
        cost_s=estimated_cost_s(kernel, vendor_facts(target.vendor).compile_cost),
    )
