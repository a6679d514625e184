"""The signed programs and traces of a bundle, decoded, with the checks that all imports share."""

from __future__ import annotations

import time
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from kernelfarm.client.bundle.layout import StoredProgram
from kernelfarm.digest import DIGEST_BYTES
from kernelfarm.errors import MalformedMessageError
from kernelfarm.signing import CacheAddress, Keyring, Manifest, Space, check_content, check_manifest
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto


@dataclass(frozen=True, slots=True)
class SignedContent:
    """A manifest with its content, and the message that has both."""

    manifest: Manifest
    content: bytes
    message: manifest_pb2.SignedVariant


def program_of(stored: StoredProgram) -> SignedContent:
    """The signed program of a bundle; nothing is verified but digests of files.

    Raises:
        MalformedMessageError: it is none.
    """
    return _signed(stored.signed())


def traces_of(stored: StoredProgram) -> list[SignedContent]:
    """The signed traces of a program; nothing is verified but digests of files."""
    return [_signed(content) for content in stored.traces()]


def check_origin(trace: SignedContent, program_key: bytes, keyring: Keyring) -> pb.Trace:
    """A trace of another farm's publisher, verified by the keys that this user trusts.

    Its validity limits how long clients use it, not when it is imported.

    Raises:
        IntegrityError: no trusted key for traces signed it, or it was changed.
        MalformedMessageError: it is not a trace of this program.
    """
    manifest = trace.manifest
    address = CacheAddress(manifest.namespace, Space.TRACES, manifest.key)
    check_manifest(manifest, address, keyring, min(time.time(), manifest.not_after_s))
    check_content(manifest, trace.content)
    try:
        found = pb.Trace.FromString(trace.content)
    except DecodeError as error:
        raise MalformedMessageError(f"{len(trace.content)} bytes that are not a trace") from error
    if found.program_key != program_key or len(program_key) != DIGEST_BYTES:
        raise MalformedMessageError(
            f"trace {manifest.key.hex()[:16]} names program {found.program_key.hex()[:16]};"
            f" expected {program_key.hex()[:16]}"
        )
    return found


def _signed(content: bytes) -> SignedContent:
    try:
        message = manifest_pb2.SignedVariant.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(
            f"{len(content)} bytes of the bundle that are no kernelfarm.v1.SignedVariant"
        ) from error
    return SignedContent(manifest_from_proto(message.manifest), message.content, message)
