"""Imports a bundle into a farm, which verifies each program and signs it again as its own.

A farm cannot sign traces and packages. So this user verifies those of a bundle, and publishes them
again with a key for traces of this fleet. Packages have code, which clients of this fleet then run:
the user must ask for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelfarm.client.bundle.contents import (
    ENDS_IMPORT,
    PACKAGE,
    SharedContent,
    SignedContent,
    TuningImport,
    check_origin,
    note_unread,
    program_of,
    shared_contents,
)
from kernelfarm.client.bundle.layout import StoredProgram
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.farm.checked_tuning import SignedTuning
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.trace_client import TraceClient
from kernelfarm.client.traces.publication import Epoch, PublishedTrace, publish_trace
from kernelfarm.client.warming.retry import Retry
from kernelfarm.errors import CallerError, KernelfarmError, UnavailableError
from kernelfarm.ir.guards import NO_FACTS
from kernelfarm.signing import Keyring, Signer
from kernelfarm.v1 import cache_service_pb2 as api
from kernelfarm.v1 import trace_service_pb2 as pb

_CALL_BYTES = 4 << 20
"""Contents that one call sends together."""
_HEAD_BYTES = 64 << 10
"""What a request may take beside contents and program."""
_MAX_CALLS = 10_000
_TRACE_TIMEOUT_S = 30.0
_MODEL = "model:"
_STALE = (
    "it depends on something that this farm invalidated: if it was made after the mistake was"
    " corrected, import it with --accept-invalidated"
)


@dataclass(slots=True)
class ImportReport:
    """What an import did: numbers of programs, traces and packages; why others were refused.

    `tuning` are the tuning records that the farm took, and `reports` the reports of them that it
    did not have. `skipped` is what the farm does not have, with the reason.
    """

    stored: int = 0
    present: int = 0
    traces: int = 0
    packages: int = 0
    tuning: int = 0
    reports: int = 0
    refused: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FarmImporter:
    """Imports programs with an administrator's credentials.

    `admin` calls the cache service, `client` publishes traces in the same namespace. Without a
    `signer` traces and packages are skipped, and packages also without `signs_packages`. `origins`
    are the keys that may have signed those of the bundle. Tuning records are those of
    `devices`, or all of them.
    """

    admin: CacheAdmin
    client: FarmClient
    max_request_bytes: int
    signer: Signer | None
    origins: Keyring
    retry: Retry
    accepts_invalidated: bool = False
    signs_packages: bool = False
    devices: frozenset[str] = frozenset()

    def add(self, stored: StoredProgram, report: ImportReport) -> None:
        """Imports a program with what belongs to it; a refusal does not end the import.

        Raises:
            PermissionDeniedError, UnauthenticatedError: the caller is no administrator.
            UnavailableError: the farm does not answer.
        """
        try:
            program = program_of(stored)
            outcome = self._program(stored, program)
        except ENDS_IMPORT:
            raise
        except KernelfarmError as error:
            report.refused.append(f"{stored.target}: {error.reason}: {error}")
            note_unread(stored, report.skipped)
            return
        if outcome == api.IMPORT_OUTCOME_STORED:
            report.stored += 1
        else:
            report.present += 1
        for shared in shared_contents(stored):
            self._share(shared, program.manifest.key, report)
        self._add_tuning(stored, report)

    def _add_tuning(self, stored: StoredProgram, report: ImportReport) -> None:
        """Adds the reports of tuning records, which the farm verifies, to those of the farm."""

        def add(found: SignedTuning) -> None:
            sent = found.to_proto()
            report.reports += self.retry(lambda: self.admin.import_tuning(sent))

        report.tuning += TuningImport(add, self.devices, report.skipped).run(stored)

    def _program(
        self, stored: StoredProgram, program: SignedContent
    ) -> api.ImportOutcome.ValueType:
        missing: Sequence[bytes] = ()
        for _ in range(_MAX_CALLS):
            request = api.ImportProgramRequest(
                program=program.message,
                contents=self._contents(stored, missing, program.message.ByteSize()),
                accepts_invalidated=self.accepts_invalidated,
            )
            answer = self.retry(lambda request=request: self.admin.import_program(request))  # type: ignore[misc]
            if answer.outcome != api.IMPORT_OUTCOME_MISSING_BLOBS:
                return answer.outcome
            if not answer.missing_blobs:
                break
            missing = answer.missing_blobs
        raise UnavailableError(
            f"the farm still misses blobs of program {program.manifest.key.hex()[:16]}: its cache"
            " evicts them; give it more memory"
        )

    def _contents(
        self, stored: StoredProgram, missing: Sequence[bytes], program_bytes: int
    ) -> list[bytes]:
        """The first missing blobs, as many as fit into one call."""
        free_bytes = self.max_request_bytes - program_bytes - _HEAD_BYTES
        found: list[bytes] = []
        size_bytes = 0
        for sha256 in missing:
            content = stored.blob(sha256)
            if len(content) > free_bytes:
                raise CallerError(
                    f"a blob of {len(content)} bytes; this farm accepts requests of"
                    f" {self.max_request_bytes} bytes (KERNELFARM_MAX_MESSAGE_BYTES)"
                )
            if found and size_bytes + len(content) > min(free_bytes, _CALL_BYTES):
                break
            found.append(content)
            size_bytes += len(content)
        return found

    def _share(self, shared: SharedContent, key: bytes, report: ImportReport) -> None:
        is_package = shared.kind is PACKAGE
        try:
            reason = self._why_not(shared, key)
        except KernelfarmError as error:
            reason = f"{error.reason}: {error}"
        if reason:
            report.skipped.append(f"{shared.name}: {reason}")
        elif is_package:
            report.packages += 1
        else:
            report.traces += 1

    def _why_not(self, shared: SharedContent, key: bytes) -> str:
        """Publishes an entry as one of this fleet; returns why it is missing, or nothing."""
        if self.signer is None:
            return "no key for traces (KERNELFARM_TRACE_KEY_FILE)"
        if shared.kind is PACKAGE and not self.signs_packages:
            return "it has code that clients would run: sign it with --packages"
        parts = check_origin(shared, key, self.origins)
        manifest = shared.signed.manifest
        answer = self.retry(
            lambda: TraceClient(self.client).lookup(
                manifest.key, NO_FACTS, (), _TRACE_TIMEOUT_S, wants_program=False
            )
        )
        if answer.trace is not None:
            return ""
        if answer.miss is None:
            return "the farm answered neither with a trace nor with a miss"
        # At epoch 0, the farm refuses what depends on anything that it ever invalidated.
        epoch = answer.miss.epoch if self.accepts_invalidated else 0
        made_in = Epoch(answer.miss.incarnation, epoch)
        return self._publish(self.signer, _own(shared, parts), made_in)

    def _publish(self, signer: Signer, entry: PublishedTrace, made_in: Epoch) -> str:
        outcome = self.retry(
            lambda: publish_trace(self.client, signer, entry, made_in, _TRACE_TIMEOUT_S)
        )
        return _STALE if outcome == pb.PUT_TRACE_OUTCOME_STALE else ""


def _own(shared: SharedContent, parts: Mapping[str, str]) -> PublishedTrace:
    """The entry as this fleet's publisher signs it, for the same model."""
    manifest = shared.signed.manifest
    models = [tag.removeprefix(_MODEL) for tag in manifest.tags if tag.startswith(_MODEL)]
    model = models[0] if models else ""
    return PublishedTrace(manifest.key, shared.signed.content, parts, model, shared.kind.tags)
