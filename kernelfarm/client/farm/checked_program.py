"""From a signed statement to a program: nothing of it is used before all of it was checked."""

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
    """What was asked for: a manifest that tells of anything else is refused.

    `namespaces` are those whose programs are believed, our own first.
    """

    namespaces: tuple[str, ...]
    key: bytes
    target: str
    facts: CallerFacts = NO_FACTS


def checked_program(
    message: pb.ProgramResult, expected: ExpectedProgram, check: CheckManifest
) -> CompiledProgram:
    """The program of a farm's answer.

    Raises:
        IntegrityError: manifest or content are not what their publisher made for this key.
        MalformedMessageError: nothing signed was sent, or it is no program.
    """
    if not message.HasField("signed"):
        raise MalformedMessageError(
            "the farm sent a program without its manifest: it is older than this client"
        )
    manifest = manifest_from_proto(message.signed.manifest)
    content = message.signed.content
    checked = checked_content(manifest, content, expected, check)
    checked.outcome = message.outcome
    checked.codegen_jobs = message.codegen_jobs
    return decode_program(checked, manifest, content)


def checked_content(
    manifest: Manifest, content: bytes, expected: ExpectedProgram, check: CheckManifest
) -> pb.ProgramResult:
    """The message that a manifest's content is, once both were checked.

    Raises:
        IntegrityError: as `checked_program`.
        MalformedMessageError: the content is no program.
    """
    namespace = manifest.namespace
    if namespace not in expected.namespaces:
        namespace = expected.namespaces[0]
    check(manifest, CacheAddress(namespace, Space.PROGRAMS, expected.key))
    failing = first_failing(manifest.guard, expected.facts)
    if failing is not None:
        raise ManifestMismatchError(
            f"program {expected.key.hex()[:16]} is for callers with {failing}; here it is not so"
        )
    check_content(manifest, content)
    try:
        message = pb.ProgramResult.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(f"{len(content)} bytes that are no program") from error
    if message.key != expected.key or (expected.target and message.target != expected.target):
        raise ManifestMismatchError(
            f"program {expected.key.hex()[:16]} for {expected.target}: the content is of"
            f" {message.key.hex()[:16]} for {message.target}"
        )
    return message
