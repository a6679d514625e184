"""Reads what a certificate names from a farm, and writes it as a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kernelfarm.client.bundle.layout import BundledProgram, BundleWriter
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.trace_client import TraceClient
from kernelfarm.client.warming.certificate import ProgramCoverage, TraceCoverage
from kernelfarm.client.warming.found import checked_trace
from kernelfarm.client.warming.retry import Retry
from kernelfarm.errors import CallerError, KernelfarmError
from kernelfarm.ir.guards import NO_FACTS
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.manifest import manifest_to_proto

_TRACE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: numbers of programs, traces, packages and distinct blobs.

    `valid_until_s` is the time (seconds since 1970) until which clients may use all of the programs
    without a farm.
    """

    programs: int
    traces: int
    packages: int
    blobs: int
    valid_until_s: int


def export_programs(
    entries: Sequence[ProgramCoverage],
    client: FarmClient,
    writer: BundleWriter,
    retry: Retry,
    on_program: Callable[[ProgramCoverage], None],
) -> Exported:
    """Writes the present entries of a certificate into a bundle; equal programs once.

    Raises:
        CallerError: no entry is present, or the farm does not have one any more.
        IntegrityError: no trusted key signed a program, trace or package.
        UnavailableError: the farm does not answer.
    """
    by_key: dict[str, list[ProgramCoverage]] = {}
    for entry in entries:
        if entry.is_present:
            by_key.setdefault(entry.key, []).append(entry)
    if not by_key:
        raise CallerError("the certificate has no present program that was asked for")
    traces, packages, blobs, ends_s = 0, 0, set[bytes](), []
    for key in sorted(by_key):
        entry = by_key[key][0]
        try:
            program, not_after_s = _program(by_key[key], client, retry)
        except KernelfarmError as error:
            raise type(error)(f"{entry.title}: {error}") from error
        writer.add(program)
        traces += len(program.traces)
        packages += len(program.packages)
        blobs.update(program.blobs)
        ends_s.append(not_after_s)
        on_program(entry)
    return Exported(len(by_key), traces, packages, len(blobs), min(ends_s))


def _program(
    entries: Sequence[ProgramCoverage], client: FarmClient, retry: Retry
) -> tuple[BundledProgram, int]:
    key = bytes.fromhex(entries[0].key)
    found = retry(lambda: client.lookup(key))
    signed = manifest_pb2.SignedVariant(
        manifest=manifest_to_proto(found.manifest), content=found.content
    )
    digests = [blob.sha256 for blob in found.manifest.blobs]
    program = BundledProgram(
        key,
        found.target,
        tuple({entry.model for entry in entries}),
        signed.SerializeToString(deterministic=True),
        tuple(_signed("trace", [entry.trace for entry in entries], client, retry)),
        retry(lambda: client.read_blobs(digests)),
        tuple(_signed("package", [entry.package for entry in entries], client, retry)),
    )
    return program, found.manifest.not_after_s


def _signed(
    kind: str, stated: Sequence[TraceCoverage | None], client: FarmClient, retry: Retry
) -> Iterator[bytes]:
    """The present traces or packages, each once, as they were signed."""
    present = {found.digest for found in stated if found is not None and found.state == "present"}
    for text in sorted(present):
        digest = bytes.fromhex(text)
        answer = retry(
            lambda digest=digest: TraceClient(client).lookup(  # type: ignore[misc] # bound here
                digest, NO_FACTS, (), _TRACE_TIMEOUT_S, wants_program=False
            )
        )
        if answer.trace is None:
            raise CallerError(f"the farm does not have {kind} {text[:16]} any more; warm it again")
        checked_trace(client, answer.trace, digest)
        yield answer.trace.SerializeToString(deterministic=True)
