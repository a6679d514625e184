"""Reads what a certificate names from a farm, and writes it as a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kernelfarm.client.bundle.export_tuning import TuningExport
from kernelfarm.client.bundle.layout import BundledProgram, BundleWriter
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.trace_client import TraceClient
from kernelfarm.client.warming.certificate import ProgramCoverage, TraceCoverage
from kernelfarm.client.warming.found import checked_trace
from kernelfarm.client.warming.retry import Retry
from kernelfarm.errors import CallerError, KernelfarmError, UnavailableError
from kernelfarm.ir.guards import NO_FACTS
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.manifest import manifest_to_proto

_TRACE_TIMEOUT_S = 30.0
_NEVER_S = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: numbers of programs, traces, packages, tuning records and distinct blobs.

    `left_out` are choices of the fleet that the bundle does not have, with the reason.
    `valid_until_s` is the time (seconds since 1970) until which clients may use all of the programs
    without a farm.
    """

    programs: int
    traces: int
    packages: int
    tuning: int
    blobs: int
    valid_until_s: int
    left_out: tuple[str, ...] = ()


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
    export = _Export(client, writer, retry)
    for key in sorted(by_key):
        entry = by_key[key][0]
        try:
            export.add(by_key[key])
        except KernelfarmError as error:
            raise type(error)(f"{entry.title}: {error}") from error
        on_program(entry)
    return export.exported()


class _Export:
    """The programs that were written, each once."""

    def __init__(self, client: FarmClient, writer: BundleWriter, retry: Retry) -> None:
        self._client, self._writer, self._retry = client, writer, retry
        self._tuning = TuningExport(client, retry)
        self._models: dict[bytes, tuple[str, ...]] = {}
        self._blobs: set[bytes] = set()
        self._done = Exported(0, 0, 0, 0, 0, _NEVER_S)

    def add(self, entries: Sequence[ProgramCoverage]) -> None:
        """Writes the program of these entries, and those that the fleet chose in its place."""
        models = {entry.model for entry in entries}
        tuning = [record for entry in entries for record in self._choices(entry, models)]
        traces = _signed("trace", [entry.trace for entry in entries], self._client, self._retry)
        packages = _signed(
            "package", [entry.package for entry in entries], self._client, self._retry
        )
        program = self._read(bytes.fromhex(entries[0].key), models)
        self._write(
            replace(
                program,
                traces=tuple(traces),
                packages=tuple(packages),
                tuning=tuple(dict.fromkeys(tuning)),
            )
        )

    def exported(self) -> Exported:
        """What was written."""
        return replace(self._done, programs=len(self._models), blobs=len(self._blobs))

    def _choices(self, entry: ProgramCoverage, models: set[str]) -> Iterator[bytes]:
        """The records of what the fleet chose, after the chosen programs were written."""
        for stated in entry.tuning or ():
            try:
                records = self._tuning.records(stated)
                if stated.key:
                    self._write(self._read(bytes.fromhex(stated.key), models))
            except UnavailableError:
                raise
            except KernelfarmError as error:
                reason = f"{entry.title}, tuning on {stated.device}: {error}"
                self._done = replace(self._done, left_out=(*self._done.left_out, reason))
            else:
                yield from records

    def _write(self, program: BundledProgram) -> None:
        self._writer.add(program)
        self._models[program.key] = program.models
        self._blobs.update(program.blobs)
        done = self._done
        self._done = replace(
            done,
            traces=done.traces + len(program.traces),
            packages=done.packages + len(program.packages),
            tuning=done.tuning + len(program.tuning),
        )

    def _read(self, key: bytes, models: set[str]) -> BundledProgram:
        found = self._retry(lambda: self._client.lookup(key))
        signed = manifest_pb2.SignedVariant(
            manifest=manifest_to_proto(found.manifest), content=found.content
        )
        digests = [blob.sha256 for blob in found.manifest.blobs]
        blobs = self._retry(lambda: self._client.read_blobs(digests))
        ends_s = min(self._done.valid_until_s, found.manifest.not_after_s)
        self._done = replace(self._done, valid_until_s=ends_s)
        return BundledProgram(
            key,
            found.target,
            tuple(models.union(self._models.get(key, ()))),
            signed.SerializeToString(deterministic=True),
            (),
            blobs,
        )


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
