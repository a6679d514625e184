"""Clients of the other services over gRPC: the optimizer and the code generators."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import grpc.aio

from frontend_svc.flow.graph_job_client import GraphSource
from kernelfarm import spans
from kernelfarm.cache import StoredVariant
from kernelfarm.errors import NoAnswerError, UnavailableError
from kernelfarm.internal.v1 import (
    codegen_service_pb2,
    codegen_service_pb2_grpc,
    loops_pb2,
    optimizer_service_pb2,
    optimizer_service_pb2_grpc,
)
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice
from kernelfarm.service.channels import translated_errors
from kernelfarm.signing import Manifest
from kernelfarm.v1 import artifact_pb2, compile_service_pb2, plan_pb2
from kernelfarm.wire.embedded import embedded, field_tag
from kernelfarm.wire.product_choice import node_choices_to_proto, product_choice_to_proto
from kernelfarm.wire.program_result import KernelArtifacts

T = TypeVar("T")

# A supervisor restarts a service that died within seconds; programs wait for that.
_RESTART_S = 10.0
_RETRY_INTERVAL_S = 0.2

_OPTIMIZE = "/kernelfarm.internal.v1.OptimizerService/Optimize"
_GRAPH = field_tag(optimizer_service_pb2.OptimizeRequest, "graph")


@dataclass(frozen=True, slots=True)
class OptimizerInfo:
    """The optimizer that answered: `optimizer@fingerprint`, and its passes in order."""

    toolchain: str
    passes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OptimizedProgram:
    """The optimizer's response; its messages go on to the code generators and to the client.

    `content` is the serialized response, for the child process that computes the kernels' keys.
    """

    kernels: tuple[loops_pb2.Kernel, ...]
    plan: plan_pb2.Plan
    texts: tuple[tuple[str, str], ...]
    made_by: OptimizerInfo
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class BuiltArtifacts:
    """The artifacts of one kernel: its index in the request, and whether they caused a job.

    `manifests` are those that the workers signed, one for each artifact. An alternative that was
    not compiled has none; `refusal` says why. If it `is_limit`, a later request may compile it.
    """

    index: int
    artifacts: KernelArtifacts
    caused_job: bool
    manifests: tuple[Manifest, ...]
    refusal: str = ""
    is_limit: bool = False

    @property
    def cost_ms(self) -> float:
        """The time that the kernel took to compile; each of its variants states all of it."""
        return max((manifest.cost_ms for manifest in self.manifests), default=0.0)

    @property
    def tags(self) -> frozenset[str]:
        """The epoch tags that the artifacts depend on."""
        return frozenset(tag for manifest in self.manifests for tag in manifest.tags)


@dataclass(frozen=True, slots=True)
class KernelBuildRequest:
    """Kernels to build for one target; `keys` are their kernel keys, computed by this frontend.

    They are looked up and published in `namespace`, under storage keys that are salted with `salt`.
    Artifacts from `shared_namespace` are accepted too. `alternatives` are the indices of kernels
    that others can replace.
    """

    request_id: str
    kernels: tuple[loops_pb2.Kernel, ...]
    keys: tuple[bytes, ...]
    target: str
    priority: int
    namespace: str
    salt: bytes = field(default=b"", repr=False)
    shared_namespace: str = ""
    alternatives: tuple[int, ...] = ()


KernelCheck = Callable[[StoredVariant, str, bytes], None]
"""(variant, namespace, kernel key) -> None; raises if no trusted worker signed it for these."""


class _RestartRetry:
    """Waits for the next process of a service, for a limited time after a call failed."""

    def __init__(self) -> None:
        self._failed_s = float("-inf")
        self._ends_s = float("-inf")

    async def wait(self, error: NoAnswerError) -> None:
        """Returns when the call may be repeated; raises the error if the time is over."""
        now_s = time.monotonic()
        if now_s - self._failed_s > _RESTART_S:  # this call ran for a while: a new fault
            self._ends_s = now_s + _RESTART_S
        self._failed_s = now_s
        if now_s > self._ends_s:
            raise error
        await asyncio.sleep(_RETRY_INTERVAL_S)


async def _retried_across_restart(peer: str, call: Callable[[], Awaitable[T]]) -> T:
    """The result of a repeatable call, also if the service restarts in between."""
    retry = _RestartRetry()
    while True:
        try:
            with translated_errors(peer):
                return await call()
        except NoAnswerError as error:
            await retry.wait(error)


class OptimizerClient:
    """Calls the optimizer."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self._stub = optimizer_service_pb2_grpc.OptimizerServiceStub(channel)
        # Bytes in both directions: the graph is serialized already, the response is parsed twice.
        self._optimize: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            _OPTIMIZE
        )
        self._timeout_s = timeout_s

    async def optimize(
        self,
        request_id: str,
        graph: bytes,
        target: str,
        source: GraphSource,
        products: ProductChoice = ProductChoice.AUTO,
        node_choices: Sequence[NodeChoice] = (),
    ) -> OptimizedProgram:
        """Loop kernels and plan of a Prims graph (a serialized `kernelfarm.v1.Graph`).

        `source` is the client's graph that it was made from; `products` says who computes products
        of matrices, `node_choices` who computes single ones.

        Raises:
            UnavailableError: the optimizer does not answer, or does not report its toolchain.
            KernelfarmError: the error that the optimizer raised.
        """
        head = optimizer_service_pb2.OptimizeRequest(
            request_id=request_id,
            target=target,
            tenant=source.tenant,
            priority=_priority(source),
            products=product_choice_to_proto(products),
            product_choices=node_choices_to_proto(node_choices),
        )
        request = b"".join((head.SerializeToString(), *embedded(_GRAPH, graph)))
        content: bytes = await _retried_across_restart(
            "optimizer",
            lambda: self._optimize(request, timeout=self._timeout_s, metadata=spans.outgoing()),
        )
        response = optimizer_service_pb2.OptimizeResponse.FromString(content)
        texts = tuple((stage.name, stage.text) for stage in response.stages)
        made_by = _optimizer_info(response.made_by)
        return OptimizedProgram(tuple(response.kernels), response.plan, texts, made_by, content)

    async def toolchain(self) -> OptimizerInfo:
        """The toolchain of the optimizer that serves now.

        Raises:
            UnavailableError: the optimizer does not answer.
        """
        request = optimizer_service_pb2.GetToolchainRequest()
        response = await _retried_across_restart(
            "optimizer", lambda: self._stub.GetToolchain(request, timeout=5.0)
        )
        return _optimizer_info(response)


def _priority(source: GraphSource) -> compile_service_pb2.Priority.ValueType:
    is_warm_up = source.is_warm_up
    return (
        compile_service_pb2.PRIORITY_WARM_UP
        if is_warm_up
        else compile_service_pb2.PRIORITY_INTERACTIVE
    )


def _optimizer_info(message: optimizer_service_pb2.GetToolchainResponse) -> OptimizerInfo:
    if not message.toolchain:
        raise UnavailableError(
            "the optimizer reports no toolchain: it is older than this frontend; update it"
        )
    return OptimizerInfo(message.toolchain, tuple(message.passes))


class CodegenClient:
    """Calls the code generators."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float, check: KernelCheck) -> None:
        self._stub = codegen_service_pb2_grpc.CodegenServiceStub(channel)
        self._timeout_s = timeout_s
        self._check = check

    async def build(self, build_request: KernelBuildRequest) -> AsyncIterator[BuiltArtifacts]:
        """Each kernel's artifacts as soon as they exist; without kernels nothing is called.

        Raises:
            KernelRejectedError: the target's toolchain refuses a kernel that is no alternative.
            IntegrityError: no trusted worker signed an artifact for its kernel's key.
            UnavailableError: broker, cache or workers do not answer.
        """
        if not build_request.kernels:
            return
        request = codegen_service_pb2.BuildKernelsRequest(
            request_id=build_request.request_id,
            kernels=build_request.kernels,
            target=build_request.target,
            priority=compile_service_pb2.Priority.ValueType(build_request.priority),
            namespace=build_request.namespace,
            salt=build_request.salt,
            alternatives=build_request.alternatives,
        )
        retry = _RestartRetry()
        while True:
            try:
                with translated_errors("codegen"):
                    responses = self._stub.BuildKernels(
                        request, timeout=self._timeout_s, metadata=spans.outgoing()
                    )
                    async for built in responses:
                        yield self._built(built, build_request)
                return
            except NoAnswerError as error:  # kernels that were built are found, and reported again
                await retry.wait(error)

    async def toolchains(self) -> tuple[compile_service_pb2.TargetCapability, ...]:
        """Targets and toolchains of the workers that have reported.

        Raises:
            UnavailableError: the code generators do not answer.
        """
        request = codegen_service_pb2.GetToolchainsRequest()
        response = await _retried_across_restart(
            "codegen", lambda: self._stub.GetToolchains(request, timeout=5.0)
        )
        return tuple(response.targets)

    def _built(
        self, message: codegen_service_pb2.BuildKernelsResponse, build_request: KernelBuildRequest
    ) -> BuiltArtifacts:
        """A kernel's artifacts from what its workers signed; nothing unsigned is used."""
        if message.refusal and message.index in build_request.alternatives:
            return BuiltArtifacts(
                message.index, (), message.caused_job, (), message.refusal, message.is_limit
            )
        artifacts, manifests = [], []
        for signed in message.signed:
            artifact = artifact_pb2.Artifact.FromString(signed.content)
            stored = StoredVariant(signed.manifest.SerializeToString(), signed.content)
            is_shared = stored.manifest.namespace == build_request.shared_namespace
            namespace = build_request.shared_namespace if is_shared else build_request.namespace
            self._check(stored, namespace, build_request.keys[message.index])
            artifacts.append(artifact)
            manifests.append(stored.manifest)
        return BuiltArtifacts(message.index, tuple(artifacts), message.caused_job, tuple(manifests))
