"""Valid messages of every fuzzed type: from the corpus, or composed of its messages."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from random import Random

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from kernelfarm.digest import trace_digest
from kernelfarm.internal.v1 import codegen_service_pb2 as codegen
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.internal.v1 import optimizer_service_pb2 as optimizer
from kernelfarm.signing import Manifest, Space, variant_id
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.v1 import artifact_pb2 as artifacts
from kernelfarm.v1 import cache_service_pb2 as cache
from kernelfarm.v1 import compile_service_pb2 as compiles
from kernelfarm.v1 import graph_pb2, manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as traces
from kernelfarm.v1 import tuning_service_pb2 as tuning
from kernelfarm.wire.embedded import embedded, field_tag
from kernelfarm.wire.manifest import manifest_to_proto
from tests.fuzz.corpus import seeds
from tests.fuzz.messages import message_class

CPU = "cpu:x86-64-v3"
PARTS = {"graph": "0" * 64, "target": CPU, "options": "deterministic=False"}
_MAX_REQUEST_SEEDS = 400


@lru_cache(maxsize=64)
def valid_messages(full_name: str, file: str = "*") -> tuple[bytes, ...]:
    """Valid messages of a type; an empty one for types without a description here."""
    if kept := seeds(full_name, file):
        return kept
    make = _MAKERS.get(full_name)
    if make is None:
        return (message_class(full_name)().SerializeToString(),)
    return tuple(message.SerializeToString(deterministic=True) for message in make())


def is_described(full_name: str) -> bool:
    """True if there are valid messages of a type that has fields."""
    fields = message_class(full_name).DESCRIPTOR.fields
    return not fields or full_name in _MAKERS or bool(seeds(full_name))


def made_manifest(key: bytes, content: bytes, namespace: str = "default") -> Manifest:
    """The unsigned manifest of a trace."""
    return Manifest(
        namespace=namespace,
        space=Space.TRACES,
        key=key,
        variant_id=variant_id(()),
        guard=(),
        tags=("pass:capture",),
        epoch=0,
        incarnation="0" * 32,
        content=blob_ref(content),
        blobs=(),
        cost_ms=0.0,
        not_after_s=int(time.time()) + 600,
    )


def trace_content() -> bytes:
    """A serialized trace."""
    facts = _facts()
    trace = traces.Trace(program_key=bytes(32), facts=facts, entry=b"opaque")
    return trace.SerializeToString()


def _graphs() -> list[graph_pb2.Graph]:
    found = seeds("kernelfarm.v1.Graph", "captured")
    chosen = Random(2).sample(found, min(_MAX_REQUEST_SEEDS, len(found)))
    return [graph_pb2.Graph.FromString(data) for data in chosen]


def _facts() -> manifest_pb2.CallerFacts:
    inputs = [
        manifest_pb2.InputFacts(sizes=[3, 4], strides=[4, 1], alignment_bytes=64, dtype="f32")
    ]
    environment = {"driver": "12.4", "torch": "2.9.0"}
    return manifest_pb2.CallerFacts(symbols={"s0": 64}, inputs=inputs, environment=environment)


def _compile() -> Iterator[Message]:
    for number, graph in enumerate(_graphs()):
        yield compiles.CompileRequest(
            request_id=f"fuzz-{number}",
            graph=graph,
            targets=[CPU],
            model="fuzz@1" if number % 3 else "",
            facts=_facts() if number % 2 else None,
            wants_signed=bool(number % 5),
        )


def _explain() -> Iterator[Message]:
    yield cache.ExplainMissRequest(key=bytes(32), facts=_facts(), model="fuzz@1")
    for graph in _graphs():
        yield cache.ExplainMissRequest(graph=graph, target=CPU, facts=_facts())


def _invalidate() -> Iterator[Message]:
    tags = ["op:aten.gelu.default", "model:fuzz@1", "artifact:" + "0" * 64, "tenant:nobody"]
    yield cache.InvalidateRequest(tags=tags[:1], reason="fuzzing")
    yield cache.InvalidateRequest(tags=tags, dry_run=True)


def _watch() -> Iterator[Message]:
    yield cache.WatchInvalidationsRequest()
    yield cache.WatchInvalidationsRequest(resume_token="0" * 32 + ":1")


def _lookup_trace() -> Iterator[Message]:
    for wants_program in (False, True):
        yield traces.LookupTraceRequest(
            digest=trace_digest(PARTS),
            model="fuzz@1",
            facts=_facts(),
            wants_program=wants_program,
            present_blobs=[bytes(32)],
            claim=traces.TraceClaim(claimant=bytes(16), duration_ms=1000),
        )


def _put_trace() -> Iterator[Message]:
    content = trace_content()
    manifest = manifest_to_proto(made_manifest(trace_digest(PARTS), content))
    signed = manifest_pb2.SignedVariant(manifest=manifest, content=content)
    yield traces.PutTraceRequest(trace=signed)
    yield traces.PutTraceRequest(trace=signed, parts=PARTS)


def _import_program() -> Iterator[Message]:
    content, blob = trace_content(), b"blob"
    made = replace(made_manifest(bytes(32), content), space=Space.PROGRAMS, blobs=(blob_ref(blob),))
    signed = manifest_pb2.SignedVariant(manifest=manifest_to_proto(made), content=content)
    yield cache.ImportProgramRequest(program=signed)
    yield cache.ImportProgramRequest(program=signed, contents=[blob], accepts_invalidated=True)


def _tuning_subject() -> tuning.TuningSubject:
    return tuning.TuningSubject(digest=bytes(32), device="a chip, driver 1", candidates=3)


def _lookup_tuning() -> Iterator[Message]:
    for can_measure in (False, True):
        yield tuning.LookupTuningRequest(
            subject=_tuning_subject(), reporter=bytes(16), can_measure=can_measure
        )


def _report_tuning() -> Iterator[Message]:
    yield tuning.ReportTuningRequest(
        subject=_tuning_subject(), reporter=bytes(16), times_ns=[10_000, 0, 20_000]
    )


def _tuning_record() -> Iterator[Message]:
    yield tuning.TuningRecord(
        format=1,
        subject=_tuning_subject(),
        reports=[tuning.TuningReport(reporter=bytes(16), times_ns=[10_000, 0, 20_000])],
    )


def _import_tuning() -> Iterator[Message]:
    for record in _tuning_record():
        content = record.SerializeToString()
        made = replace(made_manifest(bytes(32), content), space=Space.PROGRAMS)
        signed = manifest_pb2.SignedVariant(manifest=manifest_to_proto(made), content=content)
        yield cache.ImportTuningRequest(record=signed)


def _explain_trace() -> Iterator[Message]:
    yield traces.ExplainTraceMissRequest(digest=trace_digest(PARTS))
    yield traces.ExplainTraceMissRequest(parts=PARTS, model="fuzz@1")


def _optimize() -> Iterator[Message]:
    """Requests of `Optimize`; in the contract, the graph is a message or bytes."""
    for data in seeds("kernelfarm.v1.Graph", "prims"):
        envelope = optimizer.OptimizeRequest(target=CPU, request_id="fuzz").SerializeToString()
        yield optimizer.OptimizeRequest.FromString(
            envelope + b"".join(embedded(field_tag(optimizer.OptimizeRequest, "graph"), data))
        )


def _kernels() -> Iterator[Message]:
    found = seeds("kernelfarm.internal.v1.Kernel")
    kernels = [loops_pb2.Kernel.FromString(data) for data in found[:_MAX_REQUEST_SEEDS]]
    for number, kernel in enumerate(kernels):
        yield codegen.BuildKernelsRequest(
            request_id=f"fuzz-{number}", kernels=[kernel], target=CPU, priority=number % 3
        )


def _manifests() -> Iterator[Message]:
    content = trace_content()
    bare = manifest_to_proto(made_manifest(trace_digest(PARTS), content))
    yield bare
    guarded = manifest_pb2.Manifest()
    guarded.CopyFrom(bare)
    for atom in _atoms():
        guarded.guard.atoms.append(atom)
    digest = hashlib.sha256(content).digest()
    guarded.blobs.add(sha256=digest, size_bytes=len(content))
    yield guarded


def _atoms() -> Iterator[artifacts.GuardAtom]:
    axis = artifacts.InputAxis(input=0, axis=1)
    yield artifacts.GuardAtom(symbol="s0", op=artifacts.GUARD_OP_LE, operand=512)
    yield artifacts.GuardAtom(input_size=axis, op=artifacts.GUARD_OP_DIVISIBLE, operand=8)
    yield artifacts.GuardAtom(input_stride=axis, op=artifacts.GUARD_OP_EQ, operand=1)
    yield artifacts.GuardAtom(input_alignment=0, op=artifacts.GUARD_OP_GE, operand=16)
    yield artifacts.GuardAtom(input_dtype=0, op=artifacts.GUARD_OP_EQ, text="f32")
    yield artifacts.GuardAtom(environment="driver", op=artifacts.GUARD_OP_GE, text="12.4.1")


def _statuses() -> Iterator[Message]:
    details = []
    info = error_details_pb2.ErrorInfo(reason="FARM_FULL", domain="kernelfarm")
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromNanoseconds(1_500_000_000)
    for detail in (info, retry, error_details_pb2.RequestInfo(request_id="fuzz")):
        packed = AnyMessage()
        packed.Pack(detail)
        details.append(packed)
    yield status_pb2.Status(code=8, message="full", details=details)


_MAKERS: dict[str, Callable[[], Iterator[Message]]] = {
    "kernelfarm.v1.CompileRequest": _compile,
    "kernelfarm.v1.LookupRequest": lambda: iter(
        [compiles.LookupRequest(key=bytes(32), model="fuzz@1", facts=_facts(), wants_signed=True)]
    ),
    "kernelfarm.v1.ReadBlobsRequest": lambda: iter([compiles.ReadBlobsRequest(sha256=[bytes(32)])]),
    "kernelfarm.v1.ExplainMissRequest": _explain,
    "kernelfarm.v1.InvalidateRequest": _invalidate,
    "kernelfarm.v1.WatchInvalidationsRequest": _watch,
    "kernelfarm.v1.ImportProgramRequest": _import_program,
    "kernelfarm.v1.GetUsageRequest": lambda: iter([cache.GetUsageRequest()]),
    "kernelfarm.v1.LookupTraceRequest": _lookup_trace,
    "kernelfarm.v1.PutTraceRequest": _put_trace,
    "kernelfarm.v1.ExplainTraceMissRequest": _explain_trace,
    "kernelfarm.v1.LookupTuningRequest": _lookup_tuning,
    "kernelfarm.v1.ReportTuningRequest": _report_tuning,
    "kernelfarm.v1.ReadTuningRequest": lambda: iter(
        [tuning.ReadTuningRequest(subject=_tuning_subject())]
    ),
    "kernelfarm.v1.ImportTuningRequest": _import_tuning,
    "kernelfarm.v1.TuningRecord": _tuning_record,
    "kernelfarm.v1.Manifest": _manifests,
    "kernelfarm.v1.CallerFacts": lambda: iter([_facts()]),
    "kernelfarm.v1.Trace": lambda: iter([traces.Trace.FromString(trace_content())]),
    "kernelfarm.v1.PublicKey": lambda: iter(
        [manifest_pb2.PublicKey(key_id="0" * 16, public_key=bytes(32), space=1)]
    ),
    "kernelfarm.internal.v1.OptimizeRequest": _optimize,
    "kernelfarm.internal.v1.BuildKernelsRequest": _kernels,
    "google.rpc.Status": _statuses,
}
