"""Trials in process: every codec, and the compilation of a graph by all services.

A trial takes serialized bytes. It succeeds if they are refused as the caller's mistake, or if they
are accepted and equal after another round trip; any other exception is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from codegen_svc.backends.llvm_toolchain import code_target
from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.llvm.kernel import emit_llvm
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import gpu_tiling, needs_64_bit_indices
from frontend_svc.cache.traces import trace_of
from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.digest import kernel_key, program_identity, program_key, trace_digest
from kernelfarm.errors import CallerError, InternalError, KernelfarmError, VerificationError
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.check_graph import ATEN_DIALECT, PRIMS_DIALECT
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.guards import NO_FACTS, first_failing
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_graph, parse_kernel, print_graph, print_kernel, print_plan
from kernelfarm.ir.verify import verify_graph, verify_prims, verify_program
from kernelfarm.ir.verify.any_kernel import check_kernel
from kernelfarm.ir.work_budget import DEFAULT_WORK_STEPS, work_budget
from kernelfarm.signing.encoding import canonical_bytes
from kernelfarm.signing.tags import check_tag
from kernelfarm.targets import target_facts
from kernelfarm.v1 import trace_service_pb2
from kernelfarm.wire import (
    check_artifact,
    graph_from_proto,
    graph_to_proto,
    guard_from_proto,
    guard_to_proto,
    kernel_from_proto,
    kernel_to_proto,
    launch_facts_from_proto,
    launch_facts_to_proto,
    plan_from_proto,
    plan_to_proto,
)
from kernelfarm.wire.any_kernel import any_kernel_from_proto, any_kernel_to_proto
from kernelfarm.wire.job import job_from_bytes, job_to_bytes
from kernelfarm.wire.manifest import (
    facts_from_proto,
    facts_to_proto,
    key_from_proto,
    key_to_proto,
    manifest_from_bytes,
    manifest_to_bytes,
)
from kernelfarm.wire.status import DETAILS_TRAILER, error_from_rpc
from kernelfarm.wire.tuning import tuning_record_from_bytes, tuning_record_to_bytes
from optimizer_svc.pipeline import optimize
from tests.fuzz.messages import message_class

CPU = "cpu:x86-64-v3"
GPU = "cuda:sm_90a"
OPTIONS = (("deterministic", "False"),)


class NotTheSameError(Exception):
    """An accepted value differs after it was encoded and decoded again."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A function of bytes; `message` is their type, `file` selects seeds of the corpus."""

    name: str
    message: str
    take: Callable[[bytes], None]
    file: str = "*"


def attempt(trial: Trial, data: bytes) -> str:
    """The result of an input: `accepted`, or the reason of its refusal.

    Raises:
        Exception: a finding.
    """
    try:
        with work_budget(DEFAULT_WORK_STEPS):
            trial.take(data)
    except DecodeError:
        return "NO_MESSAGE"
    except CallerError as error:
        if isinstance(error, InternalError):
            raise
        return error.reason
    return "accepted"


def _same(before: Any, after: Any, what: str) -> None:
    if before != after:
        raise NotTheSameError(f"{what}: {str(before)[:300]} became {str(after)[:300]}")


def _bytes(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _graph(data: bytes) -> None:
    graph = graph_from_proto(message_class("kernelfarm.v1.Graph").FromString(data))
    once = _accepted(lambda: _bytes(graph_to_proto(graph)), "encode")
    again = _accepted(lambda: graph_from_proto(graph_to_proto(graph)), "decode again")
    _same(once, _bytes(graph_to_proto(again)), "graph")
    _same(program_key(graph, CPU, OPTIONS), program_key(again, CPU, OPTIONS), "program key")
    _same(program_identity(graph, OPTIONS), program_identity(again, OPTIONS), "program identity")
    text = print_graph(graph)
    read = _accepted(lambda: parse_graph(text), "parse the printed graph")
    _same(text, print_graph(read), "text of a graph")


def _accepted(work: Callable[[], Any], what: str) -> Any:
    """Runs a step that may not refuse an accepted value."""
    try:
        return work()
    except KernelfarmError as error:
        raise NotTheSameError(f"accepted, but refused to {what}: {error}") from error


def _kernel(data: bytes) -> None:
    kernel = kernel_from_proto(message_class("kernelfarm.internal.v1.Kernel").FromString(data))
    message = _accepted(lambda: kernel_to_proto(kernel), "encode")
    again = _accepted(lambda: kernel_from_proto(message), "decode again")
    _same(_bytes(message), _bytes(kernel_to_proto(again)), "kernel")
    _verify(kernel)
    _same(kernel_key(kernel, CPU), kernel_key(again, CPU), "kernel key")
    text = print_kernel(kernel)
    _same(text, print_kernel(_accepted(lambda: parse_kernel(text), "parse")), "text of a kernel")


def _verify(kernel: AnyKernel) -> None:
    try:
        check_kernel(kernel)
    except VerificationError as error:
        raise CallerError(str(error)) from error


def _plan(data: bytes) -> None:
    plan = plan_from_proto(message_class("kernelfarm.v1.Plan").FromString(data))
    once = _accepted(lambda: plan_to_proto(plan), "encode")
    again = _accepted(lambda: plan_from_proto(once), "decode again")
    _same(_bytes(once), _bytes(plan_to_proto(again)), "plan")
    print_plan(plan)


def _artifact(data: bytes) -> None:
    message = message_class("kernelfarm.v1.Artifact").FromString(data)
    check_artifact(message)
    facts = launch_facts_from_proto(message.launch)
    _same(facts, launch_facts_from_proto(launch_facts_to_proto(facts)), "launch facts")
    guard = guard_from_proto(message.guard)
    _same(guard, guard_from_proto(guard_to_proto(guard)), "guard")


def _manifest(data: bytes) -> None:
    manifest = manifest_from_bytes(data)
    once = manifest_to_bytes(manifest)
    _same(once, manifest_to_bytes(_accepted(lambda: manifest_from_bytes(once), "decode")), "bytes")
    canonical_bytes(manifest)
    for tag in manifest.tags:
        check_tag(tag)
    first_failing(manifest.guard, NO_FACTS)


def _public_key(data: bytes) -> None:
    key = key_from_proto(message_class("kernelfarm.v1.PublicKey").FromString(data))
    _same(key, key_from_proto(key_to_proto(key)), "public key")


def _facts(data: bytes) -> None:
    facts = facts_from_proto(message_class("kernelfarm.v1.CallerFacts").FromString(data))
    _same(facts, facts_from_proto(facts_to_proto(facts)), "facts")


def _tuning_record(data: bytes) -> None:
    record = tuning_record_from_bytes(data)
    _same(record, tuning_record_from_bytes(tuning_record_to_bytes(record)), "tuning record")
    assert record.state.reports == len(record.reports)


def _trace(data: bytes) -> None:
    trace = trace_of(data)
    facts_from_proto(trace.facts)


def _trace_parts(data: bytes) -> None:
    trace_digest(dict(trace_service_pb2.PutTraceRequest.FromString(data).parts))


def _job(data: bytes) -> None:
    kernel, target = job_from_bytes(data)
    message = _accepted(lambda: any_kernel_to_proto(kernel), "encode")
    again, same_target = job_from_bytes(job_to_bytes(message, target))
    _verify(kernel)
    _same(kernel_key(kernel, target), kernel_key(again, same_target), "job")


class _Failed(grpc.RpcError):
    """A failed call with the trailer of a peer."""

    def __init__(self, trailer: bytes) -> None:
        self._trailer = trailer

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INVALID_ARGUMENT

    def details(self) -> str:
        return "details"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((DETAILS_TRAILER, self._trailer),)


def _status(data: bytes) -> None:
    found = error_from_rpc(_Failed(data))
    _same(True, isinstance(found, KernelfarmError), "an error of ours")


def _lowering(data: bytes) -> None:
    """Decodes and decomposes: reaches many more operators in the same time."""
    message = message_class("kernelfarm.v1.Graph").FromString(data)
    graph = graph_from_proto(message, ATEN_DIALECT)
    lowered = decompose_to_prims(graph, max_sorted_elems=None if len(data) % 2 else 1024)
    verify_graph(lowered.graph)
    prims = _accepted(lambda: graph_to_proto(lowered.graph), "encode its Prims")
    _accepted(lambda: graph_from_proto(prims), "decode its Prims")


def _services(data: bytes) -> None:
    """Decodes, decomposes, optimizes and generates code, for a processor and for a GPU."""
    message = message_class("kernelfarm.v1.Graph").FromString(data)
    graph = graph_from_proto(message, ATEN_DIALECT)
    program_key(graph, CPU, OPTIONS)
    lowered = decompose_to_prims(graph)
    for target in (CPU, GPU):
        _optimized(lowered.graph, target)


def _optimized(prims: Graph, target: str) -> None:
    program = optimize(prims, target_facts(target)).program
    verify_program(program)
    plan_from_proto(plan_to_proto(program.plan))
    print_plan(program.plan)
    for kernel in program.kernels:
        read = any_kernel_from_proto(any_kernel_to_proto(kernel))
        if isinstance(read, Kernel):  # the sandbox compiles users' kernels, whose text is checked
            _emit(read, target)


def _emit(kernel: Kernel, target: str) -> None:
    facts = target_facts(target)
    if target == CPU:
        emit_llvm(kernel, code_target(facts))
        return
    tiling = gpu_tiling(kernel, facts, 64 if needs_64_bit_indices(kernel) else 32)
    if tiling is not None:
        emit_triton(kernel, tiling, scalar_rules(facts, kernel))


def _optimizer(data: bytes) -> None:
    message = message_class("kernelfarm.v1.Graph").FromString(data)
    graph = graph_from_proto(message, PRIMS_DIALECT)
    try:
        verify_prims(graph)
    except VerificationError as error:
        raise CallerError(str(error)) from error
    _optimized(graph, CPU)


def _emitters(data: bytes) -> None:
    kernel = kernel_from_proto(message_class("kernelfarm.internal.v1.Kernel").FromString(data))
    _verify(kernel)
    kernel_key(kernel, CPU)
    _emit(kernel, CPU)
    _emit(kernel, GPU)


TRIALS = (
    Trial("graph", "kernelfarm.v1.Graph", _graph),
    Trial("lowering", "kernelfarm.v1.Graph", _lowering, "captured"),
    Trial("services", "kernelfarm.v1.Graph", _services, "captured"),
    Trial("optimizer", "kernelfarm.v1.Graph", _optimizer, "prims"),
    Trial("kernel", "kernelfarm.internal.v1.Kernel", _kernel),
    Trial("emitters", "kernelfarm.internal.v1.Kernel", _emitters),
    Trial("plan", "kernelfarm.v1.Plan", _plan),
    Trial("artifact", "kernelfarm.v1.Artifact", _artifact),
    Trial("manifest", "kernelfarm.v1.Manifest", _manifest),
    Trial("public-key", "kernelfarm.v1.PublicKey", _public_key),
    Trial("facts", "kernelfarm.v1.CallerFacts", _facts),
    Trial("trace", "kernelfarm.v1.Trace", _trace),
    Trial("trace-parts", "kernelfarm.v1.PutTraceRequest", _trace_parts),
    Trial("tuning-record", "kernelfarm.v1.TuningRecord", _tuning_record),
    Trial("job", "kernelfarm.internal.v1.BuildKernelsRequest", _job),
    Trial("status", "google.rpc.Status", _status),
)
