"""Compiles one program: the only file that calls the optimizer and the code generators in order.

compile                 Prims graph (once for all targets that decompose alike)
                        -> optimizer: loop kernels and a plan
  _build_kernels        -> code generators: artifacts of every kernel, none of them stale
  without_refused       configurations of users' kernels that the target refuses are left out
                        -> one result with its tags, ready to be published
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from frontend_svc.flow.downstream import BuiltArtifacts, KernelBuildRequest, OptimizedProgram
from frontend_svc.flow.events import CompileJob, EventStream
from frontend_svc.flow.graph_job_client import GraphJobClient
from frontend_svc.flow.import_cache import GraphImport, RequestSummary
from frontend_svc.flow.program_tags import program_tags
from frontend_svc.flow.refused_configurations import alternatives, without_refused
from frontend_svc.flow.services import FlowServices
from frontend_svc.flow.shared_decomposition import SharedDecomposition
from kernelfarm import spans
from kernelfarm.cache import UnsignedVariant
from kernelfarm.errors import UnavailableError
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.targets import target_facts
from kernelfarm.wire.program_result import program_result

# Invalidations during a compilation are rare; without a limit they could repeat it for ever.
_MAX_KERNEL_REQUESTS = 3


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """A request while it is served: its program keys by target, and what its targets share."""

    job: CompileJob
    imported: GraphImport
    summary: RequestSummary
    decomposition: SharedDecomposition
    events: EventStream


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program that is not published yet, its blobs by digest, and the kernel jobs it caused."""

    variant: UnsignedVariant
    blobs: dict[bytes, bytes]
    codegen_jobs: int


class ProgramCompiler:
    """Compiles programs of all requests."""

    def __init__(self, services: FlowServices, graph_jobs: GraphJobClient) -> None:
        self._services = services
        self._graph_jobs = graph_jobs

    async def compile(self, request: ActiveRequest, target: str) -> CompiledProgram:
        """The program of a request's graph for a target.

        Raises:
            CallerError: the graph cannot be compiled, or no configuration of a user's kernel.
            UnavailableError: a service does not answer, or kernels become stale again and again.
        """
        job, tenant_cache = request.job, request.job.tenant_cache
        decomposed = await request.decomposition.result(target_facts(target))
        stage = request.events.stage("optimize", target)
        with spans.span("optimize", target=target):
            optimized = await self._services.optimizer.optimize(
                job.request_id,
                decomposed.message,
                target,
                request.imported.source,
                ProductChoice(job.options.products),
                job.options.node_choices,
            )
        stage.finish(len(optimized.kernels))
        built = await self._build_kernels(request, target, optimized)
        kept = without_refused(optimized.plan, {k.index: k.refusal for k in built if k.refusal})
        kernels = tuple(built[index] for index in kept.kernels)
        result = await asyncio.to_thread(  # its cost is linear in the size of the program
            program_result,
            request.summary.keys[target],
            kept.plan,
            [kernel.artifacts for kernel in kernels],
            decomposed.texts_with(optimized.texts, kept.notes),
        )
        graph = await request.imported.graph()
        tags = program_tags(graph, target, optimized.made_by, built)
        tags = (*tags, *job.caller.tags, *tenant_cache.tags)
        cost_ms = sum(kernel.cost_ms for kernel in kernels)
        variant = UnsignedVariant(result.payload, result.named, tags=tags, cost_ms=cost_ms)
        return CompiledProgram(variant, result.blobs, sum(k.caused_job for k in built))

    async def _build_kernels(
        self, request: ActiveRequest, target: str, optimized: OptimizedProgram
    ) -> tuple[BuiltArtifacts, ...]:
        """The artifacts of every kernel in the plan's order; none is invalidated by now.

        Later invalidations are noticed when the program is published.

        Raises:
            UnavailableError: the code generators return invalidated kernels again and again.
        """
        for _ in range(_MAX_KERNEL_REQUESTS):
            built = await self._request_kernels(request, target, optimized)
            manifests = (manifest for kernel in built for manifest in kernel.manifests)
            if await request.job.tenant_cache.cache.epochs.is_current(manifests):
                return built
            get_logger().warning("kernels_stale", target=target)
        raise UnavailableError(
            f"the code generators returned invalidated kernels {_MAX_KERNEL_REQUESTS} times;"
            " try again later"
        )

    @spans.in_span("codegen")
    async def _request_kernels(
        self, request: ActiveRequest, target: str, optimized: OptimizedProgram
    ) -> tuple[BuiltArtifacts, ...]:
        job, tenant_cache = request.job, request.job.tenant_cache
        total = len(optimized.kernels)
        stage = request.events.stage("codegen", target)
        stage.report(0, total)
        keys = await self._graph_jobs.kernel_keys(
            optimized.content, target, request.imported.source
        )
        build_request = KernelBuildRequest(
            job.request_id,
            optimized.kernels,
            keys,
            target,
            job.priority,
            tenant_cache.namespace,
            tenant_cache.kernel_salt,
            self._services.tenant_caches.shared_namespace,
            alternatives(optimized.plan),
        )
        built: dict[int, BuiltArtifacts] = {}
        async for kernel in self._services.codegen.build(build_request):
            built[kernel.index] = kernel
            stage.report(len(built), total, optimized.kernels[kernel.index].name)
        stage.record()
        return tuple(built[index] for index in range(total))
