"""Checks what a farm returns to commands that need no torch: traces by their signatures alone."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.errors import MalformedMessageError
from kernelfarm.signing import CacheAddress, Space, check_content
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto


def checked_trace(client: FarmClient, sent: manifest_pb2.SignedVariant, digest: bytes) -> bytes:
    """The program key (32 bytes) that a trace names, after verifying its signature.

    Raises:
        IntegrityError: no trusted key for traces signed it for this digest.
        MalformedMessageError: it is not a trace.
    """
    manifest = manifest_from_proto(sent.manifest)
    namespaces = client.settings.namespaces
    namespace = manifest.namespace if manifest.namespace in namespaces else namespaces[0]
    client.verifier.check(manifest, CacheAddress(namespace, Space.TRACES, digest))
    check_content(manifest, sent.content)
    try:
        return pb.Trace.FromString(sent.content).program_key
    except DecodeError as error:
        raise MalformedMessageError(f"{len(sent.content)} bytes that are not a trace") from error
