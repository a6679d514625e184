"""Verifies a signed program before any part of it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from kernelfarm.client.farm.compiled_program import CompiledProgram, decode_program
from kernelfarm.errors import MalformedMessageError, ManifestMismatchError
from kernelfarm.ir.guards import NO_FACTS, CallerFacts, first_failing
from kernelfarm.signing import CacheAddress, Manifest, Space, check_content
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto

CheckManifest = Callable[[Manifest, CacheAddress], None]


@dataclass(frozen=True, slots=True)
class ExpectedProgram:
    """The program that was requested; a manifest of any other program is refused.

    `namespaces` are those whose programs are accepted, the client's own first.
    """

    namespaces: tuple[str, ...]
    key: bytes
    target: str
    facts: CallerFacts = NO_FACTS


def checked_program(
    message: pb.ProgramResult, expected: ExpectedProgram, check: CheckManifest
) -> CompiledProgram:
    """The verified program of a farm's response.

    Raises:
        IntegrityError: the manifest or the content is not what its publisher made for this key.
        MalformedMessageError: the response is not signed, or is not a program.
    """
    if not message.HasField("signed"):
        raise MalformedMessageError(
            "the farm sent a program without its manifest: the farm is older than this client"
        )
    manifest = manifest_from_proto(message.signed.manifest)
    content = message.signed.content
    checked = checked_content(manifest, content, expected, check)
    checked.outcome = message.outcome
    checked.codegen_jobs = message.codegen_jobs
    checked.tier = message.tier
    return decode_program(checked, manifest, content)


def checked_content(
    manifest: Manifest, content: bytes, expected: ExpectedProgram, check: CheckManifest
) -> pb.ProgramResult:
    """The message in a program's content, after verifying manifest and content.

    Raises:
        IntegrityError: see `checked_program`.
        MalformedMessageError: the content is not a program.
    """
    namespace = manifest.namespace
    if namespace not in expected.namespaces:
        namespace = expected.namespaces[0]
    check(manifest, CacheAddress(namespace, Space.PROGRAMS, expected.key))
    failing = first_failing(manifest.guard, expected.facts)
    if failing is not None:
        raise ManifestMismatchError(
            f"program {expected.key.hex()[:16]} requires {failing}, which does not hold here"
        )
    check_content(manifest, content)
    try:
        message = pb.ProgramResult.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(f"{len(content)} bytes that are not a program") from error
    if message.key != expected.key or (expected.target and message.target != expected.target):
        raise ManifestMismatchError(
            f"expected program {expected.key.hex()[:16]} for {expected.target}, got"
            f" {message.key.hex()[:16]} for {message.target}"
        )
    return message
