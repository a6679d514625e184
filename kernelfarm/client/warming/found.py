"""What a farm returned, as batch commands state it; needs no torch.

Traces are checked by their signatures alone: only a client with torch can decode them.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.compiled_program import CompiledProgram
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


def toolchains_of(program: CompiledProgram) -> list[str]:
    """The toolchains that took part in a program, `backend@fingerprint`, sorted."""
    prefix = "toolchain:"
    return [tag.removeprefix(prefix) for tag in program.manifest.tags if tag.startswith(prefix)]


def kernels_of(program: CompiledProgram) -> list[str]:
    """The keys of a program's kernels (hex), each once, in the plan's order."""
    return list(dict.fromkeys(key.hex() for key in program.plan.kernel_keys))
