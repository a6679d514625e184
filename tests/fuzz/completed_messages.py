"""Completes mutated messages with facts of the farm, so that they pass the first checks.

Traces are signed after the mutation; keys and digests become those of a program in the farm's
cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from kernelfarm.errors import KernelfarmError
from kernelfarm.signing import Signer, Space
from kernelfarm.signing.key_files import TRACE_KEY, read_signer
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.targets import all_targets
from kernelfarm.v1 import trace_service_pb2 as traces
from kernelfarm.v1.trace_service_pb2_grpc import TraceServiceStub
from kernelfarm.wire.manifest import manifest_from_proto
from tests.fuzz.farm_call import LONG
from tests.fuzz.messages import Rpc
from tests.support.calls import compile_at
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.small_graphs import CPU, h_request

_KEY_FIELDS = ("key", "digest", "program_key")
_MUCH = 0.6


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """Facts that a client of this farm can know."""

    signer: Signer
    program_key: bytes
    blobs: tuple[bytes, ...]
    epoch: int
    incarnation: str
    vendors: frozenset[str]

    def change(self, rpc: Rpc, data: bytes, random: Random) -> bytes:
        """The message with valid keys or a signature; bytes that are no message stay unchanged."""
        try:
            message = rpc.request.FromString(data)
        except DecodeError:
            return data
        if rpc.name in LONG and self._aim(message):
            data = message.SerializeToString()
        if random.random() > _MUCH:
            return data
        if isinstance(message, traces.PutTraceRequest):
            self._sign(message, random)
        else:
            self._fill(message, random)
        return message.SerializeToString()

    def _aim(self, message: Any) -> bool:
        """Sets targets that the farm has workers for: calls for others wait half a minute."""
        fields, before = message.DESCRIPTOR.fields_by_name, message.SerializeToString()
        if "target" in fields:
            message.target = self._served(message.target)
        elif "targets" in fields:
            message.targets[:] = map(self._served, message.targets)
        return bool(message.SerializeToString() != before)

    def _served(self, target: str) -> str:
        facts = all_targets().get(target)
        return target if facts is None or facts.vendor in self.vendors else CPU

    def _fill(self, message: Message, random: Random) -> None:
        for name in message.DESCRIPTOR.fields_by_name:
            if name in _KEY_FIELDS and len(getattr(message, name)) == 32:
                setattr(message, name, self.program_key)
            elif name in ("sha256", "held") and random.random() < 0.5:
                digests = getattr(message, name)
                digests.extend(random.choices(self.blobs, k=random.choice((1, 3, 20))))

    def _sign(self, request: traces.PutTraceRequest, random: Random) -> None:
        message = request.trace.manifest
        content = blob_ref(request.trace.content)
        message.content.sha256, message.content.size_bytes = content.sha256, content.size_bytes
        message.epoch, message.incarnation = self.epoch, self.incarnation
        message.key_id = self.signer.trusted.key_id
        try:
            manifest = manifest_from_proto(message)
            message.signature = self.signer.sign(manifest).signature
        except (KernelfarmError, ValueError, OverflowError):
            return


def known_facts(farm: Farm, vendors: Iterable[str] = ("cpu",)) -> KnownFacts:
    """Compiles a program, and reads the epoch."""
    program = compile_at(farm.endpoint, h_request(16, 32)).program
    blobs = [stage.blob.sha256 for a in program.artifacts for stage in a.stages]
    with grpc.insecure_channel(farm.endpoint) as channel:
        request = traces.LookupTraceRequest(digest=bytes(32))
        stub = TraceServiceStub(channel)
        (answer,) = list(stub.LookupTrace(request, timeout=TIMEOUT_S))
    signer = read_signer(farm.data_dir / "keys" / TRACE_KEY, Space.TRACES)
    return KnownFacts(
        signer=signer,
        program_key=program.key,
        blobs=tuple(blobs),
        epoch=answer.miss.epoch,
        incarnation=answer.miss.incarnation,
        vendors=frozenset(vendors),
    )
