"""Signs traces and publishes them at a farm; needs no torch.

A replica publishes what it has just traced, a warming job what it captured, and an import what
another farm's publisher signed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.trace_client import TraceClient
from kernelfarm.signing import Manifest, Signer, Space, variant_id
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.signing.tags import model_tag, pass_tag, tenant_tag
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_to_proto

CAPTURE_TAG = pass_tag("capture")
"""The tag of all traces: `kernelfarm invalidate pass:capture` makes them stale."""

PACKAGE_TAG = pass_tag("package")
"""The tag of all packages, in addition: `kernelfarm invalidate pass:package` makes them stale."""

TRACE_VALIDITY_S = 30 * 24 * 3600
"""A trace's digest covers all that it depends on, and no service signs traces again."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of a farm, in an incarnation of its epoch table."""

    incarnation: str
    number: int


@dataclass(frozen=True, slots=True)
class PublishedTrace:
    """A trace to publish: its digest, its content, the parts of the digest, and its model's name.

    `content` is a serialized `kernelfarm.v1.Trace`. `model` may be empty. `tags` are added to those
    of all traces.
    """

    digest: bytes
    content: bytes = field(repr=False)
    parts: Mapping[str, str]
    model: str = ""
    tags: tuple[str, ...] = ()


def publish_trace(
    client: FarmClient, signer: Signer, trace: PublishedTrace, made_in: Epoch, timeout_s: float
) -> pb.PutTraceOutcome.ValueType:
    """Signs a trace for the client's namespace and publishes it; returns the farm's outcome.

    `made_in` is an epoch from before the graph was traced: a later invalidation makes it stale.

    Raises:
        KernelfarmError: the farm refuses the trace, or does not answer.
    """
    manifest = signer.sign(_statement(client.settings.namespace, trace, made_in))
    signed = manifest_pb2.SignedVariant(manifest=manifest_to_proto(manifest), content=trace.content)
    return TraceClient(client).put(signed, trace.parts, timeout_s)


def _statement(namespace: str, trace: PublishedTrace, made_in: Epoch) -> Manifest:
    tenant = namespace.partition("/")[2]
    tags = {CAPTURE_TAG, *trace.tags}
    tags.update([model_tag(trace.model)] if trace.model else [])
    tags.update([tenant_tag(tenant)] if tenant else [])
    return Manifest(
        namespace=namespace,
        space=Space.TRACES,
        key=trace.digest,
        variant_id=variant_id(()),
        guard=(),
        tags=tuple(sorted(tags)),
        epoch=made_in.number,
        incarnation=made_in.incarnation,
        content=blob_ref(trace.content),
        blobs=(),
        cost_ms=0.0,
        not_after_s=int(time.time() + TRACE_VALIDITY_S),
    )
