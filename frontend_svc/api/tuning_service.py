"""The public API for measured times, by which clients choose among the candidates of a kernel."""

from __future__ import annotations

import hashlib

import grpc.aio

from frontend_svc.cache.tenant_caches import TenantCaches
from kernelfarm.cache.tuning_records import TuningState, TuningSubject
from kernelfarm.digest import DIGEST_BYTES
from kernelfarm.errors import CallerError
from kernelfarm.service.tenants.identity import CACHE_USERS, Role, current_identity
from kernelfarm.v1 import tuning_service_pb2 as api
from kernelfarm.v1.tuning_service_pb2_grpc import TuningServiceServicer

TUNING_SERVICE = "kernelfarm.v1.TuningService"

_MAX_CANDIDATES = 256
_MAX_DEVICE_CHARS = 200
_REPORTER_BYTES = 16
_RETRY_AFTER_MS = 2000
_MAX_TIME_NS = 3600 * 10**9

Context = grpc.aio.ServicerContext[object, object]


class TuningService(TuningServiceServicer):
    """Implements `kernelfarm.v1.TuningService`."""

    def __init__(self, tenant_caches: TenantCaches) -> None:
        self._tenant_caches = tenant_caches

    async def LookupTuning(
        self, request: api.LookupTuningRequest, context: Context
    ) -> api.LookupTuningResponse:
        """Finds the fastest candidate, and asks some callers to measure."""
        identity = current_identity()
        identity.require(*CACHE_USERS)
        subject, reporter = _subject(request.subject), _reporter(request.reporter)
        can_measure = request.can_measure and not identity.roles.isdisjoint(
            (Role.MEMBER, Role.WARMER)
        )
        tuning = self._tenant_caches.of(identity.namespace_config).tuning
        state = await tuning.find(subject, reporter, can_measure=can_measure)
        return api.LookupTuningResponse(
            winner=_winner(state),
            should_measure=state.may_measure,
            retry_after_ms=0 if state.is_settled else _RETRY_AFTER_MS,
        )

    async def ReportTuning(
        self, request: api.ReportTuningRequest, context: Context
    ) -> api.ReportTuningResponse:
        """Stores the times that a caller measured."""
        identity = current_identity()
        identity.require(Role.MEMBER, Role.WARMER)
        subject, reporter = _subject(request.subject), _reporter(request.reporter)
        times_ns = request.times_ns
        if len(times_ns) != subject.candidates:
            raise CallerError(
                f"{len(times_ns)} times of {subject.candidates} candidates; expected one of each,"
                " 0 for those that were not measured"
            )
        if not any(times_ns) or max(times_ns) > _MAX_TIME_NS:
            raise CallerError(
                f"times up to {max(times_ns)} ns; expected at least one, and at most an hour"
            )
        tuning = self._tenant_caches.of(identity.namespace_config).tuning
        return api.ReportTuningResponse(
            winner=_winner(await tuning.add(subject, reporter, times_ns))
        )


def _subject(subject: api.TuningSubject) -> TuningSubject:
    if len(subject.digest) != DIGEST_BYTES:
        raise CallerError(f"a digest of {len(subject.digest)} bytes; expected {DIGEST_BYTES}")
    if not 2 <= subject.candidates <= _MAX_CANDIDATES:
        raise CallerError(f"{subject.candidates} candidates; expected 2 to {_MAX_CANDIDATES}")
    if not 1 <= len(subject.device) <= _MAX_DEVICE_CHARS:
        raise CallerError(
            f"a device of {len(subject.device)} characters; expected 1 to {_MAX_DEVICE_CHARS}"
        )
    return TuningSubject(subject.digest, subject.device, subject.candidates)


def _reporter(reporter: bytes) -> str:
    """A caller's name among the reports: that of its process, and the credential that it has."""
    if len(reporter) != _REPORTER_BYTES:
        raise CallerError(f"a reporter of {len(reporter)} bytes; expected {_REPORTER_BYTES}")
    credential = current_identity().credential.encode()
    return hashlib.sha256(reporter + credential).hexdigest()[: 2 * _REPORTER_BYTES]


def _winner(state: TuningState) -> api.TuningWinner | None:
    if state.winner is None:
        return None
    return api.TuningWinner(candidate=state.winner, reports=state.reports)
