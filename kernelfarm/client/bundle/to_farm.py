"""Imports a bundle into a farm, which verifies each program and signs it again as its own.

A farm cannot sign traces. So this user verifies the traces of a bundle, and publishes them again
with a key for traces of this fleet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelfarm.client.bundle.contents import SignedContent, check_origin, program_of, traces_of
from kernelfarm.client.bundle.layout import StoredProgram
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.trace_client import TraceClient
from kernelfarm.client.traces.header import parted
from kernelfarm.client.traces.publication import Epoch, PublishedTrace, publish_trace
from kernelfarm.client.warming.retry import Retry
from kernelfarm.errors import (
    CallerError,
    KernelfarmError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
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
_ENDS_IMPORT = (PermissionDeniedError, UnauthenticatedError, UnavailableError)
"""Errors that the next program would have too."""


@dataclass(slots=True)
class ImportReport:
    """What an import did: numbers of programs and traces, and why others were refused."""

    stored: int = 0
    present: int = 0
    traces: int = 0
    refused: list[str] = field(default_factory=list)
    skipped_traces: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FarmImporter:
    """Imports programs with an administrator's credentials.

    `admin` calls the cache service, `client` publishes traces in the same namespace. Without a
    `signer` traces are skipped. `origins` are the keys that may have signed the bundle's traces.
    """

    admin: CacheAdmin
    client: FarmClient
    max_request_bytes: int
    signer: Signer | None
    origins: Keyring
    retry: Retry
    accepts_invalidated: bool = False

    def add(self, stored: StoredProgram, report: ImportReport) -> None:
        """Imports one program with its traces; a refusal is reported and does not end the import.

        Raises:
            PermissionDeniedError, UnauthenticatedError: the caller is no administrator.
            UnavailableError: the farm does not answer.
        """
        try:
            program = program_of(stored)
            outcome = self._program(stored, program)
        except _ENDS_IMPORT:
            raise
        except KernelfarmError as error:
            report.refused.append(f"{stored.target}: {error.reason}: {error}")
            return
        if outcome == api.IMPORT_OUTCOME_STORED:
            report.stored += 1
        else:
            report.present += 1
        for trace in traces_of(stored):
            self._trace(trace, program.manifest.key, report)

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

    def _trace(self, trace: SignedContent, key: bytes, report: ImportReport) -> None:
        name = f"trace {trace.manifest.key.hex()[:16]}"
        if self.signer is None:
            report.skipped_traces.append(f"{name}: no key for traces (KERNELFARM_TRACE_KEY_FILE)")
            return
        try:
            reason = self._publish(self.signer, trace, key)
        except KernelfarmError as error:
            reason = f"{error.reason}: {error}"
        if reason:
            report.skipped_traces.append(f"{name}: {reason}")
        else:
            report.traces += 1

    def _publish(self, signer: Signer, trace: SignedContent, key: bytes) -> str:
        """Publishes a trace as one of this fleet; returns why it is missing, or nothing."""
        found = check_origin(trace, key, self.origins)
        digest = trace.manifest.key
        answer = self.retry(
            lambda: TraceClient(self.client).lookup(
                digest, NO_FACTS, (), _TRACE_TIMEOUT_S, wants_program=False
            )
        )
        if answer.trace is not None:
            return ""
        if answer.miss is None:
            return "the farm answered neither with a trace nor with a miss"
        header, _ = parted(found.entry)
        models = [t.removeprefix(_MODEL) for t in trace.manifest.tags if t.startswith(_MODEL)]
        model = models[0] if models else ""
        own = PublishedTrace(digest, trace.content, header.parts, model)
        made_in = Epoch(answer.miss.incarnation, answer.miss.epoch)
        outcome = self.retry(
            lambda: publish_trace(self.client, signer, own, made_in, _TRACE_TIMEOUT_S)
        )
        return "" if outcome != pb.PUT_TRACE_OUTCOME_STALE else "it was invalidated just now"
